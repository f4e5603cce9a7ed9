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
const colour = (/** @type {string} */ name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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
    at.append(make("p", { class: "note" }, "From the average tile's compute to the whole run. Waiting belongs to what the IPU that is waited for does meanwhile."));
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

// --------------------------------------------------------------------------------------------------------- timeline

/** Starts of each row as absolute cycles, once. */
function prepareTimeline() {
  for (const row of facts.timeline.rows) {
    let at = 0;
    row.start = Float64Array.from(row.start, (/** @type {number} */ d) => (at += d));
    row.micro_batch = unfold(row.micro_batch);
    let reach = 0;
    row.reach = Float64Array.from(row.dur, (/** @type {number} */ d, /** @type {number} */ i) => (reach = Math.max(reach, row.start[i] + d)));
  }
}
/** First index of a sorted array with a value of at least x. @param {ArrayLike<number>} values @param {number} x */
function lower(values, x) {
  let low = 0, high = values.length;
  while (low < high) { const middle = (low + high) >> 1; if (values[middle] < x) low = middle + 1; else high = middle; }
  return low;
}

function timelineView(/** @type {HTMLElement} */ at) {
  const line = facts.timeline;
  if (!line) { at.append(make("p", {}, "Nothing was executed.")); return {}; }
  const LABEL = 92, BAR = 20, STRIP = 8, GAP = 6, TOP = 22;
  const host = [...new Set(facts.host.channel)];
  const end = Math.max(...line.rows.map((/** @type {any} */ r) => r.reach.length ? r.reach[r.reach.length - 1] : 0), 1);
  const first = Math.min(...line.rows.filter((/** @type {any} */ r) => r.start.length).map((/** @type {any} */ r) => r.start[0]));
  let view = [first, end], byPhase = false, found = "", picked = /** @type {any} */ (null), frames = 0;
  const canvas = make("canvas", { id: "timeline-canvas", tabindex: 0, "aria-label": "execution timeline" });
  const said = make("div", { class: "facts", id: "timeline-facts" }, "Wheel or w/s: zoom. Drag or a/d: move. Click: what a slice is. 0: all. /: search an op.");
  const shown = make("span", { id: "timeline-window" });
  const box = make("input", { id: "timeline-search", placeholder: "op name", size: 24, oninput: () => { found = box.value.toLowerCase(); draw(); } });
  const phase = make("button", { id: "timeline-phase", onclick: () => { byPhase = !byPhase; phase.textContent = byPhase ? "kinds" : "pipeline"; draw(); } }, "pipeline");
  const key = make("div");
  at.append(make("div", { class: "tools" }, make("button", { onclick: () => zoom(0.5) }, "+"), make("button", { onclick: () => zoom(2) }, "-"),
    make("button", { onclick: () => { view = [first, end]; draw(); } }, "all"), phase, box, make("button", { onclick: next }, "next"), shown), key, canvas, said);
  if (line.window) at.append(make("p", { class: "note" }, `The trace is too long for one page: the time line holds cycles ${whole(line.window[0])} to ${whole(line.window[1])}.`));
  const height = () => TOP + line.rows.length * (BAR + STRIP + GAP) + host.length * (BAR + GAP) + 6;
  const hit = (/** @type {number} */ step) => found && line.ops[line.steps.op[step]].toLowerCase().includes(found);

  function draw() {
    frames++;
    const { to, width } = context(canvas, height());
    const scale = (width - LABEL) / (view[1] - view[0]);
    const x = (/** @type {number} */ cycle) => LABEL + (cycle - view[0]) * scale;
    to.fillStyle = colour("--soft");
    const step = 10 ** Math.floor(Math.log10((view[1] - view[0]) / 4));
    for (let t = Math.ceil(view[0] / step) * step; t < view[1]; t += step * Math.ceil((view[1] - view[0]) / step / 8)) {
      to.fillRect(x(t), TOP - 6, 1, 4); to.fillText(whole(t), x(t) + 3, 9);
    }
    line.rows.forEach((/** @type {any} */ row, /** @type {number} */ number) => {
      const y = TOP + number * (BAR + STRIP + GAP);
      to.fillStyle = colour("--fore");
      to.fillText("IPU " + row.ipu + (row.lane ? " I/O" : "") + (facts.meta.replicas > 1 ? " (" + row.replica + ")" : ""), 6, y + BAR / 2);
      // Slices of less than a pixel are added up: the pixel gets the colour of what fills most of it.
      let pixel = -1, filled = new Map(), phase = 5;
      const flush = () => {
        if (pixel < 0) return;
        let best = -1, most = 0, sum = 0;
        for (const [code, part] of filled) { sum += part; if (part > most) { most = part; best = code; } }
        if (best >= 0) { to.globalAlpha = Math.min(1, 0.35 + sum); to.fillStyle = fillOf(best); to.fillRect(pixel, y, 1, BAR); to.globalAlpha = 1; }
        if (phase < 5) { to.fillStyle = facts.phases[phase].colour; to.fillRect(pixel, y + BAR + 1, 1, STRIP - 2); }
        filled = new Map(); phase = 5;
      };
      const fillOf = (/** @type {number} */ code) => byPhase && code >= 100 ? facts.phases[code - 100].colour : kindColour(code);
      const codeOf = (/** @type {number} */ s) => (byPhase && line.steps.kind[s] < 2 ? 100 + line.steps.phase[s] : line.steps.kind[s]);
      for (let i = lower(row.reach, view[0]); i < row.start.length && row.start[i] < view[1]; i++) {
        const left = Math.max(x(row.start[i]), LABEL), right = Math.min(x(row.start[i] + row.dur[i]), width), s = row.step[i];
        if (right - left < 1 && !hit(s)) {
          const p = Math.floor(left);
          if (p !== pixel) { flush(); pixel = p; }
          if (line.steps.kind[s] < 2 && line.steps.phase[s] < 5) phase = line.steps.phase[s];
          const code = codeOf(s); filled.set(code, (filled.get(code) || 0) + right - left);
          continue;
        }
        flush(); pixel = -1;
        to.fillStyle = fillOf(codeOf(s)); to.fillRect(left, y, Math.max(right - left, 1), BAR);
        if (line.steps.phase[s] < 5 && line.steps.kind[s] < 2) { to.fillStyle = facts.phases[line.steps.phase[s]].colour; to.fillRect(left, y + BAR + 1, Math.max(right - left, 1), STRIP - 2); }
        if (hit(s)) { to.strokeStyle = colour("--bad"); to.lineWidth = 2; to.strokeRect(left, y + 1, Math.max(right - left, 2), BAR - 2); }
        if (picked && picked.row === number && picked.i === i) { to.strokeStyle = colour("--accent"); to.lineWidth = 2; to.strokeRect(left, y + 1, Math.max(right - left, 2), BAR - 2); }
        if (right - left > 46) {
          const mb = row.micro_batch[i], op = line.ops[line.steps.op[s]] || facts.kinds[line.steps.kind[s]].label;
          const letter = ["F", "R", "B", "U", "", ""][line.steps.phase[s]];
          to.save(); to.beginPath(); to.rect(left, y, right - left - 3, BAR); to.clip(); to.fillStyle = "#202020";
          to.fillText((letter && mb >= 0 ? letter + (mb + 1) + " " : "") + op.split("/").pop(), left + 3, y + BAR / 2); to.restore();
        }
      }
      flush();
    });
    host.forEach((channel, number) => {
      const y = TOP + line.rows.length * (BAR + STRIP + GAP) + number * (BAR + GAP);
      to.fillStyle = colour("--fore"); to.fillText(String(channel).slice(0, 14), 6, y + BAR / 2);
      for (let i = 0; i < facts.host.start.length; i++) {
        if (facts.host.channel[i] !== channel) continue;
        const left = Math.max(x(facts.host.start[i]), LABEL), right = Math.min(x(facts.host.start[i] + facts.host.dur[i]), width);
        if (right <= LABEL || left >= width) continue;
        to.fillStyle = "#a9bfe3"; to.fillRect(left, y, Math.max(right - left, 1), BAR);
        if (right - left > 46) { to.save(); to.beginPath(); to.rect(left, y, right - left - 3, BAR); to.clip(); to.fillStyle = "#202020"; to.fillText(facts.host.label[i], left + 3, y + BAR / 2); to.restore(); }
      }
    });
    shown.textContent = `cycles ${whole(view[0])} to ${whole(view[1])} (${seconds(view[1] - view[0])})`;
    shown.dataset.from = String(view[0]); shown.dataset.to = String(view[1]); shown.dataset.frames = String(frames);
    const phases = facts.phases.slice(0, byPhase ? 6 : 4).map((/** @type {any} */ p) => [p.name, p.colour]);
    const kinds = facts.kinds.map((/** @type {any} */ k, /** @type {number} */ i) => [k.label, kindColour(i)]).slice(byPhase ? 2 : 0);
    key.replaceChildren(legend([...phases, ...kinds].filter((/** @type {any} */ k, /** @type {number} */ i, /** @type {any[]} */ all) => all.findIndex((o) => o[0] === k[0]) === i)));
  }
  function zoom(/** @type {number} */ factor, around = (view[0] + view[1]) / 2) {
    const from = around - (around - view[0]) * factor, to = around + (view[1] - around) * factor;
    if (to - from < 8) return;
    view = [Math.max(from, first), Math.min(to, end)]; draw();
  }
  function move(/** @type {number} */ by) {
    const length = view[1] - view[0], from = Math.min(Math.max(view[0] + by, first), end - length);
    view = [from, from + length]; draw();
  }
  const cycleAt = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    return view[0] + (event.clientX - box.left - LABEL) * (view[1] - view[0]) / (box.width - LABEL);
  };
  function pick(/** @type {number} */ number, /** @type {number} */ i) {
    const row = line.rows[number], s = row.step[i], kind = facts.kinds[line.steps.kind[s]], steps = line.steps;
    picked = { row: number, i };
    const op = line.ops[steps.op[s]], at = op ? facts.operations.op.indexOf(op) : -1;
    said.textContent = `${op || "(no op)"} - ${kind.label}, ${facts.phases[steps.phase[s]].name}` + (row.micro_batch[i] >= 0 ? `, micro-batch ${row.micro_batch[i] + 1}` : "") + ` on IPU ${row.ipu}\n`
      + `cycles ${whole(row.start[i])} to ${whole(row.start[i] + row.dur[i])}: ${whole(row.dur[i])} (${seconds(row.dur[i])}); average tile ${whole(steps.mean[s])}, ${whole(steps.tiles[s])} tiles active`
      + (steps.slowest[s] >= 0 ? `, slowest ${steps.slowest[s]}` : "") + `\n${bytes(steps.bytes_in[s])} in, ${bytes(steps.bytes_out[s])} out, ${whole(steps.flops[s])} FLOP` + (at >= 0 && facts.operations.line[at] ? `; ${brief(facts.operations.line[at])}` : "");
    draw();
  }
  function next() {
    if (!found) return;
    let best = /** @type {any} */ (null);
    line.rows.forEach((/** @type {any} */ row, /** @type {number} */ number) => {
      const from = picked ? line.rows[picked.row].start[picked.i] : view[0] - 1;
      for (let i = lower(row.start, from + 1e-9); i < row.start.length; i++)
        if (hit(row.step[i]) && row.start[i] > from) { if (!best || row.start[i] < best.start) best = { start: row.start[i], dur: row.dur[i], number, i }; break; }
    });
    if (!best) { said.textContent = `no (further) slice of an op with "${found}" in its name`; picked = null; return; }
    const length = Math.min(Math.max(best.dur * 8, 200), view[1] - view[0]);
    view = [Math.max(best.start - length / 3, first), Math.min(best.start + length, end)]; pick(best.number, best.i);
  }
  let dragged = /** @type {any} */ (null);
  canvas.addEventListener("wheel", (/** @type {WheelEvent} */ event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, cycleAt(event)); }, { passive: false });
  canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => { dragged = { x: event.clientX, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (!dragged) return;
    const by = event.clientX - dragged.x;
    if (Math.abs(by) > 2) { dragged = { x: event.clientX, moved: true }; move(-by * (view[1] - view[0]) / (canvas.clientWidth - LABEL)); }
  });
  canvas.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
    const click = dragged && !dragged.moved; dragged = null;
    if (!click) return;
    const number = Math.floor((event.clientY - canvas.getBoundingClientRect().top - TOP) / (BAR + STRIP + GAP)), row = line.rows[number], cycle = cycleAt(event);
    if (!row) return;
    for (let i = lower(row.reach, cycle); i < row.start.length && row.start[i] <= cycle; i++)
      if (row.start[i] + row.dur[i] > cycle) return pick(number, i);
    said.textContent = `IPU ${row.ipu} does nothing at cycle ${whole(cycle)}`;
  });
  return { draw, key: (/** @type {KeyboardEvent} */ event) => {
    const length = view[1] - view[0];
    const action = /** @type {Record<string, () => void>} */ ({ w: () => zoom(0.7), s: () => zoom(1.4), a: () => move(-length / 8), d: () => move(length / 8), 0: () => { view = [first, end]; draw(); }, "/": () => box.focus(), n: next })[event.key];
    if (!action) return false;
    action(); return true;
  } };
}

