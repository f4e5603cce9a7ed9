"""A pipeline as in PopVision's execution trace: forward, backward, update and other work of each IPU over time.

Everything is read from the trace alone. Steps are classified as follows:

- waiting for another IPU (``sync_external``, ``idle``) is ``waiting``, and time on IPU-Links is ``link``;
- host I/O, Streaming Memory and the fixed host cost of a run are ``io``, also on an IPU that stands still while
  another one copies;
- all other steps have the phase of their op (accumulating gradients is ``bwd``);
- forward steps that directly follow a step of a recomputation are ``recompute``, because a graph that is recomputed
  shares its ops with the forward pass. If a recomputation has no step of its own before it calls that graph (it takes
  nothing from a stash and copies no operand), its steps count as ``fwd``.

I/O tiles (lanes above 0) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.arguments import check_inside, checked, whole
from ipuperf.report.instances import instance_work
from ipuperf.report.palette import WAITING_COLOUR
from ipuperf.report.raster import Raster, colours
from ipuperf.trace import (
    KINDS,
    PHASES,
    WAITING_KINDS,
    Trace,
    Window,
    fitting_window,
    instances_in,
    merged_slices,
    slice_count,
)
from ipuperf.trace.columns import lookup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PIPELINE_PARTS: tuple[str, ...] = ("fwd", "recompute", "bwd", "update", "io", "link", "waiting", "other")
"""The parts of an IPU's time in a pipeline."""

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
_PART_OF_KIND = {
    **dict.fromkeys(WAITING_KINDS, "waiting"),
    "link": "link",
    **{kind: "io" for kind in KINDS if kind.startswith(("host_", "remote_"))},
}
"""The parts of steps whose kind says more than the phase of their op."""
_TEXT: dict[str, Any] = {"fontsize": 6.5, "color": "#202020", "clip_on": True}
_WIDTH = 1600
_MOST_SLICES = 2_000_000
"""The largest number of steps that are searched for a weight update to show, which takes some seconds."""
_BAR, _GAP = 34, 14
"""Pixels of the bar of an IPU and of the gap below it."""


@dataclass(frozen=True)
class _Row:
    """The steps of one IPU in order of time.

    ``start`` and ``end`` are in cycles, and ``part`` is the code of a part. ``backward`` says whether a step belongs to
    a backward pass, including recomputation in it.
    """

    ipu: int
    start: np.ndarray
    end: np.ndarray
    part: np.ndarray
    backward: np.ndarray

    def runs(self, part: str) -> list[Window]:
        """Uninterrupted stretches of a part; for ``bwd`` whole backward passes."""
        same = self.backward if part == "bwd" else self.part == _CODE[part]
        # False on both sides gives every stretch a begin and an end.
        edge = np.diff(np.concatenate([[False], same, [False]]).astype(np.int8))
        firsts, lasts = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1) - 1
        return [(int(self.start[a]), int(self.end[b])) for a, b in zip(firsts, lasts, strict=True)]


def _steps(trace: Trace) -> np.ndarray:
    """The code of the part of each row of table ``steps``."""
    ops = trace.columns("ops")
    of_op = np.array([_CODE[phase] for phase in ops["phase"].tolist()], dtype=np.int64)
    codes = lookup(trace.columns("steps")["op_id"], ops["op_id"], of_op, _CODE["other"])
    # An op's waits and transfers have parts of their own.
    for kind, name in _PART_OF_KIND.items():
        codes[trace.kind_codes == KINDS.index(kind)] = _CODE[name]
    return codes


def _rows(trace: Trace, replica: int, window: Window | None = None) -> list[_Row]:
    """The IPUs of a replica, with their instances that touch the window (all by default).

    Raises ``ValueError`` if the trace does not have the replica.
    """
    instances, steps = trace.columns("instances"), trace.columns("steps")
    codes = _steps(trace)
    # The lane is part of the label, so that a loop over several lanes is not merged.
    label = codes * (1 + int(steps["lane"].max(initial=0))) + steps["lane"]
    ipu_rows = []
    of_replica = instances["replica"] == replica
    near = instances_in(trace, window)
    if not of_replica.any():
        known = np.unique(instances["replica"]).tolist()
        raise ValueError(f"replica {replica}: nothing of it was executed; the trace has replicas {known}")
    for ipu in np.unique(instances["ipu"][of_replica]).tolist():
        expanded = merged_slices(trace, label, near[(of_replica & (instances["ipu"] == ipu))[near]])
        # Steps without duration would interrupt the stretches around them.
        expanded = expanded.take((expanded.dur > 0) & (steps["lane"][expanded.step] == 0))
        expanded = expanded.take(np.argsort(expanded.start, kind="stable"))
        part = codes[expanded.step]
        part, backward = _recomputed(part)
        ipu_rows.append(_Row(int(ipu), expanded.start, expanded.start + expanded.dur, part, backward))
    return ipu_rows


