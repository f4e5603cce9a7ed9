// @ts-check
"use strict";
/**
 * Sums of an interval of the time line: what each IPU and each link does in it. A step that lies partly inside counts
 * with its share of cycles, FLOP and bytes.
 */

/** What is added up, beside the cycles of each kind of step: places behind them. */
const FLOP = 12;
const BYTES_IN = 13;
const BYTES_OUT = 14;
const AMOUNTS = 15;

/** Columns of the table, and the kinds of steps of each. @type {[string, string[]][]} */
const PARTS_OF_INTERVAL = [
  ["compute", ["compute"]],
  ["exchange", ["exchange"]],
  ["sync", ["sync"]],
  ["waiting for IPUs", ["sync_external", "idle"]],
  ["IPU-Links", ["link"]],
  ["Streaming Memory", ["remote_load", "remote_store"]],
  ["host", ["host_begin", "host_mid", "host_end", "host_run"]],
];

/** The amounts of one step. @param {number} j */
function amountsOfStep(j) {
  const { kind, dur, flops, bytes_in, bytes_out } = facts.timeline.segments;
  const amounts = new Float64Array(AMOUNTS);
  amounts[kind[j]] = dur[j];
  amounts[FLOP] = flops[j];
  amounts[BYTES_IN] = bytes_in[j];
  amounts[BYTES_OUT] = bytes_out[j];
  return amounts;
}

/** The amounts of a step or of a whole loop, kept there. @param {Bit} bit @returns {Float64Array} */
function amountsOf(bit) {
  const node = /** @type {any} */ (bit);
  if (!node.amounts) {
    if (bit.nodes) {
      node.amounts = new Float64Array(AMOUNTS);
      for (const inner of bit.nodes) addAmounts(node.amounts, amountsOf(inner), bit.count);
    } else node.amounts = amountsOfStep(bit.j);
  }
  return node.amounts;
}
/** @param {Float64Array} to @param {Float64Array} from @param {number} times */
function addAmounts(to, from, times) {
  for (let place = 0; place < AMOUNTS; place++) to[place] += from[place] * times;
}

/** Adds what lies between two times, which count from the begin of the execution.
 * @param {Bit[]} bits @param {number} from @param {number} to @param {Float64Array} into */
function addInside(bits, from, to, into) {
  for (const bit of bits) {
    if (bit.end <= from || bit.begin >= to) continue;
    if (bit.begin >= from && bit.end <= to) addAmounts(into, amountsOf(bit), 1);
    else if (!bit.nodes) {
      const inside = Math.min(bit.end, to) - Math.max(bit.begin, from);
      addAmounts(into, amountsOf(bit), inside / (bit.end - bit.begin));
    } else {
      // Trips that lie inside are counted; the others are looked into.
      const first = bit.period ? Math.max(Math.floor((from - bit.inner) / bit.period), 0) : 0;
      const until = bit.period ? Math.min(Math.ceil((to - bit.begin) / bit.period), bit.count) : bit.count;
      let whole = 0;
      for (let trip = first; trip < until; trip++) {
        const offset = trip * bit.period;
        if (bit.begin + offset < from || bit.inner + offset > to) {
          addInside(bit.nodes, from - offset, to - offset, into);
          continue;
        }
        const last = bit.period ? Math.min(Math.floor((to - bit.inner) / bit.period), until - 1) : until - 1;
        whole += last - trip + 1;
        trip = last;
      }
      if (whole) addAmounts(into, amountsOf(bit), whole / bit.count);
    }
  }
}

/** The amounts of a row between two times. @param {any} row @param {number} from @param {number} to */
function amountsBetween(row, from, to) {
  const amounts = new Float64Array(AMOUNTS);
  const whole = new Map();
  for (let i = firstAtLeast(row.reach, from); i < row.start.length && row.start[i] < to; i++) {
    const shape = row.shape[i];
    if (row.start[i] >= from && row.start[i] + shape.end <= to) whole.set(shape, (whole.get(shape) || 0) + 1);
    else addInside(shape.bits, from - row.start[i], to - row.start[i], amounts);
  }
  for (const [shape, times] of whole) for (const bit of shape.bits) addAmounts(amounts, amountsOf(bit), times);
  return amounts;
}

/** Busy cycles and bytes of a lane between two times. @param {any} lane @param {number} from @param {number} to */
function busyBetween(lane, from, to) {
  let cycles = 0;
  let moved = 0;
  for (let i = 0; i < lane.start.length && lane.start[i] < to; i++) {
    const inside = Math.min(lane.start[i] + lane.dur[i], to) - Math.max(lane.start[i], from);
    if (inside <= 0) continue;
    cycles += inside;
    if (lane.bytes) moved += (lane.bytes[i] * inside) / lane.dur[i];
  }
  return { name: lane.name, cycles, moved: lane.bytes ? moved : -1 };
}

/** What an interval holds: a row for each IPU (its lanes apart) and one for all, and a row for each link and the host.
 * @param {number} from @param {number} to */
