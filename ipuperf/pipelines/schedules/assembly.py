"""Builds a :class:`Timetable` from cells and their time steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .legality import chain, check_order, check_stash
from .timetable import Cell, ScheduleError, Timetable

Placement = tuple[int, float, Cell]
"""Time step, rank inside the step (lower runs first on an IPU), cell."""


def assemble(
    name: str,
    micro_batches: int,
    devices: tuple[tuple[int, ...], ...],
    placements: Iterable[Placement],
    total: int,
    stash: tuple[int, ...] | None = None,
    *,
    stashed: str = "activations",
    inference: bool = False,
    ramp: int = 0,
    period: int | None = None,
    reads: Iterable[tuple[int, int]] | None = None,
) -> Timetable:
    """Sort the placements into ``total`` steps with one row per IPU.

    A stage on several IPUs has its cell in each of their rows.

    Args:
        name: name of the schedule.
        micro_batches: M.
        devices: per stage, its IPUs.
        placements: the cells with their steps and ranks.
        total: number of time steps.
        stash: the stash of each stage as upstream has it. None: as many micro-batches as wait between forward and
            backward at once.
        stashed: what waits there, see :class:`Timetable`.
        inference: whether there are no backward cells.
        ramp: length of the ramp-up and of the ramp-down, which are equal in every schedule.
        period: number of steps after which the steady part repeats itself (None: it does not).
        reads: pairs (maker, reader) of stages. None: each stage reads the stage before it.

    Raises:
        ScheduleError: a cell is outside the steps or stages, occurs twice, is missing, or comes before what it reads;
            or a stash is too small.
    """
    ipus = sorted({ipu for group in devices for ipu in group})
    row = {ipu: index for index, ipu in enumerate(ipus)}
    grid: list[list[list[tuple[float, Cell]]]] = [[[] for _ in ipus] for _ in range(total)]
    for step, rank, cell in placements:
        if not (0 <= step < total and 0 <= cell.stage < len(devices)):
            raise ScheduleError(f"{name}: {cell} in step {step}; there are {total} steps and {len(devices)} stages")
        for ipu in devices[cell.stage]:
            grid[step][row[ipu]].append((rank, cell))
    # The rank alone is the key: cells do not compare, and equal ranks keep their order.
    steps = tuple(
        tuple(tuple(cell for _, cell in sorted(cells, key=lambda entry: entry[0])) for cells in step) for step in grid
    )
    length = total if period is None else period
    slots = (0,) * len(devices) if stash is None else stash
    table = Timetable(name, len(devices), micro_batches, steps, slots, stashed, devices, inference, ramp, ramp, length)
    check_order(table, chain(len(devices)) if reads is None else reads)
    # The stash follows from the table, so the table is built without it first.
    if stash is None and not inference:
        table = replace(table, stash=tuple(_waiting(table, stage) for stage in range(table.stages)))
    check_stash(table)
    return table if any(table.stash) else replace(table, stashed="nothing")


def _waiting(table: Timetable, stage: int) -> int:
    """How many micro-batches wait between forward and backward at once; 0 where both are always in one step."""
    cells = ((Cell("F", stage, number), Cell("B", stage, number)) for number in range(table.micro_batches))
    waits = any(table.when[forward] < table.when[backward] for forward, backward in cells)
    return table.alive(stage, "F", "B") if waits else 0
