// @ts-check
"use strict";
/**
 * The view of the time line: what is shown of it, and what the mouse and the keyboard do.
 */

/** The window that is shown, kept for the BSP view. */
const shownWindow = { from: /** @type {number | null} */ (null) };

/** How long a frame looks for whom IPUs wait. */
const WAITS_MS = 8;

const HINT =
  "Wheel or w/s: zoom. Drag or a/d: move. Click: what a slice is. 0: all. Shift and drag, or m: select an interval, Shift and arrows: its end and begin, z: zoom to it, Escape: none. f: fold rows. +/-: higher or lower rows. p: pipeline grid. l: links. /: search an op, n: the next.";

const hint = () => make("span", { class: "hint" }, HINT);

/** The begin and the end of everything on the time line. @returns {number[]} */
function wholeRange() {
  const rows = facts.timeline.rows.filter((/** @type {any} */ row) => row.start.length);
  return [
    Math.min(...rows.map((/** @type {any} */ row) => row.start[0] + (row.shape[0].bits[0]?.begin || 0))),
    Math.max(...rows.map((/** @type {any} */ row) => row.reach[row.reach.length - 1]), 1),
  ];
}

/** The elements of the view, and what its buttons do. @param {Record<string, () => void>} actions @param {(text: string) => void} searched */
function timelineElements(actions, searched) {
  const button = (
    /** @type {string} */ action,
    /** @type {string} */ text,
    /** @type {Record<string, any>} */ more = {},
  ) => make("button", { onclick: () => actions[action](), ...more }, text);
  const elements = {
    canvas: make("canvas", { id: "timeline-canvas", tabindex: 0, "aria-label": "execution timeline" }),
    folds: make("div", { id: "timeline-folds", role: "group", "aria-label": "fold rows" }),
    description: make("div", { class: "facts", id: "timeline-facts" }, hint()),
    selection: make("div", { id: "timeline-selection" }),
    window: make("span", { id: "timeline-window" }),
    legend: make("div"),
    search: make("input", {
      id: "timeline-search",
      placeholder: "op name",
      size: 20,
      oninput: () => searched(elements.search.value),
    }),
    grid: button("p", "pipeline grid", {
      id: "timeline-grid",
      title: "what ops are for, and a line at each exchange between stages (p)",
    }),
    links: button("l", "links", { id: "timeline-links", title: "lanes of the links (l)" }),
    fold: button("f", "fold", { id: "timeline-fold", title: "the IPUs of each replica as one row (f)" }),
  };
  const tools = [
    button("w", "+", { "aria-label": "zoom in" }),
    button("s", "-", { "aria-label": "zoom out" }),
    button("0", "all"),
    elements.grid,
    ...(facts.timeline.lanes.length ? [elements.links] : []),
    ...(foldsOf().length ? [elements.fold] : []),
    elements.search,
    button("n", "next"),
    elements.window,
  ];
  const picture = make("div", { class: "over" }, elements.canvas, elements.folds);
  const bar = make("div", { class: "tools" }, ...tools);
  return { ...elements, all: [bar, elements.legend, picture, elements.description, elements.selection] };
}

