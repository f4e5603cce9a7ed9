// @ts-check
"use strict";
/**
 * Which rows the time line has. The rows of a replica fold into one, and so do the lanes of an IPU; a folded row shows
 * the share of each kind of step in the cycles of its rows.
 */

/** A row that is shown: one row of the facts, or the rows that it stands for.
 * @typedef {{rows: any[], name: string, folds: Fold[]}} ShownRow */
/** Rows that fold into one. @typedef {{key: string, name: string, rows: any[]}} Fold */

/** Above as many rows all replicas but the first begin folded. */
const MOST_UNFOLDED = 24;
/** More replicas than that fold into the first and all others. */
const MOST_REPLICAS = 8;

/** What folds, outer ones before those inside. @returns {Fold[]} */
function foldsOf() {
  const { rows } = facts.timeline;
  const folds = /** @type {Fold[]} */ ([]);
  const replicas = [...new Set(rows.map((/** @type {any} */ row) => row.replica))];
  if (replicas.length > MOST_REPLICAS) {
    const others = rows.filter((/** @type {any} */ row) => row.replica !== replicas[0]);
    folds.push({ key: "others", name: `${replicas.length - 1} further replicas`, rows: others });
  }
  for (const replica of replicas) {
    const inside = rows.filter((/** @type {any} */ row) => row.replica === replica);
    const ipus = [...new Set(inside.map((/** @type {any} */ row) => row.ipu))];
    if (ipus.length > 1) {
      const name = facts.meta.replicas > 1 ? `replica ${replica}` : "all";
      folds.push({ key: "r" + replica, name: `${name}: ${ipus.length} IPUs`, rows: inside });
    }
    for (const ipu of ipus) {
      const lanes = inside.filter((/** @type {any} */ row) => row.ipu === ipu);
      if (lanes.length > 1) folds.push({ key: "i" + ipu, name: `IPU ${ipu}: ${lanes.length} lanes`, rows: lanes });
    }
  }
  return folds;
}

/** The folds that are closed at the beginning. @param {Fold[]} folds */
function firstClosed(folds) {
  const [first, ...others] = folds.filter((fold) => fold.key[0] === "r").map((fold) => fold.key);
  const many = facts.timeline.rows.length > MOST_UNFOLDED;
  return new Set(many && first ? [...(folds[0].key === "others" ? ["others"] : []), ...others] : []);
}

/** The name of a row of the facts. @param {any} row */
const rowName = (row) =>
  "IPU " +
  row.ipu +
  (row.lane ? " I/O tiles" : row.stage !== undefined ? " stage " + row.stage : "") +
  (facts.meta.replicas > 1 ? " (" + row.replica + ")" : "");

/** The rows that are shown while the folds of these keys are closed. @param {Fold[]} folds @param {Set<string>} closed @returns {ShownRow[]} */
function rowsShown(folds, closed) {
  const shown = /** @type {ShownRow[]} */ ([]);
  for (const row of facts.timeline.rows) {
    const around = folds.filter((fold) => fold.rows.includes(row));
    const fold = around.find((one) => closed.has(one.key));
    if (fold && fold.rows[0] !== row) continue;
    shown.push({
      rows: fold ? fold.rows : [row],
      name: fold ? fold.name : rowName(row),
      folds: around.filter((one) => one.rows[0] === row && (!fold || fold.rows.length <= one.rows.length)),
    });
  }
  return shown;
}

/** The buttons that fold rows, over the labels of the picture: made anew where rows have moved.
 * @param {HTMLElement} box @param {ShownRow[]} shown @param {Set<string>} closed @param {(n: number) => number} top
 * @param {(key: string) => void} toggle */
function placeFolds(box, shown, closed, top, toggle) {
  const state = String([...closed, "", ...shown.map((_, n) => top(n))]);
  if (box.dataset.state === state) return;
  const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.fold : undefined;
  box.dataset.state = state;
  box.replaceChildren(
    ...shown.flatMap((row, n) =>
      row.folds.map((fold, place) => {
        const isClosed = closed.has(fold.key);
        const button = make(
          "button",
          {
            class: "fold",
            "data-fold": fold.key,
            "aria-expanded": !isClosed,
            "aria-label": fold.name,
            title: (isClosed ? "unfold " : "fold ") + fold.name,
            style: `top:${top(n)}px;left:${2 + 18 * place}px`,
            onclick: () => toggle(fold.key),
          },
          isClosed ? "+" : "-",
        );
        return button;
      }),
    ),
  );
  if (focused) /** @type {HTMLElement | null} */ (box.querySelector(`[data-fold="${focused}"]`))?.focus();
}
