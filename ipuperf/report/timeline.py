"""The execution timeline in PopVision's colours: a row for each IPU, with micro-batches above a BSP strip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.arguments import check_inside, checked, whole
from ipuperf.report.instances import instance_work, step_phases
from ipuperf.report.palette import KIND_COLOURS, KIND_LABELS, PHASE_COLOURS, PHASE_LETTERS, WAITING_COLOUR
from ipuperf.report.raster import Raster, colours, stacked
from ipuperf.trace import (
    KINDS,
    PHASES,
    Slices,
    Trace,
    Window,
    fitting_window,
    pairs,
    slice_batches,
    slice_count,
    slices,
    spent,
)
from ipuperf.trace.folded import MOST_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH = 1600
"""Pixels along time."""

MAX_ROWS = 64
"""The largest number of IPUs that are shown. The title says how many are left out."""

MAX_LABELS = 600

MOST_EXPANDED = 5_000_000
"""The largest number of slices that are drawn one by one. In longer traces, each instance that is narrower than a pixel
is drawn as a whole."""

_AT_ONCE = 1000
"""The number of steps in loops that are drawn together, each in up to ``WIDTH`` pixels. It limits the memory used."""


WORK: dict[str, str] = {**PHASE_COLOURS, "waiting for other IPUs": WAITING_COLOUR}
"""The purposes of an IPU's time and their colours."""


@dataclass(frozen=True)
class _Heights:
    """The heights, in pixels, of the strips of an IPU's row and of the gap below it."""

    work: int
    bsp: int
    other: int
    gap: int


_TALL, _LOW = _Heights(10, 22, 8, 4), _Heights(4, 12, 4, 2)
_MANY = 24
"""The number of IPUs from which rows are low and instances have no labels."""


@dataclass(frozen=True)
class _Rows:
    """The drawn IPUs: replica and IPU of each row, the row of each instance (-1: none), and the number of IPUs left
    out."""

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


def _of_each_class(trace: Trace) -> tuple[Trace, Mapping[tuple[int, int], Sequence[tuple[int, int]]]]:
    """The trace with one replica of those that do the same, and which IPUs each of its IPUs stands for."""
    twins = trace.short.twins
    return (trace if all(len(same) == 1 for same in twins.values()) else trace.of_each_class()), twins


