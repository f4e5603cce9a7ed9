// @ts-check
"use strict";
/**
 * What all views use: the facts, numbers as text, colours, elements, canvases and tables. No library, no request.
 *
 * A view is a function that fills an element and may return {draw, key, state, restore}: draw() after a change of size,
 * colours or theme, key(event) for keys while it is shown (true: it was used), state() what the address says of it, and
 * restore(values) shows what an address says (what it does not name is as at the beginning).
 * @typedef {{draw?: () => void, key?: (event: KeyboardEvent) => boolean, state?: () => Record<string, any>,
 * restore?: (values: URLSearchParams) => void}} Shown
 */

/** @type {any} */ let facts;
/** Kinds of steps that an IPU does alone. */
const LOCAL = new Set(["compute", "exchange", "sync"]);
/** Kinds of steps in which an IPU waits for others. */
const WAITING = new Set(["sync_external", "idle"]);
let safeColours = false;

/** @param {string} tag @param {Record<string, any>} [attributes] @param {(Node | string)[]} children @returns {any} */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else element.setAttribute(key, String(value));
  }
  element.append(...children);
  return element;
}
const wholeNumber = (/** @type {number} */ value) => Math.round(value).toLocaleString("en-US");
const percent = (/** @type {number} */ amount, /** @type {number} */ total) =>
  (total ? ((100 * amount) / total).toFixed(1) : "0.0") + " %";
function seconds(/** @type {number} */ cycles) {
  const value = cycles / facts.meta.clock_hz;
  for (const [limit, unit] of /** @type {[number, string][]} */ ([
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "us"],
  ]))
    if (Math.abs(value) >= limit) return (value / limit).toPrecision(4) + " " + unit;
  return (value * 1e9).toPrecision(4) + " ns";
}
/** Round numbers from ``from`` to ``until``, about ``count`` of them: 1, 2 or 5 times a power of ten apart.
 * @param {number} from @param {number} until @param {number} count */
function ticks(from, until, count) {
  const rough = Math.max((until - from) / count, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  const distance = Math.max(power * ([1, 2, 5].find((factor) => factor * power >= rough) || 10), 1);
  const first = Math.ceil(from / distance);
  return Array.from(
    { length: Math.max(Math.floor(until / distance) - first + 1, 0) },
    (_, i) => (first + i) * distance,
  );
}
/** Whether axes of time show cycles or time of the clock. */
let inCycles = true;
const timeUnit = () => (inCycles ? "cycles" : "us");
const timeText = (/** @type {number} */ cycles) =>
  inCycles
    ? wholeNumber(cycles)
    : ((1e6 * cycles) / facts.meta.clock_hz).toLocaleString("en-US", { maximumFractionDigits: 2 });
function bytes(/** @type {number} */ count) {
  for (const [limit, unit] of /** @type {[number, string][]} */ ([
    [1e12, "TB"],
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
  ]))
    if (Math.abs(count) >= limit) return (count / limit).toFixed(1) + " " + unit;
  return wholeNumber(count) + " B";
}
/** @type {Map<string, string>} */ const colours = new Map();
/** A colour of the theme; asking for a style takes long, so it is asked once a theme. @param {string} name */
function colour(name) {
  const themeAndName = document.documentElement.dataset.theme + name;
  let value = colours.get(themeAndName);
  if (!value)
    colours.set(themeAndName, (value = getComputedStyle(document.documentElement).getPropertyValue(name).trim()));
  return value;
}
const kindColour = (/** @type {number} */ code) => (safeColours ? facts.kinds[code].safe : facts.kinds[code].colour);
const colourOf = (/** @type {string} */ kind) =>
  kindColour(facts.kinds.findIndex((/** @type {any} */ entry) => entry.name === kind));
/** The colour of a link: that of the steps that use it. @param {string} kind */
const linkColour = (kind) => colourOf({ ddr: "remote_load", pcie: "host_mid" }[kind] || "link");
/** The last folders and the name of a path with its line. @param {string} path */
const shortPath = (path) => path.split("/").slice(-2).join("/");

/** Values and how often they come in a row, as one array. @param {number[][]} runs */
function unfold(runs) {
  const values = [];
  for (const [value, count] of runs) for (let i = 0; i < count; i++) values.push(value);
  return values;
}

/** A canvas with sharp pixels. @param {HTMLCanvasElement} canvas @param {number} height */
function context(canvas, height) {
  const pixelRatio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 900;
  if (canvas.width !== Math.round(width * pixelRatio) || canvas.height !== Math.round(height * pixelRatio)) {
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * pixelRatio);
    canvas.height = Math.round(height * pixelRatio);
  }
  const drawing = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  drawing.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
  drawing.clearRect(0, 0, width, height);
  drawing.font = "11px system-ui, sans-serif";
  drawing.textBaseline = "middle";
  return { drawing, width };
}

