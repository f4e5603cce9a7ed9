// @ts-check
"use strict";
/**
 * The view of the summary: cards, the parts of the time as a waterfall, and the waiting of each IPU.
 */

/** @type {Record<string, string>} */
const KIND_OF_PART = {
  compute: "compute",
  "tile imbalance": "compute",
  exchange: "exchange",
  sync: "sync",
  links: "link",
  ddr: "remote_load",
  host: "host_mid",
};
const partColour = (/** @type {string} */ name) => colourOf(KIND_OF_PART[name] || "sync_external");

/** What changes gain: a table of those that leave the training as it is, one of the others. @param {any} advice */
function adviceOf(advice) {
  const parts = [make("h2", {}, "What would change it, each simulated")];
  const signed = (/** @type {number} */ share) => (-100 * share).toFixed(1) + " %";
  for (const [title, trials] of [
    ["The training stays as it is.", advice.same],
    ["These change the training: the global batch, or the numbers.", advice.training],
  ]) {
    if (!trials.length) continue;
    const columns = [
      ["time", (/** @type {any} */ trial) => trial.gain, "n", signed],
      ["change", (/** @type {any} */ trial) => trial.what, "words"],
      ["lines", (/** @type {any} */ trial) => trial.diff.join("\n"), "diff"],
      ["training", (/** @type {any} */ trial) => trial.training, "words"],
      ["part of the time", (/** @type {any} */ trial) => trial.effect, "words"],
      ["fullest tile", (/** @type {any} */ trial) => trial.fullest - advice.fullest, "n", changeOfBytes],
    ].filter((column) => column[0] !== "training" || trials[0].training);
    parts.push(
      make("p", { class: "note" }, title),
      sortable(columns, trials, { name: trials[0].training ? "training-changes" : "changes" }),
    );
  }
  if (!advice.same.length && !advice.training.length)
    parts.push(make("p", {}, "Nothing that was tried gains half a percent."));
  if (advice.untried.length) {
    const reasons = advice.untried.map((/** @type {any} */ one) => make("li", {}, one.what + ": " + one.why));
    parts.push(make("details", {}, make("summary", {}, "Not tried, or refused"), make("ul", {}, ...reasons)));
  }
  return [make("div", { id: "advice" }, ...parts)];
}
const changeOfBytes = (/** @type {number} */ count) => (count > 0 ? "+" : "") + wholeNumber(count) + " B";

/** What the faults of the machine do to a run: its distribution, and what each costs. @param {any} faults */
function faultsOf(faults) {
  const part = (/** @type {string} */ key) => (/** @type {any} */ row) => (100 * row[key + "_share"]).toFixed(2) + " %";
  const columns = [
    ["fault", (/** @type {any} */ row) => row.fault, "words"],
    ["alone it costs", (/** @type {any} */ row) => row.alone, "n", wholeNumber],
    ["of a run without faults", (/** @type {any} */ row) => part("alone")(row), "words"],
    ["repaired it saves", (/** @type {any} */ row) => row.repaired, "n", wholeNumber],
    ["of such a run", (/** @type {any} */ row) => part("repaired")(row), "words"],
  ];
  const said = faults.lines.slice(0, faults.lines.length - faults.blame.length);
  const lines = said.map((/** @type {string} */ text) => make("li", {}, text));
  const parts = [make("h2", {}, "What the faults of the machine cost"), make("ul", {}, ...lines)];
  if (faults.cycles.length > 1) parts.push(rowOfSamples(faults));
  if (faults.blame.length) parts.push(sortable(columns, faults.blame, { name: "faults" }));
  return [make("div", { id: "faults" }, ...parts)];
}

/** A mark for each sample, and one for each quantile, from the shortest to the longest run. @param {any} faults */
function rowOfSamples(faults) {
  const first = faults.cycles[0];
  const range = Math.max(faults.cycles[faults.cycles.length - 1] - first, 1);
  const at = (/** @type {number} */ cycles) => `left:${(99 * (cycles - first)) / range}%;width:0.3%;`;
  const marks = faults.cycles.map((/** @type {number} */ cycles) =>
    make("i", { style: at(cycles) + "background:var(--accent);opacity:0.4" }),
  );
  const quantiles = faults.quantiles.map((/** @type {any} */ row) =>
    make("i", { style: at(row.cycles) + "background:currentColor", title: row.name, "data-quantile": row.part }),
  );
  const label = `${faults.cycles.length} samples from ${seconds(first)} to ${seconds(first + range)}`;
  return make(
    "div",
    { class: "bar" },
    make("span", {}, "samples"),
    make("div", { class: "track", role: "img", "aria-label": label }, ...marks, ...quantiles),
    make("span", { class: "value" }, label),
  );
}

