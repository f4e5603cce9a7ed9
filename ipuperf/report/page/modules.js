// @ts-check
"use strict";
/**
 * The view of the modules: a flame graph, in which a module is as wide as its share, above a table that opens and
 * closes as a tree. Both are elements, so that keys reach every module and readers of screens read it.
 */

function modulesView(/** @type {HTMLElement} */ section) {
  const table = facts.modules;
  /** @type {any[]} */ const rows = table.module.map((/** @type {string} */ _, /** @type {number} */ i) =>
    Object.fromEntries(Object.keys(table).map((column) => [column, table[column][i]])),
  );
  if (!rows.length) {
    section.append(make("p", {}, "Nothing was executed."));
    return {};
  }
  const inside = (/** @type {string} */ path) => rows.filter((row) => row.parent === path);
  const MEASURES = /** @type {[string, string, (value: number) => string][]} */ ([
    ["cycles", "cycles", (/** @type {number} */ value) => wholeNumber(value) + " cycles, " + seconds(value)],
    ["waiting", "waiting_cycles", (/** @type {number} */ value) => wholeNumber(value) + " cycles of waiting"],
    ["FLOP", "flops", (/** @type {number} */ value) => wholeNumber(value) + " FLOP"],
    ["tile memory", "bytes", bytes],
  ]);
  let focus = "";
  /** @type {Set<string>} */ const open = new Set(rows.filter((row) => !row.level).map((row) => row.module));
  const measureSelect = make(
    "select",
    { id: "modules-measure", "aria-label": "width of a module", onchange: fill },
    ...MEASURES.map(([name], place) => make("option", { value: place }, name)),
  );
  const flame = make("div", { id: "modules-flame", role: "group", "aria-label": "flame graph of the modules" });
  const tree = make("div", { id: "modules-tree", class: "scroll" });
  section.append(
    make(
      "div",
      { class: "tools" },
      "width by",
      measureSelect,
      make("span", { class: "note" }, "Click or Enter: a module alone, once more: all. Colours: phases."),
    ),
    legend(facts.phases.map((/** @type {any} */ phase) => [phase.name, safeColours ? phase.safe : phase.colour])),
    flame,
    tree,
    make(
      "p",
      { class: "note" },
      "Cycles are those of all IPUs together, waiting for others apart. Memory is that of the module's variables in tile memory, whenever they are live, of its code and its constants.",
    ),
  );

  /** The phases of a row as colours beside each other. */
  function stripes(/** @type {any} */ row) {
    let at = 0;
    const stops = facts.phases.flatMap((/** @type {any} */ phase) => {
      const from = at;
      at += row.cycles ? (100 * row[phase.name]) / row.cycles : 0;
      const colour = safeColours ? phase.safe : phase.colour;
      return row[phase.name] ? [`${colour} ${from}% ${at}%`] : [];
    });
    return stops.length ? `linear-gradient(90deg, ${stops.join(", ")})` : "var(--line)";
  }
  function fill() {
    const [, column, text] = MEASURES[Number(measureSelect.value)];
    /** @type {any[]} */ const blocks = [];
    let depth = 0;
    function place(/** @type {any[]} */ siblings, /** @type {number} */ left, /** @type {number} */ scale, level = 0) {
      for (const row of siblings) {
        const width = row[column] * scale;
        if (width >= 0.1) {
          depth = Math.max(depth, level + 1);
          blocks.push([row, left, width, level]);
          place(inside(row.module), left, scale, level + 1);
        }
        left += width;
      }
    }
    const top = focus ? rows.filter((row) => row.module === focus) : inside("");
    const total = top.reduce((sum, row) => sum + row[column], 0);
    place(top, 0, total ? 100 / total : 0);
    flame.style.height = depth * 24 + "px";
    flame.replaceChildren(
      ...blocks.map(([row, left, width, level]) => {
        const said = `${row.module}: ${text(row[column])}, ${percent(row[column], total)}${row.line ? ", " + shortPath(row.line) : ""}`;
        const style = `left:${left}%;width:${width}%;top:${level * 24}px;background:${stripes(row)}`;
        const choose = () => {
          focus = focus === row.module ? "" : row.module;
          fill();
        };
        const name = make("span", {}, row.module.slice(row.parent ? row.parent.length + 1 : 0));
        return make(
          "button",
          { style, title: said, "aria-label": said, "data-module": row.module, onclick: choose },
          name,
        );
      }),
    );
    const shown = rows.filter((row) => {
      for (let path = row.parent; path; path = rows.find((other) => other.module === path).parent)
        if (!open.has(path)) return false;
      return true;
    });
    const all = inside("").reduce((sum, row) => sum + row.cycles, 0);
    const HEADS = ["module", "cycles", "share", "alone", "waiting", "FLOP", "memory", "alone", "costliest line"];
    tree.replaceChildren(
      make(
        "table",
        { role: "treegrid", "aria-label": "tree of the modules" },
        make("thead", {}, make("tr", {}, ...HEADS.map((head, i) => make("th", { class: i % 8 ? "n" : "" }, head)))),
        make("tbody", {}, ...shown.map((row) => line(row, all))),
      ),
    );
  }
  function line(/** @type {any} */ row, /** @type {number} */ all) {
    const isParent = inside(row.module).length > 0;
    const isOpen = open.has(row.module);
    const toggle = make(
      "button",
      {
        class: "fold",
        "aria-label": (isOpen ? "close " : "open ") + row.module,
        onclick: () => {
          if (!open.delete(row.module)) open.add(row.module);
          fill();
          tree.querySelector(`[data-module="${CSS.escape(row.module)}"] button`)?.focus();
        },
      },
      isOpen ? "-" : "+",
    );
    const cells = [row.cycles, 0, row.own_cycles, row.waiting_cycles, row.flops].map(wholeNumber);
    cells[1] = percent(row.cycles, all);
    cells.push(bytes(row.bytes), bytes(row.own_bytes));
    return make(
      "tr",
      { "data-module": row.module, "aria-level": row.level + 1, ...(isParent ? { "aria-expanded": isOpen } : {}) },
      make("td", { style: `padding-left:${9 + 18 * row.level}px` }, ...(isParent ? [toggle] : []), row.module),
      ...cells.map((text) => make("td", { class: "n" }, text)),
      make("td", {}, shortPath(row.line)),
    );
  }
  fill();
  const opened = () => [...open].sort().join(",");
  const openedFirst = opened();
  return {
    draw: fill,
    state: () => ({
      module: focus,
      width: measureSelect.value === "0" ? "" : MEASURES[Number(measureSelect.value)][0],
      open: opened() === openedFirst ? "" : opened() || "none",
    }),
    restore: (/** @type {URLSearchParams} */ values) => {
      focus = rows.some((row) => row.module === values.get("module")) ? values.get("module") || "" : "";
      measureSelect.value = String(
        Math.max(
          MEASURES.findIndex(([name]) => name === values.get("width")),
          0,
        ),
      );
      open.clear();
      for (const path of (values.get("open") || openedFirst).split(",")) if (path !== "none") open.add(path);
    },
  };
}
