// @ts-check
"use strict";
/**
 * The report page: reads the facts from the page, draws one view at a time. No library, no request.
 *
 * A view is a function that fills an element and may return {draw, key}: draw() after a change of size, colours or
 * theme, key(event) for keys while it is shown (true: it was used).
 * @typedef {{draw?: () => void, key?: (event: KeyboardEvent) => boolean}} Shown
 */

/** @type {any} */ let facts;
let safeColours = false;

/** @param {string} tag @param {Record<string, any>} [set] @param {(Node | string)[]} children @returns {any} */
function make(tag, set = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(set)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "class") node.className = value;
    else node.setAttribute(key, String(value));
  }
  node.append(...children);
  return node;
}
const whole = (/** @type {number} */ n) => Math.round(n).toLocaleString("en-US");
const percent = (/** @type {number} */ part, /** @type {number} */ all) => (all ? (100 * part / all).toFixed(1) : "0.0") + " %";
function seconds(/** @type {number} */ cycles) {
  const s = cycles / facts.meta.clock_hz;
  for (const [limit, unit] of /** @type {[number, string][]} */ ([[1, "s"], [1e-3, "ms"], [1e-6, "us"]]))
    if (Math.abs(s) >= limit) return (s / limit).toPrecision(4) + " " + unit;
  return (s * 1e9).toPrecision(4) + " ns";
}
function bytes(/** @type {number} */ n) {
  for (const [limit, unit] of /** @type {[number, string][]} */ ([[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]))
    if (Math.abs(n) >= limit) return (n / limit).toFixed(1) + " " + unit;
  return whole(n) + " B";
}
/** @type {Map<string, string>} */ const colours = new Map();
/** A colour of the theme; asking for a style takes long, so it is asked once a theme. @param {string} name */
function colour(name) {
  const key = document.documentElement.dataset.theme + name; let known = colours.get(key);
  if (!known) colours.set(key, (known = getComputedStyle(document.documentElement).getPropertyValue(name).trim()));
  return known;
}
const kindColour = (/** @type {number} */ code) => (safeColours ? facts.kinds[code].safe : facts.kinds[code].colour);
const colourOf = (/** @type {string} */ kind) => kindColour(facts.kinds.findIndex((/** @type {any} */ k) => k.name === kind));
/** The last folders and the name of a path with its line. @param {string} line */
const brief = (line) => line.split("/").slice(-2).join("/");

/** Values and how often they come in a row, as one array. @param {number[][]} runs */
function unfold(runs) {
  const out = [];
  for (const [value, count] of runs) for (let i = 0; i < count; i++) out.push(value);
  return out;
}

/** A canvas with sharp pixels. @param {HTMLCanvasElement} canvas @param {number} height */
function context(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 900;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  }
  const to = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  to.setTransform(ratio, 0, 0, ratio, 0, 0);
  to.clearRect(0, 0, width, height);
  to.font = "11px system-ui, sans-serif"; to.textBaseline = "middle";
  return { to, width };
}

/** A table that sorts by a click on a head. Columns: [title, of row, "n" for numbers, text of value].
 * @param {any[][]} columns @param {any[]} rows @param {(row: any, line: HTMLElement) => void} [chosen] */
function sortable(columns, rows, chosen) {
  let by = -1, down = true;
  const body = make("tbody"), head = make("tr");
  function fill() {
    const order = by < 0 ? rows : [...rows].sort((a, b) => {
      const x = columns[by][1](a), y = columns[by][1](b);
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    body.replaceChildren(...order.slice(0, 1000).map((row) => {
      const line = make("tr", {}, ...columns.map((c) => make("td", { class: c[2] || "" }, String(c[3] ? c[3](c[1](row)) : c[1](row)))));
      if (chosen) line.addEventListener("click", () => {
        body.querySelectorAll(".chosen").forEach((/** @type {Element} */ other) => other.classList.remove("chosen"));
        line.classList.add("chosen"); chosen(row, line);
      });
      return line;
    }));
  }
  columns.forEach((column, place) => head.append(make("th", { class: column[2] || "", onclick: () => {
    down = by === place ? !down : column[2] === "n"; by = place; fill();
  } }, column[0])));
  fill();
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), body));
}
const legend = (/** @type {[string, string][]} */ items) =>
  make("div", { class: "legend" }, ...items.map(([name, fill]) => make("span", {}, make("i", { style: "background:" + fill }), name)));

// ---------------------------------------------------------------------------------------------------------- summary

/** @type {Record<string, string>} */
const KIND_OF_PART = { compute: "compute", "tile imbalance": "compute", exchange: "exchange", sync: "sync", links: "link", ddr: "remote_load", host: "host_mid" };
const partColour = (/** @type {string} */ name) => colourOf(KIND_OF_PART[name] || "sync_external");

