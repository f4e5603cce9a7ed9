"""A timetable as a figure in the manner of the TensorFlow guide: rows IPUs, columns time steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .timetable import KINDS, Cell, Timetable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"F": "#8fbce6", "B": "#f2b27a", "R": "#cfe3f5", "W": "#f7d9b8", "I": "#bfe3c0", "O": "#e3c4e0"}
_NAMES = {"F": "forward", "B": "backward", "R": "recompute", "W": "weights", "I": "infeed", "O": "outfeed"}
_RAMP = "#e6e6e6"
_WIDEST = 200.0  # inches; matplotlib cannot write images of more than 65,535 pixels


def _draw_box(axes: Axes, table: Timetable, column: int, row: int, cells: tuple[Cell, ...], size: float) -> None:
    """The cells of one IPU in one step, side by side in the order of execution."""
    from matplotlib.patches import Rectangle

    width = 0.94 / len(cells)
    for index, cell in enumerate(cells):
        left = column + 0.03 + index * width
        box = Rectangle(
            (left, row + 0.1), width, 0.8, facecolor=_COLOURS[cell.kind], edgecolor="#404040", linewidth=0.5
        )
        axes.add_patch(box)
        axes.text(left + width / 2, row + 0.5, table.label(cell), ha="center", va="center", fontsize=size)


def _shade_ramps(axes: Axes, table: Timetable) -> None:
    rows, total = len(table.ipus), len(table.steps)
    for start, length, name in (
        (0, table.ramp_up, "ramp-up"),
        (table.ramp_up, table.steady, "steady"),
        (total - table.ramp_down, table.ramp_down, "ramp-down"),
    ):
        if not length or not table.ramp_up:
            continue
        if name != "steady":
            axes.axvspan(start, start + length, facecolor=_RAMP, zorder=0)
        axes.text(start + length / 2, -0.12, name, ha="center", va="bottom", fontsize=8, color="#404040")
    for column in range(total + 1):
        axes.axvline(column, color="#b0b0b0", linewidth=0.4, zorder=0.5)
    axes.set_xlim(0, total)
    axes.set_ylim(rows, -0.6)


def timetable_figure(table: Timetable) -> Figure:
    """Draw ``table``: one box per stage execution with its micro-batch (from 1), ramp-up and ramp-down shaded.

    Returns a matplotlib figure that belongs to no window and no global state; save it with ``figure.savefig``. A box's
    place inside a column is its order of execution, its width says nothing about
    time; infeed and outfeed boxes run on I/O tiles beside the others. No figure is wider than 200 inches.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows, total = len(table.ipus), len(table.steps)
    labels = [[[table.label(cell) for cell in cells] for cells in step] for step in table.steps]
    longest = max(sum(len(label) + 1 for label in cells) for step in labels for cells in step)
    inches = max(0.35, 0.088 * longest)
    figure = Figure(figsize=(min(max(6.0, 0.9 + inches * total), _WIDEST), 1.3 + 0.5 * rows), layout="constrained")
    axes = figure.add_subplot()
    _shade_ramps(axes, table)
    for column, step in enumerate(table.steps):
        for row, cells in enumerate(step):
            if cells:
                _draw_box(axes, table, column, row, cells, 7)
    axes.set_yticks([row + 0.5 for row in range(rows)], [f"IPU {ipu}" for ipu in table.ipus])
    stride = max(1, total // 40)
    axes.set_xticks(
        [c + 0.5 for c in range(0, total, stride)], [str(c + 1) for c in range(0, total, stride)], fontsize=7
    )
    axes.tick_params(length=0)
    axes.set_xlabel("time step")
    mode = "inference" if table.inference else "training"
    axes.set_title(f"{table.name}, {mode}: {table.stages} stages, {table.micro_batches} micro-batches, {total} steps")
    kinds = {cell.kind for cell in table.when}
    handles = [Patch(facecolor=_COLOURS[k], edgecolor="#404040", label=_NAMES[k]) for k in KINDS if k in kinds]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(handles), fontsize=7, frameon=False)
    return figure
