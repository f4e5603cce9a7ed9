// @ts-check
"use strict";
/**
 * The time line and the BSP view. Executions stay folded as they are in the trace: a row has starts and segments, a
 * segment its steps and loops. What is less than a pixel wide is added up for that pixel, so that a frame costs what is
 * seen; of a long row sums are kept beforehand.
 */

/** A step (j: its number), or a loop of nodes; begin and end are relative to the start of the segment, all trips included.
 * @typedef {{j: number, begin: number, end: number, inner: number, count: number, period: number, nodes: Bit[] | null}} Bit */
/** What a segment does on one lane: codes 0 to 11 are kinds, 12 to 17 what an op is for (of compute and exchange).
 * @typedef {{bits: Bit[], end: number, mix: number[][], parts: number[][]}} Shape */

const CODES = 18, FINE = 8192;

/** First index of a sorted array with a value of at least x. @param {ArrayLike<number>} values @param {number} x */
function lower(values, x) {
  let low = 0, high = values.length;
  while (low < high) { const middle = (low + high) >> 1; if (values[middle] < x) low = middle + 1; else high = middle; }
  return low;
}
/** Differences as sums. @param {number[]} steps */
function summed(steps) { let at = 0; return Float64Array.from(steps, (d) => (at += d)); }

/** Absolute times, the tree of each segment, and in which order passes come, once. */
function prepareTimeline() {
  if (facts.timeline.host) return;
  const line = facts.timeline, { segments } = line, { loops } = segments, shapes = new Map();
  for (let s = 0; s + 1 < segments.first.length; s++)
    for (let j = segments.first[s] + 1; j < segments.first[s + 1]; j++) segments.rel[j] += segments.rel[j - 1];
  /** @param {number} s @param {number} lane @returns {Shape} */
  function shapeOf(s, lane) {
    const bits = /** @type {Bit[]} */ ([]), open = new Map();
    /** @param {number} loop */
    const listOf = (loop, begin = 0) => {
      if (loop < 0) return bits;
      if (!open.has(loop)) {
        const bit = { j: -1, begin, end: begin, inner: begin, count: loops.count[loop], period: loops.period[loop], nodes: /** @type {Bit[]} */ ([]) };
        open.set(loop, bit); listOf(loops.parent[loop], begin).push(bit);
      }
      return open.get(loop).nodes;
    };
    for (let j = segments.first[s]; j < segments.first[s + 1]; j++) {
      if (segments.lane[j] !== lane) continue;
      const begin = segments.rel[j], end = begin + segments.dur[j];
      listOf(segments.loop[j], begin).push({ j, begin, end, inner: end, count: 1, period: 0, nodes: null });
    }
    const sums = new Float64Array(CODES);
    /** @param {Bit} bit @param {number} times */
    const close = (bit, times) => {
      if (bit.nodes) {
        for (const inner of bit.nodes) { close(inner, times * bit.count); bit.inner = Math.max(bit.inner, inner.end); }
        bit.end = bit.inner + (bit.count - 1) * bit.period; return;
      }
      const kind = segments.kind[bit.j], cycles = (bit.end - bit.begin) * times;
      sums[kind] += cycles; if (kind < 2) sums[12 + segments.phase[bit.j]] += cycles;
    };
    bits.forEach((bit) => close(bit, 1));
    const end = bits.reduce((most, bit) => Math.max(most, bit.end), 0), parts = /** @type {number[][]} */ ([]);
    for (const bit of bits) {  // stretches of one purpose: 0 forward, 1 recompute, 2 backward, 3 update, 4 input and output, 5 link, 6 waiting
      let one = bit; while (one.nodes) one = one.nodes[0];
      const kind = segments.kind[one.j], phase = segments.phase[one.j];
      const part = kind === 4 ? 5 : kind === 3 || kind === 11 ? 6 : kind > 4 ? 4 : phase < 4 ? phase : -1;
      if (part < 0) continue;
      const last = parts[parts.length - 1];
      if (last && last[2] === part) last[1] = bit.end; else parts.push([bit.begin, bit.end, part]);
    }
    return { bits, end, mix: Array.from(sums, (cycles, code) => [code, cycles]).filter((m) => m[1] > 0), parts };
  }
  for (const row of line.rows) {
    row.start = summed(row.start);
    row.micro_batch = unfold(row.micro_batch);
    row.shape = row.segment.map((/** @type {number} */ s) => {
      const name = s * 64 + row.lane; let shape = shapes.get(name);
      if (!shape) shapes.set(name, (shape = shapeOf(s, row.lane)));
      return shape;
    });
    let reach = 0;
    row.reach = Float64Array.from(row.start, (/** @type {number} */ start, /** @type {number} */ i) => (reach = Math.max(reach, start + row.shape[i].end)));
    row.passes = row.lane ? null : passesOf(row);
  }
  line.flows.start = summed(line.flows.start);
  for (const lane of line.lanes) lane.start = summed(lane.start);
  line.host = [...new Set(facts.host.channel)].map((channel) => {
    const at = facts.host.start.map((/** @type {number} */ _, /** @type {number} */ i) => i).filter((/** @type {number} */ i) => facts.host.channel[i] === channel);
    at.sort((/** @type {number} */ a, /** @type {number} */ b) => facts.host.start[a] - facts.host.start[b]);
    const take = (/** @type {any[]} */ column) => at.map((/** @type {number} */ i) => column[i]);
    return { name: String(channel), start: Float64Array.from(take(facts.host.start)), dur: take(facts.host.dur), label: take(facts.host.label) };
  });
  stages();
}

