// @ts-check
"use strict";
/**
 * The view of the operations: a table to filter and to group, and the plans of the products of a row.
 */

function operationsView(/** @type {HTMLElement} */ section) {
  const ops = facts.operations;
  if (!ops) {
    section.append(make("p", {}, "Nothing was executed."));
    return {};
  }
  const rows = ops.op.map((/** @type {string} */ _, /** @type {number} */ i) =>
    Object.fromEntries(
      Object.keys(ops)
        .filter((column) => Array.isArray(ops[column]))
        .map((column) => [column, ops[column][i]]),
    ),
  );
  const filter = make("input", {
    id: "operations-filter",
    placeholder: "op, type, module, line, bound",
    size: 26,
    oninput: fill,
  });
  const GROUPS = [
    ["op and IPU", ""],
    ["module", "module"],
    ["op type", "type"],
    ["file line", "line"],
    ["phase", "phase"],
    ["bound by", "bound"],
    ["IPU", "ipu"],
  ];
  const groupSelect = make(
    "select",
    { id: "operations-group", "aria-label": "group by", onchange: fill },
    ...GROUPS.map(([name, value]) => make("option", { value }, name)),
  );
  const table = make("div", { id: "operations-table" });
  const note = make("p", { class: "note", id: "operations-note" });
  const planBox = make("div", { id: "operations-plan" });
  const chart = rooflineChart((row) => {
    explain(row);
    fill();
    const line = table.querySelector(".chosen");
    // The table scrolls to the row, and the page stays at the chart.
    if (line) table.firstElementChild.scrollTop = line.offsetTop - 60;
  });
  const chartButton = make(
    "button",
    {
      id: "operations-roofline",
      title: "FLOP over bytes received in exchange (r)",
      onclick: () => showChart(chart.box.hidden),
    },
    "roofline",
  );
  function showChart(/** @type {boolean} */ isShown) {
    chart.box.hidden = !isShown;
    chartButton.setAttribute("aria-pressed", String(isShown));
    fill();
  }
  section.append(
    make(
      "div",
      { class: "tools" },
      filter,
      "group by",
      groupSelect,
      chartButton,
      make("span", { class: "note" }, "A click on a row tells how its products are planned."),
    ),
    chart.box,
    table,
    note,
    planBox,
  );
  const percentage = (/** @type {number} */ value) =>
    value < 0 ? "" : (100 * value).toFixed(value < 0.0995 ? 2 : 1) + " %";
  const nonZero = (/** @type {number} */ value) => (value ? wholeNumber(value) : "");
  const cycles = ["cycles", (/** @type {any} */ row) => row.cycles, "n", wholeNumber];
  const share = ["share", (/** @type {any} */ row) => row.share, "n", percentage];
  const waiting = ["waiting", (/** @type {any} */ row) => row.waiting_cycles, "n", nonZero];
  const flops = ["FLOP", (/** @type {any} */ row) => row.flops, "n", nonZero];
  const peak = [
    "of peak",
    (/** @type {any} */ row) => (row.able && row.flops ? row.flops / row.able : -1),
    "n",
    percentage,
  ];
  const spread = ["slowest tile", (/** @type {any} */ row) => row.imbalance_cycles, "n", nonZero];
  const moved = ["bytes moved", (/** @type {any} */ row) => row.bytes, "n", nonZero];
  const exchanged = ["exchange in", (/** @type {any} */ row) => row.exchange_bytes, "n", nonZero];
  const perByte = [
    "FLOP/byte",
    (/** @type {any} */ row) => (row.flops && row.exchange_bytes ? intensity(row) : -1),
    "n",
    (/** @type {number} */ value) => (value < 0 ? "" : value.toPrecision(3)),
  ];
  const memory = [
    "memory",
    (/** @type {any} */ row) => row.memory,
    "n",
    (/** @type {number} */ value) => (value ? bytes(value) : ""),
  ];
  const bound = ["bound by", (/** @type {any} */ row) => row.bound];
  const { distinct, by_op } = ops.plans;
  const planned = (/** @type {any} */ row) => by_op[row.op] || [];
  const gain = (/** @type {any} */ row) => {
    // what the next best plan of the first product costs more
    const [chosenCycles, nextCycles] = planned(row)
      .filter((/** @type {number[]} */ plan) => plan[0] === 0)
      .map((/** @type {number[]} */ plan) => distinct[plan[2]][0]);
    return nextCycles === undefined ? -2 : nextCycles / chosenCycles - 1;
  };
  const next = [
    "next plan",
    gain,
    "n",
    (/** @type {number} */ value) =>
      value === -2 ? "" : (value < 0 ? "-" : "+") + Math.abs(100 * value).toFixed(1) + " %",
  ];
  let chosen = /** @type {any} */ (null);
  function explain(/** @type {any} */ row) {
    chosen = row;
    const plans = planned(row);
    const lines = plans.map((/** @type {number[]} */ plan) => ({
      product: plan[0],
      rank: plan[1],
      cycles: distinct[plan[2]][0],
      tiles: distinct[plan[2]][1],
      temp: distinct[plan[2]][2],
      vertex: distinct[plan[2]][3],
      text: distinct[plan[2]][4],
    }));
    planBox.replaceChildren(
      make("h2", {}, row.op),
      make("p", {}, aboutOperation(row)),
      lines.length
        ? make(
            "p",
            { class: "note" },
            "What the planner expects of one execution: the plan that was taken, and the cheapest with another vertex or form (of a layer planned jointly with its other passes: the pass alone).",
          )
        : make("p", { class: "note" }, "It has no product or convolution, so nothing was planned."),
      ...lines.map((/** @type {any} */ plan) =>
        make(
          "p",
          { class: "plan", "data-rank": plan.rank, "data-cycles": plan.cycles },
          make(
            "b",
            {},
            (plan.rank ? "next best: " : "plan: ") +
              wholeNumber(plan.cycles) +
              " cycles on " +
              wholeNumber(plan.tiles) +
              " tiles",
          ),
          " " + plan.text,
        ),
      ),
    );
    planBox.dataset.op = row.op;
  }
  function chooseRow(/** @type {any} */ row) {
    explain(row);
    if (!chart.box.hidden) chart.draw(rows.filter(isSearched), chosen);
    planBox.scrollIntoView({ block: "nearest" });
  }
  const isSearched = (/** @type {any} */ row) => {
    const searchText = filter.value.toLowerCase();
    const texts = [row.op, row.type, row.module, row.line, row.bound];
    return !searchText || texts.some((text) => text.toLowerCase().includes(searchText));
  };
  function fill() {
    const shownRows = rows.filter(isSearched);
    const sum = shownRows.reduce((/** @type {number} */ a, /** @type {any} */ row) => a + row.cycles * row.ipus, 0);
    if (!groupSelect.value)
      table.replaceChildren(
        sortable(
          [
            ["op", (/** @type {any} */ row) => row.op, "long"],
            ["type", (/** @type {any} */ row) => row.type],
            ["IPU", (/** @type {any} */ row) => row.ipu, "n"],
            ["alike", (/** @type {any} */ row) => row.ipus, "n"],
            cycles,
            share,
            bound,
            waiting,
            spread,
            flops,
            peak,
            next,
            moved,
            exchanged,
            perByte,
            memory,
            ["phase", (/** @type {any} */ row) => row.phase],
            ["module", (/** @type {any} */ row) => row.module, "long"],
            ["line", (/** @type {any} */ row) => row.line, "", shortPath],
          ],
          shownRows,
          { name: "operations", choose: chooseRow, isChosen: (row) => row === chosen },
        ),
      );
    else {
      const groups = new Map();
      const sums = [
        "cycles",
        "share",
        "waiting_cycles",
        "flops",
        "imbalance_cycles",
        "bytes",
        "exchange_bytes",
        "memory",
        "able",
      ];
      for (const row of shownRows) {
        const name = String(row[groupSelect.value]) || "(none)";
        const group =
          groups.get(name) ||
          Object.assign({ name, count: 0, bounds: {} }, Object.fromEntries(sums.map((column) => [column, 0])));
        // A share is that of all IPUs that do the same; memory is that of one replica.
        for (const column of sums)
          group[column] += row[column] * (column === "share" || column === "memory" ? 1 : row.ipus);
        group.bounds[row.bound] = (group.bounds[row.bound] || 0) + row.cycles * row.ipus;
        group.count++;
        groups.set(name, group);
      }
      for (const group of groups.values()) {
        group.bound = Object.keys(group.bounds).sort((a, b) => group.bounds[b] - group.bounds[a])[0];
      }
      const title = GROUPS.find((choice) => choice[1] === groupSelect.value)?.[0];
      table.replaceChildren(
        sortable(
          [
            [title, (/** @type {any} */ row) => row.name, "long", groupSelect.value === "line" ? shortPath : undefined],
            ["rows", (/** @type {any} */ row) => row.count, "n"],
            cycles,
            share,
            ["mostly bound by", (/** @type {any} */ row) => row.bound],
            waiting,
            spread,
            flops,
            peak,
            moved,
            exchanged,
            perByte,
            memory,
          ],
          [...groups.values()].sort((a, b) => b.cycles - a.cycles),
          { name: "groups" },
        ),
      );
    }
    note.textContent = `${wholeNumber(shownRows.length)} of ${wholeNumber(ops.rows)} rows, ${wholeNumber(sum)} of ${wholeNumber(ops.total_cycles)} cycles in which an op does something, on all IPUs; waiting is beside them. Alike: how many IPUs do the same, of which one has rows. Of peak: what the matrix units of all tiles could do of the op's type in its cycles.`;
    if (!chart.box.hidden) chart.draw(shownRows, chosen);
    note.dataset.cycles = String(sum);
    note.dataset.rows = String(shownRows.length);
  }
  fill();
  return {
    draw: () => {
      if (!chart.box.hidden) fill();
    },
    state: () => ({
      filter: filter.value,
      roofline: !chart.box.hidden,
      group: groupSelect.value,
      op: chosen ? chosen.op : "",
      ipu: chosen ? chosen.ipu : "",
    }),
    restore: (/** @type {URLSearchParams} */ values) => {
      filter.value = values.get("filter") || "";
      groupSelect.value = GROUPS.some((choice) => choice[1] === values.get("group")) ? values.get("group") || "" : "";
      const ipu = Number(values.get("ipu"));
      chosen = rows.find((/** @type {any} */ row) => row.op === values.get("op") && row.ipu === ipu) || null;
      if (chosen) explain(chosen);
      else planBox.replaceChildren();
      showChart(values.has("roofline"));
    },
    key: (/** @type {KeyboardEvent} */ event) => {
      const direction = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "/") filter.focus();
      else if (event.key === "r") showChart(chart.box.hidden);
      else if (direction && !chart.box.hidden) chart.step(chosen, direction);
      else return false;
      return true;
    },
  };
}
