"""A figure of the parts of the time of several programs, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import PARTS, breakdown
from ipuperf.report.palette import BREAKDOWN_COLOURS, LIMIT_COLOUR
from ipuperf.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_LABELS = {"links": "links (IPU-Link)", "ddr": "Streaming Memory (DDR)", "sync": "sync and waiting"}


@checked
def time_split_figure(traces: Mapping[str, Trace], measured: Mapping[str, float] | None = None) -> Figure:
    """A bar for each trace: the time of its last run on the critical IPU by part (see ``breakdown``).

    ``measured`` has seconds for some of the names, which are drawn as diamonds beside the prediction. A part is
    labelled with its share if there is room. Raises ``ValueError`` without traces, or for a measurement of an unknown
    name.
    """
    from matplotlib.figure import Figure

    if not traces:
        raise ValueError("time_split_figure: no traces given")
    unknown = [name for name in measured or {} if name not in traces]
    if unknown:
        raise ValueError(f"time_split_figure: measured {unknown[0]!r} is none of {', '.join(traces)}")
    parts = {name: breakdown(trace) for name, trace in traces.items()}
    totals = {name: sum(values.values()) for name, values in parts.items()}
    top = max([*totals.values(), *(measured or {}).values()])
    # All bars have the unit of the longest one.
    scale, unit = next(((factor, unit_name) for factor, unit_name in _UNITS if top >= factor), _UNITS[-1])
    figure = Figure(figsize=(11, 1.7 + 0.55 * len(traces)), layout="constrained")
    axes: Any = figure.add_subplot()
    y = np.arange(len(traces))
    left = np.zeros(len(traces))
    for part in PARTS:
        width = np.array([parts[name][part] / scale for name in traces])
        axes.barh(y, width, left=left, height=0.62, color=BREAKDOWN_COLOURS[part], label=_LABELS.get(part, part))
        for row, name in enumerate(traces):
            share = parts[name][part] / totals[name] if totals[name] else 0.0
            if width[row] * scale > 0.05 * top:
                middle = left[row] + width[row] / 2
                axes.text(middle, row, f"{100 * share:.0f}%", ha="center", va="center", fontsize=8, color="#222222")
        left += width
    ends = left.copy()
    for row, name in enumerate(traces):
        if measured and name in measured:
            label = "measured" if name == next(iter(measured)) else None
            axes.plot(measured[name] / scale, row, "D", color=LIMIT_COLOUR, markersize=6, zorder=3, label=label)
            ends[row] = max(ends[row], measured[name] / scale)
        text = f"{totals[name] / scale:.4g} {unit}"
        text += f" (measured {measured[name] / scale:.4g})" if measured and name in measured else ""
        axes.annotate(text, (ends[row], row), xytext=(8, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(y, list(traces))
    # The axis is turned over, so that the first trace is at the top.
    axes.set_ylim(len(traces) - 0.45, -0.55)
    axes.set_xlim(0, float(ends.max()) * 1.22 or 1.0)
    axes.set_xlabel(f"time of one run ({unit}), critical IPU")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    # The legend lists measurements last.
    order = sorted(range(len(labels)), key=lambda place: labels[place] == "measured")
    handles, labels = [handles[place] for place in order], [labels[place] for place in order]
    figure.legend(handles, labels, loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    return figure
