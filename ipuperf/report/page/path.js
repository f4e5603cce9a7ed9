// @ts-check
"use strict";
/**
 * The view of the critical path.
 */

function pathView(/** @type {HTMLElement} */ section) {
  const { time } = facts;
  if (!time || !time.path) {
    section.append(make("p", {}, facts.untold || "Nothing was executed."));
    return {};
  }
  const canvas = make("canvas", {
    id: "path-canvas",
    "aria-label": "the critical path over time; the table below tells what it consists of",
  });
  const legendBox = make("div");
  const path = time.path;
  const costs = time.path_cycles;
  section.append(
    make(
      "p",
      { class: "note" },
      "The chain of work without which the last run would end earlier, read backwards from its end: where an IPU waits, the path goes over to the IPU that it waits for.",
    ),
    legendBox,
    canvas,
  );
  const rows = costs.op.map((/** @type {string} */ op, /** @type {number} */ i) => ({
    op,
    ipu: costs.ipu[i],
    kind: facts.kinds.find((/** @type {any} */ kind) => kind.name === costs.kind[i]).label,
    cycles: costs.cycles[i],
  }));
  section.append(
    make("h2", {}, "What it consists of"),
    make(
      "div",
      {
        id: "path-table",
        "data-cycles": costs.cycles.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0),
      },
      sortable(
        [
          ["op", (/** @type {any} */ row) => row.op || "(no op)"],
          ["IPU", (/** @type {any} */ row) => row.ipu, "n"],
          ["kind", (/** @type {any} */ row) => row.kind],
          ["cycles", (/** @type {any} */ row) => row.cycles, "n", wholeNumber],
          [
            "of the run",
            (/** @type {any} */ row) => row.cycles / time.total,
            "n",
            (/** @type {number} */ share) => (100 * share).toFixed(2) + " %",
          ],
        ],
        rows,
        { name: "path" },
      ),
    ),
  );
  if (time.path_pieces > path.start.length)
    section.append(
      make(
        "p",
        { class: "note" },
        `drawn: the first ${wholeNumber(path.start.length)} of ${wholeNumber(time.path_pieces)} pieces`,
      ),
    );
  function draw() {
    // The IPUs on the path, then where it leaves their tiles: links, Streaming Memory, the host.
    const ipus = [...new Set(path.ipu)].sort((a, b) => a - b);
    const others = [
      ["links", "IPU-Links", "link"],
      ["ddr", "Streaming Memory", "remote_load"],
      ["host", "host", "host_mid"],
    ].filter((other) => path.place.includes(other[0]));
    const HEIGHT = 24;
    const count = ipus.length + others.length;
    const { drawing, width } = context(canvas, count * HEIGHT + 24);
    const LEFT = 118;
    const begin = path.start[0];
    const end = path.start[path.start.length - 1] + path.dur[path.dur.length - 1];
    const x = (/** @type {number} */ cycle) => LEFT + ((cycle - begin) / Math.max(end - begin, 1)) * (width - LEFT - 8);
    [...ipus.map((ipu) => "IPU " + ipu), ...others.map((other) => other[1])].forEach((name, place) => {
      drawing.fillStyle = colour("--fore");
      drawing.fillText(name, 6, place * HEIGHT + 14);
      drawing.fillStyle = colour("--line");
      drawing.fillRect(LEFT, place * HEIGHT + 14, width - LEFT - 8, 0.5);
    });
    const lane = new Map(
      /** @type {[string, number][]} */ (others.map((other, place) => [other[0], ipus.length + place])),
    );
    const row = (/** @type {number} */ i) => lane.get(path.place[i]) ?? ipus.indexOf(path.ipu[i]);
    const fill = new Map(
      /** @type {[string, string][]} */ ([
        ["tiles", colourOf("compute")],
        ["sync", colourOf("sync_external")],
        ...others.map((other) => [other[0], colourOf(other[2])]),
      ]),
    );
    for (let i = 0; i < path.start.length; i++) {
      const left = x(path.start[i]);
      const y = row(i) * HEIGHT + 7;
      if (i && row(i) !== row(i - 1) && path.start.length < 4000) {
        drawing.fillStyle = colour("--soft");
        drawing.fillRect(left, Math.min(y, row(i - 1) * HEIGHT + 7) + 7, 0.7, Math.abs(row(i) - row(i - 1)) * HEIGHT);
      }
      drawing.fillStyle = fill.get(path.place[i]) || colour("--soft");
      drawing.fillRect(left, y, Math.max(x(path.start[i] + path.dur[i]) - left, 0.6), 14);
    }
    drawing.fillStyle = colour("--soft");
    drawing.fillText(timeText(begin), LEFT, count * HEIGHT + 12);
    drawing.fillText(timeText(end) + " " + timeUnit(), width - 130, count * HEIGHT + 12);
    legendBox.replaceChildren(
      legend([
        ["on the tiles", colourOf("compute")],
        ...others.map((other) => /** @type {[string, string]} */ ([other[1], colourOf(other[2])])),
        ["sync between IPUs", colourOf("sync_external")],
      ]),
    );
  }
  return { draw };
}
