"""Figures of a sweep's table: lines, heat map, Pareto front."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import did_you_mean, instead_of
from ipuperf.tools.errors import SweepError
from ipuperf.trace import replacing

from .table import RESULTS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS = MappingProxyType({"lines": (2, 3), "heatmap": (3, 3), "pareto": (2, 3)})
"""The smallest and the largest number of columns that each kind of figure takes."""
_FORMS = "lines:X,Y[,BY] heatmap:X,Y,VALUE pareto:X,Y[,BY]"
_WIDTH = 600
"""The width of a heat map, in points of the font times characters."""
_LABELS = MappingProxyType({
    "cycles": "cycles of a run", "seconds": "time of a run in ms", "samples": "samples of a run",
    "samples_per_second": "samples/s", "runs_per_second": "runs/s", "ipus": "IPUs",
    "max_tile_bytes": "bytes on the fullest tile", "bytes_per_tile": "bytes of a tile",
    "took_seconds": "seconds that the simulation took",
})  # fmt: skip
"""What axes say of the columns of results; factors have their own names."""
_SAME_CLOCK = 1e-3
"""How much clocks that are one may differ in a table, where times are whole cycles."""
_MARKERS = "osD^v<>PX*"
_MORE_IS_BETTER = ("samples_per_second", "runs_per_second", "samples")


def plot_of(text: str) -> tuple[str, list[str]]:
    """The kind and the columns of a figure.

    Args:
        text: ``lines:X,Y[,BY]``, ``heatmap:X,Y,VALUE`` or ``pareto:X,Y[,BY]``.

    Raises:
        SweepError: anything else.
    """
    kind, _, column_list = text.partition(":")
    columns = [name.strip() for name in column_list.split(",")]
    if kind not in _COLUMNS:
        raise SweepError(f"plot {text!r}: unknown kind {kind!r}{did_you_mean(kind, _COLUMNS)}; allowed: {_FORMS}")
    if not _COLUMNS[kind][0] <= len(columns) <= _COLUMNS[kind][1] or not all(columns):
        raise SweepError(f"plot {text!r}; allowed: {_FORMS}")
    return kind, columns


@checked()
def draw(table: pd.DataFrame, plot: str, path: str | Path) -> None:
    """Draw the configurations that fit.

    If several configurations have the same place, ``lines`` and ``heatmap`` show the best one: that with the highest
    throughput, or the lowest value in other columns; the title says of what. Cycles of machines whose clocks differ
    are no measure of time, so ``seconds`` are drawn in their place. ``pareto`` shows all configurations, those that do
    not fit as crosses, and the Pareto front as a line.

    Args:
        table: the table of a sweep.
        plot: see :func:`plot_of`.
        path: the file (``.png``, ``.svg``, ``.pdf``).

    Raises:
        SweepError: there is no such figure or column, or nothing to draw.
        OSError: the file cannot be written.
    """
    import pandas as pd
    from matplotlib.figure import Figure

    kind, columns = plot_of(plot)
    for name in columns:
        if name not in table.columns:
            raise SweepError(f"plot {plot!r}: no column {name!r}{instead_of(name, table.columns)}")
    columns = _with_times(table, columns)
    measured = columns[-1:] if kind == "heatmap" else columns[:2] if kind == "pareto" else columns[1:2]
    for name in measured:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise SweepError(f"plot {plot!r}: the column {name!r} has no numbers")
    shown = table.dropna(subset=measured)
    shown = shown.assign(**{name: shown[name].astype(float) * (1e3 if name == "seconds" else 1) for name in measured})
    fitting = shown[shown["fits"].fillna(False).astype(bool)]
    if fitting.empty:
        raise SweepError(f"plot {plot!r}: nothing to draw, no configuration fits and has {' and '.join(measured)}")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    {"lines": _lines, "heatmap": _heatmap, "pareto": _pareto}[kind](axes, fitting, shown, columns)
    axes.set_title(_title(kind, columns, fitting), fontsize="medium")
    with replacing(path) as temporary:
        try:
            figure.savefig(temporary, dpi=150)
        # matplotlib raises this for a suffix that it does not know.
        except ValueError as error:
            raise SweepError(f"{path}: {error}") from None


def _with_times(table: pd.DataFrame, columns: list[str]) -> list[str]:
    """Return the columns, with ``seconds`` for ``cycles`` if the clocks of the table's machines differ."""
    if "cycles" not in columns or "seconds" not in table.columns:
        return columns
    ran = table[(table["seconds"].fillna(0) > 0) & (table["cycles"].fillna(0) > 0)]
    clocks = (ran["cycles"] / ran["seconds"]).astype(float)
    is_one_clock = clocks.empty or clocks.max() <= clocks.min() * (1 + _SAME_CLOCK)
    return columns if is_one_clock else ["seconds" if name == "cycles" else name for name in columns]


