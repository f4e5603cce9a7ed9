// @ts-check
"use strict";
/**
 * The views of memory: live bytes by step or over time, and the bytes of each tile.
 */

/** A chooser of one of the IPUs in a table of facts. @param {Record<string, any>} byIpu @param {() => void} changed */
function ipuChooser(byIpu, changed) {
  return make(
    "select",
    { "aria-label": "IPU", onchange: changed },
    ...Object.keys(byIpu).map((ipu) => make("option", { value: ipu }, "IPU " + ipu)),
  );
}

/** Choose the IPU of an address, the first where it names none. @param {HTMLSelectElement} select @param {string | null} ipu */
function chooseIpu(select, ipu) {
  select.selectedIndex = Math.max(
    Array.from(select.options).findIndex((option) => option.value === ipu),
    0,
  );
}

/** The first and the last step of the stretch around a step in which a variable is live; [] if it is not.
 * @param {any} variable @param {number} step @returns {number[]} */
function stretchAt(variable, step) {
  const stretch = variable.live.find((/** @type {number[]} */ one) => one[0] <= step && step < one[1]);
  return stretch ? [stretch[0], stretch[1] - 1] : [];
}

/** What live variables are for: colours, and those for the colour-blind. @type {Record<string, [string, string]>} */
const PARTS = {
  variable: ["#6f6ffe", "#0072b2"],
  intermediate: ["#17becf", "#009e73"],
  temporary: ["#f7aa67", "#e69f00"],
  always: ["#f66271", "#d55e00"],
};
const partColours = (/** @type {string} */ name) => (PARTS[name] || ["#bcbd22", "#cc79a7"])[safeColours ? 1 : 0];