function summaryView(/** @type {HTMLElement} */ at) {
  const { meta, time } = facts;
  if (facts.untold) at.append(make("p", { class: "note" }, facts.untold));
  if (time) at.append(make("p", { class: "lead", id: "sentence" }, "The last run is " + time.sentence + "."));
  if (meta.oom) at.append(make("p", { class: "lead bad" }, "The program does not fit in memory: these are the times of a machine that could hold it."));
  for (const text of facts.verdicts) at.append(make("p", { class: "bad", "data-verdict": "" }, text));
  const card = (/** @type {string} */ value, /** @type {string} */ label, id = "") => make("div", { class: "card", id }, make("b", {}, value), make("span", {}, label));
  const cards = make("div", { class: "cards" });
  if (time) cards.append(card(seconds(time.total), "last run", "run-time"), card(whole(time.total), "cycles of the last run", "run-cycles"));
  if (facts.flops && facts.total_cycles) cards.append(card((facts.flops / (facts.total_cycles / meta.clock_hz) / 1e12).toPrecision(4) + " TFLOP/s", "over the whole trace"));
  if (facts.tile_balance !== null) cards.append(card((100 * facts.tile_balance).toFixed(1) + " %", "tile balance of compute"));
  if (facts.max_tile) cards.append(card(percent(facts.max_tile.bytes, meta.bytes_per_tile), "of the memory of the fullest tile (" + whole(facts.max_tile.bytes) + " B, tile " + facts.max_tile.tile + " of IPU " + facts.max_tile.ipu + ")", "fullest"));
  cards.append(card(String(meta.num_ipus), "IPUs, " + meta.replicas + " replica(s), " + meta.machine));
  at.append(cards);
  const bars = make("div", { id: "waterfall" });
  if (time) {
    at.append(make("h2", {}, "Where the time goes, on IPU " + time.ipu + ", which sets the pace"), bars);
    at.append(make("p", { class: "note" }, time.path ? "From the average tile's compute to the whole run. Waiting belongs to what the IPU that is waited for does meanwhile." : "From compute to the whole run."));
  }
  if (time && time.path) {
    at.append(make("h2", {}, "Waiting of each IPU"));
    const owners = ["host", "bubble", "imbalance", "collective", "link", "ddr", "sync"];
    const rows = Object.entries(time.waiting).map(([ipu, cycles]) => ({ ipu: Number(ipu), ...cycles }));
    at.append(sortable([["IPU", (/** @type {any} */ r) => r.ipu, "n"], ...owners.map((o) => [o, (/** @type {any} */ r) => r[o] || 0, "n", whole])], rows));
  }
  for (const [title, list] of [["Warnings", facts.warnings], ["Assumptions", facts.assumptions]])
    if (list.length) at.append(make("h2", {}, title), make("ul", {}, ...list.map((/** @type {string} */ text) => make("li", {}, text))));
  function draw() {
    if (!time) return;
    let left = 0;
    bars.replaceChildren(...time.parts.filter((/** @type {any} */ p) => p.cycles).map((/** @type {any} */ part) => {
      const fill = make("i", { style: `left:${100 * left / time.total}%;width:${Math.max(100 * part.cycles / time.total, 0.15)}%;background:${partColour(part.name)}` });
      left += part.cycles;
      return make("div", { class: "bar", "data-part": part.name, "data-cycles": part.cycles }, make("span", {}, part.label), make("div", { class: "track" }, fill),
        make("span", { class: "value" }, whole(part.cycles) + " (" + seconds(part.cycles) + ", " + percent(part.cycles, time.total) + ")"));
    }));
  }
  return { draw };
}

// --------------------------------------------------------------------------------------------------------- memory

/** A chooser of one of the IPUs in a table of facts. @param {Record<string, any>} of @param {() => void} changed */
function ipuChooser(of, changed) {
  return make("select", { "aria-label": "IPU", onchange: changed }, ...Object.keys(of).map((ipu) => make("option", { value: ipu }, "IPU " + ipu)));
}

/** What live variables are for: colours, and those for the colour-blind. @type {Record<string, [string, string]>} */
const PARTS = { variable: ["#6f6ffe", "#0072b2"], intermediate: ["#17becf", "#009e73"], temporary: ["#f7aa67", "#e69f00"], always: ["#f66271", "#d55e00"] };
const partColours = (/** @type {string} */ name) => (PARTS[name] || ["#bcbd22", "#cc79a7"])[safeColours ? 1 : 0];