def _recomputed(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parts over time with recomputed forward steps as ``recompute``, and which steps belong to a backward pass.

    A recomputation belongs to a backward pass if it shares no op with the forward pass, because it is then inside one.
    """
    # For each step the index of the latest step up to it that is not forward work.
    forward, place = part == _CODE["fwd"], np.arange(len(part))
    previous_other = np.maximum.accumulate(np.where(forward, -1, place))
    shared = forward & (previous_other >= 0) & (part[previous_other] == _CODE["recompute"])
    parts = np.where(shared, _CODE["recompute"], part)
    again = parts == _CODE["recompute"]
    # Stretches inside and outside of recomputation alternate, and `run` numbers them.
    run = np.cumsum(np.diff(again, prepend=False))
    shares_op = np.bincount(run, weights=shared) > 0
    return parts, (parts == _CODE["bwd"]) | (again & ~shares_op[run])


def _begin(trace: Trace) -> int:
    """The cycle in which the IPUs begin, after the fixed host cost of the first run."""
    instances, steps, template = trace.columns("instances"), trace.columns("steps"), trace.template
    host = np.array([s for s, k in zip(steps["segment"], steps["kind"], strict=True) if k == "host_run"])
    working = ~np.isin(instances["segment"], host) & (template.place(instances["segment"]) >= 0)
    return int(instances["start"][working].min()) if working.any() else 0


def _windows(trace: Trace, rows: list[_Row]) -> list[Window]:
    ends: list[list[int]] = []
    work = [_CODE[part] for part in ("fwd", "recompute", "bwd", "update")]
    for row in rows:
        working = np.isin(row.part, work)
        update, end = row.part[working] == _CODE["update"], row.end[working]
        # Waits were left out before, so an update that is interrupted by waiting is still one.
        last_updates = update & np.append(~update[1:], True) if len(update) else update
        if last_updates.any():
            ends.append(end[last_updates].tolist())
    if not ends:
        return []
    counts = sorted({len(times) for times in ends})
    if len(counts) > 1:
        raise ValueError(f"the IPUs do not update their weights equally often ({counts} times); give a window")
    stops = [max(times) for times in zip(*ends, strict=True)]
    return list(zip([_begin(trace), *stops[:-1]], stops, strict=True))


def is_pipeline(trace: Trace) -> bool:
    """Whether several IPUs of a replica work on micro-batches."""
    # The trips that the shortened trace has are like all others.
    trace = trace.short.trace
    instances, phase = trace.columns("instances"), instance_work(trace).phase
    passes = np.isin(phase, [PHASES.index(name) for name in ("fwd", "recompute", "bwd")])
    passes &= instances["replica"] == instances["replica"].min(initial=0)
    return len(np.unique(instances["ipu"][passes])) > 1


def shown_window(trace: Trace, most_slices: int) -> Window | None:
    """A window for a picture of any pipeline.

    It is None, which stands for one weight update, if the steps are few enough to search and all IPUs update their
    weights equally often. Otherwise it is a window from the start with at most ``most_slices`` slices.
    """
    if slice_count(trace) > _MOST_SLICES:
        return fitting_window(trace, most_slices)
    try:
        _windows(trace, _rows(trace, int(trace.columns("instances")["replica"].min())))
    except ValueError:
        return whole(trace)
    return None


@checked
def weight_update_windows(trace: Trace, replica: int = 0) -> list[Window]:
    """Begin and end (cycles) of each weight update of a replica, including the micro-batches before it.

    A window ends with the update of the last IPU, and the next one begins there. The first begins after the fixed host
    cost of the run. The list is empty if no weights are updated (inference).

    Raises:
        ValueError: there is no such replica, or its IPUs update their weights unequally often.
    """
    return _windows(trace, _rows(trace, replica))


@dataclass(frozen=True)
class StageWork:
    """The first begin and the last end (cycles) of an IPU's forward and backward work in a weight update; None: it has
    no such work."""

    ipu: int
    forward: Window | None
    backward: Window | None


def stage_work(trace: Trace, replica: int, window: Window) -> list[tuple[Window, list[StageWork]]]:
    """The work of a replica's IPUs in each weight update within the window, after the update's own window.

    The whole window counts as one update if there is no weight update, or if IPUs update their weights unequally often.
    Only IPUs that work on micro-batches are listed.
    """
    rows = _rows(trace, replica)
    try:
        updates = [update for update in _windows(trace, rows) if window[0] < update[1] <= window[1]]
    except ValueError:
        updates = []
    work_of_updates = []
    for begin, end in updates or [window]:
        begin = max(begin, window[0])
        stages = []
        for row in rows:
            inside = (begin <= row.start) & (row.end <= end)
            forward = _extent(row, inside & (row.part == _CODE["fwd"]))
            stages.append(StageWork(row.ipu, forward, _extent(row, inside & row.backward)))
        work_of_updates.append(((begin, end), [stage for stage in stages if stage.forward or stage.backward]))
    return work_of_updates


def _extent(row: _Row, chosen: np.ndarray) -> Window | None:
    """First begin and last end of the chosen steps."""
    return (int(row.start[chosen].min()), int(row.end[chosen].max())) if chosen.any() else None


def _chosen(trace: Trace, rows: list[_Row], window: Window | None) -> Window:
    """The given window, or the second weight update (or the only one), or everything after the start."""
    if window is not None:
        check_inside(trace, window)
        return window
    # The first weight update may have start-up effects.
    updates = _windows(trace, rows)
    if updates:
        return updates[min(1, len(updates) - 1)]
    return _begin(trace), max(int(row.end.max()) for row in rows if len(row.end))


@checked
def pipeline_split(trace: Trace, window: Window | None = None, replica: int = 0) -> dict[int, dict[str, int]]:
    """Cycles of each IPU of a replica by :data:`PIPELINE_PARTS`. They sum to the length of the window.

    ``window`` (cycles, half open) is by default the second weight update of the trace, or the only one. Without any
    (inference) it is the whole run after the fixed host cost at its start. Time without a step is waiting.

    Raises:
        ValueError: there is no such replica, the window is empty or outside of the trace, or no window is given and
            IPUs update their weights unequally often.
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
    """The image of the bars, each column in the colour of the part that fills most of it, and which parts are seen."""
    raster = Raster(len(rows) * len(PIPELINE_PARTS), window, _WIDTH)
    for number, row in enumerate(rows):
        raster.add(number * len(PIPELINE_PARTS) + row.part, row.start, row.end - row.start)
    cover = raster.fractions().reshape(len(rows), len(PIPELINE_PARTS), _WIDTH)
    # Time without any step counts as waiting.
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
    """The forward and backward stretches of each IPU inside the window; empty lists if they cannot be numbered.

    Micro-batches are numbered by counting. So each IPU must have as many forward as backward passes, and as many as the
    others (one stage on each IPU).
    """
    stretches: dict[str, list[list[Window]]] = {}
    for part in ("fwd", "bwd"):
        stretches[part] = [
            [run for run in row.runs(part) if window[0] <= run[0] and run[1] <= window[1]] for row in rows
        ]
    counts = {len(runs) for kind in stretches.values() for runs in kind}
    return stretches if len(counts) == 1 else {"fwd": [[] for _ in rows], "bwd": [[] for _ in rows]}


def _labels(axes: Axes, rows: list[_Row], window: Window, unit: float) -> bool:
    """Number the micro-batches and frame the first one. Returns whether there was one.

    If a bar is too narrow for its number, the number stands above it.
    """
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
                axes.add_patch(
                    Rectangle(
                        (left, row_top - 2),
                        width,
                        _BAR + 3,
                        fill=False,
                        linewidth=1.6,
                        edgecolor="#0b6b1d" if part == "fwd" else "#a4120c",
                    )
                )
    return framed


def _in_order(rows: list[_Row], window: Window, number: int) -> list[tuple[int, int, str, int]]:
    """Begin, end, part and micro-batch of an IPU's stretches, in order of time."""
    stretches = _micro_batches(rows, window)
    return sorted((*run, part, place) for part in stretches for place, run in enumerate(stretches[part][number]))


@checked
def pipeline_timeline_figure(trace: Trace, window: Window | None = None, replica: int = 0) -> Figure:
    """One weight update in the style of PopVision's execution trace: a bar for each IPU, coloured by its work.

    A column has the colour of the part (:data:`PIPELINE_PARTS`) that fills most of it. If each IPU has one stage,
    micro-batches are numbered from 1 (above a bar that is too narrow), and the first one is framed, forward in green
    and backward in red, as in the figure of the PopTorch tutorial. ``window`` and ``replica`` are as in
    :func:`pipeline_split`. The axis counts from the begin of the window.

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
    # The room above the first bar is for numbers that do not fit into it.
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
        for part, is_present in zip(PIPELINE_PARTS, present, strict=True)
        if is_present
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)
    return figure
