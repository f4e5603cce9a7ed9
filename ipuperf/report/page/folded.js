// @ts-check
"use strict";
/**
 * The executions of the time line. They stay folded as they are in the trace: a row has starts and segments, a segment
 * has its steps and loops. Only the slices that are visible are made.
 */

/** A step (j: its number), or a loop of nodes; begin and end are relative to the start of the segment, all trips included.
 * @typedef {{j: number, begin: number, end: number, inner: number, count: number, period: number, nodes: Bit[] | null}} Bit */
/** What a segment does on one lane: codes 0 to 11 are kinds, 12 to 17 what an op is for (of compute and exchange).
 * @typedef {{bits: Bit[], end: number, mix: number[][], parts: number[][]}} Shape */

/** The number of codes of a shape. */
const CODES = 18;
/** The number of stretches of a long row whose sums are kept. */
const STRETCHES = 8192;

/** First index of a sorted array with a value of at least the bound. @param {ArrayLike<number>} values @param {number} bound */
function firstAtLeast(values, bound) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < bound) low = middle + 1;
    else high = middle;
  }
  return low;
}
/** Values from the difference of each to its predecessor. @param {number[]} steps */
function sums(steps) {
  let sum = 0;
  return Float64Array.from(steps, (step) => (sum += step));
}

/** Every occurrence, in order of start, of rows that loops repeat: the start, the number of the row, and what trips add
 * to its counter (counted by `steps`, one for each loop around the row, the outermost first).
 * @param {any} course @param {number} until @param {number[]} [steps] */
function unrolled(course, until, steps) {
  const { repeat, loops } = course;
  const first = sums(course.start);
  const depth = steps && repeat.length ? steps.length / repeat.length : 0;
  const start = /** @type {number[]} */ ([]);
  const row = /** @type {number[]} */ ([]);
  const added = /** @type {number[]} */ ([]);
  /** @type {number[][]} */ const chains = [];
  for (let loop = 0; loop < loops.count.length; loop++) {
    const parent = loops.parent[loop];
    chains.push([...(parent < 0 ? [] : chains[parent]), loop]);
  }
  /** @typedef {number | {loop: number, nodes: Node[]}} Node */
  /** @type {Node[]} */ const top = [];
  const open = new Map();
  for (let i = 0; i < repeat.length; i++) {
    let nodes = top;
    for (const loop of repeat[i] < 0 ? [] : chains[repeat[i]]) {
      if (!open.has(loop)) {
        open.set(loop, { loop, nodes: [] });
        nodes.push(open.get(loop));
      }
      nodes = open.get(loop).nodes;
    }
    nodes.push(i);
  }
  const beginOf = (/** @type {Node} */ node) => {
    while (typeof node !== "number") node = node.nodes[0];
    return first[node];
  };
  /** @param {Node[]} nodes @param {number} level @param {number} offset @param {number[]} trips */
  const emit = (nodes, level, offset, trips) => {
    for (const node of nodes) {
      if (beginOf(node) + offset >= until) continue;
      if (typeof node === "number") {
        start.push(first[node] + offset);
        row.push(node);
        let sum = 0;
        for (let outer = 0; steps && outer < level; outer++) sum += trips[outer] * steps[node * depth + outer];
        added.push(sum);
        continue;
      }
      const period = loops.period[node.loop];
      for (let trip = 0; trip < loops.count[node.loop]; trip++) {
        if (beginOf(node) + offset + trip * period >= until) break;
        trips[level] = trip;
        emit(node.nodes, level + 1, offset + trip * period, trips);
      }
    }
  };
  emit(top, 0, 0, []);
  let sorted = true;
  for (let i = 1; i < start.length && sorted; i++) sorted = start[i - 1] <= start[i];
  if (sorted) return { start: Float64Array.from(start), row, added };
  // Loops of one course may overlap in time.
  const order = Array.from(start, (_, i) => i).sort(
    (left, right) => start[left] - start[right] || row[left] - row[right],
  );
  const sort = (/** @type {number[]} */ values) => order.map((i) => values[i]);
  return { start: Float64Array.from(sort(start)), row: sort(row), added: sort(added) };
}
/** The stretches without a gap in which a link is in use. @param {any} transfers @param {number} until */
function stretchesOf(transfers, until) {
  const { start, row } = unrolled(transfers, until);
  const lane = {
    start: /** @type {number[]} */ ([]),
    dur: /** @type {number[]} */ ([]),
    bytes: /** @type {number[]} */ ([]),
    count: /** @type {number[]} */ ([]),
    op: /** @type {number[]} */ ([]),
    ops: transfers.ops,
  };
  let reach = -Infinity;
  for (let i = 0; i < start.length; i++) {
    if (start[i] > reach) {
      lane.start.push(start[i]);
      lane.bytes.push(0);
      lane.count.push(0);
      lane.op.push(transfers.op[row[i]]);
      lane.dur.push(0);
      reach = start[i];
    }
    const last = lane.start.length - 1;
    reach = Math.max(reach, start[i] + transfers.dur[row[i]]);
    lane.dur[last] = reach - lane.start[last];
    lane.bytes[last] += transfers.bytes[row[i]];
    lane.count[last]++;
  }
  return lane;
}

