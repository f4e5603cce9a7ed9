"""How long results are under way: from the step in which a stage makes one to the step in which another reads it.

What arrives lies in a buffer until the next copy into it. Where a reader comes later, results wait in a ring with as
many slots as there are results that have arrived and have not been read.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ipuperf.schedules import Cell, Timetable

from .model import PipelineError


@dataclass(frozen=True)
class Wait:
    """What becomes of a stage's results at one reader.

    Attributes:
        slots: results that wait at once; 0: each is read where it has arrived.
        arrivals: the steps at whose end results arrive, in the order of the micro-batches.
    """

    slots: int
    arrivals: tuple[int, ...]


def wait_of(timetable: Timetable, kind: str, maker: int, reader: int, *, every_step: bool) -> Wait:
    """Of the results of ``kind`` (F or B) of stage ``maker`` at stage ``reader``.

    ``every_step``: they go one stage further in each step; else they arrive at the end of the step that made them.

    Raises:
        PipelineError: a result is read before it arrives.
    """
    cells = [Cell(kind, maker, number) for number in range(timetable.micro_batches)]
    made = [timetable.when[cell] for cell in cells]
    read = [timetable.when[Cell(kind, reader, cell.micro_batch)] for cell in cells]
    way = abs(reader - maker) if every_step else 1
    arrivals = [step + way - 1 for step in made]
    for number, (arrival, reading) in enumerate(zip(arrivals, read, strict=True)):
        if arrival >= reading:
            raise PipelineError(
                f"{timetable.name}: {kind} of stage {reader}, micro-batch {number} in step {reading} reads what stage "
                f"{maker} makes in step {made[number]}; with copies='every step' that goes one stage further in each "
                f"step and is there from step {arrival + 1} on: use copies='when needed'"
            )
    # a buffer is written again in the next step, or with the next result
    gone = [arrival + 1 for arrival in arrivals] if every_step else [*made[1:], read[-1]]
    if all(reading <= until for reading, until in zip(read, gone, strict=True)):
        return Wait(0, tuple(arrivals))
    waiting = (number + 1 - bisect_right(read, arrival) for number, arrival in enumerate(arrivals))
    return Wait(max(waiting), tuple(arrivals))