// --------------------------------------------------------------------------------------------------------- memory

/** A chooser of one of the IPUs in a table of facts. @param {Record<string, any>} of @param {() => void} changed */
function ipuChooser(of, changed) {
  return make("select", { "aria-label": "IPU", onchange: changed }, ...Object.keys(of).map((ipu) => make("option", { value: ipu }, "IPU " + ipu)));
}

function livenessView(/** @type {HTMLElement} */ at) {
  const all = facts.liveness;
  if (!Object.keys(all).length) { at.append(make("p", {}, "The trace holds no liveness.")); return {}; }
  const chosen = ipuChooser(all, () => { step = -1; draw(); }), canvas = make("canvas", { id: "liveness-canvas", tabindex: 0 });
  const said = make("div", { class: "facts", id: "liveness-facts" }), listed = make("div");
  let step = -1, alwaysToo = true, overTime = false;
  const always = make("button", { onclick: () => { alwaysToo = !alwaysToo; draw(); } }, "always live");
  const time = make("button", { onclick: () => { overTime = !overTime; draw(); } }, "over time");
  at.append(make("div", { class: "tools" }, chosen, always, time), canvas, said, make("h2", {}, "Variables"), listed);
  const HEIGHT = 300, LEFT = 64, BOTTOM = 22;
  function draw() {
    const one = all[chosen.value], { to, width } = context(canvas, HEIGHT), timed = overTime && one.time;
    const xs = timed ? one.time[0] : one.step, values = timed ? one.time[1] : one.other.map((/** @type {number} */ o, /** @type {number} */ i) => o + (alwaysToo ? one.always[i] : 0));
    const last = timed ? facts.total_cycles : one.steps, top = Math.max(...values, 1) * 1.08;
    const x = (/** @type {number} */ s) => LEFT + (s - (timed ? xs[0] : 0)) / Math.max(last - (timed ? xs[0] : 0), 1) * (width - LEFT - 8), y = (/** @type {number} */ v) => HEIGHT - BOTTOM - v / top * (HEIGHT - BOTTOM - 8);
    const area = (/** @type {number[]} */ base, /** @type {number[]} */ high, /** @type {string} */ fill) => {
      to.fillStyle = fill; to.beginPath(); to.moveTo(x(xs[0]), y(base[0]));
      high.forEach((v, i) => { to.lineTo(x(xs[i]), y(v)); to.lineTo(x(i + 1 < xs.length ? xs[i + 1] : last), y(v)); });
      for (let i = xs.length - 1; i >= 0; i--) { to.lineTo(x(i + 1 < xs.length ? xs[i + 1] : last), y(base[i])); to.lineTo(x(xs[i]), y(base[i])); }
      to.fill();
    };
    const zero = xs.map(() => 0), base = !timed && alwaysToo ? one.always : zero;
    if (!timed && alwaysToo) area(zero, one.always, "#f6627188");
    area(base, values, "#6f6ffe99");
    to.fillStyle = colour("--soft");
    for (let i = 0; i <= 4; i++) { const v = top * i / 4; to.fillText(bytes(v), 4, y(v)); to.fillRect(LEFT, y(v), width - LEFT - 8, 0.5); }
    for (let i = 0; i <= 6; i++) to.fillText(whole((timed ? xs[0] : 0) + (last - (timed ? xs[0] : 0)) * i / 6), Math.min(x((timed ? xs[0] : 0) + (last - (timed ? xs[0] : 0)) * i / 6), width - 60), HEIGHT - 9);
    const peak = values.indexOf(Math.max(...values));
    if (step < 0) step = one.step[one.other.map((/** @type {number} */ o, /** @type {number} */ i) => o + one.always[i]).reduce((/** @type {number} */ best, /** @type {number} */ v, /** @type {number} */ i, /** @type {number[]} */ list) => (v > list[best] ? i : best), 0)];
    const place = Math.max(lower(one.step, step + 1) - 1, 0);
    if (!timed) { to.fillStyle = colour("--accent"); to.fillRect(x(step), 4, 1.5, HEIGHT - BOTTOM - 4); }
    said.textContent = timed ? `bytes over cycles; peak ${whole(values[peak])} B at cycle ${whole(xs[peak])}`
      : `step ${whole(step)} of ${whole(one.steps)} (${one.program[place]}): ${whole(one.other[place])} B not always live, ${whole(one.always[place])} B always live. Peak of both: ${whole(Math.max(...one.other.map((/** @type {number} */ o, /** @type {number} */ i) => o + one.always[i])))} B`;
    said.dataset.step = String(step); said.dataset.other = String(one.other[place]); said.dataset.always = String(one.always[place]);
    const ipu = Number(chosen.value), live = facts.variables.listed.filter((/** @type {any} */ v) => v.ipu === ipu && (v.always_live ? alwaysToo : v.live.some((/** @type {number[]} */ r) => r[0] <= step && step < r[1])));
    listed.replaceChildren(sortable([["variable", (/** @type {any} */ v) => v.name], ["bytes", (/** @type {any} */ v) => v.bytes, "n", whole], ["always live", (/** @type {any} */ v) => v.always_live ? "yes" : ""], ["for", (/** @type {any} */ v) => v.category], ["line", (/** @type {any} */ v) => v.line, "", brief]], live.slice(0, 300)),
      make("p", { class: "note" }, `${whole(live.length)} variables live at this step, of the ${whole(facts.variables.listed.length)} largest of ${whole(facts.variables.count)}.`));
  }
  const choose = (/** @type {number} */ s) => { const one = all[chosen.value]; step = Math.min(Math.max(Math.round(s), 0), one.steps - 1); draw(); };
  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    if (!overTime) choose((event.clientX - box.left - LEFT) / (box.width - LEFT - 8) * all[chosen.value].steps - 0.5);
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
  const key = make("div"), worst = make("div"), names = make("div");
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
      to.fillStyle = used[n].colour;
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
    if (variable) for (const [from, until] of variable.tiles) { to.fillStyle = colour("--accent"); to.fillRect(x(from), HEIGHT - BOTTOM + 1, Math.max(x(until) - x(from), 1.5), 5); }
    const fullest = total.indexOf(most), sum = total.reduce((a, b) => a + b, 0);
    said.textContent = `fullest tile ${fullest}: ${whole(most)} B, ${percent(most, limit)} of ${whole(limit)} B; all tiles together ${whole(sum)} B` + (variable ? `\n${variable.name}: ${whole(variable.bytes)} B on the tiles marked below` : "");
    said.dataset.most = String(most); said.dataset.tile = String(fullest); said.dataset.total = String(sum);
    key.replaceChildren(legend(used.map((/** @type {any} */ c) => [c.name, c.colour])));
    const order = Array.from(total.keys()).sort((a, b) => total[b] - total[a]).slice(0, 40);
    worst.replaceChildren(sortable([["tile", (/** @type {number} */ t) => t, "n"], ["bytes", (/** @type {number} */ t) => total[t], "n", whole], ["of the limit", (/** @type {number} */ t) => total[t] / limit, "n", (/** @type {number} */ v) => (100 * v).toFixed(1) + " %"]], order));
    const own = facts.variables.listed.filter((/** @type {any} */ v) => v.ipu === Number(chosen.value)).slice(0, 300);
    if (!variable) names.replaceChildren(sortable([["variable", (/** @type {any} */ v) => v.name], ["bytes", (/** @type {any} */ v) => v.bytes, "n", whole], ["line", (/** @type {any} */ v) => v.line, "", brief]], own, (v) => { variable = v; draw(); }));
  }
  return { draw };
}

