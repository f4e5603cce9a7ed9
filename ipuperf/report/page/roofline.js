// @ts-check
"use strict";
/**
 * The roofline of the operations: what each does per cycle, over its FLOP for each byte that its tiles receive in
 * exchanges between tiles of the IPU. Lines are what an IPU can do.
 */

/** FLOP for each byte received in exchanges; Infinity: none is received. @param {any} row */
const intensity = (row) => (row.exchange_bytes ? row.flops / row.exchange_bytes : Infinity);
/** FLOP per cycle, or per second. @param {number} perCycle */
const flopRate = (perCycle) => (inCycles ? perCycle : perCycle * facts.meta.clock_hz);
const rateUnit = () => (inCycles ? "FLOP per cycle of an IPU" : "FLOP/s of an IPU");
/** A power of ten as text. @param {number} exponent */
const powerText = (exponent) =>
  exponent >= -2 && exponent <= 4 ? String(Number((10 ** exponent).toPrecision(1))) : "1e" + exponent;

/** The figures of an operation in words. @param {any} row */
const aboutOperation = (row) =>
  `On IPU ${row.ipu}: ${wholeNumber(row.cycles)} cycles, ${wholeNumber(row.flops)} FLOP, ${wholeNumber(row.exchange_bytes)} bytes received in exchanges` +
  (row.flops && row.exchange_bytes ? ` (${intensity(row).toPrecision(3)} FLOP per byte)` : "") +
  `; bound by ${row.bound}.`;

