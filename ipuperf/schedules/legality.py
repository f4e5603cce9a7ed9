"""Whether a timetable runs every cell once, and nothing before what it reads.

Results go from stage to stage at the end of a time step, so a reader stands in a later step than the maker. Within a
stage the order of its IPU's row counts. A stage takes the micro-batches in order, one of a kind in a step: host streams
give them in that order, and what waits is read in the order in which it came.
"""

from __future__ import annotations

from collections.abc import Iterable

from .timetable import KINDS, Cell, ScheduleError, Timetable

_BEFORE = {"R": "F", "B": "FR", "W": "B", "O": "F"}
"""Kinds that a cell of the same stage and micro-batch comes after, where there are any."""

_Place = tuple[int, int]
"""Time step, rank in the row."""


def chain(stages: int) -> list[tuple[int, int]]:
    """(maker, reader) of a pipeline in which every stage reads the stage before it."""
    return [(stage, stage + 1) for stage in range(stages - 1)]


def check_order(table: Timetable, reads: Iterable[tuple[int, int]]) -> None:
    """Raise unless each cell runs once and after everything it reads; ``reads`` are (maker, reader) of stages.

    Raises:
        ScheduleError: names the first cell that is wrong, with its stage, micro-batch and step (all from 0).
    """
    places = _places(table)
    for kind in KINDS:
        for stage in range(table.stages):
            _check_row(table, places, kind, stage)
    for maker, reader in reads:
        for micro_batch in range(table.micro_batches):
            _check_later(table, places, Cell("F", reader, micro_batch), Cell("F", maker, micro_batch))
            if not table.inference:
                _check_later(table, places, Cell("B", maker, micro_batch), Cell("B", reader, micro_batch))


def check_stash(table: Timetable) -> None:
    """Raise unless a stage has a slot for each micro-batch that waits; that of the step itself needs none."""
    for stage, slots in enumerate(table.stash):
        waiting = 0 if table.inference else table.alive(stage, "F", "B")
        if slots < waiting - 1:
            raise ScheduleError(
                f"{table.name}: stage {stage} has a stash of {slots}, but {waiting} of its micro-batches are between "
                f"forward and backward at once; allowed are {waiting - 1} and more"
            )


def _said(cell: Cell, step: int) -> str:
    return f"{cell.kind} of stage {cell.stage}, micro-batch {cell.micro_batch} in step {step}"


def _places(table: Timetable) -> dict[Cell, _Place]:
    """Where each cell stands; one of a concurrent stage stands in the rows of all its IPUs."""
    found: dict[Cell, _Place] = {}
    rows: set[tuple[Cell, int]] = set()
    for time, step in enumerate(table.steps):
        for ipu, cells in zip(table.ipus, step, strict=True):
            for rank, cell in enumerate(cells):
                _check_cell(table, cell, time, ipu)
                if (cell, ipu) in rows or found.get(cell, (time, 0))[0] != time:
                    raise ScheduleError(f"{table.name}: {_said(cell, time)} runs twice; it ran in {found[cell][0]}")
                rows.add((cell, ipu))
                found.setdefault(cell, (time, rank))
    return found


def _check_cell(table: Timetable, cell: Cell, time: int, ipu: int) -> None:
    if cell.kind not in KINDS or (table.inference and cell.kind in "BRW"):
        allowed = "F, I and O in inference" if table.inference else ", ".join(KINDS)
        raise ScheduleError(f"{table.name}: {_said(cell, time)}: allowed kinds are {allowed}")
    if not (0 <= cell.stage < table.stages and 0 <= cell.micro_batch < table.micro_batches):
        raise ScheduleError(
            f"{table.name}: {_said(cell, time)}, of {table.stages} stages and {table.micro_batches} micro-batches"
        )
    if ipu not in table.devices[cell.stage]:
        raise ScheduleError(
            f"{table.name}: {_said(cell, time)} is on IPU {ipu}; its stage is on {list(table.devices[cell.stage])}"
        )


def _check_row(table: Timetable, places: dict[Cell, _Place], kind: str, stage: int) -> None:
    """The cells of one kind and stage: none or all, in order, each after what it needs of its own stage."""
    cells = [Cell(kind, stage, micro_batch) for micro_batch in range(table.micro_batches)]
    needed = kind == "F" or (kind == "B" and not table.inference)
    if not needed and not any(cell in places for cell in cells):
        return
    last = -1
    for cell in cells:
        if cell not in places:
            raise ScheduleError(
                f"{table.name}: {kind} of stage {stage}, micro-batch {cell.micro_batch} is in no step; all "
                f"{table.micro_batches} are needed"
            )
        place = places[cell]
        if place[0] <= last:
            raise ScheduleError(
                f"{table.name}: {_said(cell, place[0])}, but the micro-batch before it in step {last}; a stage takes "
                "them in order, one in a step"
            )
        last = place[0]
        for before in _BEFORE.get(kind, ""):
            other = Cell(before, stage, cell.micro_batch)
            if other in places and places[other] >= place:
                raise ScheduleError(
                    f"{table.name}: {_said(cell, place[0])} needs {_said(other, places[other][0])}, which has to run "
                    "before it"
                )


def _check_later(table: Timetable, places: dict[Cell, _Place], reader: Cell, maker: Cell) -> None:
    if places[reader][0] <= places[maker][0]:
        raise ScheduleError(
            f"{table.name}: {_said(reader, places[reader][0])} reads {_said(maker, places[maker][0])}; results are "
            "there from the step after on"
        )