def _kind_strips(trace: Trace, rows: _Rows, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Fractions by kind of step of lane 0, and of all other lanes together, each of shape (IPUs, kinds, width)."""
    lane = np.minimum(trace.columns("steps")["lane"], 1)
    fractions = _covered(trace, rows, window, lane * len(KINDS) + _kind_codes(trace), 2 * len(KINDS))
    return fractions[:, : len(KINDS)], fractions[:, len(KINDS) :]


def kind_cover(trace: Trace, ipus: Sequence[tuple[int, int]], window: Window, width: int = WIDTH) -> np.ndarray:
    """Shares of each pixel by kind of step on the compute tiles of IPUs, which are given as (replica, IPU).

    The shape is (IPUs, kinds, ``width``), with kinds in the order of ``KIND_COLOURS``.
    """
    instances = trace.columns("instances")
    row = np.full(len(instances["ipu"]), -1, dtype=np.int64)
    for place, (replica, ipu) in enumerate(ipus):
        row[(instances["replica"] == replica) & (instances["ipu"] == ipu)] = place
    code = np.where(trace.columns("steps")["lane"] == 0, _kind_codes(trace), -1)
    return _covered(trace, _Rows(list(ipus), row, 0), window, code, len(KIND_COLOURS), width)


def _kind_codes(trace: Trace) -> np.ndarray:
    """The index in ``KIND_COLOURS`` of the kind of each row of table ``steps``."""
    order = list(KIND_COLOURS)
    return np.array([order.index(kind) for kind in trace.columns("steps")["kind"].tolist()], dtype=np.int64)


def _work_strip(trace: Trace, rows: _Rows, window: Window) -> np.ndarray:
    """Fractions by phase of ops on the compute tiles, of shape (IPUs, phases + 1, width). The last one is waiting."""
    phase = step_phases(trace)
    # Steps without an op, such as syncs of the program itself, count as other work.
    phase = np.where(phase < 0, PHASES.index("other"), phase)
    phase = np.where(trace.columns("steps")["lane"] == 0, phase, -1)
    return _covered(trace, rows, window, phase, len(WORK))


def _covered(trace: Trace, rows: _Rows, window: Window, code: np.ndarray, codes: int, width: int = WIDTH) -> np.ndarray:
    """Fractions of each pixel by ``code``, of shape (IPUs, codes, width).

    ``code`` has an entry for each row of table ``steps``; -1 leaves a step out.
    """
    raster = Raster(len(rows.keys) * codes, window, width)

    def target(instance: np.ndarray, step: np.ndarray) -> np.ndarray:
        rows_drawn: np.ndarray = rows.of_instance[instance] * codes + code[step]
        return rows_drawn

    # Steps in loops are drawn from the counts of their trips. Only the others are expanded.
    drawn, plain = np.flatnonzero(rows.of_instance >= 0), (trace.template.loop < 0) & (code >= 0)
    pieces: Iterator[Slices]
    if slice_count(trace, window) > MOST_EXPANDED:
        drawn = _add_narrow(raster, trace, drawn, code, rows.of_instance * codes)
        parts = np.array_split(drawn, len(drawn) // _AT_ONCE + 1)
        pieces = (slices(trace, window, part, plain) for part in parts)
    else:
        pieces = slice_batches(trace, window, steps=plain)
    for piece in pieces:
        shown = rows.of_instance[piece.instance] >= 0
        raster.add(target(piece.instance, piece.step)[shown], piece.start[shown], piece.dur[shown])
    instance, step = pairs(trace, drawn, (trace.template.loop >= 0) & (code >= 0))
    for part in np.array_split(np.arange(len(step)), len(step) // _AT_ONCE + 1):
        _add_loops(raster, trace, instance[part], step[part], target(instance[part], step[part]))
    return raster.fractions().reshape(len(rows.keys), codes, width)


def _add_narrow(raster: Raster, trace: Trace, drawn: np.ndarray, code: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Draw the instances that are narrower than a pixel, and return the others, which are still to be drawn.

    Each code is spread evenly over its instance. ``base`` is the raster row of code 0 for each row of ``instances``.
    """
    # Pixels per cycle.
    pixels = raster.width / (raster.window[1] - raster.window[0])
    instances, steps, template = trace.columns("instances"), trace.columns("steps"), trace.template
    narrow = drawn[instances["dur"][drawn] * pixels < 1]
    drawn_narrow = narrow[(instances["dur"][narrow] > 0) & (template.place(instances["segment"][narrow]) >= 0)]
    start, dur, place = (
        instances["start"][drawn_narrow],
        instances["dur"][drawn_narrow],
        template.place(instances["segment"][drawn_narrow]),
    )
    of_step = template.place(steps["segment"])
    # All instances of a segment are alike, so cycles are summed once for each segment.
    for drawn_code in np.unique(code[code >= 0]).tolist():
        cycles = np.where(code == drawn_code, steps["dur"] * template.trips, 0)
        total = np.bincount(of_step, weights=cycles, minlength=len(template.segments))[place]
        has_cycles = total > 0
        raster.add(
            base[drawn_narrow][has_cycles] + drawn_code,
            start[has_cycles],
            dur[has_cycles],
            total[has_cycles] / dur[has_cycles],
        )
    # Instances without duration or steps count as drawn, because there is nothing to draw.
    return np.setdiff1d(drawn, narrow, assume_unique=True)


def _add_loops(raster: Raster, trace: Trace, instance: np.ndarray, step: np.ndarray, target: np.ndarray) -> None:
    """Draw steps in loops without expanding the trips.

    A pixel gets the cycles that a step has spent by the end of the pixel, minus those by its start.
    """
    begin, pixels = raster.window[0], raster.width / (raster.window[1] - raster.window[0])
    steps, template = trace.columns("steps"), trace.template
    start = trace.columns("instances")["start"][instance]
    low = np.clip(np.floor((start + steps["rel_start"][step] - begin) * pixels), 0, raster.width).astype(np.int64)
    high = np.clip(np.ceil((start + template.reach[step] - begin) * pixels), 0, raster.width).astype(np.int64)
    row = np.repeat(np.arange(len(step)), high - low)
    pixel = np.arange(len(row)) - np.repeat(np.cumsum(high - low) - high, high - low)
    first_start = (start + steps["rel_start"][step])[row]
    # Edges of pixels may lie between two cycles, which `spent` allows.
    cycles_spent = [
        spent(trace.loops, steps["dur"][step][row], template.loop[step][row], begin + edge / pixels - first_start)
        for edge in (pixel, pixel + 1)
    ]
    raster.cover(target[row], pixel, (cycles_spent[1] - cycles_spent[0]) * pixels)


def _image(
    work: np.ndarray, compute_tiles: np.ndarray, other_lanes: np.ndarray, heights: _Heights
) -> tuple[np.ndarray, int, bool]:
    """The whole image, the height of an IPU's row in pixels, and whether there is a strip for further lanes."""
    total = work.sum(axis=1, keepdims=True)
    work = np.where(total >= 0.5, work / np.maximum(total, 0.5), work)  # clean edges between steps
    kind_rgb = colours(list(KIND_COLOURS), KIND_COLOURS)
    phase_rgb = colours(list(WORK), WORK)
    overlapped = bool(other_lanes.any())
    pieces = []
    for row in range(len(compute_tiles)):
        strips = [stacked(work[row], phase_rgb, heights.work), stacked(compute_tiles[row], kind_rgb, heights.bsp)]
        if overlapped:
            strips.append(stacked(other_lanes[row], kind_rgb, heights.other))
        strips.append(np.full((heights.gap, WIDTH, 3), 255, dtype=np.uint8))
        pieces.append(np.concatenate(strips))
    return np.concatenate(pieces), len(pieces[0]), overlapped


def _labels(axes: Axes, trace: Trace, rows: _Rows, of_rows: Sequence[int], window: Window, row_height: int) -> None:
    """Write the phase's letter and the number of the micro-batch on the work of instances that is wide enough.

    ``of_rows`` has, for each row of the picture, the row that is drawn there.
    """
    instances, work = trace.columns("instances"), instance_work(trace)
    per_us = 1e6 / trace.meta["clock_hz"]
    start = np.clip(work.start, *window)
    stop = np.clip(work.start + work.dur, *window)
    pixels = (stop - start) * WIDTH / (window[1] - window[0])
    wide = np.flatnonzero((pixels >= 26) & (rows.of_instance >= 0))
    places = [(row, place) for place, of in enumerate(of_rows) for row in wide[rows.of_instance[wide] == of].tolist()]
    # The widest come first, so that the limit leaves out the narrowest.
    for row, place in sorted(places, key=lambda label: (-pixels[label[0]], label))[:MAX_LABELS]:
        number = int(instances["micro_batch"][row])
        text = PHASE_LETTERS[PHASES[work.phase[row]]] + (str(number) if number >= 0 else "")
        if text and pixels[row] >= 9 * len(text) + 6:
            y = place * row_height + _TALL.work / 2
            middle = (start[row] + stop[row]) / 2 * per_us
            axes.text(middle, y, text, ha="center", va="center", fontsize=6, color="#222222", clip_on=True)


def _legend(figure: Figure, compute_tiles: np.ndarray, other_lanes: np.ndarray, work: np.ndarray) -> None:
    from matplotlib.patches import Patch

    seen = (compute_tiles.sum(axis=(0, 2)) + other_lanes.sum(axis=(0, 2))) > 0
    entries: dict[str, str] = {}
    for phase, present in zip(WORK, work.sum(axis=(0, 2)) > 0, strict=True):
        if present:
            entries[phase] = WORK[phase]
    for kind, present in zip(KIND_COLOURS, seen, strict=True):
        if present:
            entries.setdefault(KIND_LABELS[kind], KIND_COLOURS[kind])
    handles = [
        Patch(facecolor=colour, edgecolor="#999999", linewidth=0.4, label=text) for text, colour in entries.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 7), fontsize=8, frameon=False)


