// @ts-check
"use strict";
/**
 * The page: reads the facts and shows one view at a time.
 */

/** @type {[string, (at: HTMLElement) => Shown][]} */
const VIEWS = [
  ["Summary", summaryView],
  ["Timeline", timelineView],
  ["Liveness", livenessView],
  ["Memory", memoryView],
  ["BSP", bspView],
  ["Modules", modulesView],
  ["Operations", operationsView],
  ["Links", linksView],
  ["Critical path", pathView],
];

/** The facts from their bytes: the length of a JSON text, the text, and the columns of numbers that it refers to.
 * @param {ArrayBuffer} buffer */
function unpacked(buffer) {
  const types = { int8: Int8Array, int16: Int16Array, int32: Int32Array, float64: Float64Array };
  const length = new DataView(buffer).getUint32(0, true);
  const columns = 8 * Math.ceil((4 + length) / 8);
  const column = (/** @type {["int8" | "int16" | "int32" | "float64", number, number]} */ [type, begin, count]) =>
    Array.from(new types[type](buffer, columns + begin, count));
  const text = new TextDecoder().decode(new Uint8Array(buffer, 4, length));
  return JSON.parse(text, (_, value) => (value && value.$ ? column(value.$) : value));
}

async function main() {
  const encoded = /** @type {HTMLElement} */ (document.getElementById("facts")).textContent || "";
  const packed = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  facts = unpacked(await new Response(stream).arrayBuffer());
  const tabs = /** @type {HTMLElement} */ (document.getElementById("tabs"));
  const views = /** @type {HTMLElement} */ (document.getElementById("views"));
  /** @type {Map<number, {at: HTMLElement, shown: Shown}>} */ const sections = new Map();
  let current = 0;
  const addressName = (/** @type {number} */ number) => VIEWS[number][0].toLowerCase().replace(" ", "-");
  const redraw = () => sections.get(current)?.shown.draw?.();
  /** What the address of the present state is. */
  function address() {
    const { at, shown } = /** @type {{at: HTMLElement, shown: Shown}} */ (sections.get(current));
    const values = {
      ...shown.state?.(),
      ...sortedTables(at),
      units: inCycles ? "" : "us",
      colours: safeColours && "safe",
    };
    return "#" + addressName(current) + addressText(values);
  }
  /** Show a view, as it was left, or as the values of an address say. @param {number} number @param {URLSearchParams} [values] */
  function show(number, values) {
    if (!values) addresses.remember();
    current = number;
    let section = sections.get(number);
    if (!section) {
      const at = make("section", { id: "view-" + number, "aria-label": VIEWS[number][0] });
      views.append(at);
      sections.set(number, (section = { at, shown: VIEWS[number][1](at) || {} }));
    }
    for (const [other, { at }] of sections) at.hidden = other !== number;
    Array.from(tabs.children).forEach((tab, place) => tab.setAttribute("aria-selected", String(place === number)));
    if (values) {
      sortTables(section.at, values);
      section.shown.restore?.(values);
    }
    redraw();
    if (values) addresses.replace();
    else addresses.remember();
  }
  /** @param {{name: string, values: URLSearchParams}} address */
  function open({ name, values }) {
    inCycles = values.get("units") !== "us";
    safeColours = values.has("colours");
    const number = VIEWS.findIndex((_, place) => addressName(place) === name);
    show(Math.max(number, 0), values);
  }
  const addresses = followAddress(address, open);
  VIEWS.forEach(([name], number) =>
    tabs.append(make("button", { role: "tab", title: "key " + (number + 1), onclick: () => show(number) }, name)),
  );
  const switchTheme = () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    redraw();
  };
  const switchPalette = () => {
    safeColours = !safeColours;
    redraw();
  };
  const switchUnits = () => {
    inCycles = !inCycles;
    redraw();
  };
  document.getElementById("units")?.addEventListener("click", switchUnits);
  document.getElementById("theme")?.addEventListener("click", switchTheme);
  document.getElementById("palette")?.addEventListener("click", switchPalette);
  window.addEventListener("resize", redraw);
  // Paper is light, and pictures are drawn in the colours of the theme.
  let screenTheme = "light";
  matchMedia("print").addEventListener("change", ({ matches }) => {
    const { dataset } = document.documentElement;
    if (matches) screenTheme = dataset.theme || "light";
    dataset.theme = matches ? "light" : screenTheme;
    redraw();
  });
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "Escape" && event.target instanceof HTMLElement) event.target.blur();
      return;
    }
    const number = Number(event.key) - 1;
    if (sections.get(current)?.shown.key?.(event)) event.preventDefault();
    else if (VIEWS[number]) show(number);
    else if (event.key === "t") switchTheme();
    else if (event.key === "c") switchPalette();
    else if (event.key === "u") switchUnits();
  });
  if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
  open(readAddress(location.hash));
  document.getElementById("text")?.removeAttribute("open");
  document.documentElement.dataset.ready = "yes";
  performance.mark("ready");
}
main().catch((error) => {
  document
    .getElementById("views")
    ?.append(make("p", { class: "bad" }, "The page cannot be shown: " + error.message + ". The summary is below."));
  throw error;
});