function livenessView(/** @type {HTMLElement} */ at) {
  const all = facts.liveness;
  if (!Object.keys(all).length) { at.append(make("p", {}, "The trace holds no liveness.")); return {}; }
  const chosen = ipuChooser(all, () => { step = -1; draw(); }), canvas = make("canvas", { id: "liveness-canvas", tabindex: 0 }), key = make("div");
  const said = make("div", { class: "facts", id: "liveness-facts" }), listed = make("div", { id: "liveness-variables" });
  let step = -1, moment = -1, alwaysToo = true, overTime = false;
  const always = make("button", { onclick: () => { alwaysToo = !alwaysToo; draw(); } }, "always live");
  const time = make("button", { id: "liveness-time", onclick: () => { overTime = !overTime; moment = -1; draw(); } }, "over time");
  at.append(make("div", { class: "tools" }, chosen, always, time, make("span", { class: "note" }, "Click, or arrow keys: the variables that are live then.")), key, canvas, said, make("h2", {}, "Variables live then"), listed);
  const HEIGHT = 260, LEFT = 64, BOTTOM = 22;
  const sums = (/** @type {any} */ one) => one.other.map((/** @type {number} */ o, /** @type {number} */ i) => o + one.always[i]);
  function draw() {
    const one = all[chosen.value], { to, width } = context(canvas, HEIGHT), timed = overTime && one.time;
    const layers = /** @type {[string, number[], string][]} */ ([]);
    if (timed) layers.push(["always live and not", one.time[1], partColours("variable")]);
    else {
      if (alwaysToo) layers.push(["always live", one.always, partColours("always")]);
      const names = Object.keys(one.parts).sort((a, b) => Number(b === "variable") - Number(a === "variable"));
      for (const name of names) layers.push([(name === "temporary" ? "temporary memory" : name + "s") + ", not always live", one.parts[name], partColours(name)]);
      if (!names.length) layers.push(["not always live", one.other, partColours("variable")]);
    }
    const xs = timed ? one.time[0] : one.step, values = xs.map((/** @type {number} */ _, /** @type {number} */ i) => layers.reduce((sum, l) => sum + l[1][i], 0));
    const begin = timed ? xs[0] : 0, last = timed ? one.until || facts.total_cycles : one.steps, top = values.reduce((/** @type {number} */ a, /** @type {number} */ b) => Math.max(a, b), 1) * 1.08;
    const x = (/** @type {number} */ s) => LEFT + (s - begin) / Math.max(last - begin, 1) * (width - LEFT - 8), y = (/** @type {number} */ v) => HEIGHT - BOTTOM - v / top * (HEIGHT - BOTTOM - 8);
    let base = xs.map(() => 0);
    for (const [, amounts, fill] of layers) {
      const high = base.map((/** @type {number} */ b, /** @type {number} */ i) => b + amounts[i]);
      to.fillStyle = fill; to.globalAlpha = 0.8; to.beginPath(); to.moveTo(x(xs[0]), y(base[0]));
      high.forEach((/** @type {number} */ v, /** @type {number} */ i) => { to.lineTo(x(xs[i]), y(v)); to.lineTo(x(i + 1 < xs.length ? xs[i + 1] : last), y(v)); });
      for (let i = xs.length - 1; i >= 0; i--) { to.lineTo(x(i + 1 < xs.length ? xs[i + 1] : last), y(base[i])); to.lineTo(x(xs[i]), y(base[i])); }
      to.fill(); to.globalAlpha = 1; base = high;
    }
    to.fillStyle = colour("--soft");
    for (let i = 0; i <= 4; i++) { const v = top * i / 4; to.fillText(bytes(v), 4, Math.min(Math.max(y(v), 7), HEIGHT - BOTTOM - 6)); to.fillRect(LEFT, y(v), width - LEFT - 8, 0.5); }
    for (let i = 0; i <= 6; i++) to.fillText(whole(begin + (last - begin) * i / 6), Math.min(x(begin + (last - begin) * i / 6), width - 78), HEIGHT - 9);
    const whole_ = sums(one), peak = whole_.indexOf(Math.max(...whole_));
    if (step < 0) step = one.step[peak];
    const place = Math.max(lower(one.step, step + 1) - 1, 0);
    to.fillStyle = colour("--accent"); if (!timed) to.fillRect(x(step), 4, 1.5, HEIGHT - BOTTOM - 4); else if (moment >= 0) to.fillRect(x(moment), 4, 1.5, HEIGHT - BOTTOM - 4);
    const most = values.indexOf(values.reduce((/** @type {number} */ a, /** @type {number} */ b) => Math.max(a, b), 0));
    said.textContent = (timed ? `bytes over cycles; peak ${whole(values[most])} B at cycle ${whole(xs[most])}${moment >= 0 ? `; chosen: cycle ${whole(moment)}, as at step ${whole(step)}` : ""}\n` : "")
      + `step ${whole(step)} of ${whole(one.steps)} (${one.program[place]}): ${whole(one.other[place])} B not always live, ${whole(one.always[place])} B always live. Peak of both: ${whole(whole_[peak])} B`;
    Object.assign(said.dataset, { step, other: one.other[place], always: one.always[place], parts: Object.keys(one.parts).reduce((sum, name) => sum + one.parts[name][place], 0) });
    key.replaceChildren(legend(layers.map(([name, , fill]) => [name, fill])));
    time.setAttribute("aria-pressed", String(overTime)); always.setAttribute("aria-pressed", String(alwaysToo));
    const ipu = Number(chosen.value), live = facts.variables.listed.filter((/** @type {any} */ v) => v.ipu === ipu && (v.always_live ? alwaysToo : v.live.some((/** @type {number[]} */ r) => r[0] <= step && step < r[1])));
    listed.dataset.bytes = String(live.reduce((/** @type {number} */ sum, /** @type {any} */ v) => sum + v.bytes, 0)); listed.dataset.count = String(live.length);
    listed.replaceChildren(sortable([["variable", (/** @type {any} */ v) => v.name, "long"], ["bytes", (/** @type {any} */ v) => v.bytes, "n", whole], ["always live", (/** @type {any} */ v) => v.always_live ? "yes" : ""], ["for", (/** @type {any} */ v) => v.category], ["line", (/** @type {any} */ v) => v.line, "", brief]], live.slice(0, 300)),
      make("p", { class: "note" }, `${whole(live.length)} variables live at this step, of the ${whole(facts.variables.listed.length)} largest of ${whole(facts.variables.count)}.`));
  }
  const choose = (/** @type {number} */ s) => { const one = all[chosen.value]; step = Math.min(Math.max(Math.round(s), 0), one.steps - 1); draw(); };
  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect(), one = all[chosen.value], part = (event.clientX - box.left - LEFT) / (box.width - LEFT - 8);
    if (!(overTime && one.time)) { choose(part * one.steps - 0.5); return; }
    moment = Math.round(one.time[0][0] + part * ((one.until || facts.total_cycles) - one.time[0][0]));
    const held = one.time[2][Math.max(lower(one.time[0], moment + 1) - 1, 0)];
    if (held >= 0) step = held;
    draw();
  });
  return { draw, key: (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowLeft") choose(step - 1); else if (event.key === "ArrowRight") choose(step + 1); else return false;
    return true;
  } };
}