/** Absolute times, the tree of each segment, and in which order passes come, once. */
function prepareTimeline() {
  if (facts.timeline.prepared) return;
  const timeline = facts.timeline;
  timeline.prepared = true;
  const until = timeline.window ? timeline.window[1] : Infinity;
  const { segments } = timeline;
  const { loops } = segments;
  const shapes = new Map();
  for (let s = 0; s + 1 < segments.first.length; s++)
    for (let j = segments.first[s] + 1; j < segments.first[s + 1]; j++) segments.rel[j] += segments.rel[j - 1];
  /** @param {number} segment @param {number} lane @returns {Shape} */
  function shapeOf(segment, lane) {
    const bits = /** @type {Bit[]} */ ([]);
    const openLoops = new Map();
    /** @param {number} loop */
    const listOf = (loop, begin = 0) => {
      if (loop < 0) return bits;
      if (!openLoops.has(loop)) {
        const bit = {
          j: -1,
          begin,
          end: begin,
          inner: begin,
          count: loops.count[loop],
          period: loops.period[loop],
          nodes: /** @type {Bit[]} */ ([]),
        };
        openLoops.set(loop, bit);
        listOf(loops.parent[loop], begin).push(bit);
      }
      return openLoops.get(loop).nodes;
    };
    for (let step = segments.first[segment]; step < segments.first[segment + 1]; step++) {
      if (segments.lane[step] !== lane) continue;
      const begin = segments.rel[step];
      const end = begin + segments.dur[step];
      listOf(segments.loop[step], begin).push({ j: step, begin, end, inner: end, count: 1, period: 0, nodes: null });
    }
    const cyclesByCode = new Float64Array(CODES);
    /** @param {Bit} bit @param {number} times */
    const close = (bit, times) => {
      if (bit.nodes) {
        for (const inner of bit.nodes) {
          close(inner, times * bit.count);
          bit.inner = Math.max(bit.inner, inner.end);
        }
        bit.end = bit.inner + (bit.count - 1) * bit.period;
        return;
      }
      const kind = segments.kind[bit.j];
      const cycles = (bit.end - bit.begin) * times;
      cyclesByCode[kind] += cycles;
      if (kind < 2) cyclesByCode[12 + segments.phase[bit.j]] += cycles;
    };
    bits.forEach((bit) => close(bit, 1));
    const end = bits.reduce((most, bit) => Math.max(most, bit.end), 0);
    const purposes = /** @type {number[][]} */ ([]);
    for (const bit of bits) {
      // stretches of one purpose: 0 forward, 1 recompute, 2 backward, 3 update, 4 input and output, 5 link, 6 waiting
      let innermost = bit;
      while (innermost.nodes) innermost = innermost.nodes[0];
      const kind = segments.kind[innermost.j];
      const phase = segments.phase[innermost.j];
      const purpose = kind === 4 ? 5 : kind === 3 || kind === 11 ? 6 : kind > 4 ? 4 : phase < 4 ? phase : -1;
      if (purpose < 0) continue;
      const last = purposes[purposes.length - 1];
      if (last && last[2] === purpose) last[1] = bit.end;
      else purposes.push([bit.begin, bit.end, purpose]);
    }
    return {
      bits,
      end,
      mix: Array.from(cyclesByCode, (cycles, code) => [code, cycles]).filter((entry) => entry[1] > 0),
      parts: purposes,
    };
  }
  /** The executions of a course on a lane. @param {any} course @param {number} lane */
  function unfolded(course, lane) {
    const { start, row, added } = unrolled(course, until, course.micro_batch_steps);
    const shape = row.map((i) => {
      const key = course.segment[i] * 64 + lane;
      if (!shapes.has(key)) shapes.set(key, shapeOf(course.segment[i], lane));
      return shapes.get(key);
    });
    let reach = 0;
    const shown = {
      start,
      shape,
      segment: row.map((i) => course.segment[i]),
      micro_batch: row.map((i, place) => course.micro_batch[i] + added[place]),
      reach: Float64Array.from(start, (begin, i) => (reach = Math.max(reach, begin + shape[i].end))),
      passes: /** @type {any} */ (null),
    };
    if (!lane) shown.passes = passesOf(shown);
    return shown;
  }
  const courses = timeline.rows.course.map((/** @type {number} */ number) => timeline.courses[number]);
  timeline.rows = courses.map((/** @type {any} */ course, /** @type {number} */ i) => {
    const lane = timeline.rows.lane[i];
    // IPUs that do the same share what is long.
    course.shown ||= unfolded(course, lane);
    return { replica: timeline.rows.replica[i], ipu: timeline.rows.ipu[i], lane, course, ...course.shown };
  });
  const flows = unrolled(timeline.flows, until);
  const ofFlow = (/** @type {number[]} */ column) => flows.row.map((row) => column[row]);
  timeline.flows = {
    start: flows.start,
    ...Object.fromEntries(["dur", "source", "target"].map((name) => [name, ofFlow(timeline.flows[name])])),
  };
  const carried = timeline.transfers.map((/** @type {any} */ transfers) => stretchesOf(transfers, until));
  timeline.lanes = timeline.lanes.map((/** @type {any} */ lane) => ({ ...carried[lane.course], ...lane }));
  const host = timeline.host;
  const events = unrolled(host, until);
  timeline.host = [...new Set(host.channel)].map((channel) => {
    const chosen = Array.from(events.row, (_, i) => i).filter((i) => host.channel[events.row[i]] === channel);
    return {
      name: String(channel),
      start: Float64Array.from(chosen, (i) => events.start[i]),
      dur: chosen.map((i) => host.dur[events.row[i]]),
      label: chosen.map((i) => host.labels[host.label[events.row[i]]]),
    };
  });
  assignStages();
}