@checked
def timeline_figure(trace: Trace, window: Window | None = None) -> Figure:
    """The timeline of all stored IPUs within ``window`` (cycles, half open; everything by default).

    Each IPU has a strip for the purpose of its work: forward, backward, update, and waiting for other IPUs. It has
    numbers of micro-batches where there is room. Below it, a BSP strip shows the kinds of steps. Each column is split
    in proportion to the kinds within its pixel, and white is no step. A third, thin strip shows lanes other than the
    compute tiles, if there are any. Time is in microseconds below and in cycles above. Slices are turned into pixels
    first, so the size of the trace does not matter. Of a run with more than :data:`~ipuperf.trace.folded.MOST_ROWS`
    executions on the IPUs that differ, the default is a window from the start.

    Raises ``ValueError`` if the trace holds nothing that was executed, or the window is empty.
    """
    from matplotlib.figure import Figure

    # IPUs that do the same are drawn once, and their strips are repeated.
    trace, twins = _of_each_class(trace)
    run = whole(trace)
    long = trace.rows("instances") > MOST_ROWS
    window = (fitting_window(trace, MOST_EXPANDED) if long and window is None else window) or run
    check_inside(trace, window)
    trace = trace.within(window) if long else trace
    drawn = _rows(trace)
    shown = sorted((twin, row) for row, key in enumerate(drawn.keys) for twin in twins[key])
    rows = _Rows(
        [key for key, _ in shown[:MAX_ROWS]], drawn.of_instance, max(sum(map(len, twins.values())) - MAX_ROWS, 0)
    )
    of_rows = [row for _, row in shown[:MAX_ROWS]]
    compute_tiles, other_lanes = (strips[of_rows] for strips in _kind_strips(trace, drawn, window))
    work = _work_strip(trace, drawn, window)[of_rows]
    heights = _TALL if len(rows.keys) < _MANY else _LOW
    image, row_height, overlapped = _image(work, compute_tiles, other_lanes, heights)
    height = min(max(1.9 + 0.62 * len(rows.keys), 2.6), 16.0)
    figure = Figure(figsize=(13, height), layout="constrained")
    axes: Any = figure.add_subplot()
    per_us = 1e6 / trace.meta["clock_hz"]
    # The last two are exchanged, so that the first row of the image is at the top.
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
        _labels(axes, trace, drawn, of_rows, window, row_height)
    _legend(figure, compute_tiles, other_lanes, work)
    notes = [f"{rows.hidden} more IPUs not shown"] if rows.hidden else []
    notes += ["the beginning of a run that is too long"] if long and window != run else []
    notes += ["does not fit in memory"] if trace.meta["oom"] else []
    notes += ["lower strip: I/O tiles and other lanes"] if overlapped else []
    axes.set_title("; ".join([f"Execution on {trace.meta['machine']}", *notes]), fontsize=10)
    return figure