function memoryView(/** @type {HTMLElement} */ at) {
  const all = facts.memory;
  if (!Object.keys(all).length) { at.append(make("p", {}, "The trace holds no memory of tiles.")); return {}; }
  const chosen = ipuChooser(all, () => { variable = null; draw(); }), canvas = make("canvas", { id: "memory-canvas" }), said = make("div", { class: "facts", id: "memory-facts" });
  const key = make("div"), worst = make("div"), names = make("div", { id: "memory-variables" });
  let variable = /** @type {any} */ (null), limited = false;
  at.append(make("div", { class: "tools" }, chosen, make("button", { onclick: () => { limited = !limited; draw(); } }, "up to the limit")), key, canvas, said,
    make("div", { class: "two" }, make("div", {}, make("h2", {}, "Fullest tiles"), worst), make("div", {}, make("h2", {}, "Variables: click for their tiles"), names)));
  const HEIGHT = 280, LEFT = 64, BOTTOM = 22, limit = facts.meta.bytes_per_tile;
  function draw() {
    const one = all[chosen.value], { to, width } = context(canvas, HEIGHT), used = facts.categories.filter((/** @type {any} */ c) => one.categories[c.name]);
    const rows = used.map((/** @type {any} */ c) => unfold(one.categories[c.name])), total = new Float64Array(one.tiles);
    for (const row of rows) row.forEach((v, t) => { total[t] += v; });
    const most = Math.max(...total), top = (limited ? Math.max(limit, most) : most) * 1.06, x = (/** @type {number} */ t) => LEFT + t / one.tiles * (width - LEFT - 8), y = (/** @type {number} */ v) => HEIGHT - BOTTOM - v / top * (HEIGHT - BOTTOM - 8);
    const low = new Float64Array(one.tiles);
    rows.forEach((/** @type {number[]} */ row, /** @type {number} */ n) => {
      to.fillStyle = safeColours ? used[n].safe : used[n].colour;
      const columns = Math.ceil(width - LEFT - 8);
      for (let p = 0; p < columns; p++) {  // each pixel shows the fullest of its tiles, so that none is too thin to be seen
        const from = Math.floor(p / columns * one.tiles), until = Math.max(Math.floor((p + 1) / columns * one.tiles), from + 1);
        let best = from; for (let t = from; t < until; t++) if (total[t] > total[best]) best = t;
        to.fillRect(LEFT + p, y(low[best] + (row[best] || 0)), 1.2, y(low[best]) - y(low[best] + (row[best] || 0)));
      }
      row.forEach((v, t) => { low[t] += v; });
    });
    to.fillStyle = colour("--soft");
    for (let i = 0; i <= 4; i++) to.fillText(bytes(top * i / 4), 4, y(top * i / 4));
    for (let i = 0; i <= 6; i++) to.fillText("tile " + whole(one.tiles * i / 6), Math.min(x(one.tiles * i / 6), width - 60), HEIGHT - 9);
    if (limit <= top) { to.fillStyle = colour("--bad"); to.fillRect(LEFT, y(limit), width - LEFT - 8, 1.5); to.fillText("limit " + whole(limit) + " B", LEFT + 8, y(limit) - 8); }
    if (variable) for (const [from, until, size] of variable.tiles) {  // its bytes on each tile, from the bottom, and a mark below
      const each = size / Math.max(until - from, 1);
      to.fillStyle = colour("--fore"); to.globalAlpha = 0.55; to.fillRect(x(from), y(each), Math.max(x(until) - x(from), 1.5), y(0) - y(each)); to.globalAlpha = 1;
      to.fillStyle = colour("--accent"); to.fillRect(x(from), HEIGHT - BOTTOM + 1, Math.max(x(until) - x(from), 1.5), 5);
    }
    const fullest = total.indexOf(most), sum = total.reduce((a, b) => a + b, 0);
    said.textContent = `fullest tile ${fullest}: ${whole(most)} B, ${percent(most, limit)} of ${whole(limit)} B; all tiles together ${whole(sum)} B` + (variable ? `\n${variable.name}: ${whole(variable.bytes)} B${variable.live.length || variable.always_live ? "" : ", never live"}, on ${whole(variable.tiles.reduce((/** @type {number} */ n, /** @type {number[]} */ r) => n + r[1] - r[0], 0))} tiles${variable.pieces > variable.tiles.length ? " (the first " + whole(variable.tiles.length) + " of " + whole(variable.pieces) + " ranges)" : ""}: dark in the bars, marked below` : "");
    said.dataset.variable = variable ? variable.name : ""; said.dataset.bytes = variable ? String(variable.bytes) : "";
    said.dataset.most = String(most); said.dataset.tile = String(fullest); said.dataset.total = String(sum);
    key.replaceChildren(legend(used.map((/** @type {any} */ c) => [c.name, safeColours ? c.safe : c.colour])));
    const order = Array.from(total.keys()).sort((a, b) => total[b] - total[a]).slice(0, 40);
    worst.replaceChildren(sortable([["tile", (/** @type {number} */ t) => t, "n"], ["bytes", (/** @type {number} */ t) => total[t], "n", whole], ["of the limit", (/** @type {number} */ t) => total[t] / limit, "n", (/** @type {number} */ v) => (100 * v).toFixed(1) + " %"]], order));
    const own = facts.variables.listed.filter((/** @type {any} */ v) => v.ipu === Number(chosen.value)).slice(0, 300);
    if (!variable) names.replaceChildren(sortable([["variable", (/** @type {any} */ v) => v.name], ["bytes", (/** @type {any} */ v) => v.bytes, "n", whole], ["line", (/** @type {any} */ v) => v.line, "", brief]], own, (v) => { variable = v; draw(); }));
  }
  return { draw };
}

