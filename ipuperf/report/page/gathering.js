// @ts-check
"use strict";
/**
 * The rows of the time line as sums by pixel. Whatever is less than a pixel wide is added up for that pixel, so that a
 * frame costs pixels and not steps. Of a long row the sums are made beforehand.
 */

/** What a frame shows: cycles from and to, on so many pixels, of a time line from begin to end.
 * @typedef {{from: number, to: number, begin: number, end: number, pixels: number, scale: number}} Frame */
/** What is searched, and of each op whether its name holds it. @typedef {{text: string, ops: Uint8Array}} Search */
/** Sums by pixel and code; slices of several pixels, as [left, right, execution, step] (null: they are added too); pixels
 * with a step that is searched. @typedef {{sums: Float32Array, wide: number[][] | null, marks: number[]}} Gathered */

/** Slices of at least as many pixels are drawn one by one. */
const LEAST_WIDE = 3;

/** Cycles by code of a step or of a whole loop. @param {Bit} bit @returns {number[][]} */
function mixOf(bit) {
  const node = /** @type {any} */ (bit);
  if (node.mix) return node.mix;
  const { kind: kinds, phase: phases } = facts.timeline.segments;
  const sums = new Float64Array(CODES);
  const add = (/** @type {Bit} */ part, /** @type {number} */ times) => {
    if (part.nodes) {
      part.nodes.forEach((inner) => add(inner, times * part.count));
      return;
    }
    const kind = kinds[part.j];
    sums[kind] += (part.end - part.begin) * times;
    if (kind < 2) sums[12 + phases[part.j]] += (part.end - part.begin) * times;
  };
  add(bit, 1);
  return (node.mix = Array.from(sums, (cycles, code) => [code, cycles]).filter((entry) => entry[1] > 0));
}

/** The steps of a segment, those that follow each other within 4^level cycles as one. @param {any} shape @param {number} level */
function groupsOf(shape, level) {
  shape.groups = shape.groups || new Map();
  let groups = shape.groups.get(level);
  if (groups) return groups;
  shape.groups.set(level, (groups = /** @type {any[]} */ ([])));
  let lastGroup = /** @type {any} */ (null);
  for (const bit of shape.bits) {
    if (!lastGroup || bit.end - lastGroup.begin > 4 ** level)
      groups.push((lastGroup = { begin: bit.begin, end: bit.end, bits: [], mix: null }));
    lastGroup.bits.push(bit);
    lastGroup.end = Math.max(lastGroup.end, bit.end);
  }
  for (const group of groups)
    if (group.bits.length > 1)
      group.mix = mixOf({ j: -1, begin: 0, end: 0, inner: 0, count: 1, period: 0, nodes: group.bits });
  return groups;
}

/** Whether a segment has an op that is searched. @param {any} shape @param {Search} search @returns {boolean} */
function hasSearched(shape, search) {
  if (shape.searched?.text !== search.text) {
    /** @param {Bit[]} bits @returns {boolean} */
    const inside = (bits) =>
      bits.some((bit) => (bit.nodes ? inside(bit.nodes) : search.ops[facts.timeline.segments.op[bit.j]] > 0));
    shape.searched = { text: search.text, yes: inside(shape.bits) };
  }
  return shape.searched.yes;
}

/** A long row from the sums of its stretches. @param {any} row @param {Gathered} into @param {Frame} frame */
function gatherStretches(row, into, frame) {
  const { sums } = into;
  const cycles = (frame.end - frame.begin) / STRETCHES;
  const stretchSums = coarseSums(row, frame.begin, frame.end);
  const first = Math.max(Math.floor((frame.from - frame.begin) / cycles), 0);
  const last = Math.min(Math.ceil((frame.to - frame.begin) / cycles), STRETCHES);
  for (let stretch = first; stretch < last; stretch++) {
    const pixel = Math.floor((frame.begin + (stretch + 0.5) * cycles - frame.from) * frame.scale);
    if (pixel >= 0 && pixel < frame.pixels)
      for (let code = 0; code < CODES; code++)
        sums[pixel * CODES + code] += stretchSums[stretch * CODES + code] * cycles * frame.scale;
  }
}

