// @ts-check
"use strict";
/**
 * The picture of the time line: the rows of IPUs, their passes, copies between them, and the lanes of host and links.
 */

/** Sizes in pixels: of the labels, the strip of passes below a bar, the axis, and a lane of the host or of a link. */
const LABEL = 126;
const STRIP = 12;
const TOP = 22;
const LANE = 13;

/** What is shown, and how. ``bar`` is the height of a bar, ``pitch`` the distance between rows.
 * @typedef {{range: number[], begin: number, end: number, shown: ShownRow[], bar: number, gap: number, pitch: number,
 * hostTop: number, laneTop: number, grid: boolean, links: boolean, search: Search, picked: any,
 * selected: number[] | null, until: number, isWhole: boolean}} TimelineView
 * After ``until`` a frame looks for no further text, and the next frame goes on where the picture is not whole. */
/** Where it is drawn. @typedef {{drawing: any, width: number, frame: Frame, x: (cycle: number) => number}} Canvas */

const phaseColour = (/** @type {number} */ phase) =>
  safeColours ? facts.phases[phase].safe : facts.phases[phase].colour;
const codeColour = (/** @type {number} */ code) => (code < 12 ? kindColour(code) : phaseColour(code - 12));
/** Codes of kinds from the bottom of a folded row to its top: waiting is above work. */
const stackOrder = () => {
  const waiting = waitingCodes();
  const codes = facts.kinds.map((/** @type {any} */ _, /** @type {number} */ code) => code);
  return [...codes.filter((/** @type {number} */ code) => !waiting.has(code)), ...waiting];
};
const channels = (/** @type {string} */ text) => {
  const value = parseInt(text.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
};
/** A text cut to so many letters. @param {string} text @param {number} room */
const cut = (text, room) => (text.length > room ? text.slice(0, Math.max(room - 1, 1)) + "\u2026" : text);

let image = /** @type {ImageData | null} */ (null);
/** An empty picture of so many lines. @param {any} drawing @param {number} pixels @param {number} lines */
function blank(drawing, pixels, lines) {
  const pixelRatio = window.devicePixelRatio || 1;
  const width = Math.round(pixels * pixelRatio);
  const height = Math.max(Math.round(lines * pixelRatio), 1);
  if (!image || image.width !== width || image.height !== height) image = drawing.createImageData(width, height);
  const data = new Uint32Array(/** @type {ImageData} */ (image).data.buffer);
  data.fill(0);
  return data;
}
/** The colour of the code with the most cycles of a pixel, the denser the more cycles all have; 0: none.
 * @param {Float32Array} sums @param {number} cell @param {number[]} codes @param {number[]} shades */
function densest(sums, cell, codes, shades) {
  let topCode = -1;
  let topCycles = 0;
  let total = 0;
  for (let n = 0; n < codes.length; n++) {
    const cycles = sums[cell + codes[n]];
    total += cycles;
    if (cycles > topCycles) {
      topCycles = cycles;
      topCode = codes[n];
    }
  }
  return topCode < 0 ? 0 : (Math.round(255 * Math.min(1, 0.35 + total)) << 24) | shades[topCode];
}
const KIND_CODES = Array.from({ length: 12 }, (_, code) => code);
const PHASE_CODES = [12, 13, 14, 15, 16];
const GRID_CODES = [...PHASE_CODES, 17, ...KIND_CODES.slice(2)];

/** The sums of a row as pixels of the picture: the colour of what fills most of each, below it what ops are for.
 * @param {Uint32Array} data @param {Float32Array} sums @param {number} pixels @param {number} top @param {number[]} shades @param {TimelineView} view */
function paint(data, sums, pixels, top, shades, view) {
  const pixelRatio = window.devicePixelRatio || 1;
  const width = Math.round(pixels * pixelRatio);
  const pixelColours = new Uint32Array(width);
  for (const strip of [false, true]) {
    const codes = strip ? PHASE_CODES : view.grid ? GRID_CODES : KIND_CODES;
    for (let pixel = 0; pixel < width; pixel++) {
      const cell = (pixelRatio === 1 ? pixel : Math.min(Math.floor(pixel / pixelRatio), pixels - 1)) * CODES;
      pixelColours[pixel] = densest(sums, cell, codes, shades);
    }
    const y = Math.round((top + (strip ? view.bar + 1 : 0)) * pixelRatio);
    const height = Math.round((strip ? STRIP - 2 : view.bar) * pixelRatio);
    for (let line = 0; line < height; line++) data.set(pixelColours, (y + line) * width);
  }
}
/** The sums of folded rows as pixels: in each column the shares of the kinds of steps, from the bottom.
 * @param {Uint32Array} data @param {Float32Array} sums @param {number} pixels @param {number} top @param {number[]} shades @param {TimelineView} view */
function paintShares(data, sums, pixels, top, shades, view) {
  const pixelRatio = window.devicePixelRatio || 1;
  const width = Math.round(pixels * pixelRatio);
  const height = Math.round(view.bar * pixelRatio);
  const bottom = Math.round(top * pixelRatio) + height - 1;
  const order = view.grid ? GRID_CODES : stackOrder();
  for (let pixel = 0; pixel < width; pixel++) {
    const cell = (pixelRatio === 1 ? pixel : Math.min(Math.floor(pixel / pixelRatio), pixels - 1)) * CODES;
    let line = 0;
    let share = 0;
    for (const code of order) {
      share += sums[cell + code];
      const until = Math.min(Math.round(share * height), height);
      for (; line < until; line++) data[(bottom - line) * width + pixel] = (255 << 24) | shades[code];
    }
  }
}

/** The mean of rows as sums by pixel. IPUs that do the same have one course, which is gathered once for a frame.
 * @param {any[]} rows @param {Float32Array} sums @param {Map<any, Gathered>} ofCourse @param {Frame} frame @param {Search} search */
function addFolded(rows, sums, ofCourse, frame, search) {
  const marks = /** @type {number[]} */ ([]);
  const times = new Map();
  for (const row of rows) times.set(row.course, (times.get(row.course) || 0) + 1);
  for (const [course, count] of times) {
    let of = ofCourse.get(course);
    if (!of) {
      of = { sums: new Float32Array(sums.length), wide: null, marks: [] };
      gather(
        rows.find((row) => row.course === course),
        of,
        frame,
        search,
      );
      ofCourse.set(course, of);
    }
    const share = count / rows.length;
    for (let cell = 0; cell < sums.length; cell++) sums[cell] += share * of.sums[cell];
    marks.push(...of.marks);
  }
  return marks;
}

/** All rows. @param {Canvas} canvas @param {TimelineView} view */
function drawRows(canvas, view) {
  const { drawing, frame } = canvas;
  const shades = Array.from({ length: CODES }, (_, code) => {
    const rgb = channels(codeColour(code));
    return (rgb[2] << 16) | (rgb[1] << 8) | rgb[0];
  });
  const data = blank(drawing, frame.pixels, view.shown.length * view.pitch);
  const ofCourse = new Map();
  const sums = new Float32Array(frame.pixels * CODES);
  const gathered = view.shown.map((shown, n) => {
    sums.fill(0);
    const into = { sums, wide: /** @type {number[][] | null} */ ([]), marks: [] };
    if (shown.rows.length === 1) {
      gather(shown.rows[0], into, frame, view.search);
      paint(data, sums, frame.pixels, n * view.pitch, shades, view);
      return into;
    }
    const marks = addFolded(shown.rows, sums, ofCourse, frame, view.search);
    paintShares(data, sums, frame.pixels, n * view.pitch, shades, view);
    return { sums, wide: null, marks };
  });
  const pixelRatio = window.devicePixelRatio || 1;
  if (image) drawing.putImageData(image, Math.round(LABEL * pixelRatio), Math.round(TOP * pixelRatio));
  const indent = view.shown.reduce((most, shown) => Math.max(most, shown.folds.length), 0);
  view.shown.forEach((shown, n) => {
    const y = TOP + n * view.pitch;
    const { wide, marks } = gathered[n];
    drawing.fillStyle = colour("--fore");
    drawing.fillText(cut(shown.name, 21 - 3 * indent), 6 + 18 * indent, y + view.bar / 2);
    if (wide) drawSlices(canvas, view, shown.rows[0], wide, y);
    drawing.fillStyle = colour("--bad");
    for (const mark of marks) drawing.fillRect(LABEL + mark, y, 2, view.bar);
    const { passes, numbered } = shown.rows[0];
    if (wide && passes) drawPasses(canvas, view, passes, numbered, y);
  });
}

/** Times above the rows. @param {Canvas} canvas @param {number[]} range */
function drawAxis({ drawing, width, x }, range) {
  drawing.fillStyle = colour("--soft");
  const tickUnit = 10 ** Math.floor(Math.log10((range[1] - range[0]) / 4));
  const tickDistance = tickUnit * Math.ceil((range[1] - range[0]) / tickUnit / (width < 700 ? 3 : 8));
  for (let cycle = Math.ceil(range[0] / tickDistance) * tickDistance; cycle < range[1]; cycle += tickDistance) {
    drawing.fillRect(x(cycle), TOP - 6, 1, 4);
    if (x(cycle) < width - 70) drawing.fillText(timeText(cycle), x(cycle) + 3, 9);
  }
  drawing.fillText("time in " + timeUnit(), 4, 9);
}

/** The slices of a row that are wide enough to be drawn one by one.
 * @param {Canvas} canvas @param {TimelineView} view @param {any} row @param {number[][]} wide @param {number} y */
function drawSlices({ drawing, width, frame }, view, row, wide, y) {
  const steps = facts.timeline.segments;
  const { bar, picked } = view;
  const outline = (/** @type {string} */ name, /** @type {number} */ left, /** @type {number} */ right) => {
    drawing.strokeStyle = colour(name);
    drawing.lineWidth = 2;
    drawing.strokeRect(left + 1, y + 1, Math.max(right - left - 2, 1), bar - 2);
  };
  for (const [sliceLeft, sliceRight, i, j] of wide) {
    const left = Math.max(sliceLeft, 0) + LABEL;
    const right = Math.min(sliceRight, frame.pixels) + LABEL;
    const kind = steps.kind[j];
    const phase = steps.phase[j];
    drawing.fillStyle = codeColour(view.grid && kind < 2 ? 12 + phase : kind);
    drawing.fillRect(left, y, right - left, bar);
    if (phase < 5 && kind < 2) {
      drawing.fillStyle = phaseColour(phase);
      drawing.fillRect(left, y + bar + 1, right - left, STRIP - 2);
    }
    if (view.search.ops[steps.op[j]]) outline("--bad", left, right);
    const start = frame.from + sliceLeft / frame.scale;
    if (picked && picked.row === row && picked.i === i && picked.j === j && Math.abs(picked.start - start) < 0.5)
      outline("--accent", left, right);
    const until = Math.min(right, width);
    const room = Math.floor((until - left - 6) / 6.2);
    if (right - left <= 40 || room < 2) continue;
    drawing.fillStyle = kind === 3 || kind === 11 || kind === 10 ? "#ffffff" : "#202020";
    drawing.fillText(cut(sliceText(view, row, i, j, Math.round(start)), room), left + 3, y + bar / 2 + 0.5);
  }
}
/** What a slice says: its op, or whom its IPU waits for.
 * @param {TimelineView} view @param {any} row @param {number} i @param {number} j @param {number} start @returns {string} */
function sliceText(view, row, i, j, start) {
  const { op, kind } = facts.timeline.segments;
  const entry = facts.kinds[kind[j]];
  if (WAITING.has(entry.name)) {
    const text = waitText(row, i, j, start, view.until);
    view.isWhole &&= text !== null;
    return text ?? "waits";
  }
  return facts.timeline.ops[op[j]].split("/").pop() || entry.label;
}

/** Forward passes, backward passes and updates in the strip below a row, with their numbers.
 * @param {Canvas} canvas @param {TimelineView} view @param {any} passes @param {boolean} numbered @param {number} y */
function drawPasses({ drawing, width, x }, { range, bar }, passes, numbered, y) {
  const { start, end: ends, code, number: numbers } = passes;
  for (let i = firstAtLeast(ends, range[0]); i < start.length && start[i] < range[1]; i++) {
    const left = Math.max(x(start[i]), LABEL);
    const right = Math.min(x(ends[i]), width);
    if (right - left < 9) continue;
    drawing.fillStyle = phaseColour(code[i]);
    drawing.fillRect(left, y + bar + 1, right - left, STRIP - 2);
    const label = ["F", "", "B", "U"][code[i]] + (code[i] < 3 && numbered ? numbers[i] : "");
    if (right - left > 6.4 * label.length + 3) {
      drawing.fillStyle = "#202020";
      drawing.fillText(label, (left + right) / 2 - 3.1 * label.length, y + bar + STRIP / 2 + 0.5);
    }
  }
}

/** Lines where copies between stages leave. @param {Canvas} canvas @param {TimelineView} view */
function drawGrid({ drawing, width, x }, { range, hostTop, gap }) {
  const { start } = facts.timeline.flows;
  let lastX = -Infinity;
  drawing.fillStyle = colour("--soft");
  for (let flow = firstAtLeast(start, range[0]); flow < start.length && start[flow] < range[1]; flow++)
    if (x(start[flow]) - lastX > 14 && x(start[flow]) < width) {
      lastX = x(start[flow]);
      drawing.fillRect(lastX, TOP, 1, hostTop - TOP - gap);
    }
}

/** Copies between IPUs as arrows, where they are not too many to be told apart. @param {Canvas} canvas @param {TimelineView} view @returns {number} how many */
function drawFlows({ drawing, x }, { range, shown, bar, pitch }) {
  const { start, dur, source, target } = facts.timeline.flows;
  const low = firstAtLeast(start, range[0]);
  const high = firstAtLeast(start, range[1]);
  if (high - low > 800) return 0;
  const rowOf = /** @type {Map<number, number>} */ (new Map());
  shown.forEach((one, n) => one.rows.forEach((row) => rowOf.has(row.ipu) || rowOf.set(row.ipu, n)));
  let count = 0;
  drawing.strokeStyle = drawing.fillStyle = colour("--accent");
  drawing.lineWidth = 1.2;
  drawing.globalAlpha = 0.75;
  for (let flow = low; flow < high; flow++) {
    const sourceRow = rowOf.get(source[flow]);
    const targetRow = rowOf.get(target[flow]);
    if (sourceRow === undefined || targetRow === undefined || sourceRow === targetRow) continue;
    const down = targetRow > sourceRow;
    const x0 = x(start[flow]);
    const x1 = x(start[flow] + dur[flow]);
    const y0 = TOP + sourceRow * pitch + (down ? bar + STRIP - 2 : 0);
    const y1 = TOP + targetRow * pitch + (down ? 0 : bar + STRIP - 2);
    drawing.beginPath();
    drawing.moveTo(x0, y0);
    drawing.lineTo(x1, y1);
    drawing.stroke();
    drawing.beginPath();
    drawing.moveTo(x1, y1);
    drawing.lineTo(x1 - 3, y1 + (down ? -5 : 5));
    drawing.lineTo(x1 + 3, y1 + (down ? -5 : 5));
    drawing.fill();
    count++;
  }
  drawing.globalAlpha = 1;
  return count;
}

/** A lane of the host or of a link. @param {Canvas} canvas @param {number[]} range @param {any} lane @param {number} y
 * @param {string} fill @param {(i: number) => string} label */
function drawLane({ drawing, width, x }, range, lane, y, fill, label) {
  const shortName = lane.name
    .slice(lane.name.indexOf("/") + 1)
    .replace("->", "\u2192")
    .replace("gateway", "gw");
  drawing.fillStyle = colour("--fore");
  drawing.fillText(cut(shortName, 18), 6, y + LANE / 2);
  drawing.fillStyle = colour("--line");
  drawing.fillRect(LABEL, y + LANE - 1, width - LABEL, 0.6);
  let drawnUntil = -1;
  let from = Math.max(firstAtLeast(lane.start, range[0]) - 1, 0);
  while (from > 0 && lane.start[from - 1] + lane.dur[from - 1] > range[0]) from--;
  for (let i = from; i < lane.start.length && lane.start[i] < range[1]; i++) {
    const left = Math.max(x(lane.start[i]), LABEL);
    const right = Math.min(x(lane.start[i] + lane.dur[i]), width);
    if (right <= LABEL || right < drawnUntil) continue;
    drawing.fillStyle = fill;
    drawing.fillRect(left, y, Math.max(right - left, 0.8), LANE - 2);
    drawnUntil = Math.max(right, left + 0.8);
    if (right - left > 40) {
      drawing.fillStyle = "#202020";
      drawing.fillText(cut(label(i), Math.floor((right - left - 6) / 6.2)), left + 3, y + LANE / 2 - 0.5);
    }
  }
}
/** The lanes of the host and of the links. @param {Canvas} canvas @param {TimelineView} view */
function drawLanes(canvas, view) {
  const { host, lanes } = facts.timeline;
  host.forEach((/** @type {any} */ lane, /** @type {number} */ n) =>
    drawLane(canvas, view.range, lane, view.hostTop + n * (LANE + 3), colourOf("host_mid"), (i) => lane.label[i]),
  );
  if (!view.links) return;
  lanes.forEach((/** @type {any} */ lane, /** @type {number} */ n) => {
    const label = (/** @type {number} */ i) => lane.ops[lane.op[i]].split("/").pop() || bytes(lane.bytes[i]);
    drawLane(canvas, view.range, lane, view.laneTop + n * (LANE + 3), linkColour(lane.kind), label);
  });
}

/** The selected interval. @param {Canvas} canvas @param {number[] | null} selected @param {number} height */
function drawSelected({ drawing, width, x }, selected, height) {
  if (!selected) return;
  const left = Math.max(x(selected[0]), LABEL);
  const right = Math.min(x(selected[1]), width);
  if (right <= LABEL || left >= width) return;
  // What is outside pales, so that colours inside stay those of the legend.
  drawing.fillStyle = colour("--card");
  drawing.globalAlpha = 0.5;
  drawing.fillRect(LABEL, TOP, left - LABEL, height);
  drawing.fillRect(right, TOP, width - right, height);
  drawing.globalAlpha = 1;
  drawing.fillStyle = colour("--accent");
  drawing.fillRect(left, TOP - 4, 1.5, height + 4);
  drawing.fillRect(right - 1.5, TOP - 4, 1.5, height + 4);
}
