"""A pipeline as PopVision's execution trace shows it: what each IPU does at what time, forward, backward, update ...

Everything is read from the trace alone. What a step counts as:

- waiting for another IPU (``sync_external``, ``idle``) is ``waiting``, time on IPU-Links is ``link``; host I/O,
  Streaming Memory and the fixed host cost of a run are ``io``, also on an IPU that stands while another one copies;
- of the rest, ops are what their phase says (accumulating gradients is ``bwd``);
- forward steps that follow a step of a recomputation, without anything else in between, are ``recompute``: a graph
  that runs again shares its ops with the forward pass. Where a recomputation has no step of its own before it calls
  that graph (it takes nothing out of a stash, copies no operand), its steps count as ``fwd``.

I/O tiles (lanes above 0) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.instances import instance_work
from ipuperf.report.palette import WAITING_COLOUR
from ipuperf.report.raster import Raster, colours
from ipuperf.report.window import check_inside, whole
from ipuperf.trace import (
    PHASES,
    WAITING_KINDS,
    Window,
    fitting_window,
    instances_in,
    merged_slices,
    slice_count,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ipuperf.trace import Trace

PIPELINE_PARTS: tuple[str, ...] = ("fwd", "recompute", "bwd", "update", "io", "link", "waiting", "other")
"""What the time of an IPU in a pipeline is split into."""

PIPELINE_COLOURS: dict[str, str] = {
    "fwd": "#74bf7a",
    "recompute": "#c3e6bd",
    "bwd": "#f0807c",
    "update": "#e3b75e",
    "io": "#a9bfe3",
    "link": "#55606e",
    "waiting": WAITING_COLOUR,
    "other": "#c9b8a4",
}
"""Colours of the parts: forward green and backward red as in the figures of the PopTorch tutorial on pipelines."""

_NAMES = {
    "fwd": "forward",
    "recompute": "recomputation",
    "bwd": "backward",
    "update": "weight update",
    "io": "host I/O, Streaming Memory",
    "link": "between IPUs",
    "waiting": "waiting for other IPUs",
    "other": "other",
}
_CODE = {part: code for code, part in enumerate(PIPELINE_PARTS)}
_TEXT: dict[str, Any] = {"fontsize": 6.5, "color": "#202020", "clip_on": True}
_WIDTH = 1600
_MOST_SLICES = 2_000_000
"""Steps that are looked at for a weight update to show, at most: some seconds."""
_BAR, _GAP = 34, 14
"""Pixels of the bar of an IPU and of the gap below it."""


@dataclass(frozen=True)
class _Row:
    """The steps of one IPU in time: start and end in cycles, code of the part, and whether they belong to a backward
    pass, what is recomputed within it included."""

    ipu: int
    start: np.ndarray
    end: np.ndarray
    part: np.ndarray
    backward: np.ndarray

    def runs(self, part: str) -> list[Window]:
        """Stretches of this part without anything in between; of ``bwd`` whole backward passes."""
        same = self.backward if part == "bwd" else self.part == _CODE[part]
        edge = np.diff(np.concatenate([[False], same, [False]]).astype(np.int8))
        first, last = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1) - 1
        return [(int(self.start[a]), int(self.end[b])) for a, b in zip(first, last, strict=True)]


def _steps(trace: Trace) -> np.ndarray:
    """For each row of table ``steps`` the code of its part."""
    steps, ops = trace.columns("steps"), trace.columns("ops")
    part = {int(op): _CODE[phase] for op, phase in zip(ops["op_id"], ops["phase"], strict=True)}
    codes = np.array([part.get(int(op), _CODE["other"]) for op in steps["op_id"]], dtype=np.int64)
    kind = steps["kind"]
    codes[np.isin(kind, list(WAITING_KINDS))] = _CODE["waiting"]
    codes[kind == "link"] = _CODE["link"]
    codes[[name.startswith(("host_", "remote_")) for name in kind]] = _CODE["io"]
    return codes


def _rows(trace: Trace, replica: int, window: Window | None = None) -> list[_Row]:
    """The IPUs of a replica, their instances that touch the window (all by default). Raises ``ValueError`` if the trace
    does not have the replica."""
    instances, steps = trace.columns("instances"), trace.columns("steps")
    codes = _steps(trace)
    label = codes * (1 + int(steps["lane"].max(initial=0))) + steps["lane"]
    result = []
    of_replica = instances["replica"] == replica
    near = instances_in(trace, window)
    if not of_replica.any():
        known = np.unique(instances["replica"]).tolist()
        raise ValueError(f"replica {replica}: nothing of it was executed; the trace has replicas {known}")
    for ipu in np.unique(instances["ipu"][of_replica]).tolist():
        found = merged_slices(trace, label, near[(of_replica & (instances["ipu"] == ipu))[near]])
        found = found.take((found.dur > 0) & (steps["lane"][found.step] == 0))
        found = found.take(np.argsort(found.start, kind="stable"))
        part = codes[found.step]
        part, backward = _recomputed(part)
        result.append(_Row(int(ipu), found.start, found.start + found.dur, part, backward))
    return result


def _recomputed(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parts in time with forward steps that run again as ``recompute``, and which belong to a backward pass: what is
    recomputed does when it shares no op with the forward pass, that is in the midst of a backward pass."""
    forward, place = part == _CODE["fwd"], np.arange(len(part))
    last = np.maximum.accumulate(np.where(forward, -1, place))
    shared = forward & (last >= 0) & (part[last] == _CODE["recompute"])
    found = np.where(shared, _CODE["recompute"], part)
    again = found == _CODE["recompute"]
    run = np.cumsum(np.diff(again, prepend=False))
    whole = np.bincount(run, weights=shared) > 0
    return found, (found == _CODE["bwd"]) | (again & ~whole[run])