// ------------------------------------------------------------------------------------------------------------- BSP

function bspView(/** @type {HTMLElement} */ at) {
  const line = facts.timeline;
  if (!line) { at.append(make("p", {}, "Nothing was executed.")); return {}; }
  const rows = line.rows.filter((/** @type {any} */ r) => r.lane === 0), canvas = make("canvas", { id: "bsp-canvas", tabindex: 0 }), said = make("div", { class: "facts", id: "bsp-facts" }), table = make("div"), key = make("div");
  const chosen = make("select", { "aria-label": "IPU", onchange: () => { from = 0; draw(); } }, ...rows.map((/** @type {any} */ r, /** @type {number} */ n) => make("option", { value: n }, "IPU " + r.ipu + (facts.meta.replicas > 1 ? " of replica " + r.replica : ""))));
  let from = 0, count = 40;
  at.append(make("p", { class: "note" }, "Supersteps in their order: the bar of a step is as long as its slowest tile takes; filled is the average over all tiles, light what the others wait for it. a/d: move, w/s: fewer or more steps."),
    make("div", { class: "tools" }, chosen, make("button", { onclick: () => shift(-count / 2) }, "earlier"), make("button", { onclick: () => shift(count / 2) }, "later"), make("button", { onclick: worst }, "widest spread")), key, canvas, said, table);
  function shift(/** @type {number} */ by) { const row = rows[chosen.value]; from = Math.round(Math.min(Math.max(from + by, 0), Math.max(row.step.length - count, 0))); draw(); }
  function worst() {
    const row = rows[chosen.value]; let best = 0, most = -1;
    row.step.forEach((/** @type {number} */ s, /** @type {number} */ i) => { const wide = line.steps.kind[s] === 0 ? row.dur[i] - line.steps.mean[s] : -1; if (wide > most) { most = wide; best = i; } });
    from = Math.max(best - 5, 0); draw();
  }
  function draw() {
    const row = rows[chosen.value], shown = [];
    for (let i = from; i < Math.min(from + count, row.step.length); i++) shown.push(i);
    const HEIGHT = 240, { to, width } = context(canvas, HEIGHT), most = Math.max(...shown.map((i) => row.dur[i]), 1), wide = (width - 70) / Math.max(shown.length, 1);
    shown.forEach((i, n) => {
      const s = row.step[i], high = row.dur[i] / most * (HEIGHT - 30), mean = Math.min(line.steps.mean[s], row.dur[i]) / most * (HEIGHT - 30), left = 64 + n * wide;
      to.fillStyle = kindColour(line.steps.kind[s]); to.globalAlpha = 0.35; to.fillRect(left, HEIGHT - 20 - high, wide - 1.5, high);
      to.globalAlpha = 1; to.fillRect(left, HEIGHT - 20 - mean, wide - 1.5, mean);
    });
    to.fillStyle = colour("--soft"); to.fillText(whole(most), 4, 14); to.fillText("cycles", 4, 28);
    key.replaceChildren(legend(facts.kinds.map((/** @type {any} */ k, /** @type {number} */ i) => [k.label, kindColour(i)]).filter((/** @type {any} */ k, /** @type {number} */ i, /** @type {any[]} */ list) => list.findIndex((o) => o[0] === k[0]) === i)));
    said.textContent = `steps ${whole(from)} to ${whole(from + shown.length)} of ${whole(row.step.length)} on IPU ${row.ipu}, from cycle ${whole(row.start[from] || 0)}`;
    const cells = shown.map((i) => ({ i, s: row.step[i], dur: row.dur[i] }));
    table.replaceChildren(sortable([["step", (/** @type {any} */ c) => c.i, "n"], ["op", (/** @type {any} */ c) => line.ops[line.steps.op[c.s]]], ["kind", (/** @type {any} */ c) => facts.kinds[line.steps.kind[c.s]].label], ["cycles", (/** @type {any} */ c) => c.dur, "n", whole], ["average tile", (/** @type {any} */ c) => line.steps.mean[c.s], "n", whole], ["balance", (/** @type {any} */ c) => line.steps.mean[c.s] / Math.max(c.dur, 1), "n", (/** @type {number} */ v) => (100 * v).toFixed(0) + " %"], ["active tiles", (/** @type {any} */ c) => line.steps.tiles[c.s], "n"], ["slowest tile", (/** @type {any} */ c) => line.steps.slowest[c.s], "n"]], cells));
  }
  return { draw, key: (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "a") shift(-count / 2); else if (event.key === "d") shift(count / 2); else if (event.key === "w") { count = Math.max(Math.round(count / 2), 5); draw(); } else if (event.key === "s") { count = Math.min(count * 2, 400); draw(); } else return false;
    return true;
  } };
}

