"""The execution timeline: one row per IPU, micro-batches above, a BSP strip below, in PopVision colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.palette import KIND_COLOURS, KIND_LABELS, PHASE_COLOURS, PHASE_LETTERS
from ipuperf.report.raster import Raster, colours, stacked
from ipuperf.trace import KINDS, PHASES, Window, check_window, pairs, slice_batches, spent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ipuperf.trace import Trace

WIDTH = 1600
"""Pixels along time."""

MAX_ROWS = 64
"""IPUs shown at most; the title says how many are left out."""

MAX_LABELS = 600

_AT_ONCE = 1000
"""Steps in loops drawn together, each in up to ``WIDTH`` pixels."""


@dataclass(frozen=True)
class _Heights:
    """Pixels of the strips of one IPU row and of the gap below it."""

    work: int
    bsp: int
    other: int
    gap: int


_TALL, _LOW = _Heights(10, 22, 8, 4), _Heights(4, 12, 4, 2)
_MANY = 24
"""From this many IPUs on rows are low and instances are not labelled."""


@dataclass(frozen=True)
class _Rows:
    """The IPUs drawn: replica and ipu of each, the row of each row of ``instances`` (-1 for none), IPUs left out."""

    keys: list[tuple[int, int]]
    of_instance: np.ndarray
    hidden: int

    def label(self, row: int) -> str:
        replica, ipu = self.keys[row]
        many = len({key[0] for key in self.keys}) > 1
        return f"R{replica} IPU {ipu}" if many else f"IPU {ipu}"


def _rows(trace: Trace) -> _Rows:
    instances = trace.columns("instances")
    pairs = np.stack([instances["replica"], instances["ipu"]], axis=1)
    keys, row = np.unique(pairs, axis=0, return_inverse=True)
    row = row.reshape(-1).astype(np.int64)
    shown = [(int(replica), int(ipu)) for replica, ipu in keys[:MAX_ROWS]]
    return _Rows(shown, np.where(row < MAX_ROWS, row, -1), max(len(keys) - MAX_ROWS, 0))


def whole(trace: Trace) -> Window:
    """Window of everything the trace holds; raises ``ValueError`` if nothing was executed."""
    starts, ends = [], []
    for name in ("runs", "instances"):
        table = trace.columns(name)
        if len(table["start"]):
            starts.append(int(table["start"].min()))
            ends.append(int((table["start"] + table["dur"]).max()))
    if not starts or max(ends) <= min(starts):
        raise ValueError("the trace has no runs and no instances: there is no timeline to draw")
    return min(starts), max(ends)


def instance_phases(trace: Trace) -> np.ndarray:
    """What each instance is for: the phase on whose ops its segment spends most cycles, as an index into ``PHASES``."""
    steps, ops, template = trace.columns("steps"), trace.columns("ops"), trace.template
    other = PHASES.index("other")
    by_op = {int(op): PHASES.index(phase) for op, phase in zip(ops["op_id"], ops["phase"], strict=True)}
    phase = np.array([by_op.get(int(op), -1) for op in steps["op_id"]], dtype=np.int64)
    cycles = np.zeros((len(template.segments) + 1, len(PHASES)))
    known = phase >= 0
    spent_on = (steps["dur"] * template.trips)[known]
    np.add.at(cycles, (template.place(steps["segment"][known]), phase[known]), spent_on)
    best = np.where(cycles.max(axis=1) > 0, cycles.argmax(axis=1), other)
    return best[template.place(trace.columns("instances")["segment"])]


def _kind_strips(trace: Trace, rows: _Rows, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Fractions by kind of lane 0 and of all other lanes, each of shape (IPUs, kinds, width)."""
    steps = trace.columns("steps")
    order = list(KIND_COLOURS)
    code = np.array([order.index(kind) for kind in KINDS])
    kind = code[[KINDS.index(name) for name in steps["kind"]]] if len(steps["kind"]) else np.empty(0, dtype=np.int64)
    count = len(rows.keys) * len(KINDS)
    raster = Raster(2 * count, window, WIDTH)

    def target(instance: np.ndarray, step: np.ndarray) -> np.ndarray:
        return np.minimum(steps["lane"][step], 1) * count + rows.of_instance[instance] * len(KINDS) + kind[step]

    for piece in slice_batches(trace, window, steps=trace.template.loop < 0):
        drawn = rows.of_instance[piece.instance] >= 0
        raster.add(target(piece.instance, piece.step)[drawn], piece.start[drawn], piece.dur[drawn])
    instance, step = pairs(trace, np.flatnonzero(rows.of_instance >= 0), trace.template.loop >= 0)
    for part in np.array_split(np.arange(len(step)), len(step) // _AT_ONCE + 1):
        _add_loops(raster, trace, instance[part], step[part], target(instance[part], step[part]))
    shape = (2, len(rows.keys), len(KINDS), WIDTH)
    first, others = raster.fractions().reshape(shape)
    return first, others


def _add_loops(raster: Raster, trace: Trace, instance: np.ndarray, step: np.ndarray, target: np.ndarray) -> None:
    """Draw steps in loops without a look at each trip: what they have spent by the end of a pixel, less by its
    start."""
    begin, pixels = raster.window[0], raster.width / (raster.window[1] - raster.window[0])
    steps, template = trace.columns("steps"), trace.template
    start = trace.columns("instances")["start"][instance]
    low = np.clip(np.floor((start + steps["rel_start"][step] - begin) * pixels), 0, raster.width).astype(np.int64)
    high = np.clip(np.ceil((start + template.reach[step] - begin) * pixels), 0, raster.width).astype(np.int64)
    row = np.repeat(np.arange(len(step)), high - low)
    pixel = np.arange(len(row)) - np.repeat(np.cumsum(high - low) - high, high - low)
    first = (start + steps["rel_start"][step])[row]
    done = [
        spent(trace.loops, steps["dur"][step][row], template.loop[step][row], begin + edge / pixels - first)
        for edge in (pixel, pixel + 1)
    ]
    raster.cover(target[row], pixel, (done[1] - done[0]) * pixels)


def _work_strip(trace: Trace, rows: _Rows, window: Window) -> np.ndarray:
    """Fractions by phase of the instances, of shape (IPUs, phases, width)."""
    instances, phase = trace.columns("instances"), instance_phases(trace)
    raster = Raster(len(rows.keys) * len(PHASES), window, WIDTH)
    drawn = rows.of_instance >= 0
    target = rows.of_instance * len(PHASES) + phase
    raster.add(target[drawn], instances["start"][drawn], instances["dur"][drawn])
    return raster.fractions().reshape(len(rows.keys), len(PHASES), WIDTH)


def _image(work: np.ndarray, first: np.ndarray, others: np.ndarray, heights: _Heights) -> tuple[np.ndarray, int, bool]:
    """The whole picture, the pixels of one IPU row, and whether it has a strip for further lanes."""
    total = work.sum(axis=1, keepdims=True)
    work = np.where(total >= 0.5, work / np.maximum(total, 0.5), work)  # clean edges between instances
    kind_rgb = colours(list(KIND_COLOURS), KIND_COLOURS)
    phase_rgb = colours(PHASES, PHASE_COLOURS)
    overlapped = bool(others.any())
    pieces = []
    for row in range(len(first)):
        strips = [stacked(work[row], phase_rgb, heights.work), stacked(first[row], kind_rgb, heights.bsp)]
        if overlapped:
            strips.append(stacked(others[row], kind_rgb, heights.other))
        strips.append(np.full((heights.gap, WIDTH, 3), 255, dtype=np.uint8))
        pieces.append(np.concatenate(strips))
    return np.concatenate(pieces), len(pieces[0]), overlapped


def _labels(axes: Axes, trace: Trace, rows: _Rows, window: Window, row_height: int) -> None:
    """Write F and B with the micro-batch number on instances wide enough to hold it."""
    instances, phase = trace.columns("instances"), instance_phases(trace)
    per_us = 1e6 / trace.meta["clock_hz"]
    start = np.clip(instances["start"], *window)
    stop = np.clip(instances["start"] + instances["dur"], *window)
    pixels = (stop - start) * WIDTH / (window[1] - window[0])
    wide = np.flatnonzero((pixels >= 26) & (rows.of_instance >= 0))
    for row in wide[np.argsort(-pixels[wide], kind="stable")][:MAX_LABELS]:
        number = int(instances["micro_batch"][row])
        text = PHASE_LETTERS[PHASES[phase[row]]] + (str(number) if number >= 0 else "")
        if text and pixels[row] >= 9 * len(text) + 6:
            y = rows.of_instance[row] * row_height + _TALL.work / 2
            middle = (start[row] + stop[row]) / 2 * per_us
            axes.text(middle, y, text, ha="center", va="center", fontsize=6, color="#222222", clip_on=True)


def _legend(figure: Figure, first: np.ndarray, others: np.ndarray, work: np.ndarray) -> None:
    from matplotlib.patches import Patch

    seen = (first.sum(axis=(0, 2)) + others.sum(axis=(0, 2))) > 0
    entries: dict[str, str] = {}
    for phase, present in zip(PHASES, work.sum(axis=(0, 2)) > 0, strict=True):
        if present:
            entries[phase] = PHASE_COLOURS[phase]
    for kind, present in zip(KIND_COLOURS, seen, strict=True):
        if present:
            entries.setdefault(KIND_LABELS[kind], KIND_COLOURS[kind])
    handles = [
        Patch(facecolor=colour, edgecolor="#999999", linewidth=0.4, label=text) for text, colour in entries.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 7), fontsize=8, frameon=False)


