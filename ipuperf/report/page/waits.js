// @ts-check
"use strict";
/**
 * Whom an IPU waits for, as in the table of waits: the IPU whose work ends last before the wait ends. Of several, one of
 * the same replica comes first, then the nearest, then the lowest.
 */

/** The kinds of steps of an IPU that waits for others, by code. @returns {Set<number>} */
const waitingCodes = () =>
  new Set(
    facts.kinds.flatMap((/** @type {any} */ kind, /** @type {number} */ code) =>
      WAITING.has(kind.name) ? [code] : [],
    ),
  );

/** Whether a segment has work, and from when until when. @param {any} shape @param {Set<number>} waiting */
function workOf(shape, waiting) {
  if (!shape.work) {
    const { kind } = facts.timeline.segments;
    const works = (/** @type {Bit} */ bit) => (bit.nodes ? bit.nodes.some(works) : !waiting.has(kind[bit.j]));
    shape.work = shape.bits.filter(works);
  }
  return shape.work;
}

/** The end of the latest work of a row before a time, at most that time; -Infinity: none.
 * @param {any} row @param {number} time @param {Set<number>} waiting */
function lastWork(row, time, waiting) {
  const { kind } = facts.timeline.segments;
  /** @param {Bit[]} bits @param {number} base @returns {number} */
  const inside = (bits, base) => {
    let latest = -Infinity;
    for (const bit of bits) {
      if (base + bit.begin >= time) continue;
      if (!bit.nodes) {
        if (!waiting.has(kind[bit.j])) latest = Math.max(latest, Math.min(base + bit.end, time));
        continue;
      }
      const trips = bit.period ? Math.ceil((time - base - bit.begin) / bit.period) : 1;
      const last = Math.min(trips, bit.count) - 1;
      // Work of the last trip that has begun may lie behind the time, and then that of the trip before it counts.
      for (let trip = last; trip >= Math.max(last - 1, 0); trip--)
        latest = Math.max(latest, inside(bit.nodes, base + trip * bit.period));
    }
    return latest;
  };
  let latest = -Infinity;
  for (let i = firstAtLeast(row.start, time) - 1; i >= 0; i--) {
    latest = Math.max(latest, inside(workOf(row.shape[i], waiting), row.start[i]));
    // Executions before this one end no later than it begins.
    if (latest > -Infinity) break;
  }
  return latest;
}

/** The begin of the first work of a row at or after a time; Infinity: none. @param {any} row @param {number} time @param {Set<number>} waiting */
function nextWork(row, time, waiting) {
  const { kind } = facts.timeline.segments;
  let next = Infinity;
  walk(
    row,
    time,
    (_, j, start) => {
      if (waiting.has(kind[j])) return undefined;
      next = Math.max(start, time);
      return false;
    },
    (shape) => workOf(shape, waiting).length > 0,
  );
  return next;
}

/** The IPU that the IPU of a row waits for at a time (-1: nobody works before the wait ends). @param {any} row @param {number} time */
function waitedFor(row, time) {
  const { rows } = facts.timeline;
  const waiting = waitingCodes();
  const lanes = rows.filter((/** @type {any} */ other) => other.ipu === row.ipu);
  const end = Math.min(...lanes.map((/** @type {any} */ lane) => nextWork(lane, time, waiting)));
  const begin = Math.max(...lanes.map((/** @type {any} */ lane) => lastWork(lane, time, waiting)));
  const until =
    end === Infinity ? Math.max(...rows.map((/** @type {any} */ r) => r.reach[r.reach.length - 1] ?? 0)) : end;
  const rank = (/** @type {any} */ other) => [
    other.replica !== row.replica ? 1 : 0,
    Math.abs(other.ipu - row.ipu),
    other.ipu,
  ];
  let blamed = /** @type {any} */ (null);
  let latest = begin;
  for (const other of rows) {
    if (other.ipu === row.ipu) continue;
    const work = lastWork(other, until, waiting);
    const isFirst =
      blamed && work === latest && String(rank(other)) !== String(rank(blamed)) && before(rank(other), rank(blamed));
    if (work > latest || isFirst) {
      latest = work;
      blamed = other;
    }
  }
  return blamed ? blamed.ipu : -1;
}
/** Whether a list of numbers comes before another. @param {number[]} left @param {number[]} right */
function before(left, right) {
  const place = left.findIndex((value, n) => value !== right[n]);
  return place >= 0 && left[place] < right[place];
}

/** What the slice of a waiting IPU says, found once for each; null: not yet, and it is later than ``until``.
 * @param {any} row @param {number} i @param {number} j @param {number} start @returns {string | null} */
function waitText(row, i, j, start, until = Infinity) {
  const key = `${i} ${j} ${start}`;
  row.waits = row.waits || new Map();
  let text = row.waits.get(key);
  if (text === undefined) {
    if (performance.now() > until) return null;
    const ipu = waitedFor(row, start);
    row.waits.set(key, (text = ipu < 0 ? "waits" : "waits for IPU " + ipu));
  }
  return text;
}