/** The passes of an IPU in time: forward and backward (with what runs again for it) of micro-batches, weight updates.
 * A pass ends where a copy between IPUs comes, another kind of pass, or an input of another micro-batch. @param {any} row */
function passesOf(row) {
  const passes = {
    start: /** @type {number[]} */ ([]),
    end: /** @type {number[]} */ ([]),
    code: /** @type {number[]} */ ([]),
    number: /** @type {number[]} */ ([]),
  };
  let openCode = -1;
  let openMicroBatch = -1;
  let previousPurpose = -1;
  const counts = [0, 0, 0];
  for (let i = 0; i < row.start.length; i++)
    for (const [begin, end, purpose] of row.shape[i].parts) {
      const rerun = purpose === 0 && previousPurpose === 1; // a forward graph that is called right after a recomputation
      previousPurpose = rerun ? 1 : purpose;
      if (purpose === 5) {
        openCode = -1;
        continue;
      }
      if (purpose > 3) continue;
      const code = purpose === 3 ? 3 : purpose === 0 && !rerun ? 0 : 2;
      const microBatch = row.micro_batch[i];
      if (code === openCode && !(code === 0 && microBatch >= 0 && openMicroBatch >= 0 && microBatch !== openMicroBatch))
        passes.end[passes.end.length - 1] = row.start[i] + end;
      else {
        if (code === 3) {
          counts[0] = counts[2] = 0;
        } else counts[code]++;
        passes.start.push(row.start[i] + begin);
        passes.end.push(row.start[i] + end);
        passes.code.push(code);
        passes.number.push(counts[code]);
        openCode = code;
        openMicroBatch = -1;
      }
      if (microBatch >= 0) openMicroBatch = microBatch;
    }
  return passes;
}

