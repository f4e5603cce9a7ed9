"""Checks that a timetable runs every cell once, and no cell before what it reads.

Results go from stage to stage at the end of a time step, so the reader has to be in a later step than the maker. Within
a stage, the order in its IPU's row counts. A stage takes the micro-batches in order, at most one cell of a kind in each
step, because host streams deliver them in that order and stashes are read in the order in which they were written.
"""

from __future__ import annotations

from collections.abc import Iterable

from .timetable import KINDS, Cell, ScheduleError, Timetable

_BEFORE = {"R": "F", "B": "FR", "W": "B", "O": "F"}
"""For each kind of cell, the kinds that must come before it, where the stage has them for the same micro-batch."""

_Place = tuple[int, int]
"""Time step, and rank in the row of the IPU."""

_Places = dict[tuple[str, int], list[_Place | None]]
"""For each kind and stage, the place of each micro-batch."""


def chain(stages: int) -> list[tuple[int, int]]:
    """The pairs (maker, reader) of a pipeline in which every stage reads the stage before it."""
    return [(stage, stage + 1) for stage in range(stages - 1)]


def check_order(table: Timetable, reads: Iterable[tuple[int, int]]) -> None:
    """Check that each cell runs once, after everything it reads; ``reads`` are pairs (maker, reader) of stages.

    Raises:
        ScheduleError: names the first wrong cell, with its stage, micro-batch and step (all from 0).
    """
    # Repeated steps break no rule that the steps they repeat keep.
    table = table.shortest
    places = _places(table)
    for kind, stage in places:
        _check_row(table, places, kind, stage)
    for maker, reader in reads:
        _check_later(table, places, "F", maker, reader)
        # Gradients go the opposite way: the backward of the maker reads that of the reader.
        if not table.inference:
            _check_later(table, places, "B", reader, maker)


def check_stash(table: Timetable) -> None:
    """Raise unless each stage has a slot for each waiting micro-batch. The one in execution needs no slot."""
    for stage, slots in enumerate(table.stash):
        waiting = 0 if table.inference else table.alive(stage, "F", "B")
        if slots < waiting - 1:
            raise ScheduleError(
                f"{table.name}: stage {stage} has a stash of {slots}, but {waiting} of its micro-batches are between "
                f"forward and backward at once; allowed are {waiting - 1} and more"
            )


def _text(kind: str, stage: int, micro_batch: int, step: int) -> str:
    return f"{kind} of stage {stage}, micro-batch {micro_batch} in step {step}"


def _places(table: Timetable) -> _Places:
    """The place of each cell. A cell of a concurrent stage is in the rows of all its IPUs."""
    places_by_kind: _Places = {
        (kind, stage): [None] * table.micro_batches for kind in KINDS for stage in range(table.stages)
    }
    for row, ipu in enumerate(table.ipus):
        seen: set[Cell] = set()
        for time, step in enumerate(table.steps):
            for rank, cell in enumerate(step[row]):
                _check_cell(table, cell, time, ipu)
                places = places_by_kind[cell.kind, cell.stage]
                place = places[cell.micro_batch]
                # A concurrent stage has the same cell in several rows, but always in one step.
                if place is not None and (cell in seen or place[0] != time):
                    description = _text(cell.kind, cell.stage, cell.micro_batch, time)
                    raise ScheduleError(f"{table.name}: {description} runs twice; it ran in {place[0]}")
                if place is None:
                    places[cell.micro_batch] = time, rank
                seen.add(cell)
    return places_by_kind


def _check_cell(table: Timetable, cell: Cell, time: int, ipu: int) -> None:
    known = cell.kind in KINDS and not (table.inference and cell.kind in "BRW")
    if known and 0 <= cell.stage < table.stages and 0 <= cell.micro_batch < table.micro_batches:
        if ipu in table.devices[cell.stage]:
            return
        wrong = f" is on IPU {ipu}; its stage is on {list(table.devices[cell.stage])}"
    elif known:
        wrong = f", of {table.stages} stages and {table.micro_batches} micro-batches"
    else:
        wrong = f": allowed kinds are {'F, I and O in inference' if table.inference else ', '.join(KINDS)}"
    raise ScheduleError(f"{table.name}: {_text(cell.kind, cell.stage, cell.micro_batch, time)}{wrong}")


def _check_row(table: Timetable, places: _Places, kind: str, stage: int) -> None:
    """Check the cells of one kind and stage: there are none or all, in order, each after what it needs of its stage."""
    row = places[kind, stage]
    needed = kind == "F" or (kind == "B" and not table.inference)
    if not needed and not any(row):
        return
    prerequisites = [
        (earlier_kind, places[earlier_kind, stage])
        for earlier_kind in _BEFORE.get(kind, "")
        if any(places[earlier_kind, stage])
    ]
    previous = -1
    for number, place in enumerate(row):
        if place is None:
            raise ScheduleError(
                f"{table.name}: {kind} of stage {stage}, micro-batch {number} is in no step; all "
                f"{table.micro_batches} are needed"
            )
        if place[0] <= previous:
            raise ScheduleError(
                f"{table.name}: {_text(kind, stage, number, place[0])}, but the micro-batch before it in step "
                f"{previous}; a stage takes them in order, one in a step"
            )
        previous = place[0]
        for earlier_kind, earlier_places in prerequisites:
            earlier = earlier_places[number]
            # Places compare by their steps first, then by their ranks in the row.
            if earlier is not None and earlier >= place:
                raise ScheduleError(
                    f"{table.name}: {_text(kind, stage, number, place[0])} needs "
                    f"{_text(earlier_kind, stage, number, earlier[0])}, which has to run before it"
                )


def _check_later(table: Timetable, places: _Places, kind: str, maker: int, reader: int) -> None:
    """Check that each cell of ``reader`` is in a later step than the cell of ``maker`` for the same micro-batch."""
    for number, (made_at, read_at) in enumerate(zip(places[kind, maker], places[kind, reader], strict=True)):
        if made_at is not None and read_at is not None and read_at[0] <= made_at[0]:
            raise ScheduleError(
                f"{table.name}: {_text(kind, reader, number, read_at[0])} reads "
                f"{_text(kind, maker, number, made_at[0])}; results are there from the step after on"
            )
