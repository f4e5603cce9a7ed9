"""From "this cell in this step" to a :class:`Timetable`."""

from __future__ import annotations

from collections.abc import Iterable

from .timetable import Cell, Timetable

Placement = tuple[int, float, Cell]
"""Time step, rank inside the step (lower runs first on an IPU), cell."""


def assemble(
    name: str,
    micro_batches: int,
    devices: tuple[tuple[int, ...], ...],
    placements: Iterable[Placement],
    total: int,
    stash: tuple[int, ...],
    *,
    stashed: str,
    inference: bool,
    ramp: int,
    period: int,
) -> Timetable:
    """Sort the placements into ``total`` steps and one row per IPU.

    A stage on several IPUs has its cell in each of their rows. ``ramp`` is the length of ramp-up and of ramp-down
    (every schedule is symmetric in them).
    """
    ipus = sorted({ipu for group in devices for ipu in group})
    row = {ipu: index for index, ipu in enumerate(ipus)}
    grid: list[list[list[tuple[float, Cell]]]] = [[[] for _ in ipus] for _ in range(total)]
    for step, rank, cell in placements:
        for ipu in devices[cell.stage]:
            grid[step][row[ipu]].append((rank, cell))
    steps = tuple(
        tuple(tuple(cell for _, cell in sorted(cells, key=lambda entry: entry[0])) for cells in step) for step in grid
    )
    kept = stashed if any(stash) else "nothing"
    return Timetable(name, len(devices), micro_batches, steps, stash, kept, devices, inference, ramp, ramp, period)