/** The passes of an IPU in time: forward and backward (with what runs again for it) of micro-batches, weight updates.
 * A pass ends where a copy between IPUs comes, another kind of pass, or an input of another micro-batch. @param {any} row */
function passesOf(row) {
  const out = { start: /** @type {number[]} */ ([]), end: /** @type {number[]} */ ([]), code: /** @type {number[]} */ ([]), number: /** @type {number[]} */ ([]) };
  let now = -1, batch = -1, before = -1; const count = [0, 0, 0];
  for (let i = 0; i < row.start.length; i++)
    for (const [begin, end, part] of row.shape[i].parts) {
      const again = part === 0 && before === 1;  // a forward graph that is called right after a recomputation
      before = again ? 1 : part;
      if (part === 5) { now = -1; continue; }
      if (part > 3) continue;
      const code = part === 3 ? 3 : part === 0 && !again ? 0 : 2, micro = row.micro_batch[i];
      if (code === now && !(code === 0 && micro >= 0 && batch >= 0 && micro !== batch)) out.end[out.end.length - 1] = row.start[i] + end;
      else {
        if (code === 3) { count[0] = count[2] = 0; } else count[code]++;
        out.start.push(row.start[i] + begin); out.end.push(row.start[i] + end); out.code.push(code); out.number.push(count[code]);
        now = code; batch = -1;
      }
      if (micro >= 0) batch = micro;
    }
  return out;
}

/** Which stage each IPU is, by when its first forward begins; only where copies go between them. */
function stages() {
  const line = facts.timeline, of = new Map();
  for (const row of line.rows) if (row.passes && row.passes.code.includes(0)) of.set(row.replica, [...(of.get(row.replica) || []), row]);
  for (const rows of of.values()) {
    if (rows.length < 2 || !line.flows.source.length) continue;
    const first = (/** @type {any} */ row) => row.passes.start[row.passes.code.indexOf(0)];
    const forwards = new Set(rows.map((/** @type {any} */ row) => row.passes.code.filter((/** @type {number} */ c) => c === 0).length));
    [...rows].sort((a, b) => first(a) - first(b)).forEach((row, n) => { row.stage = n; row.numbered = forwards.size === 1; });
  }
  for (const row of line.rows) if (row.passes && row.stage === undefined) row.numbered = true;
}

/** Visits the slices of a row that end after a time, in order, until a visit says false.
 * @param {any} row @param {number} from @param {(i: number, j: number, start: number, end: number) => boolean | void} visit @param {(shape: Shape) => boolean} [wanted] */
function walk(row, from, visit, wanted) {
  /** @param {Bit[]} bits @param {number} base @param {number} i @returns {boolean | void} */
  const inside = (bits, base, i) => {
    for (const bit of bits) {
      if (base + bit.end <= from) continue;
      if (!bit.nodes) { if (visit(i, bit.j, base + bit.begin, base + bit.end) === false) return false; continue; }
      const first = bit.period ? Math.max(0, Math.floor((from - base - bit.inner) / bit.period) + 1) : 0;
      for (let k = first; k < bit.count; k++) if (inside(bit.nodes, base + k * bit.period, i) === false) return false;
    }
  };
  for (let i = lower(row.reach, from); i < row.start.length; i++)
    if ((!wanted || wanted(row.shape[i])) && inside(row.shape[i].bits, row.start[i], i) === false) return;
}

/** Sums by code in equal stretches of a whole row, once. @param {any} row @param {number} first @param {number} end */
function coarse(row, first, end) {
  if (row.coarse) return row.coarse;
  const sums = new Float32Array(FINE * CODES), size = (end - first) / FINE;
  row.start.forEach((/** @type {number} */ start, /** @type {number} */ i) => spread(sums, FINE, (start - first) / size, (start + row.shape[i].end - first) / size, row.shape[i].mix, 1 / size));
  return (row.coarse = sums);
}
/** Adds a mix of cycles evenly to the cells from a to b. @param {Float32Array} sums @param {number} cells @param {number} a @param {number} b @param {number[][]} mix @param {number} scale */
function spread(sums, cells, a, b, mix, scale) {
  const low = Math.max(Math.floor(a), 0), high = Math.min(Math.floor(b), cells - 1), long = Math.max(b - a, 1e-9);
  for (let p = low; p <= high; p++) {
    const part = scale * (b - a < 1e-6 ? 1 : Math.max(Math.min(b, p + 1) - Math.max(a, p), 0) / long);
    for (let m = 0; m < mix.length; m++) sums[p * CODES + mix[m][0]] += mix[m][1] * part;
  }
}

/** The window that is shown, kept for the BSP view. */
const shownWindow = { from: /** @type {number | null} */ (null) };

