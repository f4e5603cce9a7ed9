// @ts-check
"use strict";
/**
 * The view of the links: their use over time, and the collectives.
 */

function linksView(/** @type {HTMLElement} */ section) {
  const { used, collectives } = facts.links;
  const canvas = make("canvas", {
    id: "links-canvas",
    "aria-label": "use of each link over time; the table below has the totals",
  });
  if (!used.length) {
    section.append(make("p", {}, "Nothing was transferred over links, Streaming Memory or the host's PCIe."));
    return {};
  }
  section.append(
    make("h2", {}, "Use of each link over the whole trace"),
    canvas,
    sortable(
      [
        ["link", (/** @type {any} */ link) => link.name],
        ["kind", (/** @type {any} */ link) => link.kind],
        ["bytes", (/** @type {any} */ link) => link.bytes, "n", wholeNumber],
        ["transfers", (/** @type {any} */ link) => link.transfers, "n", wholeNumber],
        ["busy cycles", (/** @type {any} */ link) => link.busy_cycles, "n", wholeNumber],
        [
          "use",
          (/** @type {any} */ link) => link.utilisation,
          "n",
          (/** @type {number} */ value) => (100 * value).toFixed(1) + " %",
        ],
        ["at once, most", (/** @type {any} */ link) => link.most, "n", wholeNumber],
        ["shared cycles", (/** @type {any} */ link) => link.shared, "n", wholeNumber],
      ],
      used,
      { name: "links" },
    ),
    make(
      "p",
      { class: "note" },
      "Shared: cycles in which more than one transfer has the link, and each gets less of it. Links, Streaming Memory (ddr) and the host's PCIe are all here; bars are percent of the bandwidth in 400 stretches of the trace.",
    ),
  );
  section.append(
    make("h2", {}, "Collectives"),
    collectives.length
      ? sortable(
          [
            ["op", (/** @type {any} */ collective) => collective.op],
            ["kind", (/** @type {any} */ collective) => collective.kind],
            ["rounds", (/** @type {any} */ collective) => collective.rounds, "n", wholeNumber],
            ["transfers", (/** @type {any} */ collective) => collective.transfers, "n", wholeNumber],
            ["bytes over links", (/** @type {any} */ collective) => collective.bytes, "n", wholeNumber],
            ["cycles with transfers", (/** @type {any} */ collective) => collective.cycles, "n", wholeNumber],
          ],
          collectives,
          { name: "collectives" },
        )
      : make("p", { class: "note" }, "There are none."),
  );
  function draw() {
    const rows = used.filter((/** @type {any} */ link) => link.use).slice(0, 24);
    const HEIGHT = 18;
    const { drawing, width } = context(canvas, rows.length * (HEIGHT + 3) + 24);
    const LEFT = 210;
    rows.forEach((/** @type {any} */ link, /** @type {number} */ place) => {
      const y = place * (HEIGHT + 3) + 3;
      const barWidth = (width - LEFT - 8) / link.use.length;
      drawing.fillStyle = colour("--fore");
      drawing.fillText(link.name.slice(0, 34), 4, y + HEIGHT / 2);
      drawing.fillStyle = linkColour(link.kind);
      link.use.forEach((/** @type {number} */ value, /** @type {number} */ i) => {
        const barHeight = (Math.min(value, 100) / 100) * HEIGHT;
        drawing.fillRect(LEFT + i * barWidth, y + HEIGHT - barHeight, barWidth + 0.4, barHeight);
      });
      drawing.fillStyle = colour("--line");
      drawing.fillRect(LEFT, y + HEIGHT, width - LEFT - 8, 0.6);
    });
    drawing.fillStyle = colour("--soft");
    drawing.fillText("0", LEFT, rows.length * (HEIGHT + 3) + 12);
    drawing.fillText(timeText(facts.total_cycles) + " " + timeUnit(), width - 130, rows.length * (HEIGHT + 3) + 12);
  }
  return { draw };
}