def _begin(trace: Trace) -> int:
    """When the IPUs begin: after the fixed host cost of the first run."""
    instances, steps, template = trace.columns("instances"), trace.columns("steps"), trace.template
    host = np.array([s for s, k in zip(steps["segment"], steps["kind"], strict=True) if k == "host_run"])
    working = ~np.isin(instances["segment"], host) & (template.place(instances["segment"]) >= 0)
    return int(instances["start"][working].min()) if working.any() else 0


def _windows(trace: Trace, rows: list[_Row]) -> list[Window]:
    ends: list[list[int]] = []
    work = [_CODE[part] for part in ("fwd", "recompute", "bwd", "update")]
    for row in rows:
        kept = np.isin(row.part, work)
        update, end = row.part[kept] == _CODE["update"], row.end[kept]
        last = update & np.append(~update[1:], True) if len(update) else update
        if last.any():
            ends.append(end[last].tolist())
    if not ends:
        return []
    counts = sorted({len(times) for times in ends})
    if len(counts) > 1:
        raise ValueError(f"the IPUs do not update their weights equally often ({counts} times); give a window")
    stops = [max(times) for times in zip(*ends, strict=True)]
    return list(zip([_begin(trace), *stops[:-1]], stops, strict=True))


def is_pipeline(trace: Trace) -> bool:
    """Whether several IPUs of a replica work on micro-batches."""
    instances, phase = trace.columns("instances"), instance_work(trace).phase
    passes = np.isin(phase, [PHASES.index(name) for name in ("fwd", "recompute", "bwd")])
    passes &= instances["replica"] == instances["replica"].min(initial=0)
    return len(np.unique(instances["ipu"][passes])) > 1


def shown_window(trace: Trace, most_slices: int) -> Window | None:
    """The window of a picture that any pipeline has: None, which is one weight update, where its steps are few enough
    to look at and all IPUs update their weights equally often; else one from the start of at most so many slices."""
    if slice_count(trace) > _MOST_SLICES:
        return fitting_window(trace, most_slices)
    try:
        _windows(trace, _rows(trace, int(trace.columns("instances")["replica"].min())))
    except ValueError:
        return whole(trace)
    return None


@checked
def weight_update_windows(trace: Trace, replica: int = 0) -> list[Window]:
    """Begin and end (cycles) of each weight update of a replica, the micro-batches before it included.

    A window ends with the update of the last IPU and the next one begins there; the first begins after the fixed host
    cost of the run. Empty if no weights are updated (inference).

    Raises:
        ValueError: no such replica, or IPUs that update their weights unequally often.
    """
    return _windows(trace, _rows(trace, replica))