// ------------------------------------------------------------------------------------------------------ operations

function operationsView(/** @type {HTMLElement} */ at) {
  const ops = facts.operations;
  if (!ops) { at.append(make("p", {}, "Nothing was executed.")); return {}; }
  const rows = ops.op.map((/** @type {string} */ _, /** @type {number} */ i) => Object.fromEntries(Object.keys(ops).filter((k) => Array.isArray(ops[k])).map((k) => [k, ops[k][i]])));
  const filter = make("input", { id: "operations-filter", placeholder: "op, type, layer, line, bound", size: 26, oninput: fill });
  const GROUPS = [["op and IPU", ""], ["layer", "layer"], ["op type", "type"], ["file line", "line"], ["phase", "phase"], ["bound by", "bound"], ["IPU", "ipu"]];
  const group = make("select", { id: "operations-group", "aria-label": "group by", onchange: fill }, ...GROUPS.map(([name, value]) => make("option", { value }, name)));
  const table = make("div", { id: "operations-table" }), note = make("p", { class: "note", id: "operations-note" }), plan = make("div", { id: "operations-plan" });
  at.append(make("div", { class: "tools" }, filter, "group by", group, make("span", { class: "note" }, "A click on a row tells how its products are planned.")), table, note, plan);
  const part = (/** @type {number} */ v) => (v < 0 ? "" : (100 * v).toFixed(v < 0.0995 ? 2 : 1) + " %"), some = (/** @type {number} */ v) => (v ? whole(v) : "");
  const cycles = ["cycles", (/** @type {any} */ r) => r.cycles, "n", whole], share = ["share", (/** @type {any} */ r) => r.share, "n", part], waiting = ["waiting", (/** @type {any} */ r) => r.waiting_cycles, "n", some];
  const flops = ["FLOP", (/** @type {any} */ r) => r.flops, "n", some], peak = ["of peak", (/** @type {any} */ r) => (r.able && r.flops ? r.flops / r.able : -1), "n", part], spread = ["slowest tile", (/** @type {any} */ r) => r.imbalance_cycles, "n", some];
  const moved = ["bytes moved", (/** @type {any} */ r) => r.bytes, "n", some], memory = ["memory", (/** @type {any} */ r) => r.memory, "n", (/** @type {number} */ v) => (v ? bytes(v) : "")];
  const bound = ["bound by", (/** @type {any} */ r) => r.bound];
  const { distinct, by_op } = ops.plans;
  const planned = (/** @type {any} */ r) => by_op[r.op] || [];
  const gain = (/** @type {any} */ r) => {  // what the next best plan of the first product costs more
    const [taken, other] = planned(r).filter((/** @type {number[]} */ p) => p[0] === 0).map((/** @type {number[]} */ p) => distinct[p[2]][0]);
    return other === undefined ? -2 : other / taken - 1;
  };
  const next = ["next plan", gain, "n", (/** @type {number} */ v) => (v === -2 ? "" : (v < 0 ? "-" : "+") + Math.abs(100 * v).toFixed(1) + " %")];
  function explain(/** @type {any} */ row) {
    const plans = planned(row), lines = plans.map((/** @type {number[]} */ p) => ({ product: p[0], rank: p[1], cycles: distinct[p[2]][0], tiles: distinct[p[2]][1], temp: distinct[p[2]][2], vertex: distinct[p[2]][3], text: distinct[p[2]][4] }));
    plan.replaceChildren(make("h2", {}, row.op), lines.length ? make("p", { class: "note" }, "What the planner expects of one execution: the plan that was taken, and the cheapest with another vertex or form (of a layer planned jointly with its other passes: the pass alone).") : make("p", { class: "note" }, "It has no product or convolution, so nothing was planned."),
      ...lines.map((/** @type {any} */ l) => make("p", { class: "plan", "data-rank": l.rank, "data-cycles": l.cycles }, make("b", {}, (l.rank ? "next best: " : "plan: ") + whole(l.cycles) + " cycles on " + whole(l.tiles) + " tiles"), " " + l.text)));
    plan.dataset.op = row.op;
    plan.scrollIntoView({ block: "nearest" });
  }
  function fill() {
    const words = filter.value.toLowerCase(), kept = rows.filter((/** @type {any} */ r) => !words || [r.op, r.type, r.layer, r.line, r.bound].some((t) => t.toLowerCase().includes(words)));
    const sum = kept.reduce((/** @type {number} */ a, /** @type {any} */ r) => a + r.cycles, 0);
    if (!group.value)
      table.replaceChildren(sortable([["op", (/** @type {any} */ r) => r.op, "long"], ["type", (/** @type {any} */ r) => r.type], ["IPU", (/** @type {any} */ r) => r.ipu, "n"], cycles, share, bound, waiting, spread, flops, peak, next, moved, memory, ["phase", (/** @type {any} */ r) => r.phase], ["layer", (/** @type {any} */ r) => r.layer, "long"], ["line", (/** @type {any} */ r) => r.line, "", brief]], kept, explain));
    else {
      const by = new Map(), sums = ["cycles", "share", "waiting_cycles", "flops", "imbalance_cycles", "bytes", "memory", "able"];
      for (const r of kept) {
        const name = String(r[group.value]) || "(none)", one = by.get(name) || Object.assign({ name, count: 0, bounds: {} }, Object.fromEntries(sums.map((k) => [k, 0])));
        for (const k of sums) one[k] += r[k];
        one.bounds[r.bound] = (one.bounds[r.bound] || 0) + r.cycles;
        one.count++; by.set(name, one);
      }
      for (const one of by.values()) { one.bound = Object.keys(one.bounds).sort((a, b) => one.bounds[b] - one.bounds[a])[0]; }
      const title = GROUPS.find((g) => g[1] === group.value)?.[0];
      table.replaceChildren(sortable([[title, (/** @type {any} */ r) => r.name, "long", group.value === "line" ? brief : undefined], ["rows", (/** @type {any} */ r) => r.count, "n"], cycles, share, ["mostly bound by", (/** @type {any} */ r) => r.bound], waiting, spread, flops, peak, moved, memory], [...by.values()].sort((a, b) => b.cycles - a.cycles)));
    }
    note.textContent = `${whole(kept.length)} of ${whole(ops.rows)} rows, ${whole(sum)} of ${whole(ops.total_cycles)} cycles in which an op does something; waiting is beside them. Of peak: what the matrix units of all tiles could do of the op's type in its cycles.`;
    note.dataset.cycles = String(sum); note.dataset.rows = String(kept.length);
  }
  fill();
  return { key: (/** @type {KeyboardEvent} */ event) => { if (event.key !== "/") return false; filter.focus(); return true; } };
}