/** Attributes of an element that a click, Enter or the space bar chooses. @param {() => void} choose */
const choosable = (choose) => ({
  tabindex: 0,
  onclick: choose,
  onkeydown: (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    choose();
  },
});

/** The largest number of rows of a table that are drawn. */
const MOST_ROWS = 1000;

/** A table that sorts by a click on a head, or by keys. Columns: [title, of row, class ("n" for numbers), text of value
 * and row]. The address keeps how the table of a name is sorted. @param {any[][]} columns @param {any[]} rows
 * @param {{name: string, choose?: (row: any) => void, isChosen?: (row: any) => boolean}} options */
function sortable(columns, rows, { name, choose, isChosen }) {
  const body = make("tbody");
  const head = make("tr");
  const columnOf = () => columns.findIndex(([title]) => title === sortOf.get(name)?.column);
  function ordered() {
    const place = columnOf();
    if (place < 0) return rows;
    const sign = sortOf.get(name)?.descending ? -1 : 1;
    const value = columns[place][1];
    return [...rows].sort((a, b) => (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : 0));
  }
  function fill() {
    const order = ordered();
    const line = (/** @type {any} */ row) => {
      const chosen = () => {
        for (const other of body.querySelectorAll(".chosen")) other.classList.remove("chosen");
        element.classList.add("chosen");
        choose?.(row);
      };
      const cells = columns.map(([, value, kind, text]) =>
        make("td", { class: kind || "" }, String(text ? text(value(row), row) : value(row))),
      );
      const element = make(
        "tr",
        { ...(choose ? choosable(chosen) : {}), class: isChosen?.(row) ? "chosen" : "" },
        ...cells,
      );
      return element;
    };
    body.replaceChildren(...order.slice(0, MOST_ROWS).map(line));
    if (rows.length > MOST_ROWS) {
      const text = `${wholeNumber(rows.length - MOST_ROWS)} further rows are not shown.`;
      body.append(make("tr", { class: "more" }, make("td", { colspan: columns.length }, text)));
    }
    for (const [place, cell] of Array.from(head.children).entries())
      cell.setAttribute(
        "aria-sort",
        place === columnOf() ? (sortOf.get(name)?.descending ? "descending" : "ascending") : "none",
      );
  }
  columns.forEach(([title, , kind]) => {
    const sort = () => {
      const now = sortOf.get(name);
      sortOf.set(name, { column: title, descending: now && now.column === title ? !now.descending : kind === "n" });
      fill();
    };
    head.append(make("th", { class: kind || "", ...choosable(sort) }, title));
  });
  fill();
  const table = make("table", {}, make("thead", {}, head), body);
  return make("div", { class: "scroll", "data-table": name, onsorted: fill }, table);
}
const legend = (/** @type {[string, string][]} */ items) =>
  make(
    "div",
    { class: "legend" },
    ...items.map(([name, fill]) => make("span", {}, make("i", { style: "background:" + fill }), name)),
  );
/** Several kinds may share a name; the legend shows the first of each. @param {[string, string][]} entries */
const firstOfEachName = (entries) =>
  entries.filter((entry, place) => entries.findIndex((other) => other[0] === entry[0]) === place);
