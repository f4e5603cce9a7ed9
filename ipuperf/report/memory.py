"""Figures of memory: liveness over program steps, and bytes by tile and category."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.palette import (
    CATEGORY_COLOURS,
    COMPARE_ALWAYS,
    COMPARE_NOT_ALWAYS,
    LIMIT_COLOUR,
    OVER_COLOUR,
)
from ipuperf.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 4000
"""The largest number of program steps that are drawn. In longer programs a point is the largest of several steps, so
that peaks stay visible."""

MAX_IPUS = 4
"""The largest number of IPUs that are drawn, the fullest ones. The title says so."""

LIMIT_IN_VIEW = 0.5
"""The share of a tile from which its limit is drawn as a line. If the fullest tile holds less, the limit is given in
words, and the axis ends above the fullest tile."""

_MB = 1e6


def _thin(step: np.ndarray, *values: np.ndarray) -> tuple[np.ndarray, ...]:
    """The curves with at most MAX_POINTS points, each of which is the largest value of a stretch."""
    if len(step) <= MAX_POINTS:
        return (step, *values)
    edges = np.linspace(0, len(step), MAX_POINTS + 1).astype(np.int64)[:-1]
    return (step[edges], *(np.maximum.reduceat(value, edges) for value in values))


def _curve(trace: Trace, ipu: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, always-live MB and not-always-live MB of one IPU in order of steps. The last value comes twice."""
    liveness = trace.columns("liveness")
    rows = np.flatnonzero(liveness["ipu"] == ipu)
    rows = rows[np.argsort(liveness["step"][rows], kind="stable")]
    always, not_always = liveness["always_live"][rows] / _MB, liveness["not_always_live"][rows] / _MB
    step, always, not_always = _thin(liveness["step"][rows], always, not_always)
    if len(step) == 0:
        return step, always, not_always
    # A value of a step curve is drawn up to the next point, so the last one needs an end.
    return (
        np.append(step, liveness["step"][rows[-1]] + 1),
        np.append(always, always[-1]),
        np.append(not_always, not_always[-1]),
    )


def _fullest_ipus(trace: Trace, name: str) -> list[int]:
    """IPUs of table ``liveness``, the one with the highest peak first. Raises ``ValueError`` if there are none."""
    liveness = trace.columns("liveness")
    if len(liveness["ipu"]) == 0:
        raise ValueError(f"liveness of {name}: the trace has no rows in table 'liveness'")
    total = liveness["always_live"] + liveness["not_always_live"]
    ipus = np.unique(liveness["ipu"]).tolist()
    return sorted(ipus, key=lambda ipu: (-int(total[liveness["ipu"] == ipu].max()), ipu))


def _draw_one(axes: Axes, trace: Trace, ipu: int, always_live: bool) -> int:
    """Draw the curves of one IPU, and return its number of program steps."""
    step, always, not_always = _curve(trace, ipu)
    base = always if always_live else np.zeros_like(always)
    if always_live:
        axes.fill_between(
            step, always, step="post", color=COMPARE_ALWAYS[0], alpha=0.35, linewidth=0, label="always live"
        )
    label = "not always live, on top" if always_live else "not always live"
    axes.fill_between(step, base, base + not_always, step="post", color=COMPARE_NOT_ALWAYS[0], alpha=0.25, linewidth=0)
    axes.step(step, base + not_always, where="post", color=COMPARE_NOT_ALWAYS[0], linewidth=1.0, label=label)
    top = int(np.argmax(base + not_always))
    # A point of a thinned curve is the largest of several steps and belongs to no single program.
    program = _program_at(trace, ipu, int(step[top])) if len(always) <= MAX_POINTS else ""
    limit = int(trace.meta["bytes_per_tile"]) * int(trace.meta["tiles_per_ipu"]) / _MB
    axes.plot(step[top], (base + not_always)[top], "v", color=LIMIT_COLOUR, markersize=5, clip_on=False)
    peak = f"peak {(base + not_always)[top]:,.4g} MB"
    peak += f" ({always[top]:,.4g} always live, {not_always[top]:,.4g} not)" if always_live else " not always live"
    named = f" ({program})" if program else ""
    text = f"IPU {ipu}: {peak} at step {step[top]:,}{named}; its tiles have {limit:,.4g} MB"
    axes.set_title(text, fontsize=9, loc="left")
    # Without live bytes the axis still needs an extent.
    axes.set_ylim(0, float((base + not_always).max()) * 1.12 or 1.0)
    return int(step[-1])