// ----------------------------------------------------------------------------------------------------------- links

function linksView(/** @type {HTMLElement} */ at) {
  const { used, collectives } = facts.links, canvas = make("canvas", { id: "links-canvas" });
  at.append(make("h2", {}, "Use of each link over the whole trace"), canvas, sortable([["link", (/** @type {any} */ l) => l.name], ["kind", (/** @type {any} */ l) => l.kind], ["bytes", (/** @type {any} */ l) => l.bytes, "n", whole], ["transfers", (/** @type {any} */ l) => l.transfers, "n", whole], ["busy cycles", (/** @type {any} */ l) => l.busy_cycles, "n", whole], ["use", (/** @type {any} */ l) => l.utilisation, "n", (/** @type {number} */ v) => (100 * v).toFixed(1) + " %"], ["at once, most", (/** @type {any} */ l) => l.most, "n", whole], ["shared cycles", (/** @type {any} */ l) => l.shared, "n", whole]], used),
    make("p", { class: "note" }, "Shared: cycles in which more than one transfer has the link, and each gets less of it. Links, Streaming Memory (ddr) and the host's PCIe are all here; bars are percent of the bandwidth in 400 stretches of the trace."));
  at.append(make("h2", {}, "Collectives"), collectives.length ? sortable([["op", (/** @type {any} */ c) => c.op], ["kind", (/** @type {any} */ c) => c.kind], ["rounds", (/** @type {any} */ c) => c.rounds, "n", whole], ["transfers", (/** @type {any} */ c) => c.transfers, "n", whole], ["bytes over links", (/** @type {any} */ c) => c.bytes, "n", whole], ["cycles with transfers", (/** @type {any} */ c) => c.cycles, "n", whole]], collectives) : make("p", { class: "note" }, "There are none."));
  function draw() {
    const rows = used.filter((/** @type {any} */ l) => l.use).slice(0, 24), HIGH = 18, { to, width } = context(canvas, rows.length * (HIGH + 3) + 24), LEFT = 210;
    rows.forEach((/** @type {any} */ link, /** @type {number} */ n) => {
      const y = n * (HIGH + 3) + 3, wide = (width - LEFT - 8) / link.use.length;
      to.fillStyle = colour("--fore"); to.fillText(link.name.slice(0, 34), 4, y + HIGH / 2);
      to.fillStyle = colourOf(link.kind === "ddr" ? "remote_load" : link.kind === "host_pcie" ? "host_mid" : "link");
      link.use.forEach((/** @type {number} */ v, /** @type {number} */ i) => { const high = Math.min(v, 100) / 100 * HIGH; to.fillRect(LEFT + i * wide, y + HIGH - high, wide + 0.4, high); });
      to.fillStyle = colour("--line"); to.fillRect(LEFT, y + HIGH, width - LEFT - 8, 0.6);
    });
    to.fillStyle = colour("--soft"); to.fillText("0", LEFT, rows.length * (HIGH + 3) + 12); to.fillText(whole(facts.total_cycles) + " cycles", width - 130, rows.length * (HIGH + 3) + 12);
  }
  return { draw };
}