function timelineView(/** @type {HTMLElement} */ at) {
  const line = facts.timeline;
  if (!line) { at.append(make("p", {}, "Nothing was executed.")); return {}; }
  prepareTimeline();
  const steps = line.segments, many = line.rows.length > 8, LABEL = 118, BAR = many ? 15 : 22, STRIP = 12, GAP = many ? 4 : 8, TOP = 22, LANE = 13, ROW = BAR + STRIP + GAP;
  const end = Math.max(...line.rows.map((/** @type {any} */ r) => r.reach.length ? r.reach[r.reach.length - 1] : 0), 1);
  const first = Math.min(...line.rows.filter((/** @type {any} */ r) => r.start.length).map((/** @type {any} */ r) => r.start[0] + (r.shape[0].bits[0]?.begin || 0)));
  let view = [first, end], grid = false, lanes = line.lanes.length <= (many ? 8 : 24), found = "", picked = /** @type {any} */ (null), frames = 0, waiting = false;
  let hits = new Uint8Array(line.ops.length);
  const canvas = make("canvas", { id: "timeline-canvas", tabindex: 0, "aria-label": "execution timeline" });
  const said = make("div", { class: "facts", id: "timeline-facts" }, "Wheel or w/s: zoom. Drag or a/d: move. Click: what a slice is. 0: all. p: pipeline grid. l: links. /: search an op, n: the next.");
  const shown = make("span", { id: "timeline-window" });
  const box = make("input", { id: "timeline-search", placeholder: "op name", size: 20, oninput: () => {
    found = box.value.toLowerCase(); hits = Uint8Array.from(line.ops, (/** @type {string} */ op) => Number(found !== "" && op.toLowerCase().includes(found))); changed();
  } });
  const pipeline = make("button", { id: "timeline-grid", title: "what ops are for, and a line at each exchange between stages (p)", onclick: () => { grid = !grid; changed(); } }, "pipeline grid");
  const links = make("button", { id: "timeline-links", title: "lanes of the links (l)", onclick: () => { lanes = !lanes; changed(); } }, "links");
  const key = make("div");
  at.append(make("div", { class: "tools" }, make("button", { "aria-label": "zoom in", onclick: () => zoom(0.5) }, "+"), make("button", { "aria-label": "zoom out", onclick: () => zoom(2) }, "-"),
    make("button", { onclick: () => { view = [first, end]; changed(); } }, "all"), pipeline, line.lanes.length ? links : "", box, make("button", { onclick: next }, "next"), shown), key, canvas, said);
  if (line.window) at.append(make("p", { class: "note" }, `The trace is too long for one page: the time line holds cycles ${whole(line.window[0])} to ${whole(line.window[1])}.`));
  const top = (/** @type {number} */ n) => TOP + n * ROW, hostTop = top(line.rows.length), laneTop = hostTop + line.host.length * (LANE + 3);
  const height = () => laneTop + (lanes ? line.lanes.length * (LANE + 3) : 0) + 6;
  const rowOf = new Map(line.rows.map((/** @type {any} */ r, /** @type {number} */ n) => [r.ipu * 64 + r.lane, n]));
  const phaseColour = (/** @type {number} */ p) => (safeColours ? facts.phases[p].safe : facts.phases[p].colour);
  const codeColour = (/** @type {number} */ code) => (code < 12 ? kindColour(code) : phaseColour(code - 12));
  const matching = new Map();
  const matches = (/** @type {Shape} */ shape) => {  // whether a segment has an op that is searched
    let known = matching.get(shape);
    if (!known || known.found !== found) {
      const any = (/** @type {Bit[]} */ bits) => bits.some((/** @type {Bit} */ bit) => (bit.nodes ? any(bit.nodes) : hits[steps.op[bit.j]]));
      matching.set(shape, (known = { found, yes: any(shape.bits) }));
    }
    return known.yes;
  };

  /** One row into sums by pixel; what is wider goes into a list of slices.
   * @param {any} row @param {Float32Array} sums @param {number} pixels @param {number} scale @param {any[]} wide @param {number[]} marks */
  function gather(row, sums, pixels, scale, wide, marks) {
    const size = (end - first) / FINE;
    if (row.start.length > FINE && 1 / scale > size) {
      const fine = coarse(row, first, end);
      const low = Math.max(Math.floor((view[0] - first) / size), 0), high = Math.min(Math.ceil((view[1] - first) / size), FINE);
      for (let c = low; c < high; c++) {
        const p = Math.floor((first + (c + 0.5) * size - view[0]) * scale);
        if (p >= 0 && p < pixels) for (let code = 0; code < CODES; code++) sums[p * CODES + code] += fine[c * CODES + code] * size * scale;
      }
    } else {
      /** @param {Bit[]} bits @param {number} base @param {number} i */
      const inside = (bits, base, i) => {
        for (const bit of bits) {
          const a = (base + bit.begin - view[0]) * scale, b = (base + bit.end - view[0]) * scale;
          if (b < 0 || a > pixels) continue;
          if (bit.nodes && bit.period * scale >= 2) {
            const from = Math.max(0, Math.floor((view[0] - base - bit.inner) / bit.period));
            const until = Math.min(bit.count, Math.ceil((view[1] - base - bit.begin) / bit.period) + 1);
            for (let k = from; k < until; k++) inside(bit.nodes, base + k * bit.period, i);
          } else if (bit.nodes) spread(sums, pixels, a, b, mixOf(bit), scale);
          else if (b - a < 1) {
            const p = Math.max(Math.floor(a), 0), kind = steps.kind[bit.j];
            if (p < pixels) { sums[p * CODES + kind] += b - a; if (kind < 2) sums[p * CODES + 12 + steps.phase[bit.j]] += b - a; }
            if (hits[steps.op[bit.j]]) marks.push(a);
          } else wide.push([a, b, i, bit.j]);
        }
      };
      const level = Math.floor(Math.log(0.7 / scale) / Math.log(4));  // steps that are together less than a pixel go together
      for (let i = lower(row.reach, view[0]); i < row.start.length && row.start[i] < view[1]; i++) {
        const shape = row.shape[i], base = row.start[i], a = (base - view[0]) * scale, b = a + shape.end * scale, seek = found !== "" && marks.length < 4 * pixels && matches(shape);
        if (b - a < 1) { spread(sums, pixels, a, b, shape.mix, scale); if (seek) marks.push(a); continue; }
        if (level < 0 || shape.bits.length < 8) { inside(shape.bits, base, i); continue; }
        for (const group of groupsOf(shape, level)) {
          const left = (base + group.begin - view[0]) * scale, right = (base + group.end - view[0]) * scale;
          if (right < 0 || left > pixels) continue;
          if (!group.mix) { inside(group.bits, base, i); continue; }
          spread(sums, pixels, left, right, group.mix, scale);
          if (seek && group.bits.some((/** @type {Bit} */ bit) => !bit.nodes && hits[steps.op[bit.j]])) marks.push(left);
        }
      }
      return;
    }
    if (found) for (let i = lower(row.reach, view[0]); i < row.start.length && row.start[i] < view[1]; i++) if (matches(row.shape[i])) marks.push((row.start[i] - view[0]) * scale);
  }
  /** The steps of a segment, those that follow each other within 4^level cycles as one. @param {any} shape @param {number} level */
  function groupsOf(shape, level) {
    shape.groups = shape.groups || new Map();
    let known = shape.groups.get(level);
    if (known) return known;
    shape.groups.set(level, (known = /** @type {any[]} */ ([])));
    let open = /** @type {any} */ (null);
    for (const bit of shape.bits) {
      if (!open || bit.end - open.begin > 4 ** level) known.push((open = { begin: bit.begin, end: bit.end, bits: [], mix: null }));
      open.bits.push(bit); open.end = Math.max(open.end, bit.end);
    }
    for (const group of known) if (group.bits.length > 1) group.mix = mixOf({ j: -1, begin: 0, end: 0, inner: 0, count: 1, period: 0, nodes: group.bits });
    return known;
  }
  /** Cycles by code of a whole loop. @param {Bit} bit @returns {number[][]} */
  function mixOf(bit) {
    const known = /** @type {any} */ (bit); if (known.mix) return known.mix;
    const sums = new Float64Array(CODES);
    const add = (/** @type {Bit} */ one, /** @type {number} */ times) => {
      if (one.nodes) { one.nodes.forEach((inner) => add(inner, times * one.count)); return; }
      const kind = steps.kind[one.j]; sums[kind] += (one.end - one.begin) * times; if (kind < 2) sums[12 + steps.phase[one.j]] += (one.end - one.begin) * times;
    };
    add(bit, 1);
    return (known.mix = Array.from(sums, (cycles, code) => [code, cycles]).filter((m) => m[1] > 0));
  }
  const packed = (/** @type {string} */ text) => {
    const n = parseInt(text.slice(1), 16);
    return [n >> 16, (n >> 8) & 255, n & 255];
  };

  let image = /** @type {ImageData | null} */ (null);
  /** An empty picture of all rows. */
  function blank(/** @type {any} */ to, /** @type {number} */ pixels) {
    const ratio = window.devicePixelRatio || 1, width = Math.round(pixels * ratio), tall = Math.max(Math.round(line.rows.length * ROW * ratio), 1);
    if (!image || image.width !== width || image.height !== tall) image = to.createImageData(width, tall);
    const data = new Uint32Array(/** @type {ImageData} */ (image).data.buffer); data.fill(0);
    return data;
  }
  /** The sums of a row as pixels of the picture: the colour of what fills most of each. */
  function paint(/** @type {Uint32Array} */ data, /** @type {Float32Array} */ sums, /** @type {number} */ pixels, /** @type {number} */ number, /** @type {any} */ shades) {
    const ratio = window.devicePixelRatio || 1, width = Math.round(pixels * ratio), colouring = new Uint32Array(width);
    for (let strip = 0; strip < 2; strip++) {
      const from = strip || grid ? 12 : 0, until = strip ? 17 : grid ? 18 : 12, others = grid && !strip;
      for (let p = 0; p < width; p++) {
        const cell = (ratio === 1 ? p : Math.min(Math.floor(p / ratio), pixels - 1)) * CODES; let best = -1, most = 0, sum = 0;
        for (let code = from; code < until; code++) { const v = sums[cell + code]; sum += v; if (v > most) { most = v; best = code; } }
        if (others) for (let code = 2; code < 12; code++) { const v = sums[cell + code]; sum += v; if (v > most) { most = v; best = code; } }
        colouring[p] = best < 0 ? 0 : (Math.round(255 * Math.min(1, 0.35 + sum)) << 24) | shades[best];
      }
      const y = Math.round((number * ROW + (strip ? BAR + 1 : 0)) * ratio), tall = Math.round((strip ? STRIP - 2 : BAR) * ratio);
      for (let r = 0; r < tall; r++) data.set(colouring, (y + r) * width);
    }
  }

  function draw() {
    frames++; waiting = false;
    const { to, width } = context(canvas, height()), pixels = Math.floor(width - LABEL), scale = pixels / (view[1] - view[0]);
    const x = (/** @type {number} */ cycle) => LABEL + (cycle - view[0]) * scale;
    const shades = Array.from({ length: CODES }, (_, code) => { const c = packed(codeColour(code)); return (c[2] << 16) | (c[1] << 8) | c[0]; }), fore = colour("--fore"), soft = colour("--soft");
    to.fillStyle = soft;
    const step = 10 ** Math.floor(Math.log10((view[1] - view[0]) / 4)), every = step * Math.ceil((view[1] - view[0]) / step / 8);
    for (let t = Math.ceil(view[0] / every) * every; t < view[1]; t += every) {
      to.fillRect(x(t), TOP - 6, 1, 4); if (x(t) < width - 70) to.fillText(whole(t), x(t) + 3, 9);
    }
    const sums = new Float32Array(pixels * CODES), text = (/** @type {string} */ words, /** @type {number} */ left, /** @type {number} */ right, /** @type {number} */ y, /** @type {number} */ high) => {
      const room = Math.floor((Math.min(right, width) - Math.max(left, LABEL) - 6) / 6.2); if (room < 2) return;
      to.fillText(words.length > room ? words.slice(0, Math.max(room - 1, 1)) + "\u2026" : words, Math.max(left, LABEL) + 3, y + high / 2 + 0.5);
    };
    const data = blank(to, pixels), seen = line.rows.map((/** @type {any} */ row, /** @type {number} */ number) => {
      const wide = /** @type {any[]} */ ([]), marks = /** @type {number[]} */ ([]);
      sums.fill(0); gather(row, sums, pixels, scale, wide, marks); paint(data, sums, pixels, number, shades);
      return { wide, marks };
    });
    if (image) to.putImageData(image, Math.round(LABEL * (window.devicePixelRatio || 1)), Math.round(TOP * (window.devicePixelRatio || 1)));
    line.rows.forEach((/** @type {any} */ row, /** @type {number} */ number) => {
      const y = top(number), { wide, marks } = seen[number];
      to.fillStyle = fore;
      to.fillText("IPU " + row.ipu + (row.lane ? " I/O tiles" : row.stage !== undefined ? " stage " + row.stage : "") + (facts.meta.replicas > 1 ? " (" + row.replica + ")" : ""), 6, y + BAR / 2);
      for (const [a, b, i, j] of wide) {
        const left = Math.max(a, 0) + LABEL, right = Math.min(b, pixels) + LABEL, kind = steps.kind[j], phase = steps.phase[j];
        to.fillStyle = codeColour(grid && kind < 2 ? 12 + phase : kind); to.fillRect(left, y, right - left, BAR);
        if (phase < 5 && kind < 2) { to.fillStyle = phaseColour(phase); to.fillRect(left, y + BAR + 1, right - left, STRIP - 2); }
        if (hits[steps.op[j]]) { to.strokeStyle = colour("--bad"); to.lineWidth = 2; to.strokeRect(left + 1, y + 1, Math.max(right - left - 2, 1), BAR - 2); }
        if (picked && picked.row === number && picked.i === i && picked.j === j && Math.abs(picked.start - view[0] - a / scale) < 0.5) { to.strokeStyle = colour("--accent"); to.lineWidth = 2; to.strokeRect(left + 1, y + 1, Math.max(right - left - 2, 1), BAR - 2); }
        if (right - left > 40) { to.fillStyle = kind === 3 || kind === 11 || kind === 10 ? "#ffffff" : "#202020"; text(line.ops[steps.op[j]].split("/").pop() || facts.kinds[kind].label, left, right, y, BAR); }
      }
      to.fillStyle = colour("--bad"); for (const a of marks) to.fillRect(LABEL + a, y, 2, BAR);
      if (row.passes) {
        const { start, end: ends, code, number: numbers } = row.passes;
        for (let i = lower(ends, view[0]); i < start.length && start[i] < view[1]; i++) {
          const left = Math.max(x(start[i]), LABEL), right = Math.min(x(ends[i]), width);
          if (right - left < 9) continue;
          to.fillStyle = phaseColour(code[i]); to.fillRect(left, y + BAR + 1, right - left, STRIP - 2);
          const label = ["F", "", "B", "U"][code[i]] + (code[i] < 3 && row.numbered ? numbers[i] : "");
          if (right - left > 6.4 * label.length + 3) { to.fillStyle = "#202020"; to.fillText(label, (left + right) / 2 - 3.1 * label.length, y + BAR + STRIP / 2 + 0.5); }
        }
      }
    });
    if (grid) drawGrid(to, x, width);
    const flowing = drawFlows(to, x);
    line.host.forEach((/** @type {any} */ lane, /** @type {number} */ n) => drawLane(to, x, width, lane, hostTop + n * (LANE + 3), lane.name, colourOf("host_mid"), (i) => lane.label[i]));
    if (lanes) line.lanes.forEach((/** @type {any} */ lane, /** @type {number} */ n) => drawLane(to, x, width, lane, laneTop + n * (LANE + 3), lane.name, colourOf(lane.kind === "ddr" ? "remote_load" : "link"), (i) => lane.ops[lane.op[i]].split("/").pop() || bytes(lane.bytes[i])));
    const phases = facts.phases.slice(0, grid ? 6 : 4).map((/** @type {any} */ p, /** @type {number} */ i) => [p.name, phaseColour(i)]);
    const kinds = facts.kinds.map((/** @type {any} */ k, /** @type {number} */ i) => [k.label, kindColour(i)]).slice(grid ? 2 : 0);
    const look = String([grid, safeColours]);
    if (key.dataset.look !== look) {
      key.dataset.look = look;
      key.replaceChildren(legend([...kinds, ...phases].filter((/** @type {any} */ k, /** @type {number} */ i, /** @type {any[]} */ all) => all.findIndex((o) => o[0] === k[0]) === i)));
      pipeline.setAttribute("aria-pressed", String(grid));
    }
    shown.dataset.frames = String(frames); shown.dataset.flows = String(flowing);
    if (links.getAttribute("aria-pressed") !== String(lanes)) links.setAttribute("aria-pressed", String(lanes));
  }
  /** Lines where copies between stages leave. */
  function drawGrid(/** @type {any} */ to, /** @type {any} */ x, /** @type {number} */ width) {
    const { start } = line.flows; let last = -Infinity;
    to.fillStyle = colour("--soft");
    for (let f = lower(start, view[0]); f < start.length && start[f] < view[1]; f++)
      if (x(start[f]) - last > 14 && x(start[f]) < width) { last = x(start[f]); to.fillRect(last, TOP, 1, hostTop - TOP - GAP); }
  }
  /** Copies between IPUs as arrows, where they are not too many to be told apart. @returns {number} */
  function drawFlows(/** @type {any} */ to, /** @type {any} */ x) {
    const { start, dur, source, target } = line.flows, low = lower(start, view[0]), high = lower(start, view[1]);
    if (high - low > 800) return 0;
    to.strokeStyle = to.fillStyle = colour("--accent"); to.lineWidth = 1.2; to.globalAlpha = 0.75;
    for (let f = low; f < high; f++) {
      const a = rowOf.get(source[f] * 64), b = rowOf.get(target[f] * 64); if (a === undefined || b === undefined) continue;
      const down = b > a, x0 = x(start[f]), x1 = x(start[f] + dur[f]), y0 = top(a) + (down ? BAR + STRIP - 2 : 0), y1 = top(b) + (down ? 0 : BAR + STRIP - 2);
      to.beginPath(); to.moveTo(x0, y0); to.lineTo(x1, y1); to.stroke();
      to.beginPath(); to.moveTo(x1, y1); to.lineTo(x1 - 3, y1 + (down ? -5 : 5)); to.lineTo(x1 + 3, y1 + (down ? -5 : 5)); to.fill();
    }
    to.globalAlpha = 1;
    return high - low;
  }
  /** A lane of the host or of a link. */
  function drawLane(/** @type {any} */ to, /** @type {any} */ x, /** @type {number} */ width, /** @type {any} */ lane, /** @type {number} */ y, /** @type {string} */ name, /** @type {string} */ fill, /** @type {(i: number) => string} */ label) {
    const said = name.slice(name.indexOf("/") + 1).replace("->", "\u2192").replace("gateway", "gw");
    to.fillStyle = colour("--fore"); to.fillText(said.length > 17 ? said.slice(0, 16) + "\u2026" : said, 6, y + LANE / 2);
    to.fillStyle = colour("--line"); to.fillRect(LABEL, y + LANE - 1, width - LABEL, 0.6);
    let drawn = -1, from = Math.max(lower(lane.start, view[0]) - 1, 0);
    while (from > 0 && lane.start[from - 1] + lane.dur[from - 1] > view[0]) from--;
    for (let i = from; i < lane.start.length && lane.start[i] < view[1]; i++) {
      const left = Math.max(x(lane.start[i]), LABEL), right = Math.min(x(lane.start[i] + lane.dur[i]), width);
      if (right <= LABEL || right < drawn) continue;
      to.fillStyle = fill; to.fillRect(left, y, Math.max(right - left, 0.8), LANE - 2); drawn = Math.max(right, left + 0.8);
      if (right - left > 40) { to.fillStyle = "#202020"; const room = Math.floor((right - left - 6) / 6.2), words = label(i); to.fillText(words.length > room ? words.slice(0, room - 1) + "\u2026" : words, left + 3, y + LANE / 2 - 0.5); }
    }
  }
  /** Says what is shown now, and draws it in the next frame. */
  function changed() {
    shown.textContent = `cycles ${whole(view[0])} to ${whole(view[1])} (${seconds(view[1] - view[0])})`;
    shown.dataset.from = String(view[0]); shown.dataset.to = String(view[1]); shownWindow.from = view[0] > first ? view[0] : null;
    if (!waiting) { waiting = true; requestAnimationFrame(draw); }
  }
  function zoom(/** @type {number} */ factor, around = (view[0] + view[1]) / 2) {
    const from = around - (around - view[0]) * factor, to = around + (view[1] - around) * factor;
    if (to - from < 8) return;
    view = [Math.max(from, first), Math.min(to, end)]; changed();
  }
  function move(/** @type {number} */ by) {
    const length = view[1] - view[0], from = Math.min(Math.max(view[0] + by, first), end - length);
    view = [from, from + length]; changed();
  }
  const cycleAt = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    return view[0] + (event.clientX - box.left - LABEL) * (view[1] - view[0]) / Math.floor(box.width - LABEL);
  };
  function pick(/** @type {number} */ number, /** @type {number} */ i, /** @type {number} */ j, /** @type {number} */ start) {
    const row = line.rows[number], kind = facts.kinds[steps.kind[j]];
    picked = { row: number, i, j, start };
    const op = line.ops[steps.op[j]], place = op ? facts.operations.op.indexOf(op) : -1;
    said.textContent = `${op || "(no op)"} - ${kind.label}, ${facts.phases[steps.phase[j]].name}` + (row.micro_batch[i] >= 0 ? `, micro-batch ${row.micro_batch[i] + 1}` : "") + ` on IPU ${row.ipu}${row.stage !== undefined ? ` (stage ${row.stage})` : ""}\n`
      + `cycles ${whole(start)} to ${whole(start + steps.dur[j])}: ${whole(steps.dur[j])} (${seconds(steps.dur[j])}); average tile ${whole(steps.mean[j])}, ${whole(steps.tiles[j])} tiles active`
      + (steps.slowest[j] >= 0 ? `, slowest ${steps.slowest[j]}` : "") + `\n${bytes(steps.bytes_in[j])} in, ${bytes(steps.bytes_out[j])} out, ${whole(steps.flops[j])} FLOP` + (place >= 0 && facts.operations.line[place] ? `; ${brief(facts.operations.line[place])}` : "");
    changed();
  }
  function next() {
    if (!found) return;
    const from = picked ? picked.start : view[0] - 1; let best = /** @type {any} */ (null);
    line.rows.forEach((/** @type {any} */ row, /** @type {number} */ number) => walk(row, from, (i, j, start) => {
      if (best && start >= best.start) return false;
      if (!hits[steps.op[j]] || start <= from) return undefined;
      best = { start, number, i, j }; return false;
    }, matches));
    if (!best) { said.textContent = `no (further) slice of an op with "${found}" in its name`; picked = null; return; }
    const length = Math.min(Math.max(steps.dur[best.j] * 8, 200), view[1] - view[0]);
    view = [Math.max(best.start - length / 3, first), Math.min(best.start + length, end)]; pick(best.number, best.i, best.j, best.start);
  }
  /** What a click on a lane of the host or a link is about. @param {any} lane @param {number} cycle @param {(i: number) => string} about */
  function tell(lane, cycle, about) {
    const i = lower(lane.start, cycle + 1e-9) - 1;
    said.textContent = i >= 0 && lane.start[i] + lane.dur[i] >= cycle ? `${lane.name}: ${about(i)}\ncycles ${whole(lane.start[i])} to ${whole(lane.start[i] + lane.dur[i])} (${seconds(lane.dur[i])})` : `${lane.name}: nothing at cycle ${whole(cycle)}`;
  }
  let dragged = /** @type {any} */ (null);
  canvas.addEventListener("wheel", (/** @type {WheelEvent} */ event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, cycleAt(event)); }, { passive: false });
  canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => { dragged = { x: event.clientX, moved: false }; if (event.isTrusted) canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (!dragged) return;
    const by = event.clientX - dragged.x;
    if (Math.abs(by) > 2) { dragged = { x: event.clientX, moved: true }; move(-by * (view[1] - view[0]) / (canvas.clientWidth - LABEL)); }
  });
  canvas.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
    const click = dragged && !dragged.moved; dragged = null;
    if (!click) return;
    const y = event.clientY - canvas.getBoundingClientRect().top, number = Math.floor((y - TOP) / ROW), row = line.rows[number], cycle = cycleAt(event);
    if (number < 0) return;
    if (!row) {
      const host = line.host[Math.floor((y - hostTop) / (LANE + 3))], lane = line.lanes[Math.floor((y - laneTop) / (LANE + 3))];
      if (host) tell(host, cycle, (i) => host.label[i]);
      else if (lanes && lane) tell(lane, cycle, (i) => `${lane.ops[lane.op[i]] || "(no op)"}, ${bytes(lane.bytes[i])} in ${whole(lane.count[i])} transfer(s)`);
      return;
    }
    let hit = false;
    walk(row, cycle, (i, j, start) => { if (start <= cycle) { hit = true; pick(number, i, j, start); } return false; });
    if (!hit) said.textContent = `IPU ${row.ipu} does nothing at cycle ${whole(cycle)}`;
  });
  return { draw: () => { changed(); if (waiting) draw(); }, key: (/** @type {KeyboardEvent} */ event) => {
    const length = view[1] - view[0];
    const action = /** @type {Record<string, () => void>} */ ({ w: () => zoom(0.7), s: () => zoom(1.4), a: () => move(-length / 8), d: () => move(length / 8), 0: () => { view = [first, end]; changed(); }, "/": () => box.focus(), n: next, p: () => pipeline.click(), l: () => links.click() })[event.key];
    if (!action) return false;
    action(); return true;
  } };
}