/** Which stage each IPU is, by when its first forward begins; only where copies go between them. */
function assignStages() {
  const timeline = facts.timeline;
  const rowsByReplica = new Map();
  for (const row of timeline.rows)
    if (row.passes && row.passes.code.includes(0))
      rowsByReplica.set(row.replica, [...(rowsByReplica.get(row.replica) || []), row]);
  for (const rows of rowsByReplica.values()) {
    if (rows.length < 2 || !timeline.flows.source.length) continue;
    const firstForward = (/** @type {any} */ row) => row.passes.start[row.passes.code.indexOf(0)];
    const forwardCounts = new Set(
      rows.map((/** @type {any} */ row) => row.passes.code.filter((/** @type {number} */ code) => code === 0).length),
    );
    [...rows]
      .sort((left, right) => firstForward(left) - firstForward(right))
      .forEach((row, stage) => {
        row.stage = stage;
        row.numbered = forwardCounts.size === 1;
      });
  }
  for (const row of timeline.rows) if (row.passes && row.stage === undefined) row.numbered = true;
}

/** Visits the slices of a row that end after a time, in order, until a visit says false.
 * @param {any} row @param {number} from @param {(i: number, j: number, start: number, end: number) => boolean | void} visit @param {(shape: Shape) => boolean} [filter] */
function walk(row, from, visit, filter) {
  /** @param {Bit[]} bits @param {number} base @param {number} i @returns {boolean | void} */
  const inside = (bits, base, i) => {
    for (const bit of bits) {
      if (base + bit.end <= from) continue;
      if (!bit.nodes) {
        if (visit(i, bit.j, base + bit.begin, base + bit.end) === false) return false;
        continue;
      }
      const firstTrip = bit.period ? Math.max(0, Math.floor((from - base - bit.inner) / bit.period) + 1) : 0;
      for (let trip = firstTrip; trip < bit.count; trip++)
        if (inside(bit.nodes, base + trip * bit.period, i) === false) return false;
    }
  };
  for (let i = firstAtLeast(row.reach, from); i < row.start.length; i++)
    if ((!filter || filter(row.shape[i])) && inside(row.shape[i].bits, row.start[i], i) === false) return;
}

/** Sums by code in equal stretches of a whole row, once. @param {any} row @param {number} begin @param {number} end */
function coarseSums(row, begin, end) {
  if (row.course.coarse) return row.course.coarse;
  const sums = new Float32Array(STRETCHES * CODES);
  const cyclesPerStretch = (end - begin) / STRETCHES;
  row.start.forEach((/** @type {number} */ start, /** @type {number} */ i) =>
    spread(
      sums,
      STRETCHES,
      (start - begin) / cyclesPerStretch,
      (start + row.shape[i].end - begin) / cyclesPerStretch,
      row.shape[i].mix,
      1 / cyclesPerStretch,
    ),
  );
  return (row.course.coarse = sums);
}
/** Adds a mix of cycles evenly to the cells from left to right. @param {Float32Array} sums @param {number} cells @param {number} left @param {number} right @param {number[][]} mix @param {number} scale */
function spread(sums, cells, left, right, mix, scale) {
  const firstCell = Math.max(Math.floor(left), 0);
  const lastCell = Math.min(Math.floor(right), cells - 1);
  const length = Math.max(right - left, 1e-9);
  for (let cell = firstCell; cell <= lastCell; cell++) {
    const share =
      scale * (right - left < 1e-6 ? 1 : Math.max(Math.min(right, cell + 1) - Math.max(left, cell), 0) / length);
    for (let entry = 0; entry < mix.length; entry++) sums[cell * CODES + mix[entry][0]] += mix[entry][1] * share;
  }
}