// ------------------------------------------------------------------------------------------------------ operations

function operationsView(/** @type {HTMLElement} */ at) {
  const ops = facts.operations;
  if (!ops) { at.append(make("p", {}, "Nothing was executed.")); return {}; }
  const rows = ops.op.map((/** @type {string} */ _, /** @type {number} */ i) => Object.fromEntries(Object.keys(ops).filter((k) => Array.isArray(ops[k])).map((k) => [k, ops[k][i]])));
  const filter = make("input", { id: "operations-filter", placeholder: "op, type, layer, line", size: 26, oninput: fill });
  const group = make("select", { id: "operations-group", "aria-label": "group by", onchange: fill }, ...["op and IPU", "layer", "type", "line", "phase", "kind", "ipu"].map((g) => make("option", { value: g }, g)));
  const table = make("div", { id: "operations-table" }), note = make("p", { class: "note", id: "operations-note" });
  at.append(make("div", { class: "tools" }, filter, "group by", group), table, note);
  const cycles = ["cycles", (/** @type {any} */ r) => r.cycles, "n", whole], share = ["share", (/** @type {any} */ r) => r.share, "n", (/** @type {number} */ v) => (100 * v).toFixed(2) + " %"], waiting = ["waiting", (/** @type {any} */ r) => r.waiting_cycles, "n", whole], flops = ["FLOP", (/** @type {any} */ r) => r.flops, "n", whole];
  const rate = ["FLOP per cycle", (/** @type {any} */ r) => (r.cycles ? r.flops / r.cycles : 0), "n", whole];
  function fill() {
    const words = filter.value.toLowerCase(), kept = rows.filter((/** @type {any} */ r) => !words || [r.op, r.type, r.layer, r.line].some((t) => t.toLowerCase().includes(words)));
    const sum = kept.reduce((/** @type {number} */ a, /** @type {any} */ r) => a + r.cycles, 0);
    if (group.value === "op and IPU")
      table.replaceChildren(sortable([["op", (/** @type {any} */ r) => r.op], ["type", (/** @type {any} */ r) => r.type], ["IPU", (/** @type {any} */ r) => r.ipu, "n"], ["bound by", (/** @type {any} */ r) => r.kind], ["phase", (/** @type {any} */ r) => r.phase], cycles, share, waiting, flops, rate, ["layer", (/** @type {any} */ r) => r.layer], ["line", (/** @type {any} */ r) => r.line, "", brief]], kept));
    else {
      const by = new Map();
      for (const r of kept) {
        const name = String(r[group.value]) || "(none)", one = by.get(name) || { name, cycles: 0, share: 0, waiting_cycles: 0, flops: 0, count: 0 };
        for (const k of ["cycles", "share", "waiting_cycles", "flops"]) one[k] += r[k];
        one.count++; by.set(name, one);
      }
      table.replaceChildren(sortable([[group.value, (/** @type {any} */ r) => r.name], ["rows", (/** @type {any} */ r) => r.count, "n"], cycles, share, waiting, flops, rate], [...by.values()].sort((a, b) => b.cycles - a.cycles)));
    }
    note.textContent = `${whole(kept.length)} of ${whole(ops.rows)} rows, ${whole(sum)} of ${whole(ops.total_cycles)} cycles in which an op does something; waiting is beside them.`;
    note.dataset.cycles = String(sum);
  }
  fill();
  return { key: (/** @type {KeyboardEvent} */ event) => { if (event.key !== "/") return false; filter.focus(); return true; } };
}