def timeline_figure(trace: Trace, window: Window | None = None) -> Figure:
    """Timeline of all stored IPUs within ``window`` (cycles, half open; everything by default).

    Each IPU has a strip of its micro-batches (forward, backward, update; numbered where there is room) and a BSP strip
    of what the time is spent on: a column is split in proportion to the kinds of step within its pixel, white is no
    step. A third, thin strip shows lanes other than the compute tiles, if there are any. Time is in microseconds below
    and in cycles above. Slices are turned into pixels first, so the size of the trace does not matter.

    Raises ``ValueError`` if the trace holds nothing that was executed, or the window is empty.
    """
    from matplotlib.figure import Figure

    window = whole(trace) if window is None else window
    check_window(window)
    begin, end = whole(trace)
    if window[0] >= end or window[1] <= begin:
        raise ValueError(f"timeline: window {window!r} lies outside of the trace, cycles {begin:,} to {end:,}")
    rows = _rows(trace)
    first, others = _kind_strips(trace, rows, window)
    work = _work_strip(trace, rows, window)
    heights = _TALL if len(rows.keys) < _MANY else _LOW
    image, row_height, overlapped = _image(work, first, others, heights)
    height = min(max(1.9 + 0.62 * len(rows.keys), 2.6), 16.0)
    figure = Figure(figsize=(13, height), layout="constrained")
    axes: Any = figure.add_subplot()
    per_us = 1e6 / trace.meta["clock_hz"]
    extent = (window[0] * per_us, window[1] * per_us, len(image), 0)
    axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest")
    middle = (row_height - heights.gap) / 2
    axes.set_yticks([row * row_height + middle for row in range(len(rows.keys))])
    axes.set_yticklabels([rows.label(row) for row in range(len(rows.keys))], fontsize=9 if heights is _TALL else 6)
    axes.tick_params(axis="y", length=0)
    for side in ("left", "right"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("time (µs)")
    axes.xaxis.set_major_formatter("{x:,.10g}")
    upper = axes.secondary_xaxis("top", functions=(lambda us: us / per_us, lambda cycles: cycles * per_us))
    upper.set_xlabel("cycles", fontsize=8)
    upper.xaxis.set_major_formatter("{x:,.0f}")
    upper.tick_params(labelsize=8)
    if heights is _TALL:
        _labels(axes, trace, rows, window, row_height)
    _legend(figure, first, others, work)
    notes = [f"{rows.hidden} more IPUs not shown"] if rows.hidden else []
    notes += ["does not fit in memory"] if trace.meta["oom"] else []
    notes += ["lower strip: I/O tiles and other lanes"] if overlapped else []
    axes.set_title("; ".join([f"Execution on {trace.meta['machine']}", *notes]), fontsize=10)
    return figure
