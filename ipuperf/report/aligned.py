"""The last runs of several traces as bars below each other, on one scale of seconds from the start of each run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import critical_ipu, run_instances
from ipuperf.report.palette import KIND_COLOURS, KIND_LABELS
from ipuperf.report.raster import colours, stacked
from ipuperf.report.timeline import WIDTH, kind_cover
from ipuperf.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_IPUS = 4
"""The largest number of IPUs shown of each run: the one that sets its pace, then the others in order."""

_BAR, _GAP = 20, 4
"""Pixels of a bar and of the gap below it. The gap below the last run of an IPU is wider."""


@dataclass(frozen=True)
class Bar:
    """The compute tiles of one IPU in the last run of a trace.

    Attributes:
        run: index of the trace in the given order.
        ipu, replica: the IPU.
        seconds: duration of the run.
        cover: shares of each pixel by kind of step, in the order of ``KIND_COLOURS``, of shape (kinds, pixels).
        cycles: cycles of the kinds that occur.
    """

    run: int
    ipu: int
    replica: int
    seconds: float
    cover: np.ndarray
    cycles: dict[str, int]


@dataclass(frozen=True)
class Aligned:
    """Bars of all runs. Those of one IPU stand together.

    Attributes:
        names: names of the runs in the given order.
        seconds: duration of the longest run, which the width of the figure stands for.
        bars: the bars. Those of the IPU that sets the pace of the first run come first.
        left_out: number of IPUs of each run that have no bar.
    """

    names: tuple[str, ...]
    seconds: float
    bars: tuple[Bar, ...]
    left_out: tuple[int, ...]

    @property
    def kinds(self) -> list[str]:
        """Kinds that occur, in the order of ``KIND_COLOURS``."""
        return [kind for kind in KIND_COLOURS if any(kind in bar.cycles for bar in self.bars)]


def aligned(traces: Mapping[str, Trace]) -> Aligned:
    """The bars of the last runs of traces, by name.

    Raises:
        ValueError: there are no traces, or nothing was executed in one of them.
    """
    if not traces:
        raise ValueError("aligned timelines: no traces given")
    windows = [run_instances(trace)[0] for trace in traces.values()]
    lengths = [float(trace.seconds(end - begin)) for trace, (begin, end) in zip(traces.values(), windows, strict=True)]
    longest, bars, left_out, first_ipu = max(lengths), [], [], None
    for place, (trace, window) in enumerate(zip(traces.values(), windows, strict=True)):
        chosen, hidden_count = _ipus(trace)
        first_ipu = chosen[0][1] if first_ipu is None else first_ipu
        left_out.append(hidden_count)
        bars += _bars(trace, place, window, lengths[place], longest, chosen)
    # The IPU that sets the pace of the first run comes first in all runs.
    bars.sort(key=lambda bar: (bar.ipu != first_ipu, bar.ipu, bar.run))
    return Aligned(tuple(traces), longest, tuple(bars), tuple(left_out))


def _ipus(trace: Trace) -> tuple[list[tuple[int, int]], int]:
    """The (replica, IPU) pairs that are shown, and the number of IPUs that are not.

    Replicas are alike, so only the replica of the IPU that sets the pace is shown.
    """
    rows = run_instances(trace)[1]
    instances = trace.columns("instances")
    replica, pace = critical_ipu(trace, rows)
    pairs = np.unique(np.stack([instances["replica"][rows], instances["ipu"][rows]], axis=1), axis=0)
    alike = [ipu for pair_replica, ipu in pairs.tolist() if pair_replica == replica]
    shown = [pace, *(ipu for ipu in alike if ipu != pace)][:MOST_IPUS]
    return [(replica, ipu) for ipu in shown], len(pairs) - len(shown)


def _bars(
    trace: Trace, run: int, window: tuple[int, int], seconds: float, longest: float, chosen: list[tuple[int, int]]
) -> list[Bar]:
    begin, end = window
    # All bars span the longest run, so that a second has the same width in each.
    scale = begin, begin + max(round((end - begin) * longest / seconds) if seconds else 0, 1)
    cover = kind_cover(trace, chosen, scale)
    return [
        Bar(run, ipu, replica, seconds, shares, _cycles(trace, replica, ipu))
        for (replica, ipu), shares in zip(chosen, cover, strict=True)
    ]


def _cycles(trace: Trace, replica: int, ipu: int) -> dict[str, int]:
    """Cycles of the last run on the compute tiles of an IPU, by kind of step."""
    steps, instances, template = trace.columns("steps"), trace.columns("instances"), trace.template
    rows = run_instances(trace)[1]
    rows = rows[(instances["replica"][rows] == replica) & (instances["ipu"][rows] == ipu)]
    segment_index = template.place(instances["segment"][rows])
    times = np.bincount(segment_index[segment_index >= 0], minlength=len(template.segments))[
        template.place(steps["segment"])
    ]
    cycles = np.where(steps["lane"] == 0, steps["dur"] * template.trips * times, 0)
    cycles_by_kind = {kind: int(cycles[steps["kind"] == kind].sum()) for kind in KIND_COLOURS}
    return {kind: count for kind, count in cycles_by_kind.items() if count}


@checked
def timelines_figure(traces: Mapping[str, Trace]) -> Figure:
    """The kinds of steps on the compute tiles in the last runs of several traces, on one scale of milliseconds.

    Each run has a bar for each IPU, from the start of the run, and the bars of an IPU stand together. A column is split
    in proportion to the kinds of step within its pixel, and white is no step. At most :data:`MOST_IPUS` IPUs of a
    replica are shown; the title says so.

    Raises:
        ValueError: there are no traces, or nothing was executed in one of them.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    bars = aligned(traces)
    rgb, pieces, ticks, labels, height = colours(list(KIND_COLOURS), KIND_COLOURS), [], [], [], 0
    for place, bar in enumerate(bars.bars):
        is_last = place + 1 == len(bars.bars) or bars.bars[place + 1].ipu != bar.ipu
        gap = 3 * _GAP if is_last else _GAP
        pieces += [stacked(bar.cover, rgb, _BAR), np.full((gap, WIDTH, 3), 255, dtype=np.uint8)]
        ticks.append(height + _BAR / 2)
        labels.append(f"IPU {bar.ipu}, {bars.names[bar.run]}")
        height += _BAR + gap
    figure = Figure(figsize=(13, 1.6 + 0.3 * len(bars.bars)), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.imshow(
        np.concatenate(pieces), extent=(0, 1e3 * bars.seconds, height, 0), aspect="auto", interpolation="nearest"
    )
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("ms from the start of the run")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_title(f"The last runs, aligned at their start{_remark(bars)}", fontsize=10, loc="left")
    entries = {KIND_LABELS[kind]: KIND_COLOURS[kind] for kind in bars.kinds}
    handles = [Patch(facecolor=colour, edgecolor="#999999", label=text) for text, colour in entries.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 7), fontsize=8, frameon=False)
    return figure


def _remark(bars: Aligned) -> str:
    """The IPUs that are not shown, for a title."""
    hidden = [f"{count} of {name}" for name, count in zip(bars.names, bars.left_out, strict=True) if count]
    return f" (IPUs not shown: {', '.join(hidden)})" if hidden else ""