def _program_at(trace: Trace, ipu: int, step: int) -> str:
    """The name of the program of a step."""
    liveness = trace.columns("liveness")
    (row, *_) = np.flatnonzero((liveness["ipu"] == ipu) & (liveness["step"] == step))
    return str(liveness["program"][row])


def _draw_compared(axes: Axes, traces: Mapping[str, Trace], ipu: int | None, always_live: bool) -> None:
    last_step = 1
    for place, (name, trace) in enumerate(traces.items()):
        shown = _fullest_ipus(trace, name)[0] if ipu is None else ipu
        step, always, not_always = _curve(trace, shown)
        if len(step) == 0:
            raise ValueError(f"liveness of {name}: IPU {shown} has no rows in table 'liveness'")
        colour = COMPARE_NOT_ALWAYS[place % len(COMPARE_NOT_ALWAYS)]
        text = f"{name} (IPU {shown}), not always live, peak {not_always.max():,.4g} MB"
        axes.step(step, not_always, where="post", color=colour, linewidth=1.1, label=text)
        if always_live:
            colour = COMPARE_ALWAYS[place % len(COMPARE_ALWAYS)]
            text = f"{name} (IPU {shown}), always live {always.max():,.4g} MB"
            axes.step(step, always, where="post", color=colour, linewidth=1.1, linestyle="--", label=text)
        last_step = max(last_step, int(step[-1]))
    axes.set_xlim(0, last_step)
    axes.set_ylim(bottom=0)


@checked
def liveness_figure(traces: Trace | Mapping[str, Trace], always_live: bool = True, ipu: int | None = None) -> Figure:
    """Live bytes over program steps, in MB (1,000,000 bytes) of a whole IPU.

    For one trace, the figure has a panel for each of the fullest IPUs (or the given one), with the not-always-live
    curve on top of the always-live band, and the peak. For a mapping of names to traces, one panel overlays the curves
    in the colours of a PopVision comparison. It shows the IPU with the highest peak of each trace unless ``ipu`` is
    given. These curves are not stacked, and always live is the dashed line. ``always_live=False`` leaves the
    always-live part out.

    Raises ``ValueError`` if a trace has no liveness, or does not have that IPU.
    """
    from matplotlib.figure import Figure

    if not isinstance(traces, Trace):
        if not traces:
            raise ValueError("liveness_figure: no traces given")
        figure = Figure(figsize=(11, 4.8), layout="constrained")
        axes: Any = figure.add_subplot()
        _draw_compared(axes, traces, ipu, always_live)
        figure.legend(loc="outside lower center", ncols=2 if always_live else 1, fontsize=8, frameon=False)
        axes.set_title("Liveness by program step", fontsize=10)
        _finish(axes)
        axes.set_xlabel("program step")
        return figure
    ipus = _fullest_ipus(traces, "the trace")
    if ipu is not None and ipu not in ipus:
        raise ValueError(f"liveness: IPU {ipu} has no rows in table 'liveness', it has IPUs {sorted(ipus)}")
    shown = [ipu] if ipu is not None else sorted(ipus[:MAX_IPUS])
    figure = Figure(figsize=(11, 1.2 + 2.0 * len(shown) + (1.0 if len(shown) == 1 else 0)), layout="constrained")
    panels: Any = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    steps = [_draw_one(axes, traces, number, always_live) for axes, number in zip(panels, shown, strict=True)]
    for axes in panels:
        _finish(axes)
    panels[-1].set_xlim(0, max(steps))
    panels[-1].set_xlabel("program step")
    left_out = f", the {len(shown)} fullest of {len(ipus)} IPUs" if len(shown) < len(ipus) and ipu is None else ""
    figure.suptitle(f"Liveness by program step{left_out}", fontsize=10)
    # All panels have the same labels, so one legend serves them all.
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _finish(axes: Axes) -> None:
    axes.set_ylabel("MB per IPU", fontsize=9)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _by_tile(trace: Trace, ipu: int) -> tuple[list[str], np.ndarray]:
    """The categories that occur and their kB on each tile of one IPU, of shape (categories, tiles)."""
    memory = trace.columns("tile_memory")
    tiles = max(int(trace.meta["tiles_per_ipu"]), int(memory["tile"].max()) + 1)
    of_ipu = memory["ipu"] == ipu
    names = [name for name in CATEGORY_COLOURS if (of_ipu & (memory["category"] == name)).any()]
    kilobytes = np.zeros((len(names), tiles))
    for row, name in enumerate(names):
        chosen = of_ipu & (memory["category"] == name)
        np.add.at(kilobytes[row], memory["tile"][chosen], memory["bytes"][chosen] / 1e3)
    return names, kilobytes