/** The chart. ``choose`` is called with the row of a point. @param {(row: any) => void} choose */
function rooflineChart(choose) {
  const HEIGHT = 330;
  const [LEFT, RIGHT, ABOVE, BELOW] = [70, 96, 12, 40];
  const canvas = make("canvas", { id: "roofline-canvas", tabindex: 0, "aria-label": "roofline of the operations" });
  const legendBox = make("div");
  const note = make("p", { class: "note", id: "roofline-note" });
  const told = make("p", { id: "roofline-told", role: "status" });
  const box = make("div", { id: "roofline", hidden: "" }, legendBox, canvas, told, note);
  const { peak_flops_per_cycle: peaks, peak_exchange_bytes_per_cycle: exchangePeak } = facts.meta;
  let points = /** @type {{row: any, x: number, y: number, radius: number}[]} */ ([]);

  /** The powers of ten around positive values. @param {number[]} values */
  function decades(values) {
    const finite = values.filter((value) => value > 0 && Number.isFinite(value));
    const exponents = finite.length ? finite.map((value) => Math.log10(value)) : [0, 1];
    const low = exponents.reduce((a, b) => Math.min(a, b));
    const high = exponents.reduce((a, b) => Math.max(a, b));
    return [Math.floor(low), Math.max(Math.ceil(high), Math.floor(low) + 1)];
  }
  /** @param {any[]} rows @param {any} chosen */
  function draw(rows, chosen) {
    const shown = rows.filter((row) => row.flops && row.cycles);
    const { drawing, width } = context(canvas, HEIGHT);
    const rateOf = (/** @type {any} */ row) => flopRate(row.flops / row.cycles);
    const roofs = Object.entries(peaks).map(
      ([type, flops]) => /** @type {[string, number]} */ ([type, flopRate(/** @type {number} */ (flops))]),
    );
    const kinks = exchangePeak ? roofs.map(([, peak]) => peak / flopRate(exchangePeak)) : [];
    const [x0, x1] = decades([...shown.map(intensity), ...kinks]);
    const [y0, y1] = decades([...shown.map(rateOf), ...roofs.map(([, peak]) => peak)]);
    const x = (/** @type {number} */ value) =>
      value === Infinity ? width - RIGHT / 2 : LEFT + ((Math.log10(value) - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    const y = (/** @type {number} */ value) =>
      HEIGHT - BELOW - ((Math.log10(value) - y0) / (y1 - y0)) * (HEIGHT - ABOVE - BELOW);
    drawAxes(drawing, width, [x0, x1], [y0, y1], x, y);
    drawRoofs(drawing, width, roofs, [x0, x1], [y0, y1], x, y);
    const most = shown.reduce((sum, row) => Math.max(sum, row.cycles), 1);
    points = shown.map((row) => ({
      row,
      x: x(intensity(row)),
      y: y(rateOf(row)),
      radius: 2.5 + 7 * Math.sqrt(row.cycles / most),
    }));
    for (const point of [...points].reverse()) {
      drawing.globalAlpha = 0.7;
      drawing.fillStyle = phaseColour(
        facts.phases.findIndex((/** @type {any} */ phase) => phase.name === point.row.phase),
      );
      drawing.beginPath();
      drawing.arc(point.x, point.y, point.radius, 0, 7);
      drawing.fill();
      drawing.globalAlpha = 1;
      drawing.strokeStyle = colour(point.row === chosen ? "--accent" : "--soft");
      drawing.lineWidth = point.row === chosen ? 3 : 0.5;
      drawing.stroke();
    }
    legendBox.replaceChildren(
      legend(
        facts.phases.map((/** @type {any} */ phase, /** @type {number} */ code) => [phase.name, phaseColour(code)]),
      ),
    );
    told.textContent = chosen ? `${chosen.op}. ${aboutOperation(chosen)}` : "";
    note.textContent = `${wholeNumber(shown.length)} of ${wholeNumber(rows.length)} rows have FLOP and are points; their area grows with their cycles. Bytes are those that the tiles of the IPU receive in exchanges between its tiles, in all steps of the op; those over IPU-Links, from Streaming Memory and from the host are not among them. The dotted line is twice the rate of the exchange: so fast are two tiles that share a bus and receive the same. Cycles are those in which the op does something. Points on the right receive none. A click, or the arrow keys, tell which op a point is; the table has the same figures.`;
    Object.assign(canvas.dataset, { points: points.length, peaks: roofs.length, exchange: exchangePeak });
  }
  /** @param {any} drawing @param {number} width @param {number[]} xs @param {number[]} ys
   * @param {(value: number) => number} x @param {(value: number) => number} y */
  function drawAxes(drawing, width, [x0, x1], [y0, y1], x, y) {
    drawing.fillStyle = colour("--soft");
    const everyX = Math.ceil((x1 - x0) / Math.max((width - LEFT - RIGHT) / 50, 1));
    for (let power = x0; power <= x1; power += everyX) {
      drawing.fillRect(x(10 ** power), HEIGHT - BELOW, 1, 4);
      drawing.fillText(powerText(power), x(10 ** power) - 8, HEIGHT - BELOW + 12);
    }
    for (let power = y0; power <= y1; power++) {
      drawing.fillRect(LEFT, y(10 ** power), width - LEFT - RIGHT, 0.4);
      drawing.fillText(powerText(power), 28, y(10 ** power));
    }
    drawing.fillText("none", width - RIGHT / 2 - 12, HEIGHT - BELOW + 12);
    drawing.fillText("FLOP per byte received in exchange", LEFT + 4, HEIGHT - 10);
    drawing.save();
    drawing.translate(12, HEIGHT - BELOW);
    drawing.rotate(-Math.PI / 2);
    drawing.fillText(rateUnit(), 0, 0);
    drawing.restore();
  }
  /** The peaks of an IPU: of its matrix units by type, and of the exchange.
   * @param {any} drawing @param {number} width @param {any[][]} roofs @param {number[]} xs @param {number[]} ys
   * @param {(value: number) => number} x @param {(value: number) => number} y */
  function drawRoofs(drawing, width, roofs, [x0, x1], [y0, y1], x, y) {
    drawing.strokeStyle = drawing.fillStyle = colour("--fore");
    drawing.lineWidth = 1.2;
    const highest = roofs.reduce((most, [, peak]) => Math.max(most, peak), 0) || 10 ** y1;
    const line = (/** @type {number[][]} */ places) => {
      drawing.beginPath();
      places.forEach(([left, top], n) => (n ? drawing.lineTo(x(left), y(top)) : drawing.moveTo(x(left), y(top))));
      drawing.stroke();
    };
    for (const [type, peak] of roofs) {
      const from = exchangePeak ? Math.max(peak / flopRate(2 * exchangePeak), 10 ** x0) : 10 ** x0;
      line([
        [from, peak],
        [10 ** x1, peak],
      ]);
      drawing.fillText(type + " peak", width - RIGHT - 76, y(peak) + 9);
    }
    if (!exchangePeak) return;
    for (const times of [1, 2]) {
      const rate = flopRate(times * exchangePeak);
      const from = Math.max(10 ** x0, 10 ** y0 / rate);
      drawing.setLineDash(times === 1 ? [] : [3, 3]);
      line([
        [from, from * rate],
        [highest / rate, highest],
      ]);
      drawing.setLineDash([]);
      if (times === 1) drawing.fillText("exchange", x(from) + 6, y(from * rate) - 8);
    }
  }
  const nearest = (/** @type {MouseEvent} */ event) => {
    const bounds = canvas.getBoundingClientRect();
    const distance = (/** @type {any} */ point) =>
      Math.hypot(point.x - event.clientX + bounds.left, point.y - event.clientY + bounds.top) - point.radius;
    return points.reduce(
      (best, point) => (!best || distance(point) < distance(best) ? point : best),
      /** @type {any} */ (null),
    );
  };
  canvas.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const point = nearest(event);
    if (point) choose(point.row);
  });
  /** The point after a row, or before it, in the order of the table. @param {any} row @param {number} direction */
  function step(row, direction) {
    if (!points.length) return;
    const place = points.findIndex((point) => point.row === row);
    choose(points[place < 0 ? 0 : (place + direction + points.length) % points.length].row);
  }
  return { box, draw, step };
}