// ------------------------------------------------------------------------------------------------------------- BSP

function bspView(/** @type {HTMLElement} */ at) {
  const line = facts.timeline;
  if (!line) { at.append(make("p", {}, "Nothing was executed.")); return {}; }
  prepareTimeline();
  const steps = line.segments, rows = line.rows.filter((/** @type {any} */ r) => r.start.length), canvas = make("canvas", { id: "bsp-canvas", tabindex: 0 }), said = make("div", { class: "facts", id: "bsp-facts" }), table = make("div"), key = make("div");
  const chosen = make("select", { "aria-label": "IPU", onchange: () => draw() }, ...rows.map((/** @type {any} */ r, /** @type {number} */ n) => make("option", { value: n }, "IPU " + r.ipu + (r.lane ? " I/O tiles" : "") + (facts.meta.replicas > 1 ? " of replica " + r.replica : ""))));
  let from = shownWindow.from ?? rows[0].start[0] + (rows[0].shape[0].bits.find((/** @type {Bit} */ bit) => bit.nodes || steps.kind[bit.j] !== 10)?.begin ?? rows[0].shape[0].end), count = 40, marked = -1; const before = /** @type {number[]} */ ([]);
  at.append(make("p", { class: "note" }, "Phases of supersteps in their order, over all tiles: a bar is as long as the slowest tile takes; filled is the average tile, light what the others wait for the slowest. The window begins where the time line does. a/d: move, w/s: fewer or more."),
    make("div", { class: "tools" }, chosen, make("button", { onclick: () => earlier() }, "earlier"), make("button", { onclick: () => later() }, "later"), make("button", { id: "bsp-worst", onclick: worst }, "widest spread"), make("button", { onclick: () => { from = shownWindow.from ?? from; draw(); } }, "from the time line")), key, canvas, said, table);
  let shown = /** @type {any[]} */ ([]);
  function later() { if (!shown.length) return; before.push(from); from = shown[shown.length - 1].end; draw(); }
  function earlier() {
    const row = rows[chosen.value], length = shown.length ? shown[shown.length - 1].end - shown[0].start : 1000;
    from = before.pop() ?? Math.max(from - length, row.start[0]); draw();
  }
  function worst() {
    const row = rows[chosen.value]; let most = -1, time = 0; const seen = new Set();
    row.shape.forEach((/** @type {Shape} */ shape, /** @type {number} */ i) => {
      if (seen.has(shape)) return;
      seen.add(shape);
      const look = (/** @type {Bit[]} */ bits) => bits.forEach((bit) => {
        if (bit.nodes) look(bit.nodes);
        else if (steps.kind[bit.j] === 0 && steps.dur[bit.j] - steps.mean[bit.j] > most) { most = steps.dur[bit.j] - steps.mean[bit.j]; time = row.start[i] + bit.begin; marked = bit.j; }
      });
      look(shape.bits);
    });
    from = time; draw();
  }
  function draw() {
    const row = rows[chosen.value]; shown = [];
    walk(row, from, (i, j, start, end) => { shown.push({ i, j, start, end, dur: steps.dur[j] }); return shown.length < count; });
    const HEIGHT = 230, { to, width } = context(canvas, HEIGHT), most = Math.max(...shown.map((c) => c.dur), 1), wide = (width - 76) / Math.max(shown.length, 1);
    to.fillStyle = colour("--line");
    for (let q = 0; q <= 4; q++) to.fillRect(70, HEIGHT - 20 - q / 4 * (HEIGHT - 34), width - 76, 0.6);
    shown.forEach((c, n) => {
      const high = c.dur / most * (HEIGHT - 34), mean = Math.min(steps.mean[c.j], c.dur) / most * (HEIGHT - 34), left = 70 + n * wide;
      to.fillStyle = kindColour(steps.kind[c.j]); to.globalAlpha = 0.35; to.fillRect(left, HEIGHT - 20 - high, Math.max(wide - 1.5, 1), high);
      to.globalAlpha = 1; to.fillRect(left, HEIGHT - 20 - mean, Math.max(wide - 1.5, 1), mean);
      if (wide > 26 && steps.slowest[c.j] >= 0 && steps.kind[c.j] === 0 && c.dur > 1.01 * steps.mean[c.j]) { to.fillStyle = colour("--soft"); to.fillText("t" + steps.slowest[c.j], left, HEIGHT - 9); }
    });
    to.fillStyle = colour("--soft"); for (let q = 1; q <= 4; q++) to.fillText(whole(most * q / 4), 6, HEIGHT - 20 - q / 4 * (HEIGHT - 34)); to.fillText("cycles", 6, HEIGHT - 20);
    key.replaceChildren(legend(facts.kinds.map((/** @type {any} */ k, /** @type {number} */ i) => [k.label, kindColour(i)]).filter((/** @type {any} */ k, /** @type {number} */ i, /** @type {any[]} */ list) => list.findIndex((o) => o[0] === k[0]) === i)));
    const last = shown[shown.length - 1], computing = shown.filter((c) => steps.kind[c.j] === 0), spent = computing.reduce((sum, c) => sum + c.dur, 0), mean = computing.reduce((sum, c) => sum + steps.mean[c.j], 0);
    said.textContent = last ? `${whole(shown.length)} phases on IPU ${row.ipu}, cycles ${whole(shown[0].start)} to ${whole(last.end)}; compute: slowest tiles ${whole(spent)} cycles, average tile ${whole(mean)} (balance ${percent(mean, spent)})` : "nothing comes after this";
    Object.assign(said.dataset, { from: shown[0]?.start ?? "", cycles: spent, mean, marked });
    table.replaceChildren(sortable([["from cycle", (/** @type {any} */ c) => c.start, "n", whole], ["op", (/** @type {any} */ c) => line.ops[steps.op[c.j]]], ["kind", (/** @type {any} */ c) => facts.kinds[steps.kind[c.j]].label], ["cycles", (/** @type {any} */ c) => c.dur, "n", whole], ["average tile", (/** @type {any} */ c) => steps.mean[c.j], "n", whole], ["spread", (/** @type {any} */ c) => Math.max(c.dur - steps.mean[c.j], 0), "n", whole], ["balance", (/** @type {any} */ c) => steps.mean[c.j] / Math.max(c.dur, 1), "n", (/** @type {number} */ v) => (100 * v).toFixed(0) + " %"], ["imbalance", (/** @type {any} */ c) => steps.mean[c.j] > 0 ? c.dur / steps.mean[c.j] : 1, "n", (/** @type {number} */ v) => v.toFixed(2)], ["active tiles", (/** @type {any} */ c) => steps.tiles[c.j], "n"], ["idle tiles", (/** @type {any} */ c) => Math.max(facts.meta.tiles_per_ipu - steps.tiles[c.j], 0), "n"], ["slowest tile", (/** @type {any} */ c) => steps.slowest[c.j], "n", (/** @type {number} */ v) => (v < 0 ? "" : v)]], shown));
  }
  return { draw, key: (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "a") earlier(); else if (event.key === "d") later(); else if (event.key === "w") { count = Math.max(Math.round(count / 2), 5); draw(); } else if (event.key === "s") { count = Math.min(count * 2, 400); draw(); } else return false;
    return true;
  } };
}