@dataclass(frozen=True)
class StageWork:
    """When an IPU first begins and last ends forward and backward work of a weight update, in cycles; None: it has
    none."""

    ipu: int
    forward: Window | None
    backward: Window | None


def stage_work(trace: Trace, replica: int, window: Window) -> list[tuple[Window, list[StageWork]]]:
    """For each weight update within the window (all of it, where weights are not updated) the IPUs of a replica that
    work on micro-batches, and when; the update's own window first.

    IPUs that update their weights unequally often count as one update over the whole window.
    """
    rows = _rows(trace, replica)
    try:
        updates = [found for found in _windows(trace, rows) if window[0] < found[1] <= window[1]]
    except ValueError:
        updates = []
    result = []
    for begin, end in updates or [window]:
        begin = max(begin, window[0])
        stages = []
        for row in rows:
            inside = (begin <= row.start) & (row.end <= end)
            forward = _extent(row, inside & (row.part == _CODE["fwd"]))
            stages.append(StageWork(row.ipu, forward, _extent(row, inside & row.backward)))
        result.append(((begin, end), [stage for stage in stages if stage.forward or stage.backward]))
    return result


def _extent(row: _Row, chosen: np.ndarray) -> Window | None:
    """First begin and last end of the chosen steps."""
    return (int(row.start[chosen].min()), int(row.end[chosen].max())) if chosen.any() else None


def _chosen(trace: Trace, rows: list[_Row], window: Window | None) -> Window:
    """The given window, or the second weight update (the first where there is one), or everything after the start."""
    if window is not None:
        check_inside(trace, window)
        return window
    found = _windows(trace, rows)
    if found:
        return found[min(1, len(found) - 1)]
    return _begin(trace), max(int(row.end.max()) for row in rows if len(row.end))


@checked
def pipeline_split(trace: Trace, window: Window | None = None, replica: int = 0) -> dict[int, dict[str, int]]:
    """Cycles of each IPU of a replica by :data:`PIPELINE_PARTS`; they sum to the length of the window.

    ``window`` (cycles, half open) is by default the second weight update of the trace, or the only one; without any
    (inference) all of the run but the fixed host cost at its start. Time without a step is waiting.

    Raises:
        ValueError: no such replica, an empty window or one outside of the trace, or, without a window, IPUs that update
            unequally often.
    """
    rows = _rows(trace, replica)
    begin, end = _chosen(trace, rows, window)
    result = {}
    for row in rows:
        length = np.clip(row.end, begin, end) - np.clip(row.start, begin, end)
        cycles = np.bincount(row.part, weights=length, minlength=len(PIPELINE_PARTS)).astype(np.int64)
        cycles[_CODE["waiting"]] += end - begin - int(cycles.sum())
        result[row.ipu] = {part: int(cycles[code]) for part, code in _CODE.items()}
    return result


def _image(rows: list[_Row], window: Window) -> tuple[np.ndarray, np.ndarray]:
    """The bars below each other, each column in the colour of what fills most of it, and which parts are seen."""
    raster = Raster(len(rows) * len(PIPELINE_PARTS), window, _WIDTH)
    for number, row in enumerate(rows):
        raster.add(number * len(PIPELINE_PARTS) + row.part, row.start, row.end - row.start)
    cover = raster.fractions().reshape(len(rows), len(PIPELINE_PARTS), _WIDTH)
    idle = np.maximum(1.0 - cover.sum(axis=1), 0.0)
    cover[:, _CODE["waiting"]] += idle
    seen = cover.argmax(axis=1)
    rgb = colours(PIPELINE_PARTS, PIPELINE_COLOURS)[seen]
    image = np.full((len(rows) * (_BAR + _GAP), _WIDTH, 3), 255, dtype=np.uint8)
    for number, bar in enumerate(rgb):
        top = number * (_BAR + _GAP) + _GAP // 2
        image[top : top + _BAR] = bar
    return image, np.bincount(seen.ravel(), minlength=len(PIPELINE_PARTS)) > 0


