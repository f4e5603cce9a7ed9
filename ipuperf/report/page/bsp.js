// @ts-check
"use strict";
/**
 * The view of the supersteps of one IPU: the slowest and the average tile of each phase.
 */

function bspView(/** @type {HTMLElement} */ section) {
  const timeline = facts.timeline;
  if (!timeline) {
    section.append(make("p", {}, "Nothing was executed."));
    return {};
  }
  prepareTimeline();
  const steps = timeline.segments;
  const rows = timeline.rows.filter((/** @type {any} */ row) => row.start.length);
  const canvas = make("canvas", {
    id: "bsp-canvas",
    tabindex: 0,
    "aria-label": "phases of supersteps; the table below has their figures",
  });
  const description = make("div", { class: "facts", id: "bsp-facts" });
  const table = make("div");
  const legendBox = make("div");
  const ipuSelect = make(
    "select",
    { "aria-label": "IPU", onchange: () => draw() },
    ...rows.map((/** @type {any} */ row, /** @type {number} */ n) =>
      make(
        "option",
        { value: n },
        "IPU " +
          row.ipu +
          (row.lane ? " I/O tiles" : "") +
          (facts.meta.replicas > 1 ? " of replica " + row.replica : ""),
      ),
    ),
  );
  let begin = 0;
  let phaseCount = 40;
  let markedStep = -1;
  const earlierBegins = /** @type {number[]} */ ([]);
  section.append(
    make(
      "p",
      { class: "note" },
      "Phases of supersteps in their order, over all tiles: a bar is as long as the slowest tile takes; filled is the average tile, light what the others wait for the slowest. It opens where tiles wait longest for the slowest, or where the time line was. a/d: move, w/s: fewer or more.",
    ),
    make(
      "div",
      { class: "tools" },
      ipuSelect,
      make("button", { onclick: () => earlier() }, "earlier"),
      make("button", { onclick: () => later() }, "later"),
      make("button", { id: "bsp-worst", onclick: worst }, "widest spread"),
      make(
        "button",
        {
          onclick: () => {
            begin = shownWindow.from ?? begin;
            draw();
          },
        },
        "from the time line",
      ),
    ),
    legendBox,
    canvas,
    description,
    table,
  );
  let phases = /** @type {any[]} */ ([]);
  function later() {
    if (!phases.length) return;
    earlierBegins.push(begin);
    begin = phases[phases.length - 1].end;
    draw();
  }
  function earlier() {
    const row = rows[ipuSelect.value];
    const length = phases.length ? phases[phases.length - 1].end - phases[0].start : 1000;
    begin = earlierBegins.pop() ?? Math.max(begin - length, row.start[0]);
    draw();
  }
  function worst() {
    const row = rows[ipuSelect.value];
    let widest = -1;
    let time = 0;
    const visited = new Set();
    row.shape.forEach((/** @type {Shape} */ shape, /** @type {number} */ i) => {
      if (visited.has(shape)) return;
      visited.add(shape);
      const search = (/** @type {Bit[]} */ bits) =>
        bits.forEach((bit) => {
          if (bit.nodes) search(bit.nodes);
          else if (steps.kind[bit.j] === 0 && steps.dur[bit.j] - steps.mean[bit.j] > widest) {
            widest = steps.dur[bit.j] - steps.mean[bit.j];
            time = row.start[i] + bit.begin;
            markedStep = bit.j;
          }
        });
      search(shape.bits);
    });
    begin = time;
    draw();
  }
  function draw() {
    const row = rows[ipuSelect.value];
    phases = [];
    walk(row, begin, (i, j, start, end) => {
      phases.push({ i, j, start, end, dur: steps.dur[j] });
      return phases.length < phaseCount;
    });
    const HEIGHT = 230;
    const { drawing, width } = context(canvas, HEIGHT);
    // Waiting for the host would dwarf everything that tiles do, so its bars end at the top.
    const own = phases.filter((phase) => LOCAL.has(facts.kinds[steps.kind[phase.j]].name));
    const longest = Math.max(...(own.length ? own : phases).map((phase) => phase.dur), 1);
    const barWidth = (width - 76) / Math.max(phases.length, 1);
    drawing.fillStyle = colour("--line");
    const level = (/** @type {number} */ cycles) => HEIGHT - 20 - (cycles / longest) * (HEIGHT - 34);
    for (const cycles of ticks(0, longest, 4)) drawing.fillRect(70, level(cycles), width - 76, 0.6);
    phases.forEach((phase, place) => {
      const height = Math.min(phase.dur / longest, 1.03) * (HEIGHT - 34);
      const mean = Math.min(steps.mean[phase.j] / longest, height / (HEIGHT - 34)) * (HEIGHT - 34);
      const left = 70 + place * barWidth;
      drawing.fillStyle = kindColour(steps.kind[phase.j]);
      drawing.globalAlpha = 0.35;
      drawing.fillRect(left, HEIGHT - 20 - height, Math.max(barWidth - 1.5, 1), height);
      drawing.globalAlpha = 1;
      drawing.fillRect(left, HEIGHT - 20 - mean, Math.max(barWidth - 1.5, 1), mean);
      if (
        barWidth > 26 &&
        steps.slowest[phase.j] >= 0 &&
        steps.kind[phase.j] === 0 &&
        phase.dur > 1.01 * steps.mean[phase.j]
      ) {
        drawing.fillStyle = colour("--soft");
        drawing.fillText("t" + steps.slowest[phase.j], left, HEIGHT - 9);
      }
    });
    drawing.fillStyle = colour("--soft");
    for (const cycles of ticks(0, longest, 4).slice(1)) drawing.fillText(timeText(cycles), 6, level(cycles));
    drawing.fillText(timeUnit(), 6, HEIGHT - 9);
    legendBox.replaceChildren(
      legend(
        firstOfEachName(
          facts.kinds.map((/** @type {any} */ kind, /** @type {number} */ i) => [kind.label, kindColour(i)]),
        ),
      ),
    );
    const last = phases[phases.length - 1];
    const computing = phases.filter((phase) => steps.kind[phase.j] === 0);
    const spent = computing.reduce((sum, phase) => sum + phase.dur, 0);
    const mean = computing.reduce((sum, phase) => sum + steps.mean[phase.j], 0);
    description.textContent = last
      ? `${wholeNumber(phases.length)} phases on IPU ${row.ipu}, cycles ${wholeNumber(phases[0].start)} to ${wholeNumber(last.end)}; compute: slowest tiles ${wholeNumber(spent)} cycles, average tile ${wholeNumber(mean)} (balance ${percent(mean, spent)})`
      : "nothing comes after this";
    Object.assign(description.dataset, { from: phases[0]?.start ?? "", cycles: spent, mean, marked: markedStep });
    table.replaceChildren(
      sortable(
        [
          ["from cycle", (/** @type {any} */ phase) => phase.start, "n", wholeNumber],
          ["op", (/** @type {any} */ phase) => timeline.ops[steps.op[phase.j]] || "(no op)"],
          ["kind", (/** @type {any} */ phase) => facts.kinds[steps.kind[phase.j]].label],
          ["cycles", (/** @type {any} */ phase) => phase.dur, "n", wholeNumber],
          ["average tile", (/** @type {any} */ phase) => steps.mean[phase.j], "n", wholeNumber],
          ["spread", (/** @type {any} */ phase) => Math.max(phase.dur - steps.mean[phase.j], 0), "n", wholeNumber],
          [
            "balance",
            (/** @type {any} */ phase) => steps.mean[phase.j] / Math.max(phase.dur, 1),
            "n",
            (/** @type {number} */ value) => (100 * value).toFixed(0) + " %",
          ],
          [
            "imbalance",
            (/** @type {any} */ phase) => (steps.mean[phase.j] > 0 ? phase.dur / steps.mean[phase.j] : 1),
            "n",
            (/** @type {number} */ value) => value.toFixed(2),
          ],
          ["active tiles", (/** @type {any} */ phase) => steps.tiles[phase.j], "n"],
          [
            "idle tiles",
            (/** @type {any} */ phase) => Math.max(facts.meta.tiles_per_ipu - steps.tiles[phase.j], 0),
            "n",
          ],
          [
            "slowest tile",
            (/** @type {any} */ phase) => steps.slowest[phase.j],
            "n",
            (/** @type {number} */ value) => (value < 0 ? "" : value),
          ],
        ],
        phases,
        { name: "bsp" },
      ),
    );
  }
  // What most tiles wait for says more than the first steps of the program.
  worst();
  const worstBegin = begin;
  begin = shownWindow.from ?? worstBegin;
  return {
    draw,
    state: () => ({
      row: ipuSelect.value === "0" ? "" : ipuSelect.value,
      from: begin === worstBegin ? "" : Math.round(begin),
      phases: phaseCount === 40 ? "" : phaseCount,
    }),
    restore: (/** @type {URLSearchParams} */ values) => {
      ipuSelect.value = rows[Number(values.get("row"))] ? String(Number(values.get("row"))) : "0";
      phaseCount = Math.min(Math.max(Number(values.get("phases")) || 40, 5), 400);
      begin = values.has("from") ? Number(values.get("from")) || 0 : worstBegin;
    },
    key: (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "a") earlier();
      else if (event.key === "d") later();
      else if (event.key === "w") {
        phaseCount = Math.max(Math.round(phaseCount / 2), 5);
        draw();
      } else if (event.key === "s") {
        phaseCount = Math.min(phaseCount * 2, 400);
        draw();
      } else return false;
      return true;
    },
  };
}