// --------------------------------------------------------------------------------------------------- critical path

function pathView(/** @type {HTMLElement} */ at) {
  const { time } = facts;
  if (!time || !time.path) { at.append(make("p", {}, facts.untold || "Nothing was executed.")); return {}; }
  const canvas = make("canvas", { id: "path-canvas" }), key = make("div"), path = time.path, cost = time.path_cycles;
  at.append(make("p", { class: "note" }, "The chain of work without which the last run would end earlier, read backwards from its end: where an IPU waits, the path goes over to the IPU that it waits for."), key, canvas);
  const rows = cost.op.map((/** @type {string} */ op, /** @type {number} */ i) => ({ op, ipu: cost.ipu[i], kind: facts.kinds.find((/** @type {any} */ k) => k.name === cost.kind[i]).label, cycles: cost.cycles[i] }));
  at.append(make("h2", {}, "What it consists of"), make("div", { id: "path-table", "data-cycles": cost.cycles.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) }, sortable([["op", (/** @type {any} */ r) => r.op || "(no op)"], ["IPU", (/** @type {any} */ r) => r.ipu, "n"], ["kind", (/** @type {any} */ r) => r.kind], ["cycles", (/** @type {any} */ r) => r.cycles, "n", whole], ["of the run", (/** @type {any} */ r) => r.cycles / time.total, "n", (/** @type {number} */ v) => (100 * v).toFixed(2) + " %"]], rows)));
  if (time.path_pieces > path.start.length) at.append(make("p", { class: "note" }, `drawn: the first ${whole(path.start.length)} of ${whole(time.path_pieces)} pieces`));
  function draw() {
    // The IPUs on the path, then where it leaves their tiles: links, Streaming Memory, the host.
    const ipus = [...new Set(path.ipu)].sort((a, b) => a - b), others = [["links", "IPU-Links", "link"], ["ddr", "Streaming Memory", "remote_load"], ["host", "host", "host_mid"]].filter((o) => path.place.includes(o[0]));
    const HIGH = 24, count = ipus.length + others.length, { to, width } = context(canvas, count * HIGH + 24), LEFT = 118;
    const begin = path.start[0], end = path.start[path.start.length - 1] + path.dur[path.dur.length - 1], x = (/** @type {number} */ c) => LEFT + (c - begin) / Math.max(end - begin, 1) * (width - LEFT - 8);
    [...ipus.map((ipu) => "IPU " + ipu), ...others.map((o) => o[1])].forEach((name, n) => { to.fillStyle = colour("--fore"); to.fillText(name, 6, n * HIGH + 14); to.fillStyle = colour("--line"); to.fillRect(LEFT, n * HIGH + 14, width - LEFT - 8, 0.5); });
    const lane = new Map(/** @type {[string, number][]} */ (others.map((o, n) => [o[0], ipus.length + n]))), row = (/** @type {number} */ i) => lane.get(path.place[i]) ?? ipus.indexOf(path.ipu[i]);
    const fill = new Map(/** @type {[string, string][]} */ ([["tiles", colourOf("compute")], ["sync", colourOf("sync_external")], ...others.map((o) => [o[0], colourOf(o[2])])]));
    for (let i = 0; i < path.start.length; i++) {
      const left = x(path.start[i]), y = row(i) * HIGH + 7;
      if (i && row(i) !== row(i - 1) && path.start.length < 4000) { to.fillStyle = colour("--soft"); to.fillRect(left, Math.min(y, row(i - 1) * HIGH + 7) + 7, 0.7, Math.abs(row(i) - row(i - 1)) * HIGH); }
      to.fillStyle = fill.get(path.place[i]) || colour("--soft"); to.fillRect(left, y, Math.max(x(path.start[i] + path.dur[i]) - left, 0.6), 14);
    }
    to.fillStyle = colour("--soft"); to.fillText(whole(begin), LEFT, count * HIGH + 12); to.fillText(whole(end) + " cycles", width - 130, count * HIGH + 12);
    key.replaceChildren(legend([["on the tiles", colourOf("compute")], ...others.map((o) => /** @type {[string, string]} */ ([o[1], colourOf(o[2])])), ["sync between IPUs", colourOf("sync_external")]]));
  }
  return { draw };
}

