// @ts-check
"use strict";
/**
 * What all views use: the facts, numbers as text, colours, elements, canvases and tables. No library, no request.
 *
 * A view is a function that fills an element and may return {draw, key}: draw() after a change of size, colours or
 * theme, key(event) for keys while it is shown (true: it was used).
 * @typedef {{draw?: () => void, key?: (event: KeyboardEvent) => boolean}} Shown
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
  return Array.from({ length: Math.max(Math.floor(until / distance) - first + 1, 0) }, (_, i) => (first + i) * distance);
}
/** Whether axes of time show cycles or time of the clock. */
let inCycles = true;
const timeUnit = () => (inCycles ? "cycles" : "us");
const timeText = (/** @type {number} */ cycles) =>
  inCycles ? wholeNumber(cycles) : ((1e6 * cycles) / facts.meta.clock_hz).toLocaleString("en-US", { maximumFractionDigits: 2 });
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

/** A table that sorts by a click on a head, or by keys. Columns: [title, of row, "n" for numbers, text of value].
 * @param {any[][]} columns @param {any[]} rows @param {(row: any, line: HTMLElement) => void} [onChoice] */
function sortable(columns, rows, onChoice) {
  let sortColumn = -1;
  let descending = true;
  const body = make("tbody");
  const head = make("tr");
  function fill() {
    const order =
      sortColumn < 0
        ? rows
        : [...rows].sort((a, b) => {
            const left = columns[sortColumn][1](a);
            const right = columns[sortColumn][1](b);
            return (left < right ? -1 : left > right ? 1 : 0) * (descending ? -1 : 1);
          });
    body.replaceChildren(
      ...order.slice(0, 1000).map((row) => {
        const choose = () => {
          body
            .querySelectorAll(".chosen")
            .forEach((/** @type {Element} */ other) => other.classList.remove("chosen"));
          tableRow.classList.add("chosen");
          onChoice?.(row, tableRow);
        };
        const tableRow = make(
          "tr",
          onChoice ? choosable(choose) : {},
          ...columns.map((column) =>
            make("td", { class: column[2] || "" }, String(column[3] ? column[3](column[1](row)) : column[1](row))),
          ),
        );
        return tableRow;
      }),
    );
  }
  columns.forEach((column, columnIndex) =>
    head.append(
      make(
        "th",
        {
          class: column[2] || "",
          "aria-sort": "none",
          ...choosable(() => {
            descending = sortColumn === columnIndex ? !descending : column[2] === "n";
            sortColumn = columnIndex;
            for (const [place, cell] of Array.from(head.children).entries())
              cell.setAttribute("aria-sort", place === sortColumn ? (descending ? "descending" : "ascending") : "none");
            fill();
          }),
        },
        column[0],
      ),
    ),
  );
  fill();
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), body));
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