/** Steps and loops of execution i, which begins at ``base``. @param {Bit[]} bits @param {number} base @param {number} i
 * @param {Gathered} into @param {Frame} frame @param {Search} search */
function gatherBits(bits, base, i, into, frame, search) {
  const { from, to, scale, pixels } = frame;
  const { kind: kinds, phase: phases, op: ops } = facts.timeline.segments;
  for (const bit of bits) {
    const left = (base + bit.begin - from) * scale;
    const right = (base + bit.end - from) * scale;
    if (right < 0 || left > pixels) continue;
    if (bit.nodes && bit.period * scale >= 2) {
      const first = Math.max(0, Math.floor((from - base - bit.inner) / bit.period));
      const until = Math.min(bit.count, Math.ceil((to - base - bit.begin) / bit.period) + 1);
      for (let trip = first; trip < until; trip++)
        gatherBits(bit.nodes, base + trip * bit.period, i, into, frame, search);
    } else if (bit.nodes) spread(into.sums, pixels, left, right, mixOf(bit), scale);
    else if (right - left < 1) {
      const pixel = Math.max(Math.floor(left), 0);
      const kind = kinds[bit.j];
      if (pixel < pixels) {
        into.sums[pixel * CODES + kind] += right - left;
        if (kind < 2) into.sums[pixel * CODES + 12 + phases[bit.j]] += right - left;
      }
      if (search.ops[ops[bit.j]]) into.marks.push(left);
    } else if (into.wide && right - left >= LEAST_WIDE) into.wide.push([left, right, i, bit.j]);
    else {
      spread(into.sums, pixels, left, right, mixOf(bit), scale);
      if (search.ops[ops[bit.j]]) into.marks.push(left);
    }
  }
}

/** One row into sums by pixel; what is wider goes into a list of slices.
 * @param {any} row @param {Gathered} into @param {Frame} frame @param {Search} search */
function gather(row, into, frame, search) {
  const { from, to, scale, pixels } = frame;
  const executionsFrom = firstAtLeast(row.reach, from);
  if (row.start.length > STRETCHES && 1 / scale > (frame.end - frame.begin) / STRETCHES) {
    gatherStretches(row, into, frame);
    if (search.text)
      for (let i = executionsFrom; i < row.start.length && row.start[i] < to; i++)
        if (hasSearched(row.shape[i], search)) into.marks.push((row.start[i] - from) * scale);
    return;
  }
  const level = Math.floor(Math.log(0.7 / scale) / Math.log(4)); // steps that are together less than a pixel go together
  for (let i = executionsFrom; i < row.start.length && row.start[i] < to; i++) {
    const shape = row.shape[i];
    const base = row.start[i];
    const left = (base - from) * scale;
    const right = left + shape.end * scale;
    const searched = search.text !== "" && into.marks.length < 4 * pixels && hasSearched(shape, search);
    if (right - left < 1) {
      spread(into.sums, pixels, left, right, shape.mix, scale);
      if (searched) into.marks.push(left);
    } else if (level < 0 || shape.bits.length < 8) gatherBits(shape.bits, base, i, into, frame, search);
    else gatherGroups(shape, base, i, into, frame, { ...search, text: searched ? search.text : "" });
  }
}

/** The groups of an execution's steps. @param {any} shape @param {number} base @param {number} i
 * @param {Gathered} into @param {Frame} frame @param {Search} search */
function gatherGroups(shape, base, i, into, frame, search) {
  const { from, scale, pixels } = frame;
  const level = Math.floor(Math.log(0.7 / scale) / Math.log(4));
  for (const group of groupsOf(shape, level)) {
    const left = (base + group.begin - from) * scale;
    const right = (base + group.end - from) * scale;
    if (right < 0 || left > pixels) continue;
    if (!group.mix) {
      gatherBits(group.bits, base, i, into, frame, search);
      continue;
    }
    spread(into.sums, pixels, left, right, group.mix, scale);
    const isSearched = (/** @type {Bit} */ bit) => !bit.nodes && search.ops[facts.timeline.segments.op[bit.j]];
    if (search.text && group.bits.some(isSearched)) into.marks.push(left);
  }
}