// ------------------------------------------------------------------------------------------------------------ page

/** @type {[string, (at: HTMLElement) => Shown][]} */
const VIEWS = [["Summary", summaryView], ["Timeline", timelineView], ["Liveness", livenessView], ["Memory", memoryView], ["BSP", bspView], ["Operations", operationsView], ["Links", linksView], ["Critical path", pathView]];

async function main() {
  const text = /** @type {HTMLElement} */ (document.getElementById("facts")).textContent || "";
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  facts = JSON.parse(await new Response(stream).text());
  const tabs = /** @type {HTMLElement} */ (document.getElementById("tabs")), views = /** @type {HTMLElement} */ (document.getElementById("views"));
  /** @type {Map<number, {at: HTMLElement, shown: Shown}>} */ const made = new Map();
  let current = 0;
  function show(/** @type {number} */ number) {
    current = number;
    if (!made.has(number)) {
      const at = make("section", { id: "view-" + number, "aria-label": VIEWS[number][0] });
      views.append(at);
      made.set(number, { at, shown: VIEWS[number][1](at) || {} });
    }
    for (const [other, { at }] of made) at.hidden = other !== number;
    Array.from(tabs.children).forEach((tab, n) => tab.setAttribute("aria-selected", String(n === number)));
    redraw();
    history.replaceState(null, "", "#" + VIEWS[number][0].toLowerCase().replace(" ", "-"));
  }
  const redraw = () => made.get(current)?.shown.draw?.();
  VIEWS.forEach(([name], number) => tabs.append(make("button", { role: "tab", title: "key " + (number + 1), onclick: () => show(number) }, name)));
  const theme = () => { const root = document.documentElement; root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; redraw(); };
  const palette = () => { safeColours = !safeColours; redraw(); };
  document.getElementById("theme")?.addEventListener("click", theme);
  document.getElementById("palette")?.addEventListener("click", palette);
  window.addEventListener("resize", redraw);
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) {
      if (event.key === "Escape" && event.target instanceof HTMLElement) event.target.blur();
      return;
    }
    const number = Number(event.key) - 1;
    if (made.get(current)?.shown.key?.(event)) event.preventDefault();
    else if (VIEWS[number]) show(number);
    else if (event.key === "t") theme();
    else if (event.key === "c") palette();
  });
  if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
  show(Math.max(VIEWS.findIndex(([name]) => "#" + name.toLowerCase().replace(" ", "-") === location.hash), 0));
  document.getElementById("text")?.removeAttribute("open");
  document.documentElement.dataset.ready = "yes"; performance.mark("ready");
}
main().catch((error) => {
  document.getElementById("views")?.append(make("p", { class: "bad" }, "The page cannot be shown: " + error.message + ". The summary is below."));
  throw error;
});