// ----------------------------------------------------------------------------------------------------------- links

function linksView(/** @type {HTMLElement} */ at) {
  const { used, collectives } = facts.links, canvas = make("canvas", { id: "links-canvas" });
  at.append(make("h2", {}, "Use of each link over the whole trace"), canvas, sortable([["link", (/** @type {any} */ l) => l.name], ["kind", (/** @type {any} */ l) => l.kind], ["bytes", (/** @type {any} */ l) => l.bytes, "n", whole], ["transfers", (/** @type {any} */ l) => l.transfers, "n", whole], ["busy cycles", (/** @type {any} */ l) => l.busy_cycles, "n", whole], ["use", (/** @type {any} */ l) => l.utilisation, "n", (/** @type {number} */ v) => (100 * v).toFixed(1) + " %"]], used));
  at.append(make("h2", {}, "Collectives"), collectives.length ? sortable([["op", (/** @type {any} */ c) => c.op], ["kind", (/** @type {any} */ c) => c.kind], ["rounds", (/** @type {any} */ c) => c.rounds, "n", whole], ["transfers", (/** @type {any} */ c) => c.transfers, "n", whole], ["bytes over links", (/** @type {any} */ c) => c.bytes, "n", whole]], collectives) : make("p", { class: "note" }, "There are none."));
  function draw() {
    const rows = used.filter((/** @type {any} */ l) => l.use).slice(0, 24), HIGH = 18, { to, width } = context(canvas, rows.length * (HIGH + 3) + 24), LEFT = 210;
    rows.forEach((/** @type {any} */ link, /** @type {number} */ n) => {
      const y = n * (HIGH + 3) + 3, wide = (width - LEFT - 8) / link.use.length;
      to.fillStyle = colour("--fore"); to.fillText(link.name.slice(0, 34), 4, y + HIGH / 2);
      to.fillStyle = colourOf("link");
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
  if (!time) { at.append(make("p", {}, facts.untold || "Nothing was executed.")); return {}; }
  const canvas = make("canvas", { id: "path-canvas" }), path = time.path, cost = time.path_cycles;
  at.append(make("p", { class: "note" }, "The chain of work without which the last run would end earlier, read backwards from its end: where an IPU waits, the path goes over to the IPU that it waits for."), canvas);
  const rows = cost.op.map((/** @type {string} */ op, /** @type {number} */ i) => ({ op, ipu: cost.ipu[i], kind: facts.kinds.find((/** @type {any} */ k) => k.name === cost.kind[i]).label, cycles: cost.cycles[i] }));
  at.append(make("h2", {}, "What it consists of"), make("div", { id: "path-table", "data-cycles": cost.cycles.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) }, sortable([["op", (/** @type {any} */ r) => r.op || "(no op)"], ["IPU", (/** @type {any} */ r) => r.ipu, "n"], ["kind", (/** @type {any} */ r) => r.kind], ["cycles", (/** @type {any} */ r) => r.cycles, "n", whole], ["of the run", (/** @type {any} */ r) => r.cycles / time.total, "n", (/** @type {number} */ v) => (100 * v).toFixed(2) + " %"]], rows)));
  if (time.path_pieces > path.start.length) at.append(make("p", { class: "note" }, `drawn: the first ${whole(path.start.length)} of ${whole(time.path_pieces)} pieces`));
  function draw() {
    const ipus = [...new Set(path.ipu)].sort((a, b) => a - b), HIGH = 22, { to, width } = context(canvas, ipus.length * HIGH + 24), LEFT = 64;
    const begin = path.start[0], end = path.start[path.start.length - 1] + path.dur[path.dur.length - 1], x = (/** @type {number} */ c) => LEFT + (c - begin) / Math.max(end - begin, 1) * (width - LEFT - 8);
    ipus.forEach((ipu, n) => { to.fillStyle = colour("--fore"); to.fillText("IPU " + ipu, 6, n * HIGH + 14); to.fillStyle = colour("--line"); to.fillRect(LEFT, n * HIGH + 14, width - LEFT - 8, 0.5); });
    for (let i = 0; i < path.start.length; i++) {
      to.fillStyle = colourOf(path.sync[i] ? "sync_external" : "compute");
      to.fillRect(x(path.start[i]), ipus.indexOf(path.ipu[i]) * HIGH + 7, Math.max(x(path.start[i] + path.dur[i]) - x(path.start[i]), 0.6), 14);
    }
    to.fillStyle = colour("--soft"); to.fillText(whole(begin), LEFT, ipus.length * HIGH + 12); to.fillText(whole(end) + " cycles", width - 130, ipus.length * HIGH + 12);
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
  if (facts.timeline) prepareTimeline();
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
  document.documentElement.dataset.ready = "yes";
}
main().catch((error) => {
  document.getElementById("views")?.append(make("p", { class: "bad" }, "The page cannot be shown: " + error.message + ". The summary is below."));
  throw error;
});