function livenessView(/** @type {HTMLElement} */ section) {
  const livenessByIpu = facts.liveness;
  if (!Object.keys(livenessByIpu).length) {
    section.append(make("p", {}, "The trace holds no liveness."));
    return {};
  }
  const ipuSelect = ipuChooser(livenessByIpu, () => {
    chosenStep = -1;
    draw();
  });
  const canvas = make("canvas", {
    id: "liveness-canvas",
    tabindex: 0,
    "aria-label": "live bytes; the text below tells those of the chosen step",
  });
  const legendBox = make("div");
  const description = make("div", { class: "facts", id: "liveness-facts" });
  const variableList = make("div", { id: "liveness-variables" });
  let chosenStep = -1;
  let chosenCycle = -1;
  let peakStep = -1;
  let alwaysShown = true;
  let overTime = false;
  const alwaysButton = make(
    "button",
    {
      onclick: () => {
        alwaysShown = !alwaysShown;
        draw();
      },
    },
    "always live",
  );
  const timeButton = make(
    "button",
    {
      id: "liveness-time",
      onclick: () => {
        overTime = !overTime;
        chosenCycle = -1;
        draw();
      },
    },
    "over time",
  );
  section.append(
    make(
      "div",
      { class: "tools" },
      ipuSelect,
      alwaysButton,
      timeButton,
      make("span", { class: "note" }, "Click, or arrow keys: the variables that are live then."),
    ),
    legendBox,
    canvas,
    description,
    make("h2", {}, "Variables live then"),
    variableList,
  );
  const HEIGHT = 260;
  const LEFT = 64;
  const BOTTOM = 22;
  const sums = (/** @type {any} */ curves) =>
    curves.other.map((/** @type {number} */ otherBytes, /** @type {number} */ i) => otherBytes + curves.always[i]);
  function draw() {
    const curves = livenessByIpu[ipuSelect.value];
    const { drawing, width } = context(canvas, HEIGHT);
    const overCycles = overTime && curves.time;
    const layers = /** @type {[string, number[], string][]} */ ([]);
    if (overCycles) layers.push(["always live and not", curves.time[1], partColours("variable")]);
    else {
      if (alwaysShown) layers.push(["always live", curves.always, partColours("always")]);
      const names = Object.keys(curves.parts).sort(
        (left, right) => Number(right === "variable") - Number(left === "variable"),
      );
      for (const name of names)
        layers.push([
          (name === "temporary" ? "temporary memory" : name + "s") + ", not always live",
          curves.parts[name],
          partColours(name),
        ]);
      if (!names.length) layers.push(["not always live", curves.other, partColours("variable")]);
    }
    const positions = overCycles ? curves.time[0] : curves.step;
    const values = positions.map((/** @type {number} */ _, /** @type {number} */ i) =>
      layers.reduce((sum, layer) => sum + layer[1][i], 0),
    );
    const begin = overCycles ? positions[0] : 0;
    const last = overCycles ? curves.until || facts.total_cycles : curves.steps;
    const top =
      values.reduce((/** @type {number} */ left, /** @type {number} */ right) => Math.max(left, right), 1) * 1.08;
    const x = (/** @type {number} */ position) =>
      LEFT + ((position - begin) / Math.max(last - begin, 1)) * (width - LEFT - 8);
    const y = (/** @type {number} */ amount) => HEIGHT - BOTTOM - (amount / top) * (HEIGHT - BOTTOM - 8);
    let lower = positions.map(() => 0);
    for (const [, amounts, fill] of layers) {
      const upper = lower.map((/** @type {number} */ right, /** @type {number} */ i) => right + amounts[i]);
      drawing.fillStyle = fill;
      drawing.globalAlpha = 0.8;
      drawing.beginPath();
      drawing.moveTo(x(positions[0]), y(lower[0]));
      upper.forEach((/** @type {number} */ amount, /** @type {number} */ i) => {
        drawing.lineTo(x(positions[i]), y(amount));
        drawing.lineTo(x(i + 1 < positions.length ? positions[i + 1] : last), y(amount));
      });
      for (let i = positions.length - 1; i >= 0; i--) {
        drawing.lineTo(x(i + 1 < positions.length ? positions[i + 1] : last), y(lower[i]));
        drawing.lineTo(x(positions[i]), y(lower[i]));
      }
      drawing.fill();
      drawing.globalAlpha = 1;
      lower = upper;
    }
    drawing.fillStyle = colour("--soft");
    for (const amount of ticks(0, top, 4)) {
      drawing.fillText(bytes(amount), 4, Math.min(Math.max(y(amount), 7), HEIGHT - BOTTOM - 6));
      drawing.fillRect(LEFT, y(amount), width - LEFT - 8, 0.5);
    }
    drawing.fillText(overCycles ? timeUnit() : "step", 4, HEIGHT - 9);
    for (const position of ticks(begin, last, 6))
      if (x(position) < width - 78)
        drawing.fillText(overCycles ? timeText(position) : wholeNumber(position), x(position), HEIGHT - 9);
    const totals = sums(curves);
    const peak = totals.indexOf(Math.max(...totals));
    peakStep = curves.step[peak];
    if (chosenStep < 0) chosenStep = peakStep;
    const place = Math.max(firstAtLeast(curves.step, chosenStep + 1) - 1, 0);
    drawing.fillStyle = colour("--accent");
    if (!overCycles) drawing.fillRect(x(chosenStep), 4, 1.5, HEIGHT - BOTTOM - 4);
    else if (chosenCycle >= 0) drawing.fillRect(x(chosenCycle), 4, 1.5, HEIGHT - BOTTOM - 4);
    const peakPlace = values.indexOf(
      values.reduce((/** @type {number} */ left, /** @type {number} */ right) => Math.max(left, right), 0),
    );
    description.textContent =
      (overCycles
        ? `bytes over cycles; peak ${wholeNumber(values[peakPlace])} B at cycle ${wholeNumber(positions[peakPlace])}${chosenCycle >= 0 ? `; chosen: cycle ${wholeNumber(chosenCycle)}, as at step ${wholeNumber(chosenStep)}` : ""}\n`
        : "") +
      `step ${wholeNumber(chosenStep)} of ${wholeNumber(curves.steps)} (${curves.program[place]}): ${wholeNumber(curves.other[place])} B not always live, ${wholeNumber(curves.always[place])} B always live. Peak of both: ${wholeNumber(totals[peak])} B`;
    Object.assign(description.dataset, {
      step: chosenStep,
      other: curves.other[place],
      always: curves.always[place],
      parts: Object.keys(curves.parts).reduce((sum, name) => sum + curves.parts[name][place], 0),
    });
    legendBox.replaceChildren(legend(layers.map(([name, , fill]) => [name, fill])));
    timeButton.setAttribute("aria-pressed", String(overTime));
    alwaysButton.setAttribute("aria-pressed", String(alwaysShown));
    const ipu = Number(ipuSelect.value);
    const live = largestVariables().filter(
      (/** @type {any} */ variable) =>
        variable.ipu === ipu && (variable.always_live ? alwaysShown : stretchAt(variable, chosenStep).length > 0),
    );
    variableList.dataset.bytes = String(
      live.reduce((/** @type {number} */ sum, /** @type {any} */ variable) => sum + variable.bytes, 0),
    );
    variableList.dataset.count = String(live.length);
    variableList.replaceChildren(
      sortable(
        [
          ["variable", (/** @type {any} */ variable) => variable.name, "long"],
          ["bytes", (/** @type {any} */ variable) => variable.bytes, "n", wholeNumber],
          [
            "live in steps",
            (/** @type {any} */ variable) => stretchAt(variable, chosenStep)[0],
            "n",
            (/** @type {number} */ _, /** @type {any} */ variable) =>
              variable.always_live ? "all" : stretchAt(variable, chosenStep).map(wholeNumber).join(" to "),
          ],
          ["for", (/** @type {any} */ variable) => variable.category],
          ["module", (/** @type {any} */ variable) => variable.module, "long"],
          ["line", (/** @type {any} */ variable) => variable.line, "", shortPath],
        ],
        live.slice(0, 300),
        { name: "live" },
      ),
      make(
        "p",
        { class: "note" },
        `${wholeNumber(live.length)} variables live at this step, of the ${wholeNumber(largestVariables().length)} largest of ${wholeNumber(facts.variables.count)}.`,
      ),
    );
  }
  const choose = (/** @type {number} */ position) => {
    const curves = livenessByIpu[ipuSelect.value];
    chosenStep = Math.min(Math.max(Math.round(position), 0), curves.steps - 1);
    draw();
  };
  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const bounds = canvas.getBoundingClientRect();
    const curves = livenessByIpu[ipuSelect.value];
    const part = (event.clientX - bounds.left - LEFT) / (bounds.width - LEFT - 8);
    if (!(overTime && curves.time)) {
      choose(part * curves.steps - 0.5);
      return;
    }
    chosenCycle = Math.round(curves.time[0][0] + part * ((curves.until || facts.total_cycles) - curves.time[0][0]));
    const stepThen = curves.time[2][Math.max(firstAtLeast(curves.time[0], chosenCycle + 1) - 1, 0)];
    if (stepThen >= 0) chosenStep = stepThen;
    draw();
  });
  return {
    draw,
    state: () => ({
      ipu: ipuSelect.selectedIndex ? ipuSelect.value : "",
      step: chosenStep === peakStep ? "" : chosenStep,
      always: alwaysShown ? "" : 0,
      time: overTime,
      cycle: overTime && chosenCycle >= 0 ? chosenCycle : "",
    }),
    restore: (/** @type {URLSearchParams} */ values) => {
      const number = (/** @type {string} */ name) => (values.has(name) ? Number(values.get(name)) : -1);
      chooseIpu(ipuSelect, values.get("ipu"));
      chosenStep = Math.min(number("step"), livenessByIpu[ipuSelect.value].steps - 1);
      alwaysShown = !values.has("always");
      overTime = values.has("time");
      chosenCycle = number("cycle");
    },
    key: (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "ArrowLeft") choose(chosenStep - 1);
      else if (event.key === "ArrowRight") choose(chosenStep + 1);
      else return false;
      return true;
    },
  };
}