def _draw_tiles(axes: Axes, trace: Trace, ipu: int) -> list[str]:
    names, kilobytes = _by_tile(trace, ipu)
    limit = trace.meta["bytes_per_tile"] / 1e3
    edges = np.arange(kilobytes.shape[1] + 1)
    below = np.zeros(kilobytes.shape[1])
    for name, values in zip(names, kilobytes, strict=True):
        _bars(axes, edges, below, below + values, CATEGORY_COLOURS[name])
        below = below + values
    over = below > limit
    # Bytes over the limit are drawn once more, in red on top of their categories.
    if over.any():
        _bars(axes, edges, np.where(over, limit, 0), np.where(over, below, 0), OVER_COLOUR)
    worst = int(np.argmax(below))
    axes.plot(worst + 0.5, below[worst], "v", color=LIMIT_COLOUR, markersize=4, clip_on=False)
    top = max(float(below.max()) * 1.12, 1e-3)
    if top < LIMIT_IN_VIEW * limit:
        axes.annotate(
            f"limit {limit:,.1f} kB, above this axis",
            (0.995, 0.97),
            xycoords="axes fraction",
            ha="right",
            va="top",
            fontsize=8,
            color=LIMIT_COLOUR,
        )
    else:
        top = max(limit, float(below.max())) * 1.06
        axes.axhline(limit, color=OVER_COLOUR if over.any() else LIMIT_COLOUR, linewidth=1.0, linestyle="--")
    text = f"IPU {ipu}: fullest tile {worst} holds {below[worst]:,.1f} of {limit:,.1f} kB"
    if over.any():
        text += f", OUT OF MEMORY on {int(over.sum()):,} tiles, by {below[worst] - limit:,.1f} kB"
    axes.set_title(text, fontsize=9, loc="left", color=OVER_COLOUR if over.any() else "#000000")
    axes.set_xlim(0, kilobytes.shape[1])
    axes.set_ylim(0, top)
    axes.set_ylabel("kB per tile", fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return names


def _bars(axes: Axes, edges: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> None:
    """Draw bars like ``axes.stairs``, without its search of every corner for the limits of the axes, which are known.

    Bars have an edge, so that a single tile, narrower than a pixel, can be seen.
    """
    from matplotlib.patches import StepPatch

    filled = high > low
    baseline: Any = np.where(filled, low, np.nan)  # matplotlib's annotation knows numbers only
    values = np.where(filled, high, np.nan)
    axes.add_artist(StepPatch(values, edges, baseline=baseline, fill=True, color=colour, linewidth=0.8))


@checked
def tile_memory_figure(trace: Trace, ipu: int | None = None) -> Figure:
    """Bytes on each tile in kB (1,000 bytes), by category, with the memory of a tile as a limit.

    Bytes over the limit are red. Each axis is scaled to the bytes of its IPU; a limit far above them is given in words.
    There is a panel for each of the fullest IPUs (by their fullest tile), or for the given one. Raises ``ValueError``
    if the trace has no tile memory, or does not have that IPU.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    memory = trace.columns("tile_memory")
    if len(memory["ipu"]) == 0:
        raise ValueError("tile memory: the trace has no rows in table 'tile_memory'")
    ipus = np.unique(memory["ipu"]).tolist()
    if ipu is not None and ipu not in ipus:
        raise ValueError(f"tile memory: IPU {ipu} has no rows in table 'tile_memory', it has IPUs {ipus}")
    fullest = {number: float(_by_tile(trace, number)[1].sum(axis=0).max()) for number in ipus}
    # The fullest IPUs are chosen first, and then shown in the order of their numbers.
    shown = [ipu] if ipu is not None else sorted(sorted(ipus, key=lambda n: (-fullest[n], n))[:MAX_IPUS])
    figure = Figure(figsize=(12.5, 1.4 + 2.1 * len(shown) + (1.2 if len(shown) == 1 else 0)), layout="constrained")
    panels: Any = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    present: set[str] = set()
    for axes, number in zip(panels, shown, strict=True):
        present.update(_draw_tiles(axes, trace, number))
    panels[-1].set_xlabel("tile")
    left_out = f", the {len(shown)} fullest of {len(ipus)} IPUs" if len(shown) < len(ipus) and ipu is None else ""
    figure.suptitle(f"Tile memory by category{left_out}", fontsize=10)
    # The legend is reversed to read like the stack, from the top down.
    handles = [
        Patch(color=CATEGORY_COLOURS[name], label=name) for name in reversed(CATEGORY_COLOURS) if name in present
    ]
    if trace.meta["oom"]:
        handles.insert(0, Patch(color=OVER_COLOUR, label="over the limit"))
    figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False)
    return figure
