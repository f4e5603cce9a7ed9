"""Predicted over measured, one panel per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import instead_of
from ipuperf.tools.errors import CaseError
from ipuperf.tools.validation.rows import MISS, Row, summarise
from ipuperf.trace import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

COLUMNS = 3
COLOURS = ("#2f6fb0", "#c8553d", "#3f8f5f", "#8f7ac6", "#a9805b", "#555555")
GOAL = 0.10
"""Half width of the inner band."""


@checked()
def check_format(path: str | Path) -> None:
    """Raise CaseError unless matplotlib draws files with this suffix."""
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in known:
        raise CaseError(f"--plot {path}: no picture has the suffix {suffix!r}{instead_of(suffix, sorted(known))}")


@checked()
def draw(rows: Sequence[Row], path: str | Path) -> None:
    """Draw predicted / measured over the measured value, in a panel per class; the format follows the suffix of
    ``path``.

    Each value has its own unit, with a colour per unit. Bands are +-10 and +-25 %. Misses carry their ids. Hollow
    points are rows that a figure was calibrated on.

    Raises:
        ValueError: there are no rows, or matplotlib does not know the suffix.
        OSError: the file cannot be written.
    """
    if not rows:
        raise ValueError("nothing to draw: no case could run")
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.case.group for row in rows))
    columns = min(COLUMNS, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.8 * columns, 3.7 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, name, [row for row in rows if row.case.group == name])
    # The grid may have more panels than classes.
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    _part_labels(figure)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=140)


def _panel(axes: Axes, name: str, rows: Sequence[Row]) -> None:
    summary = summarise(name, rows)
    for half, shade in ((MISS, 0.05), (GOAL, 0.08)):
        axes.axhspan(1 - half, 1 + half, color="#000000", alpha=shade, linewidth=0)
    axes.axhline(1.0, color="#888888", linewidth=0.8)
    for number, unit in enumerate(dict.fromkeys(row.case.measured.unit for row in rows)):
        colour = COLOURS[number % len(COLOURS)]
        for fitted in (False, True):
            chosen = [row for row in rows if row.case.measured.unit == unit and row.calibrated == fitted]
            if chosen:
                _points(axes, chosen, colour, f"{unit}, calibrated on" if fitted else unit, fitted)
    values = [row.case.measured.value for row in rows]
    # The geometric mean is the middle of a logarithmic axis.
    middle = (min(values) * max(values)) ** 0.5
    for row in rows:
        if row.miss:
            right = row.case.measured.value > middle
            axes.annotate(
                row.case.id,
                (row.case.measured.value, 1 + row.error),
                fontsize=6.5,
                xytext=(-6 if right else 6, -2),
                textcoords="offset points",
                ha="right" if right else "left",
            )
    # Measurements of one class may span orders of magnitude.
    if max(values) > 30 * min(values):
        axes.set_xscale("log")
    reach = max(0.3, 1.15 * summary.largest)
    axes.set_ylim(max(0.0, 1 - reach), 1 + reach)
    axes.set(xlabel="measured", ylabel="predicted / measured")
    axes.margins(x=0.12)
    axes.set_title(f"{name}: {summary.count} rows, mean |error| {summary.mean:.1%}", fontsize=10)
    axes.legend(fontsize=7, loc="best", ncols=2)


def _part_labels(figure: Figure) -> None:
    """Move the labels of each panel up until none lies over another, the lowest first."""
    from matplotlib.text import Annotation

    # Labels have a size only after a layout.
    figure.draw_without_rendering()
    points = 72 / figure.dpi
    for axes in figure.axes:
        # Labels already in place, sorted by their lower edge.
        placed: list[Bbox] = []
        labels = [child for child in axes.get_children() if isinstance(child, Annotation)]
        for text in sorted(labels, key=lambda label: label.get_window_extent().y0):
            box = text.get_window_extent()
            for placed_box in placed:  # sorted by where they begin, so that one pass is enough
                if box.overlaps(placed_box):
                    x, y = text.get_position()
                    text.set_position((x, y + (placed_box.y1 - box.y0 + 1) * points))
                    box = text.get_window_extent()
            placed = sorted([*placed, box], key=lambda placed_box: placed_box.y0)


def _points(axes: Axes, rows: Sequence[Row], colour: str, label: str, hollow: bool) -> None:
    axes.scatter(
        [row.case.measured.value for row in rows],
        [1 + row.error for row in rows],
        s=22,
        facecolors="none" if hollow else colour,
        edgecolors=colour,
        linewidths=1.1,
        label=label,
        zorder=3,
    )
