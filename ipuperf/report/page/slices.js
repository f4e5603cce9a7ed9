// @ts-check
"use strict";
/**
 * What the slices and lanes of the time line say of themselves, and how the pointer moves over them.
 */

/** The slice of a row at a time. @param {any} row @param {number} cycle @returns {{i: number, j: number, start: number} | null} */
function sliceAt(row, cycle) {
  let slice = /** @type {any} */ (null);
  walk(row, cycle, (i, j, start) => {
    if (start <= cycle) slice = { i, j, start };
    return false;
  });
  return slice;
}

/** @param {any} row @param {number} i @param {number} j @param {number} start */
function aboutSlice(row, i, j, start) {
  const steps = facts.timeline.segments;
  const kind = facts.kinds[steps.kind[j]];
  const op = facts.timeline.ops[steps.op[j]];
  const opRow = op ? facts.operations.op.indexOf(op) : -1;
  const cycles = steps.dur[j];
  return (
    `${op || "(no op)"} - ${kind.label}, ${facts.phases[steps.phase[j]].name}` +
    (row.micro_batch[i] >= 0 ? `, micro-batch ${row.micro_batch[i] + 1}` : "") +
    ` on IPU ${row.ipu}${row.stage !== undefined ? ` (stage ${row.stage})` : ""}` +
    (WAITING.has(kind.name) ? `: ${waitText(row, i, j, start)}` : "") +
    `\ncycles ${wholeNumber(start)} to ${wholeNumber(start + cycles)}: ${wholeNumber(cycles)} (${seconds(cycles)}); average tile ${wholeNumber(steps.mean[j])}, ${wholeNumber(steps.tiles[j])} tiles active` +
    (steps.slowest[j] >= 0 ? `, slowest ${steps.slowest[j]}` : "") +
    `\n${bytes(steps.bytes_in[j])} in, ${bytes(steps.bytes_out[j])} out, ${wholeNumber(steps.flops[j])} FLOP` +
    (opRow >= 0 ? `; ${facts.operations.module[opRow]}, ${shortPath(facts.operations.line[opRow])}` : "")
  );
}

/** What the rows do that a folded row stands for. @param {ShownRow} shown @param {number} cycle */
function aboutFolded(shown, cycle) {
  const counts = new Map();
  for (const row of shown.rows) {
    const slice = sliceAt(row, cycle);
    const kind = slice ? facts.kinds[facts.timeline.segments.kind[slice.j]].label : "no step";
    counts.set(kind, [...(counts.get(kind) || []), row.ipu]);
  }
  const lines = [...counts].map(
    ([kind, ipus]) => `${kind}: ${ipus.length > 8 ? ipus.length + " rows" : "IPU " + ipus.join(", ")}`,
  );
  return `${shown.name} at cycle ${wholeNumber(cycle)}\n${lines.join("\n")}`;
}

/** What a lane of the host or of a link does at a place of the picture. @param {TimelineView} view @param {number} cycle @param {number} y */
function aboutLane(view, cycle, y) {
  const host = facts.timeline.host[Math.floor((y - view.hostTop) / (LANE + 3))];
  const link = view.links && facts.timeline.lanes[Math.floor((y - view.laneTop) / (LANE + 3))];
  const lane = host || link;
  if (!lane) return "";
  const i = firstAtLeast(lane.start, cycle + 1e-9) - 1;
  if (i < 0 || lane.start[i] + lane.dur[i] < cycle) return `${lane.name}: nothing at cycle ${wholeNumber(cycle)}`;
  const about = host
    ? host.label[i]
    : `${link.ops[link.op[i]] || "(no op)"}, ${bytes(link.bytes[i])} in ${wholeNumber(link.count[i])} transfer(s)`;
  return `${lane.name}: ${about}\ncycles ${wholeNumber(lane.start[i])} to ${wholeNumber(lane.start[i] + lane.dur[i])} (${seconds(lane.dur[i])})`;
}

/** The first slice of a searched op that begins after a time. @param {Search} search @param {number} from */
function nextSearched(search, from) {
  const steps = facts.timeline.segments;
  let nearest = /** @type {any} */ (null);
  for (const row of facts.timeline.rows)
    walk(
      row,
      from,
      (i, j, start) => {
        if (nearest && start >= nearest.start) return false;
        if (!search.ops[steps.op[j]] || start <= from) return undefined;
        nearest = { start, row, i, j };
        return false;
      },
      (shape) => hasSearched(shape, search),
    );
  return nearest;
}

/** The wheel zooms, dragging moves, dragging with Shift selects, a click tells. @param {HTMLCanvasElement} canvas @param {TimelineView} view
 * @param {{zoom: (factor: number, around: number) => void, move: (distance: number) => void,
 * select: (from: number, to: number, told?: boolean) => void, tell: (cycle: number, y: number) => void}} does */
function followPointer(canvas, view, does) {
  const cycleAt = (/** @type {MouseEvent} */ event) => {
    const bounds = canvas.getBoundingClientRect();
    const [from, to] = view.range;
    return from + ((event.clientX - bounds.left - LABEL) * (to - from)) / Math.floor(bounds.width - LABEL);
  };
  let drag = /** @type {any} */ (null);
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      does.zoom(event.deltaY > 0 ? 1.25 : 0.8, cycleAt(event));
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, moved: false, from: event.shiftKey ? cycleAt(event) : null };
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag || Math.abs(event.clientX - drag.x) <= 2) return;
    const distance = event.clientX - drag.x;
    Object.assign(drag, { x: event.clientX, moved: true });
    if (drag.from !== null) does.select(drag.from, cycleAt(event), false);
    else does.move((-distance * (view.range[1] - view.range[0])) / (canvas.clientWidth - LABEL));
  });
  canvas.addEventListener("pointerup", (event) => {
    const ended = drag;
    drag = null;
    if (!ended) return;
    if (ended.from !== null) does.select(ended.from, cycleAt(event));
    else if (!ended.moved) does.tell(cycleAt(event), event.clientY - canvas.getBoundingClientRect().top);
  });
}
