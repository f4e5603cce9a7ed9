// @ts-check
"use strict";
/**
 * The view of the time line. Whatever is less than a pixel wide is added up for that pixel, so that a frame costs
 * pixels and not steps. Of a long row the sums are made beforehand.
 */

/** The window that is shown, kept for the BSP view. */
const shownWindow = { from: /** @type {number | null} */ (null) };

function timelineView(/** @type {HTMLElement} */ section) {
  const timeline = facts.timeline;
  if (!timeline) {
    section.append(make("p", {}, "Nothing was executed."));
    return {};
  }
  prepareTimeline();
  const steps = timeline.segments;
  const manyRows = timeline.rows.length > 8;
  const LABEL = 118;
  const LEAST_BAR = manyRows ? 15 : 22;
  const MOST_BAR = 140;
  const STRIP = 12;
  const GAP = manyRows ? 4 : 8;
  const TOP = 22;
  const LANE = 13;
  /** The height of a bar follows from the window and from what the user stretches it by. */
  let BAR = LEAST_BAR;
  let ROW = BAR + STRIP + GAP;
  let stretch = 1;
  const traceEnd = Math.max(
    ...timeline.rows.map((/** @type {any} */ row) => (row.reach.length ? row.reach[row.reach.length - 1] : 0)),
    1,
  );
  const traceBegin = Math.min(
    ...timeline.rows
      .filter((/** @type {any} */ row) => row.start.length)
      .map((/** @type {any} */ row) => row.start[0] + (row.shape[0].bits[0]?.begin || 0)),
  );
  let range = [traceBegin, traceEnd];
  let gridShown = false;
  let linksShown = timeline.lanes.length <= (manyRows ? 8 : 24);
  let searchText = "";
  let pickedSlice = /** @type {any} */ (null);
  let frameCount = 0;
  let frameRequested = false;
  let opMatches = new Uint8Array(timeline.ops.length);
  const canvas = make("canvas", { id: "timeline-canvas", tabindex: 0, "aria-label": "execution timeline" });
  const description = make(
    "div",
    { class: "facts", id: "timeline-facts" },
    "Wheel or w/s: zoom. Drag or a/d: move. Click: what a slice is. 0: all. +/-: higher or lower rows. p: pipeline grid. l: links. /: search an op, n: the next.",
  );
  const windowLabel = make("span", { id: "timeline-window" });
  const searchBox = make("input", {
    id: "timeline-search",
    placeholder: "op name",
    size: 20,
    oninput: () => {
      searchText = searchBox.value.toLowerCase();
      opMatches = Uint8Array.from(timeline.ops, (/** @type {string} */ op) =>
        Number(searchText !== "" && op.toLowerCase().includes(searchText)),
      );
      changed();
    },
  });
  const gridButton = make(
    "button",
    {
      id: "timeline-grid",
      title: "what ops are for, and a line at each exchange between stages (p)",
      onclick: () => {
        gridShown = !gridShown;
        changed();
      },
    },
    "pipeline grid",
  );
  const linksButton = make(
    "button",
    {
      id: "timeline-links",
      title: "lanes of the links (l)",
      onclick: () => {
        linksShown = !linksShown;
        changed();
      },
    },
    "links",
  );
  const legendBox = make("div");
  section.append(
    make(
      "div",
      { class: "tools" },
      make("button", { "aria-label": "zoom in", onclick: () => zoom(0.5) }, "+"),
      make("button", { "aria-label": "zoom out", onclick: () => zoom(2) }, "-"),
      make(
        "button",
        {
          onclick: () => {
            range = [traceBegin, traceEnd];
            changed();
          },
        },
        "all",
      ),
      gridButton,
      timeline.lanes.length ? linksButton : "",
      searchBox,
      make("button", { onclick: next }, "next"),
      windowLabel,
    ),
    legendBox,
    canvas,
    description,
  );
  if (timeline.window)
    section.append(
      make(
        "p",
        { class: "note" },
        `The trace is too long for one page: the time line holds cycles ${wholeNumber(timeline.window[0])} to ${wholeNumber(timeline.window[1])}.`,
      ),
    );
  const rowTop = (/** @type {number} */ n) => TOP + n * ROW;
  let hostTop = 0;
  let laneTop = 0;
  /** Give the bars the height that fills the window; return that of the whole picture. */
  function arrange() {
    const lanes = (timeline.host.length + (linksShown ? timeline.lanes.length : 0)) * (LANE + 3);
    const room = window.innerHeight - canvas.offsetTop - description.offsetHeight - 40 - TOP - lanes;
    const filling = Math.min(Math.max(room / timeline.rows.length - STRIP - GAP, LEAST_BAR), MOST_BAR);
    BAR = Math.round(Math.min(Math.max(filling * stretch, 6), 400));
    ROW = BAR + STRIP + GAP;
    hostTop = rowTop(timeline.rows.length);
    laneTop = hostTop + timeline.host.length * (LANE + 3);
    return hostTop + lanes + 6;
  }
  const rowOf = new Map(
    timeline.rows.map((/** @type {any} */ row, /** @type {number} */ n) => [row.ipu * 64 + row.lane, n]),
  );
  const phaseColour = (/** @type {number} */ phase) =>
    safeColours ? facts.phases[phase].safe : facts.phases[phase].colour;
  const codeColour = (/** @type {number} */ code) => (code < 12 ? kindColour(code) : phaseColour(code - 12));
  const matching = new Map();
  const matches = (/** @type {Shape} */ shape) => {
    // whether a segment has an op that is searched
    let match = matching.get(shape);
    if (!match || match.found !== searchText) {
      const hasMatch = (/** @type {Bit[]} */ bits) =>
        bits.some((/** @type {Bit} */ bit) => (bit.nodes ? hasMatch(bit.nodes) : opMatches[steps.op[bit.j]]));
      matching.set(shape, (match = { found: searchText, yes: hasMatch(shape.bits) }));
    }
    return match.yes;
  };

  /** One row into sums by pixel; what is wider goes into a list of slices.
   * @param {any} row @param {Float32Array} sums @param {number} pixels @param {number} scale @param {any[]} wide @param {number[]} marks */
  function gather(row, sums, pixels, scale, wide, marks) {
    const cyclesPerStretch = (traceEnd - traceBegin) / STRETCHES;
    if (row.start.length > STRETCHES && 1 / scale > cyclesPerStretch) {
      const stretchSums = coarseSums(row, traceBegin, traceEnd);
      const firstStretch = Math.max(Math.floor((range[0] - traceBegin) / cyclesPerStretch), 0);
      const lastStretch = Math.min(Math.ceil((range[1] - traceBegin) / cyclesPerStretch), STRETCHES);
      for (let stretch = firstStretch; stretch < lastStretch; stretch++) {
        const pixel = Math.floor((traceBegin + (stretch + 0.5) * cyclesPerStretch - range[0]) * scale);
        if (pixel >= 0 && pixel < pixels)
          for (let code = 0; code < CODES; code++)
            sums[pixel * CODES + code] += stretchSums[stretch * CODES + code] * cyclesPerStretch * scale;
      }
    } else {
      /** @param {Bit[]} bits @param {number} base @param {number} i */
      const inside = (bits, base, i) => {
        for (const bit of bits) {
          const left = (base + bit.begin - range[0]) * scale;
          const right = (base + bit.end - range[0]) * scale;
          if (right < 0 || left > pixels) continue;
          if (bit.nodes && bit.period * scale >= 2) {
            const from = Math.max(0, Math.floor((range[0] - base - bit.inner) / bit.period));
            const until = Math.min(bit.count, Math.ceil((range[1] - base - bit.begin) / bit.period) + 1);
            for (let trip = from; trip < until; trip++) inside(bit.nodes, base + trip * bit.period, i);
          } else if (bit.nodes) spread(sums, pixels, left, right, mixOf(bit), scale);
          else if (right - left < 1) {
            const pixel = Math.max(Math.floor(left), 0);
            const kind = steps.kind[bit.j];
            if (pixel < pixels) {
              sums[pixel * CODES + kind] += right - left;
              if (kind < 2) sums[pixel * CODES + 12 + steps.phase[bit.j]] += right - left;
            }
            if (opMatches[steps.op[bit.j]]) marks.push(left);
          } else wide.push([left, right, i, bit.j]);
        }
      };
      const level = Math.floor(Math.log(0.7 / scale) / Math.log(4)); // steps that are together less than a pixel go together
      for (let i = firstAtLeast(row.reach, range[0]); i < row.start.length && row.start[i] < range[1]; i++) {
        const shape = row.shape[i];
        const base = row.start[i];
        const left = (base - range[0]) * scale;
        const right = left + shape.end * scale;
        const searched = searchText !== "" && marks.length < 4 * pixels && matches(shape);
        if (right - left < 1) {
          spread(sums, pixels, left, right, shape.mix, scale);
          if (searched) marks.push(left);
          continue;
        }
        if (level < 0 || shape.bits.length < 8) {
          inside(shape.bits, base, i);
          continue;
        }
        for (const group of groupsOf(shape, level)) {
          const left = (base + group.begin - range[0]) * scale;
          const right = (base + group.end - range[0]) * scale;
          if (right < 0 || left > pixels) continue;
          if (!group.mix) {
            inside(group.bits, base, i);
            continue;
          }
          spread(sums, pixels, left, right, group.mix, scale);
          if (searched && group.bits.some((/** @type {Bit} */ bit) => !bit.nodes && opMatches[steps.op[bit.j]]))
            marks.push(left);
        }
      }
      return;
    }
    if (searchText)
      for (let i = firstAtLeast(row.reach, range[0]); i < row.start.length && row.start[i] < range[1]; i++)
        if (matches(row.shape[i])) marks.push((row.start[i] - range[0]) * scale);
  }
  /** The steps of a segment, those that follow each other within 4^level cycles as one. @param {any} shape @param {number} level */
  function groupsOf(shape, level) {
    shape.groups = shape.groups || new Map();
    let groups = shape.groups.get(level);
    if (groups) return groups;
    shape.groups.set(level, (groups = /** @type {any[]} */ ([])));
    let lastGroup = /** @type {any} */ (null);
    for (const bit of shape.bits) {
      if (!lastGroup || bit.end - lastGroup.begin > 4 ** level)
        groups.push((lastGroup = { begin: bit.begin, end: bit.end, bits: [], mix: null }));
      lastGroup.bits.push(bit);
      lastGroup.end = Math.max(lastGroup.end, bit.end);
    }
    for (const group of groups)
      if (group.bits.length > 1)
        group.mix = mixOf({ j: -1, begin: 0, end: 0, inner: 0, count: 1, period: 0, nodes: group.bits });
    return groups;
  }
  /** Cycles by code of a whole loop. @param {Bit} bit @returns {number[][]} */
  function mixOf(bit) {
    const node = /** @type {any} */ (bit);
    if (node.mix) return node.mix;
    const sums = new Float64Array(CODES);
    const add = (/** @type {Bit} */ part, /** @type {number} */ times) => {
      if (part.nodes) {
        part.nodes.forEach((inner) => add(inner, times * part.count));
        return;
      }
      const kind = steps.kind[part.j];
      sums[kind] += (part.end - part.begin) * times;
      if (kind < 2) sums[12 + steps.phase[part.j]] += (part.end - part.begin) * times;
    };
    add(bit, 1);
    return (node.mix = Array.from(sums, (cycles, code) => [code, cycles]).filter((entry) => entry[1] > 0));
  }
  const channels = (/** @type {string} */ text) => {
    const value = parseInt(text.slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  };

  let image = /** @type {ImageData | null} */ (null);
  /** An empty picture of all rows. */
  function blank(/** @type {any} */ drawing, /** @type {number} */ pixels) {
    const pixelRatio = window.devicePixelRatio || 1;
    const width = Math.round(pixels * pixelRatio);
    const height = Math.max(Math.round(timeline.rows.length * ROW * pixelRatio), 1);
    if (!image || image.width !== width || image.height !== height) image = drawing.createImageData(width, height);
    const data = new Uint32Array(/** @type {ImageData} */ (image).data.buffer);
    data.fill(0);
    return data;
  }
  /** The sums of a row as pixels of the picture: the colour of what fills most of each. */
  function paint(
    /** @type {Uint32Array} */ data,
    /** @type {Float32Array} */ sums,
    /** @type {number} */ pixels,
    /** @type {number} */ rowIndex,
    /** @type {any} */ shades,
  ) {
    const pixelRatio = window.devicePixelRatio || 1;
    const width = Math.round(pixels * pixelRatio);
    const pixelColours = new Uint32Array(width);
    for (let strip = 0; strip < 2; strip++) {
      const firstCode = strip || gridShown ? 12 : 0;
      const endCode = strip ? 17 : gridShown ? 18 : 12;
      const others = gridShown && !strip;
      for (let pixel = 0; pixel < width; pixel++) {
        const cell = (pixelRatio === 1 ? pixel : Math.min(Math.floor(pixel / pixelRatio), pixels - 1)) * CODES;
        let topCode = -1;
        let topCycles = 0;
        let total = 0;
        for (let code = firstCode; code < endCode; code++) {
          const cycles = sums[cell + code];
          total += cycles;
          if (cycles > topCycles) {
            topCycles = cycles;
            topCode = code;
          }
        }
        if (others)
          for (let code = 2; code < 12; code++) {
            const cycles = sums[cell + code];
            total += cycles;
            if (cycles > topCycles) {
              topCycles = cycles;
              topCode = code;
            }
          }
        pixelColours[pixel] = topCode < 0 ? 0 : (Math.round(255 * Math.min(1, 0.35 + total)) << 24) | shades[topCode];
      }
      const y = Math.round((rowIndex * ROW + (strip ? BAR + 1 : 0)) * pixelRatio);
      const height = Math.round((strip ? STRIP - 2 : BAR) * pixelRatio);
      for (let line = 0; line < height; line++) data.set(pixelColours, (y + line) * width);
    }
  }

  function draw() {
    frameCount++;
    frameRequested = false;
    const { drawing, width } = context(canvas, arrange());
    const pixels = Math.floor(width - LABEL);
    const scale = pixels / (range[1] - range[0]);
    const x = (/** @type {number} */ cycle) => LABEL + (cycle - range[0]) * scale;
    const shades = Array.from({ length: CODES }, (_, code) => {
      const rgb = channels(codeColour(code));
      return (rgb[2] << 16) | (rgb[1] << 8) | rgb[0];
    });
    drawAxis(drawing, x, width);
    const sums = new Float32Array(pixels * CODES);
    const data = blank(drawing, pixels);
    const gathered = timeline.rows.map((/** @type {any} */ row, /** @type {number} */ rowIndex) => {
      const wide = /** @type {any[]} */ ([]);
      const marks = /** @type {number[]} */ ([]);
      sums.fill(0);
      gather(row, sums, pixels, scale, wide, marks);
      paint(data, sums, pixels, rowIndex, shades);
      return { wide, marks };
    });
    if (image)
      drawing.putImageData(
        image,
        Math.round(LABEL * (window.devicePixelRatio || 1)),
        Math.round(TOP * (window.devicePixelRatio || 1)),
      );
    timeline.rows.forEach((/** @type {any} */ row, /** @type {number} */ rowIndex) => {
      const y = rowTop(rowIndex);
      const { wide, marks } = gathered[rowIndex];
      drawing.fillStyle = colour("--fore");
      drawing.fillText(
        "IPU " +
          row.ipu +
          (row.lane ? " I/O tiles" : row.stage !== undefined ? " stage " + row.stage : "") +
          (facts.meta.replicas > 1 ? " (" + row.replica + ")" : ""),
        6,
        y + BAR / 2,
      );
      drawSlices(drawing, rowIndex, wide, pixels, scale, width);
      drawing.fillStyle = colour("--bad");
      for (const mark of marks) drawing.fillRect(LABEL + mark, y, 2, BAR);
      if (row.passes) drawPasses(drawing, x, width, row.passes, row.numbered, y);
    });
    if (gridShown) drawGrid(drawing, x, width);
    const flowCount = drawFlows(drawing, x);
    timeline.host.forEach((/** @type {any} */ lane, /** @type {number} */ laneIndex) =>
      drawLane(
        drawing,
        x,
        width,
        lane,
        hostTop + laneIndex * (LANE + 3),
        lane.name,
        colourOf("host_mid"),
        (i) => lane.label[i],
      ),
    );
    if (linksShown)
      timeline.lanes.forEach((/** @type {any} */ lane, /** @type {number} */ laneIndex) =>
        drawLane(
          drawing,
          x,
          width,
          lane,
          laneTop + laneIndex * (LANE + 3),
          lane.name,
          colourOf(lane.kind === "ddr" ? "remote_load" : "link"),
          (i) => lane.ops[lane.op[i]].split("/").pop() || bytes(lane.bytes[i]),
        ),
      );
    showLegend();
    windowLabel.dataset.frames = String(frameCount);
    windowLabel.dataset.flows = String(flowCount);
    if (linksButton.getAttribute("aria-pressed") !== String(linksShown))
      linksButton.setAttribute("aria-pressed", String(linksShown));
  }
  /** Times above the rows. */
  function drawAxis(/** @type {any} */ drawing, /** @type {any} */ x, /** @type {number} */ width) {
    drawing.fillStyle = colour("--soft");
    const tickUnit = 10 ** Math.floor(Math.log10((range[1] - range[0]) / 4));
    const tickDistance = tickUnit * Math.ceil((range[1] - range[0]) / tickUnit / 8);
    for (let cycle = Math.ceil(range[0] / tickDistance) * tickDistance; cycle < range[1]; cycle += tickDistance) {
      drawing.fillRect(x(cycle), TOP - 6, 1, 4);
      if (x(cycle) < width - 70) drawing.fillText(timeText(cycle), x(cycle) + 3, 9);
    }
    drawing.fillText("time in " + timeUnit(), 4, 9);
  }
  /** A label inside a slice, cut to the room that it has. */
  function drawLabel(
    /** @type {any} */ drawing,
    /** @type {string} */ label,
    /** @type {number} */ left,
    /** @type {number} */ right,
    /** @type {number} */ y,
  ) {
    const room = Math.floor((right - left - 6) / 6.2);
    if (room < 2) return;
    const text = label.length > room ? label.slice(0, Math.max(room - 1, 1)) + "\u2026" : label;
    drawing.fillText(text, left + 3, y + BAR / 2 + 0.5);
  }
  /** The slices of a row that are wide enough to be drawn one by one. */
  function drawSlices(
    /** @type {any} */ drawing,
    /** @type {number} */ rowIndex,
    /** @type {any[]} */ wide,
    /** @type {number} */ pixels,
    /** @type {number} */ scale,
    /** @type {number} */ width,
  ) {
    const y = rowTop(rowIndex);
    for (const [sliceLeft, sliceRight, i, j] of wide) {
      const left = Math.max(sliceLeft, 0) + LABEL;
      const right = Math.min(sliceRight, pixels) + LABEL;
      const kind = steps.kind[j];
      const phase = steps.phase[j];
      drawing.fillStyle = codeColour(gridShown && kind < 2 ? 12 + phase : kind);
      drawing.fillRect(left, y, right - left, BAR);
      if (phase < 5 && kind < 2) {
        drawing.fillStyle = phaseColour(phase);
        drawing.fillRect(left, y + BAR + 1, right - left, STRIP - 2);
      }
      if (opMatches[steps.op[j]]) {
        drawing.strokeStyle = colour("--bad");
        drawing.lineWidth = 2;
        drawing.strokeRect(left + 1, y + 1, Math.max(right - left - 2, 1), BAR - 2);
      }
      if (
        pickedSlice &&
        pickedSlice.row === rowIndex &&
        pickedSlice.i === i &&
        pickedSlice.j === j &&
        Math.abs(pickedSlice.start - range[0] - sliceLeft / scale) < 0.5
      ) {
        drawing.strokeStyle = colour("--accent");
        drawing.lineWidth = 2;
        drawing.strokeRect(left + 1, y + 1, Math.max(right - left - 2, 1), BAR - 2);
      }
      if (right - left > 40) {
        drawing.fillStyle = kind === 3 || kind === 11 || kind === 10 ? "#ffffff" : "#202020";
        drawLabel(
          drawing,
          WAITING.has(facts.kinds[kind].name)
            ? "waits"
            : timeline.ops[steps.op[j]].split("/").pop() || facts.kinds[kind].label,
          Math.max(left, LABEL),
          Math.min(right, width),
          y,
        );
      }
    }
  }
  /** Forward passes, backward passes and updates in the strip below a row, with their numbers. */
  function drawPasses(
    /** @type {any} */ drawing,
    /** @type {any} */ x,
    /** @type {number} */ width,
    /** @type {any} */ passes,
    /** @type {boolean} */ numbered,
    /** @type {number} */ y,
  ) {
    const { start, end: ends, code, number: numbers } = passes;
    for (let i = firstAtLeast(ends, range[0]); i < start.length && start[i] < range[1]; i++) {
      const left = Math.max(x(start[i]), LABEL);
      const right = Math.min(x(ends[i]), width);
      if (right - left < 9) continue;
      drawing.fillStyle = phaseColour(code[i]);
      drawing.fillRect(left, y + BAR + 1, right - left, STRIP - 2);
      const label = ["F", "", "B", "U"][code[i]] + (code[i] < 3 && numbered ? numbers[i] : "");
      if (right - left > 6.4 * label.length + 3) {
        drawing.fillStyle = "#202020";
        drawing.fillText(label, (left + right) / 2 - 3.1 * label.length, y + BAR + STRIP / 2 + 0.5);
      }
    }
  }
  /** The legend, made anew only where the colours or the grid have changed. */
  function showLegend() {
    const phases = facts.phases
      .slice(0, gridShown ? 6 : 4)
      .map((/** @type {any} */ p, /** @type {number} */ i) => [p.name, phaseColour(i)]);
    const kinds = facts.kinds
      .map((/** @type {any} */ entry, /** @type {number} */ i) => [entry.label, kindColour(i)])
      .slice(gridShown ? 2 : 0);
    const legendState = String([gridShown, safeColours]);
    if (legendBox.dataset.look !== legendState) {
      legendBox.dataset.look = legendState;
      legendBox.replaceChildren(legend(firstOfEachName([...kinds, ...phases])));
      gridButton.setAttribute("aria-pressed", String(gridShown));
    }
  }
  /** Lines where copies between stages leave. */
  function drawGrid(/** @type {any} */ drawing, /** @type {any} */ x, /** @type {number} */ width) {
    const { start } = timeline.flows;
    let lastX = -Infinity;
    drawing.fillStyle = colour("--soft");
    for (let flow = firstAtLeast(start, range[0]); flow < start.length && start[flow] < range[1]; flow++)
      if (x(start[flow]) - lastX > 14 && x(start[flow]) < width) {
        lastX = x(start[flow]);
        drawing.fillRect(lastX, TOP, 1, hostTop - TOP - GAP);
      }
  }
  /** Copies between IPUs as arrows, where they are not too many to be told apart. @returns {number} */
  function drawFlows(/** @type {any} */ drawing, /** @type {any} */ x) {
    const { start, dur, source, target } = timeline.flows;
    const low = firstAtLeast(start, range[0]);
    const high = firstAtLeast(start, range[1]);
    if (high - low > 800) return 0;
    drawing.strokeStyle = drawing.fillStyle = colour("--accent");
    drawing.lineWidth = 1.2;
    drawing.globalAlpha = 0.75;
    for (let flow = low; flow < high; flow++) {
      const sourceRow = rowOf.get(source[flow] * 64);
      const targetRow = rowOf.get(target[flow] * 64);
      if (sourceRow === undefined || targetRow === undefined) continue;
      const down = targetRow > sourceRow;
      const x0 = x(start[flow]);
      const x1 = x(start[flow] + dur[flow]);
      const y0 = rowTop(sourceRow) + (down ? BAR + STRIP - 2 : 0);
      const y1 = rowTop(targetRow) + (down ? 0 : BAR + STRIP - 2);
      drawing.beginPath();
      drawing.moveTo(x0, y0);
      drawing.lineTo(x1, y1);
      drawing.stroke();
      drawing.beginPath();
      drawing.moveTo(x1, y1);
      drawing.lineTo(x1 - 3, y1 + (down ? -5 : 5));
      drawing.lineTo(x1 + 3, y1 + (down ? -5 : 5));
      drawing.fill();
    }
    drawing.globalAlpha = 1;
    return high - low;
  }
  /** A lane of the host or of a link. */
  function drawLane(
    /** @type {any} */ drawing,
    /** @type {any} */ x,
    /** @type {number} */ width,
    /** @type {any} */ lane,
    /** @type {number} */ y,
    /** @type {string} */ name,
    /** @type {string} */ fill,
    /** @type {(i: number) => string} */ label,
  ) {
    const shortName = name
      .slice(name.indexOf("/") + 1)
      .replace("->", "\u2192")
      .replace("gateway", "gw");
    drawing.fillStyle = colour("--fore");
    drawing.fillText(shortName.length > 17 ? shortName.slice(0, 16) + "\u2026" : shortName, 6, y + LANE / 2);
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
        const room = Math.floor((right - left - 6) / 6.2);
        const text = label(i);
        drawing.fillText(
          text.length > room ? text.slice(0, room - 1) + "\u2026" : text,
          left + 3,
          y + LANE / 2 - 0.5,
        );
      }
    }
  }
  /** Says what is shown now, and draws it in the next frame. */
  function changed() {
    windowLabel.textContent = `cycles ${wholeNumber(range[0])} to ${wholeNumber(range[1])} (${seconds(range[1] - range[0])})`;
    windowLabel.dataset.from = String(range[0]);
    windowLabel.dataset.to = String(range[1]);
    shownWindow.from = range[0] > traceBegin ? range[0] : null;
    if (!frameRequested) {
      frameRequested = true;
      requestAnimationFrame(draw);
    }
  }
  function zoom(/** @type {number} */ factor, around = (range[0] + range[1]) / 2) {
    const from = around - (around - range[0]) * factor;
    const to = around + (range[1] - around) * factor;
    if (to - from < 8) return;
    range = [Math.max(from, traceBegin), Math.min(to, traceEnd)];
    changed();
  }
  function rowsBy(/** @type {number} */ factor) {
    stretch *= factor;
    changed();
  }
  function move(/** @type {number} */ distance) {
    const length = range[1] - range[0];
    const from = Math.min(Math.max(range[0] + distance, traceBegin), traceEnd - length);
    range = [from, from + length];
    changed();
  }
  const cycleAt = (/** @type {MouseEvent} */ event) => {
    const bounds = canvas.getBoundingClientRect();
    return (
      range[0] + ((event.clientX - bounds.left - LABEL) * (range[1] - range[0])) / Math.floor(bounds.width - LABEL)
    );
  };
  function pick(
    /** @type {number} */ rowIndex,
    /** @type {number} */ i,
    /** @type {number} */ j,
    /** @type {number} */ start,
  ) {
    const row = timeline.rows[rowIndex];
    const kind = facts.kinds[steps.kind[j]];
    pickedSlice = { row: rowIndex, i, j, start };
    const op = timeline.ops[steps.op[j]];
    const opRow = op ? facts.operations.op.indexOf(op) : -1;
    description.textContent =
      `${op || "(no op)"} - ${kind.label}, ${facts.phases[steps.phase[j]].name}` +
      (row.micro_batch[i] >= 0 ? `, micro-batch ${row.micro_batch[i] + 1}` : "") +
      ` on IPU ${row.ipu}${row.stage !== undefined ? ` (stage ${row.stage})` : ""}\n` +
      `cycles ${wholeNumber(start)} to ${wholeNumber(start + steps.dur[j])}: ${wholeNumber(steps.dur[j])} (${seconds(steps.dur[j])}); average tile ${wholeNumber(steps.mean[j])}, ${wholeNumber(steps.tiles[j])} tiles active` +
      (steps.slowest[j] >= 0 ? `, slowest ${steps.slowest[j]}` : "") +
      `\n${bytes(steps.bytes_in[j])} in, ${bytes(steps.bytes_out[j])} out, ${wholeNumber(steps.flops[j])} FLOP` +
      (opRow >= 0 ? `; ${facts.operations.module[opRow]}, ${shortPath(facts.operations.line[opRow])}` : "");
    changed();
  }
  function next() {
    if (!searchText) return;
    const from = pickedSlice ? pickedSlice.start : range[0] - 1;
    let nearest = /** @type {any} */ (null);
    timeline.rows.forEach((/** @type {any} */ row, /** @type {number} */ rowIndex) =>
      walk(
        row,
        from,
        (i, j, start) => {
          if (nearest && start >= nearest.start) return false;
          if (!opMatches[steps.op[j]] || start <= from) return undefined;
          nearest = { start, number: rowIndex, i, j };
          return false;
        },
        matches,
      ),
    );
    if (!nearest) {
      description.textContent = `no (further) slice of an op with "${searchText}" in its name`;
      pickedSlice = null;
      return;
    }
    const length = Math.min(Math.max(steps.dur[nearest.j] * 8, 200), range[1] - range[0]);
    range = [Math.max(nearest.start - length / 3, traceBegin), Math.min(nearest.start + length, traceEnd)];
    pick(nearest.number, nearest.i, nearest.j, nearest.start);
  }
  /** What a click on a lane of the host or a link is about. @param {any} lane @param {number} cycle @param {(i: number) => string} about */
  function tell(lane, cycle, about) {
    const i = firstAtLeast(lane.start, cycle + 1e-9) - 1;
    description.textContent =
      i >= 0 && lane.start[i] + lane.dur[i] >= cycle
        ? `${lane.name}: ${about(i)}\ncycles ${wholeNumber(lane.start[i])} to ${wholeNumber(lane.start[i] + lane.dur[i])} (${seconds(lane.dur[i])})`
        : `${lane.name}: nothing at cycle ${wholeNumber(cycle)}`;
  }
  let drag = /** @type {any} */ (null);
  canvas.addEventListener(
    "wheel",
    (/** @type {WheelEvent} */ event) => {
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, cycleAt(event));
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    drag = { x: event.clientX, moved: false };
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (!drag) return;
    const distance = event.clientX - drag.x;
    if (Math.abs(distance) > 2) {
      drag = { x: event.clientX, moved: true };
      move((-distance * (range[1] - range[0])) / (canvas.clientWidth - LABEL));
    }
  });
  canvas.addEventListener("pointerup", (/** @type {PointerEvent} */ event) => {
    const click = drag && !drag.moved;
    drag = null;
    if (!click) return;
    const y = event.clientY - canvas.getBoundingClientRect().top;
    const number = Math.floor((y - TOP) / ROW);
    const row = timeline.rows[number];
    const cycle = cycleAt(event);
    if (number < 0) return;
    if (!row) {
      const host = timeline.host[Math.floor((y - hostTop) / (LANE + 3))];
      const lane = timeline.lanes[Math.floor((y - laneTop) / (LANE + 3))];
      if (host) tell(host, cycle, (i) => host.label[i]);
      else if (linksShown && lane)
        tell(
          lane,
          cycle,
          (i) =>
            `${lane.ops[lane.op[i]] || "(no op)"}, ${bytes(lane.bytes[i])} in ${wholeNumber(lane.count[i])} transfer(s)`,
        );
      return;
    }
    let sliceFound = false;
    walk(row, cycle, (i, j, start) => {
      if (start <= cycle) {
        sliceFound = true;
        pick(number, i, j, start);
      }
      return false;
    });
    if (!sliceFound) description.textContent = `IPU ${row.ipu} does nothing at cycle ${wholeNumber(cycle)}`;
  });
  return {
    draw: () => {
      changed();
      if (frameRequested) draw();
    },
    key: (/** @type {KeyboardEvent} */ event) => {
      const length = range[1] - range[0];
      const action = /** @type {Record<string, () => void>} */ ({
        w: () => zoom(0.7),
        s: () => zoom(1.4),
        a: () => move(-length / 8),
        d: () => move(length / 8),
        0: () => {
          range = [traceBegin, traceEnd];
          changed();
        },
        "/": () => searchBox.focus(),
        n: next,
        p: () => gridButton.click(),
        l: () => linksButton.click(),
        "+": () => rowsBy(1.25),
        "-": () => rowsBy(0.8),
      })[event.key];
      if (!action) return false;
      action();
      return true;
    },
  };
}