def _micro_batches(rows: list[_Row], window: Window) -> dict[str, list[list[Window]]]:
    """The forward and backward stretches of each IPU inside the window; empty lists when they cannot be numbered.

    Numbers are counted, so every IPU must have as many forwards as backwards, and as many as the others (one stage on
    each IPU).
    """
    found: dict[str, list[list[Window]]] = {}
    for part in ("fwd", "bwd"):
        found[part] = [[run for run in row.runs(part) if window[0] <= run[0] and run[1] <= window[1]] for row in rows]
    counts = {len(runs) for kind in found.values() for runs in kind}
    return found if len(counts) == 1 else {"fwd": [[] for _ in rows], "bwd": [[] for _ in rows]}


def _labels(axes: Axes, rows: list[_Row], window: Window, unit: float) -> bool:
    """Number the micro-batches, where a bar is too narrow above it, and frame the first one; whether there was one to
    frame."""
    from matplotlib.patches import Rectangle

    framed, scale = False, _WIDTH / (window[1] - window[0])
    for number, row_top in enumerate(n * (_BAR + _GAP) + _GAP // 2 for n in range(len(rows))):
        free = -np.inf  # the pixel up to which something stands above the bar
        for begin, end, part, micro_batch in _in_order(rows, window, number):
            left, width = (begin - window[0]) / unit, (end - begin) / unit
            text = f"{'F' if part == 'fwd' else 'B'}{micro_batch + 1}"
            needed, middle = 6 * len(text) + 3, ((begin + end) / 2 - window[0]) * scale
            if (end - begin) * scale >= needed:
                axes.text(left + width / 2, row_top + _BAR / 2, text, ha="center", va="center", **_TEXT)
            elif middle - needed / 2 >= free:
                free = middle + needed / 2
                axes.text(
                    left + width / 2, row_top - (4 if micro_batch == 0 else 1), text, ha="center", va="bottom", **_TEXT
                )
            if micro_batch == 0:
                framed = True
                axes.add_patch(Rectangle((left, row_top - 2), width, _BAR + 3, fill=False, linewidth=1.6,
                                         edgecolor="#0b6b1d" if part == "fwd" else "#a4120c"))  # fmt: skip
    return framed


def _in_order(rows: list[_Row], window: Window, number: int) -> list[tuple[int, int, str, int]]:
    """Begin, end, part and micro-batch of the stretches of an IPU in order of time."""
    found = _micro_batches(rows, window)
    return sorted((*run, part, place) for part in found for place, run in enumerate(found[part][number]))


@checked
def pipeline_timeline_figure(trace: Trace, window: Window | None = None, replica: int = 0) -> Figure:
    """One weight update in the manner of PopVision's execution trace: a bar per IPU, coloured by what it does.

    A column has the colour of the part (:data:`PIPELINE_PARTS`) that fills most of it. Where each IPU has one stage,
    micro-batches are numbered from 1 (above a bar that is too narrow) and the first one is framed, forward in green and
    backward in red, as in the figure of the PopTorch tutorial. ``window`` and ``replica`` as for
    :func:`pipeline_split`; the axis counts from the begin of the window.

    Raises:
        ValueError: see :func:`pipeline_split`.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    check_inside(trace, window)
    rows = _rows(trace, replica, window)
    window = _chosen(trace, rows, window)
    image, present = _image(rows, window)
    length = window[1] - window[0]
    unit, name = (1e3, "thousand cycles") if length >= 20_000 else (1.0, "cycles")
    figure = Figure(figsize=(13, 1.5 + 0.5 * len(rows)), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.imshow(image, extent=(0, length / unit, len(image), 0), aspect="auto", interpolation="nearest")
    axes.set_ylim(len(image), -_GAP // 2)
    framed = _labels(axes, rows, window, unit)
    axes.set_yticks([(_BAR + _GAP) * (n + 0.5) for n in range(len(rows))], [f"IPU {row.ipu}" for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{name} of the tile clock")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    seconds = trace.seconds(length)
    title = f"{length:,} cycles ({seconds * 1e3:,.3g} ms)" + (", the first micro-batch framed" if framed else "")
    axes.set_title(title, fontsize=10, loc="left")
    handles = [
        Patch(facecolor=PIPELINE_COLOURS[part], edgecolor="#909090", linewidth=0.4, label=_NAMES[part])
        for part, there in zip(PIPELINE_PARTS, present, strict=True)
        if there
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    return figure