function sumsBetween(from, to) {
  const codes = PARTS_OF_INTERVAL.map(([, kinds]) =>
    facts.kinds.flatMap((/** @type {any} */ kind, /** @type {number} */ code) =>
      kinds.includes(kind.name) ? [code] : [],
    ),
  );
  const all = new Float64Array(AMOUNTS);
  const rowOf = (/** @type {string} */ name, /** @type {Float64Array} */ amounts, /** @type {number} */ length) => {
    const parts = codes.map((some) =>
      some.reduce((/** @type {number} */ sum, /** @type {number} */ code) => sum + amounts[code], 0),
    );
    const [flops, bytesIn, bytesOut] = [amounts[FLOP], amounts[BYTES_IN], amounts[BYTES_OUT]];
    return { name, length, parts, none: length - parts.reduce((a, b) => a + b, 0), flops, bytesIn, bytesOut };
  };
  const ofCourse = new Map();
  const ipus = facts.timeline.rows.map((/** @type {any} */ row) => {
    // IPUs that do the same have one course.
    const amounts = ofCourse.get(row.course) || amountsBetween(row, from, to);
    ofCourse.set(row.course, amounts);
    addAmounts(all, amounts, 1);
    return rowOf(rowName(row), amounts, to - from);
  });
  return {
    all: rowOf("all", all, (to - from) * ipus.length),
    ipus,
    lanes: [...facts.timeline.host, ...facts.timeline.lanes].map((lane) => busyBetween(lane, from, to)),
  };
}

/** The sums as a sentence, for readers of screens. @param {any} all @param {number} from @param {number} to */
function intervalText(all, from, to) {
  const parts = PARTS_OF_INTERVAL.map(([name], n) => [name, all.parts[n]])
    .filter(([, cycles]) => cycles > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([name, cycles]) => `${name} ${percent(cycles, all.length)}`);
  return `Selected: cycles ${wholeNumber(from)} to ${wholeNumber(to)}, ${wholeNumber(to - from)} cycles (${seconds(to - from)}). All rows: ${parts.join(", ") || "no step"}; ${wholeNumber(all.flops)} FLOP.`;
}

/** The box below the time line with the sums of the selected interval. @param {HTMLElement} box @param {number[] | null} selected */
function showSelection(box, selected) {
  const state = String(selected);
  if (box.dataset.state === state) return;
  Object.assign(box.dataset, { state, from: selected ? selected[0] : "", to: selected ? selected[1] : "" });
  if (!selected) {
    box.replaceChildren();
    return;
  }
  const [from, to] = selected;
  const { all, ipus, lanes } = sumsBetween(from, to);
  const share = (/** @type {number} */ cycles, /** @type {any} */ row) =>
    cycles > 0.5 ? `${wholeNumber(cycles)} (${percent(cycles, row.length)})` : "";
  const amount = (/** @type {number} */ value) => (value > 0.5 ? wholeNumber(value) : "");
  const rows = [all, ...ipus];
  const none = ["no step", (/** @type {any} */ row) => row.none, "n", share];
  const columns = /** @type {any[][]} */ ([
    ["row", (/** @type {any} */ row) => row.name],
    ...[
      ...PARTS_OF_INTERVAL.map(([name], n) => [name, (/** @type {any} */ row) => row.parts[n], "n", share]),
      none,
    ].filter(([, value]) => rows.some((row) => /** @type {any} */ (value)(row) > 0.5)),
    ["FLOP", (/** @type {any} */ row) => row.flops, "n", amount],
    ["bytes in", (/** @type {any} */ row) => row.bytesIn, "n", amount],
    ["bytes out", (/** @type {any} */ row) => row.bytesOut, "n", amount],
  ]);
  const busy = [
    ["link or host", (/** @type {any} */ lane) => lane.name],
    ["busy cycles", (/** @type {any} */ lane) => lane.cycles, "n", wholeNumber],
    [
      "of the interval",
      (/** @type {any} */ lane) => lane.cycles / (to - from),
      "n",
      (/** @type {number} */ part) => percent(part, 1),
    ],
    [
      "bytes",
      (/** @type {any} */ lane) => lane.moved,
      "n",
      (/** @type {number} */ value) => (value < 0 ? "" : wholeNumber(value)),
    ],
  ];
  const used = lanes.filter((lane) => lane.cycles > 0);
  box.replaceChildren(
    make("h2", {}, "Selected interval"),
    make("p", { role: "status", id: "timeline-sums" }, intervalText(all, from, to)),
    sortable(columns, rows, { name: "selection" }),
    ...(used.length ? [sortable(busy, used, { name: "selected-links" })] : []),
    make(
      "p",
      { class: "note" },
      "Cycles in the interval, and their share of it. A step that lies partly inside counts with that part of its FLOP and bytes. Bytes are those that the tiles of the IPU receive and send in steps of all kinds.",
    ),
  );
}