/** The variables as rows, with the steps in which each is live and its ranges of tiles, once. */
function largestVariables() {
  const { listed, live, layouts } = facts.variables;
  if (Array.isArray(listed)) return listed;
  /** @param {any} table @param {number} part @param {number} width */
  const rowsOf = (table, part, width) => {
    const rows = [];
    for (let row = table.first[part]; row < table.first[part + 1]; row++)
      rows.push(table.rows.slice(row * width, (row + 1) * width));
    return rows;
  };
  const tiles = Array.from(layouts.first.slice(1), (_, part) => rowsOf(layouts, part, 3));
  return (facts.variables.listed = listed.name.map((/** @type {string} */ name, /** @type {number} */ i) => ({
    ...Object.fromEntries(Object.keys(listed).map((column) => [column, listed[column][i]])),
    live: rowsOf(live, i, 2),
    tiles: tiles[listed.layout[i]],
  })));
}

function memoryView(/** @type {HTMLElement} */ section) {
  const memoryByIpu = facts.memory;
  if (!Object.keys(memoryByIpu).length) {
    section.append(make("p", {}, "The trace holds no memory of tiles."));
    return {};
  }
  const ipuSelect = ipuChooser(memoryByIpu, () => {
    chosenVariable = null;
    variableList.dataset.ipu = "";
    draw();
  });
  const canvas = make("canvas", {
    id: "memory-canvas",
    "aria-label": "bytes of every tile; the tables below have the fullest",
  });
  const description = make("div", { class: "facts", id: "memory-facts" });
  const legendBox = make("div");
  const fullestTiles = make("div");
  const variableList = make("div", { id: "memory-variables" });
  const codeList = make("div", { id: "memory-code" });
  let chosenVariable = /** @type {any} */ (null);
  let limitShown = false;
  section.append(
    make(
      "div",
      { class: "tools" },
      ipuSelect,
      make(
        "button",
        {
          onclick: () => {
            limitShown = !limitShown;
            draw();
          },
        },
        "up to the limit",
      ),
    ),
    legendBox,
    canvas,
    description,
    make(
      "div",
      { class: "two" },
      make("div", {}, make("h2", {}, "Fullest tiles"), fullestTiles),
      make("div", {}, make("h2", {}, "Variables: click for their tiles"), variableList),
    ),
    ...(facts.code.op.length
      ? [
          make("h2", {}, "Always live, by op: code, vertex state, headers, stack, constants"),
          make("p", { class: "note" }, "What ops share counts for the first of them."),
          codeList,
        ]
      : []),
  );
  const HEIGHT = 280;
  const LEFT = 64;
  const BOTTOM = 22;
  const limit = facts.meta.bytes_per_tile;
  function draw() {
    const memory = memoryByIpu[ipuSelect.value];
    const { drawing, width } = context(canvas, HEIGHT);
    const categories = facts.categories.filter((/** @type {any} */ category) => memory.categories[category.name]);
    const rows = categories.map((/** @type {any} */ category) => unfold(memory.categories[category.name]));
    const total = new Float64Array(memory.tiles);
    for (const row of rows)
      row.forEach((/** @type {number} */ amount, /** @type {number} */ tile) => {
        total[tile] += amount;
      });
    const mostBytes = Math.max(...total);
    const top = (limitShown ? Math.max(limit, mostBytes) : mostBytes) * 1.06;
    const x = (/** @type {number} */ tile) => LEFT + (tile / memory.tiles) * (width - LEFT - 8);
    const y = (/** @type {number} */ amount) => HEIGHT - BOTTOM - (amount / top) * (HEIGHT - BOTTOM - 8);
    const lowerBytes = new Float64Array(memory.tiles);
    rows.forEach((/** @type {number[]} */ row, /** @type {number} */ place) => {
      drawing.fillStyle = safeColours ? categories[place].safe : categories[place].colour;
      const columns = Math.ceil(width - LEFT - 8);
      for (let column = 0; column < columns; column++) {
        // each pixel shows the fullest of its tiles, so that none is too thin to be seen
        const from = Math.floor((column / columns) * memory.tiles);
        const until = Math.max(Math.floor(((column + 1) / columns) * memory.tiles), from + 1);
        let fullestOfColumn = from;
        for (let tile = from; tile < until; tile++) if (total[tile] > total[fullestOfColumn]) fullestOfColumn = tile;
        drawing.fillRect(
          LEFT + column,
          y(lowerBytes[fullestOfColumn] + (row[fullestOfColumn] || 0)),
          1.2,
          y(lowerBytes[fullestOfColumn]) - y(lowerBytes[fullestOfColumn] + (row[fullestOfColumn] || 0)),
        );
      }
      row.forEach((/** @type {number} */ amount, /** @type {number} */ tile) => {
        lowerBytes[tile] += amount;
      });
    });
    drawing.fillStyle = colour("--soft");
    for (const amount of ticks(0, top, 4)) drawing.fillText(bytes(amount), 4, y(amount));
    drawing.fillText("tile", 4, HEIGHT - 9);
    for (const tile of ticks(0, memory.tiles, 6))
      if (x(tile) < width - 40) drawing.fillText(wholeNumber(tile), x(tile), HEIGHT - 9);
    if (limit <= top) {
      drawing.fillStyle = colour("--bad");
      drawing.fillRect(LEFT, y(limit), width - LEFT - 8, 1.5);
      drawing.fillText("limit " + wholeNumber(limit) + " B", LEFT + 8, y(limit) - 8);
    }
    if (chosenVariable)
      for (const [from, until, size] of chosenVariable.tiles) {
        // its bytes on each tile, from the bottom, and a mark below
        const bytesPerTile = size / Math.max(until - from, 1);
        drawing.fillStyle = colour("--fore");
        drawing.globalAlpha = 0.55;
        drawing.fillRect(x(from), y(bytesPerTile), Math.max(x(until) - x(from), 1.5), y(0) - y(bytesPerTile));
        drawing.globalAlpha = 1;
        drawing.fillStyle = colour("--accent");
        drawing.fillRect(x(from), HEIGHT - BOTTOM + 1, Math.max(x(until) - x(from), 1.5), 5);
      }
    const fullest = total.indexOf(mostBytes);
    const sum = total.reduce((left, right) => left + right, 0);
    description.textContent =
      `fullest tile ${fullest}: ${wholeNumber(mostBytes)} B, ${percent(mostBytes, limit)} of ${wholeNumber(limit)} B; all tiles together ${wholeNumber(sum)} B` +
      (chosenVariable
        ? `\n${chosenVariable.name}: ${wholeNumber(chosenVariable.bytes)} B${chosenVariable.live.length || chosenVariable.always_live ? "" : ", never live"}, on ${wholeNumber(chosenVariable.tiles.reduce((/** @type {number} */ n, /** @type {number[]} */ piece) => n + piece[1] - piece[0], 0))} tiles${chosenVariable.pieces > chosenVariable.tiles.length ? " (the first " + wholeNumber(chosenVariable.tiles.length) + " of " + wholeNumber(chosenVariable.pieces) + " ranges)" : ""}: dark in the bars, marked below`
        : "");
    description.dataset.variable = chosenVariable ? chosenVariable.name : "";
    description.dataset.bytes = chosenVariable ? String(chosenVariable.bytes) : "";
    description.dataset.most = String(mostBytes);
    description.dataset.tile = String(fullest);
    description.dataset.total = String(sum);
    legendBox.replaceChildren(
      legend(
        categories.map((/** @type {any} */ category) => [category.name, safeColours ? category.safe : category.colour]),
      ),
    );
    const order = Array.from(total.keys())
      .sort((left, right) => total[right] - total[left])
      .slice(0, 40);
    fullestTiles.replaceChildren(
      sortable(
        [
          ["tile", (/** @type {number} */ tile) => tile, "n"],
          ["bytes", (/** @type {number} */ tile) => total[tile], "n", wholeNumber],
          [
            "of the limit",
            (/** @type {number} */ tile) => total[tile] / limit,
            "n",
            (/** @type {number} */ amount) => (100 * amount).toFixed(1) + " %",
          ],
        ],
        order,
        { name: "fullest" },
      ),
    );
    showCode();
    const variables = largestVariables()
      .filter((/** @type {any} */ variable) => variable.ipu === Number(ipuSelect.value))
      .slice(0, 300);
    // Made anew only for another IPU, so that the row of the keyboard keeps its focus.
    if (variableList.dataset.ipu === ipuSelect.value) return;
    variableList.dataset.ipu = ipuSelect.value;
    variableList.replaceChildren(
      sortable(
        [
          ["variable", (/** @type {any} */ variable) => variable.name],
          ["bytes", (/** @type {any} */ variable) => variable.bytes, "n", wholeNumber],
          ["module", (/** @type {any} */ variable) => variable.module, "long"],
          ["line", (/** @type {any} */ variable) => variable.line, "", shortPath],
        ],
        variables,
        {
          name: "variables",
          choose: (variable) => {
            chosenVariable = variable;
            draw();
          },
          isChosen: (variable) => variable === chosenVariable,
        },
      ),
    );
  }
  /** Made anew only for another IPU. */
  function showCode() {
    if (codeList.dataset.ipu === ipuSelect.value || !facts.code.op.length) return;
    codeList.dataset.ipu = ipuSelect.value;
    const rows = Array.from(facts.code.op.keys())
      .filter((/** @type {number} */ row) => facts.code.ipu[row] === Number(ipuSelect.value))
      .slice(0, 300);
    const column = (/** @type {string} */ name) => (/** @type {number} */ row) => facts.code[name][row];
    codeList.replaceChildren(
      sortable(
        [
          ["op", column("op")],
          ["bytes", column("bytes"), "n", wholeNumber],
          ["mostly", column("category")],
          ["module", column("module"), "long"],
          ["line", column("line"), "", shortPath],
        ],
        rows,
        { name: "code" },
      ),
    );
  }
  return {
    draw,
    state: () => ({
      ipu: ipuSelect.selectedIndex ? ipuSelect.value : "",
      limit: limitShown,
      variable: chosenVariable ? chosenVariable.name : "",
    }),
    restore: (/** @type {URLSearchParams} */ values) => {
      chooseIpu(ipuSelect, values.get("ipu"));
      limitShown = values.has("limit");
      const ipu = Number(ipuSelect.value);
      const name = values.get("variable");
      chosenVariable =
        largestVariables().find((/** @type {any} */ one) => one.ipu === ipu && one.name === name) || null;
      variableList.dataset.ipu = "";
    },
  };
}