def _title(kind: str, columns: list[str], fitting: pd.DataFrame) -> str:
    """Say what is drawn, and of which factors each point is the best."""
    value, *others = (columns[-1], *columns[:-1]) if kind == "heatmap" else (columns[1], columns[0], *columns[2:])
    title = f"{_label(value)} by {', '.join(map(_label, others))}"
    factors = [name for name in fitting.columns if name not in RESULTS and name not in columns]
    varied = [name for name in factors if fitting[name].astype(str).nunique() > 1]
    if kind == "pareto" or not varied:
        return title
    return f"{title}\neach point: the best of all {', '.join(varied)}"


def _label(name: str) -> str:
    return _LABELS.get(name, name)


def _best(table: pd.DataFrame, by: list[str], value: str) -> pd.Series[Any]:
    """The best value of each group."""
    groups = table.groupby(by, sort=False)[value]
    return groups.max() if value in _MORE_IS_BETTER else groups.min()


def _lines(axes: Axes, fitting: pd.DataFrame, shown: pd.DataFrame, columns: list[str]) -> None:
    x, y, *grouping = columns
    groups = fitting.groupby(grouping[0], sort=False) if grouping else [("", fitting)]
    for (name, part), marker in zip(groups, itertools.cycle(_MARKERS)):
        best = _best(part, [x], y)
        best = best.sort_index() if _is_number(fitting[x]) else best
        across = best.index if _is_number(fitting[x]) else best.index.astype(str)
        axes.plot(across, best.to_numpy(), marker=marker, markerfacecolor="none", label=str(name))
    axes.set(xlabel=_label(x), ylabel=_label(y), ylim=(0, None))
    axes.grid(alpha=0.3)
    if grouping:
        axes.legend(title=grouping[0])


def _heatmap(axes: Axes, fitting: pd.DataFrame, shown: pd.DataFrame, columns: list[str]) -> None:
    x, y, value = columns
    across, upwards = (_ordered(shown[name]) for name in (x, y))
    best = _best(fitting, [y, x], value)
    cells = np.array([[best.get((row, column), np.nan) for column in across] for row in upwards])
    image = axes.imshow(cells, origin="lower", aspect="auto", cmap="viridis")
    middle = (np.nanmin(cells) + np.nanmax(cells)) / 2
    longest = max(len(_short(cell)) for cell in cells[~np.isnan(cells)])
    size = min(10.0, _WIDTH / (len(across) * longest))
    for row, column in np.ndindex(*cells.shape):
        cell = cells[row, column]
        # The colour map is dark where values are low.
        text, colour = ("-", "black") if np.isnan(cell) else (_short(cell), "white" if cell < middle else "black")
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)
    axes.set(xlabel=_label(x), ylabel=_label(y))
    axes.set_xticks(range(len(across)), [str(tick) for tick in across])
    axes.set_yticks(range(len(upwards)), [str(tick) for tick in upwards])
    axes.figure.colorbar(image, ax=axes, label=_label(value))


def _pareto(axes: Axes, fitting: pd.DataFrame, shown: pd.DataFrame, columns: list[str]) -> None:
    x, y, *grouping = columns
    for name, part in fitting.groupby(grouping[0], sort=False) if grouping else [("fits", fitting)]:
        axes.scatter(part[x], part[y], s=18, alpha=0.6, label=str(name))
    not_fitting = shown[~shown.index.isin(fitting.index)]
    if len(not_fitting):
        axes.scatter(not_fitting[x], not_fitting[y], s=24, marker="x", color="0.6", label="does not fit")
    best = pareto_front(fitting, x, y)
    axes.plot(best[x], best[y], color="black", marker="o", markerfacecolor="none", label="Pareto front", zorder=3)
    better = {name: "more is better" if name in _MORE_IS_BETTER else "less is better" for name in (x, y)}
    axes.set(xlabel=f"{_label(x)} ({better[x]})", ylabel=f"{_label(y)} ({better[y]})")
    axes.grid(alpha=0.3)
    axes.legend(title=grouping[0] if grouping else None)


def pareto_front(table: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """The Pareto front: the rows that no other row beats in one column while being as good in the other, by ``x``."""
    signs = [-1.0 if name in _MORE_IS_BETTER else 1.0 for name in (x, y)]
    costs = table[[x, y]].to_numpy(dtype=float) * signs
    order = np.lexsort((costs[:, 1], costs[:, 0]))
    # In order of x, a row is on the front if its y is lower than that of all rows before it.
    on_front, lowest = [], np.inf
    for number in order:
        if costs[number, 1] < lowest:
            on_front.append(number)
            lowest = costs[number, 1]
    return table.iloc[on_front].sort_values(x)


def _is_number(column: pd.Series[Any]) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return is_numeric_dtype(column) and not is_bool_dtype(column)


def _ordered(column: pd.Series[Any]) -> list[Any]:
    """The values of an axis: numbers by size, others in the order of the sweep."""
    axis_values = list(column.unique())
    return sorted(axis_values) if _is_number(column) else axis_values


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