function timelineView(/** @type {HTMLElement} */ section) {
  const timeline = facts.timeline;
  if (!timeline) {
    section.append(make("p", {}, "Nothing was executed."));
    return {};
  }
  prepareTimeline();
  const folds = foldsOf();
  const ofReplicas = folds.filter((one) => one.key[0] !== "i");
  const outermost = (ofReplicas.length ? ofReplicas : folds).map((one) => one.key);
  const firstFolded = [...firstClosed(folds)].join(",") || "none";
  const [begin, end] = wholeRange();
  const linksAtFirst = timeline.lanes.length <= (timeline.rows.length > 8 ? 8 : 24);
  let closed = firstClosed(folds);
  let stretch = 1;
  let frameCount = 0;
  let frameRequested = false;
  const view = /** @type {TimelineView} */ ({
    begin,
    end,
    range: [begin, end],
    shown: rowsShown(folds, closed),
    grid: false,
    links: linksAtFirst,
    search: { text: "", ops: new Uint8Array(timeline.ops.length) },
    picked: null,
    selected: null,
  });
  const actions = /** @type {Record<string, () => void>} */ ({
    w: () => zoom(0.7),
    s: () => zoom(1.4),
    a: () => move(-(view.range[1] - view.range[0]) / 8),
    d: () => move((view.range[1] - view.range[0]) / 8),
    0: () => show(begin, end),
    m: () => select(view.range[0], view.range[1]),
    z: () => view.selected && show(view.selected[0], view.selected[1]),
    f: () => fold(isFolded() ? [] : outermost),
    "/": () => elements.search.focus(),
    n: () => next(),
    p: () => set({ grid: !view.grid }),
    l: () => set({ links: !view.links }),
    "+": () => rowsBy(1.25),
    "-": () => rowsBy(0.8),
  });
  const elements = timelineElements(actions, searchFor);
  const { canvas, description } = elements;
  section.append(...elements.all);
  if (timeline.window)
    section.append(
      make(
        "p",
        { class: "note" },
        `The trace is too long for one page: the time line holds cycles ${wholeNumber(timeline.window[0])} to ${wholeNumber(timeline.window[1])}.`,
      ),
    );

  /** Give the bars the height that fills the window; return that of the whole picture. */
  function arrange() {
    const count = view.shown.length;
    const least = count > 8 ? 15 : 22;
    view.gap = count > 8 ? 4 : 8;
    const lanes = (timeline.host.length + (view.links ? timeline.lanes.length : 0)) * (LANE + 3);
    const below = description.offsetHeight + (view.selected ? 250 : 40);
    const room = window.innerHeight - elements.folds.parentElement.offsetTop - below - TOP - lanes;
    const filling = Math.min(Math.max(room / count - STRIP - view.gap, least), 140);
    view.bar = Math.round(Math.min(Math.max(filling * stretch, 6), 400));
    view.pitch = view.bar + STRIP + view.gap;
    view.hostTop = TOP + count * view.pitch;
    view.laneTop = view.hostTop + timeline.host.length * (LANE + 3);
    return view.hostTop + lanes + 6;
  }
  function draw() {
    frameCount++;
    frameRequested = false;
    showLegend(); // first: it may take a line more, and the bars fill what is below
    const height = arrange();
    const { drawing, width } = context(canvas, height);
    const [from, to] = view.range;
    const pixels = Math.floor(width - LABEL);
    const scale = pixels / (to - from);
    const x = (/** @type {number} */ cycle) => LABEL + (cycle - from) * scale;
    const picture = { drawing, width, x, frame: { from, to, begin, end, pixels, scale } };
    drawAxis(picture, view.range);
    Object.assign(view, { until: performance.now() + WAITS_MS, isWhole: true });
    drawRows(picture, view);
    if (view.grid) drawGrid(picture, view);
    const flowCount = drawFlows(picture, view);
    drawLanes(picture, view);
    drawSelected(picture, view.selected, height - TOP);
    placeFolds(
      elements.folds,
      view.shown,
      closed,
      (n) => TOP + n * view.pitch + view.bar / 2 - 9,
      (key) => fold(closed.has(key) ? [...closed].filter((other) => other !== key) : [...closed, key]),
    );
    Object.assign(elements.window.dataset, { frames: frameCount, flows: flowCount, whole: view.isWhole });
    if (!view.isWhole) changed();
  }
  /** The legend and the buttons, made anew only where something has changed. */
  function showLegend() {
    const phases = facts.phases
      .slice(0, view.grid ? 6 : 4)
      .map((/** @type {any} */ p, /** @type {number} */ i) => [p.name, phaseColour(i)]);
    const kinds = facts.kinds
      .map((/** @type {any} */ entry, /** @type {number} */ i) => [entry.label, kindColour(i)])
      .slice(view.grid ? 2 : 0);
    const state = String([view.grid, view.links, isFolded(), safeColours]);
    if (elements.legend.dataset.look === state) return;
    elements.legend.dataset.look = state;
    elements.legend.replaceChildren(legend(firstOfEachName([...kinds, ...phases])));
    elements.grid.setAttribute("aria-pressed", String(view.grid));
    elements.links.setAttribute("aria-pressed", String(view.links));
    elements.fold.setAttribute("aria-pressed", String(isFolded()));
  }
  /** Says what is shown now, and draws it in the next frame; `whole` is false until all of it is drawn. */
  function changed() {
    const [from, to] = view.range;
    elements.window.textContent = `cycles ${wholeNumber(from)} to ${wholeNumber(to)} (${seconds(to - from)})`;
    Object.assign(elements.window.dataset, { from, to, whole: false });
    shownWindow.from = from > begin ? from : null;
    if (!frameRequested) {
      frameRequested = true;
      requestAnimationFrame(draw);
    }
  }
  const set = (/** @type {Partial<TimelineView>} */ values) => {
    Object.assign(view, values);
    changed();
  };
  /** Show a range. It is rounded to less than a pixel, so that the address can name it. */
  const show = (/** @type {number} */ from, /** @type {number} */ to) => {
    const digits = to - from > 8192 ? 0 : 2;
    const rounded = (/** @type {number} */ cycle) => Number(Math.min(Math.max(cycle, begin), end).toFixed(digits));
    if (to - from >= 8) set({ range: [rounded(from), rounded(to)] });
  };
  function zoom(/** @type {number} */ factor, around = (view.range[0] + view.range[1]) / 2) {
    const [from, to] = view.range;
    show(around - (around - from) * factor, around + (to - around) * factor);
  }
  function rowsBy(/** @type {number} */ factor) {
    stretch *= factor;
    changed();
  }
  function move(/** @type {number} */ distance) {
    const length = view.range[1] - view.range[0];
    const from = Math.min(Math.max(view.range[0] + distance, begin), end - length);
    show(from, from + length);
  }
  const isFolded = () => closed.size > 0;
  function fold(/** @type {string[]} */ keys) {
    closed = new Set(keys);
    set({ shown: rowsShown(folds, closed) });
  }
  /** Select whole cycles; sums are told once the pointer rests. */
  function select(/** @type {number} */ one, /** @type {number} */ other, told = true) {
    const limit = (/** @type {number} */ cycle) => Math.round(Math.min(Math.max(cycle, begin), end));
    const [from, to] = [limit(Math.min(one, other)), limit(Math.max(one, other))];
    set({ selected: to > from ? [from, to] : null });
    if (told) showSelection(elements.selection, view.selected);
  }
  /** Move an end of the selected interval by a part of the window. */
  function extend(/** @type {number} */ place, /** @type {number} */ direction) {
    const [from, to] = view.range;
    const selected = view.selected ? [...view.selected] : [(from + to) / 2, (from + to) / 2];
    selected[place] += (direction * (to - from)) / 40;
    select(selected[0], selected[1]);
  }
  function searchFor(/** @type {string} */ typed) {
    const text = typed.toLowerCase();
    const ops = Uint8Array.from(timeline.ops, (/** @type {string} */ op) =>
      Number(text !== "" && op.toLowerCase().includes(text)),
    );
    set({ search: { text, ops } });
  }
  const pick = (
    /** @type {any} */ row,
    /** @type {number} */ i,
    /** @type {number} */ j,
    /** @type {number} */ start,
  ) => {
    description.textContent = aboutSlice(row, i, j, start);
    set({ picked: { row, i, j, start } });
  };
  function next() {
    if (!view.search.text) return;
    const nearest = nextSearched(view.search, view.picked ? view.picked.start : view.range[0] - 1);
    if (!nearest) {
      description.textContent = `no (further) slice of an op with "${view.search.text}" in its name`;
      view.picked = null;
      return;
    }
    const length = Math.min(Math.max(timeline.segments.dur[nearest.j] * 8, 200), view.range[1] - view.range[0]);
    show(nearest.start - length / 3, nearest.start + length);
    pick(nearest.row, nearest.i, nearest.j, nearest.start);
  }
  /** Say what is at a place of the picture. */
  function tell(/** @type {number} */ cycle, /** @type {number} */ y) {
    const number = Math.floor((y - TOP) / view.pitch);
    if (number < 0) return;
    const shown = view.shown[number];
    if (!shown) {
      description.textContent = aboutLane(view, cycle, y) || description.textContent;
      return;
    }
    if (shown.rows.length > 1) {
      description.textContent = aboutFolded(shown, cycle);
      return;
    }
    const [row] = shown.rows;
    const slice = sliceAt(row, cycle);
    if (slice) pick(row, slice.i, slice.j, slice.start);
    else description.textContent = `${rowName(row)} does nothing at cycle ${wholeNumber(cycle)}`;
  }
  followPointer(canvas, view, { zoom, move, select, tell });
  const SELECTING = /** @type {Record<string, [number, number]>} */ ({
    ArrowRight: [1, 1],
    ArrowLeft: [1, -1],
    ArrowUp: [0, 1],
    ArrowDown: [0, -1],
  });
  return {
    draw: () => {
      changed();
      if (frameRequested) draw();
    },
    key: (/** @type {KeyboardEvent} */ event) => {
      if (event.shiftKey && SELECTING[event.key]) extend(...SELECTING[event.key]);
      else if (event.key === "Escape" && view.selected) select(0, 0);
      else if (event.key === "ArrowLeft") actions.a();
      else if (event.key === "ArrowRight") actions.d();
      else if (actions[event.key]) actions[event.key]();
      else return false;
      return true;
    },
    state: () => ({
      ...(view.range[0] > begin || view.range[1] < end ? { from: view.range[0], to: view.range[1] } : {}),
      select: view.selected ? view.selected.join("-") : "",
      fold: ([...closed].join(",") || "none") === firstFolded ? "" : [...closed].join(",") || "none",
      rows: stretch === 1 ? "" : stretch.toFixed(3),
      grid: view.grid,
      links: view.links === linksAtFirst ? "" : Number(view.links),
      search: view.search.text,
      slice: view.picked ? `${timeline.rows.indexOf(view.picked.row)}-${view.picked.start}` : "",
    }),
    restore: (/** @type {URLSearchParams} */ values) => {
      const number = (/** @type {string} */ name, /** @type {number} */ other) =>
        Number(values.get(name) || NaN) || other;
      elements.search.value = values.get("search") || "";
      searchFor(elements.search.value);
      stretch = Math.min(Math.max(number("rows", 1), 0.05), 20);
      const folded = values.get("fold") || firstFolded;
      fold(folds.map((one) => one.key).filter((key) => folded.split(",").includes(key)));
      const links = values.has("links") ? values.get("links") !== "0" : linksAtFirst;
      set({ range: [begin, end], picked: null, grid: values.has("grid"), links });
      show(number("from", begin), number("to", end));
      const [from, to] = (values.get("select") || "0-0").split("-").map(Number);
      select(from || 0, to || 0);
      const [row, start] = (values.get("slice") || "").split("-").map(Number);
      const slice = timeline.rows[row] && sliceAt(timeline.rows[row], start);
      description.replaceChildren(hint());
      if (slice) pick(timeline.rows[row], slice.i, slice.j, slice.start);
    },
  };
}