/** A bar for each limit of the machine; the row is as wide as the limit. */
function usedLimits() {
  const bar = (/** @type {any} */ limit) => {
    const said = percent(limit.share, 1);
    const fill = make("i", { style: `left:0;width:${Math.min(100 * limit.share, 100)}%;background:var(--accent)` });
    return make(
      "div",
      { class: "bar", "data-limit": limit.name, "data-share": limit.share },
      make("span", {}, limit.label),
      make("div", { class: "track", role: "img", "aria-label": limit.label + ": " + said }, fill),
      make("span", { class: "value" }, said),
    );
  };
  return make("div", { id: "limits" }, ...facts.limits.map(bar));
}

function summaryView(/** @type {HTMLElement} */ section) {
  const { meta, time } = facts;
  if (facts.untold) section.append(make("p", { class: "note" }, facts.untold));
  if (time) section.append(make("p", { class: "lead", id: "sentence" }, "The last run is " + time.sentence + "."));
  if (facts.throughput) section.append(make("p", { id: "throughput" }, facts.throughput + "."));
  if (facts.interval)
    section.append(make("p", { class: "note", id: "interval" }, "Measured time: " + facts.interval + "."));
  if (meta.oom)
    section.append(
      make(
        "p",
        { class: "lead bad" },
        "The program does not fit in memory: these are the times of a machine that could hold it.",
      ),
    );
  for (const text of facts.verdicts) section.append(make("p", { class: "bad", "data-verdict": "" }, text));
  const card = (/** @type {string} */ value, /** @type {string} */ label, id = "") =>
    make("div", { class: "card", id }, make("b", {}, value), make("span", {}, label));
  const cards = make("div", { class: "cards" });
  if (time)
    cards.append(
      card(seconds(time.total), "last run", "run-time"),
      card(wholeNumber(time.total), "cycles of the last run", "run-cycles"),
    );
  if (facts.flops && facts.total_cycles)
    cards.append(
      card(
        (facts.flops / (facts.total_cycles / meta.clock_hz) / 1e12).toPrecision(4) + " TFLOP/s",
        "over the whole trace",
      ),
    );
  if (facts.tile_balance !== null)
    cards.append(card((100 * facts.tile_balance).toFixed(1) + " %", "tile balance of compute"));
  if (facts.max_tile)
    cards.append(
      card(
        percent(facts.max_tile.bytes, meta.bytes_per_tile),
        "of the memory of the fullest tile (" +
          wholeNumber(facts.max_tile.bytes) +
          " B, tile " +
          facts.max_tile.tile +
          " of IPU " +
          facts.max_tile.ipu +
          ")",
        "fullest",
      ),
    );
  cards.append(card(String(meta.num_ipus), "IPUs, " + meta.replicas + " replica(s), " + meta.machine));
  section.append(cards);
  if (facts.limits.length) section.append(make("h2", {}, "How much of the machine is used"), usedLimits());
  const bars = make("div", { id: "waterfall" });
  if (time) {
    section.append(make("h2", {}, "Where the time goes, on IPU " + time.ipu + ", which sets the pace"), bars);
    section.append(
      make(
        "p",
        { class: "note" },
        time.path
          ? "From the average tile's compute to the whole run. Waiting belongs to what the IPU that is waited for does meanwhile."
          : "From compute to the whole run.",
      ),
    );
  }
  if (facts.faults) section.append(...faultsOf(facts.faults));
  if (facts.advice) section.append(...adviceOf(facts.advice));
  if (time && time.path) {
    const owners = ["host", "bubble", "imbalance", "collective", "link", "ddr", "sync"];
    const rows = Object.entries(time.waiting).map(([ipu, cycles]) => ({ ipu: Number(ipu), ...cycles }));
    section.append(make("h2", {}, "Waiting of each IPU"));
    section.append(
      rows.length
        ? sortable(
            [
              ["IPU", (/** @type {any} */ row) => row.ipu, "n"],
              ...owners.map((owner) => [owner, (/** @type {any} */ row) => row[owner] || 0, "n", wholeNumber]),
            ],
            rows,
            { name: "waiting" },
          )
        : make("p", { class: "note", id: "no-waits" }, "No IPU waits for another."),
    );
  }
  for (const [title, list] of [
    ["Warnings", facts.warnings],
    ["Assumptions", facts.assumptions],
  ])
    if (list.length)
      section.append(
        make("h2", {}, title),
        make("ul", {}, ...list.map((/** @type {string} */ text) => make("li", {}, text))),
      );
  function draw() {
    if (!time) return;
    let offset = 0;
    bars.replaceChildren(
      ...time.parts
        .filter((/** @type {any} */ part) => part.cycles)
        .map((/** @type {any} */ part) => {
          const fill = make("i", {
            style: `left:${(100 * offset) / time.total}%;width:${Math.max((100 * part.cycles) / time.total, 0.15)}%;background:${partColour(part.name)}`,
          });
          offset += part.cycles;
          return make(
            "div",
            { class: "bar", "data-part": part.name, "data-cycles": part.cycles },
            make("span", {}, part.label),
            make("div", { class: "track" }, fill),
            make(
              "span",
              { class: "value" },
              wholeNumber(part.cycles) + " (" + seconds(part.cycles) + ", " + percent(part.cycles, time.total) + ")",
            ),
          );
        }),
    );
  }
  return { draw };
}
