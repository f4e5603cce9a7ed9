"""How long results wait: from the step in which one stage makes one to the step in which another stage reads it.

A result that arrives lies in a buffer until the next copy into that buffer. Where a reader comes later, results wait in
a ring. It has as many slots as there are results that have arrived and have not been read.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from ipuperf.pipelines.schedules import Timetable

from .model import PipelineError


@dataclass(frozen=True)
class Wait:
    """How a stage's results wait at one reader.

    Attributes:
        slots: results that wait at the same time; 0: each is read where it has arrived.
        kind, maker: the cells that make the results.
        distance: they arrive at the end of the step so many steps after that of their cell.
    """

    slots: int
    kind: str
    maker: int
    distance: int

    def arrives(self, timetable: Timetable, step: int) -> bool:
        """Whether a result arrives at the end of a step."""
        return timetable.runs(self.kind, self.maker, step - self.distance)


def wait_of(timetable: Timetable, kind: str, maker: int, reader: int, *, every_step: bool) -> Wait:
    """The wait of results of ``kind`` (F or B) of stage ``maker`` at stage ``reader``.

    With ``every_step`` they go one stage further in each step. Otherwise they arrive at the end of the step that made
    them.

    Raises:
        PipelineError: a result is read before it arrives.
    """
    # Repeated steps let nothing wait longer than the steps they repeat.
    timetable = timetable.shortest
    steps, reads = timetable.times[kind, maker], timetable.times[kind, reader]
    # A copy at the end of each step takes a result one stage further.
    distance = abs(reader - maker) - 1 if every_step else 0
    arrivals = [step + distance for step in steps]
    for number, (arrival, reading) in enumerate(zip(arrivals, reads, strict=True)):
        if arrival >= reading:
            raise PipelineError(
                f"{timetable.name}: {kind} of stage {reader}, micro-batch {number} in step {reading} reads what stage "
                f"{maker} makes in step {steps[number]}; with copies='every step' that goes one stage further in each "
                f"step and is there from step {arrival + 1} on: use copies='when needed'"
            )
    # a buffer is written again in the next step, or with the next result
    overwritten_in = [arrival + 1 for arrival in arrivals] if every_step else [*steps[1:], reads[-1]]
    if all(reading <= overwritten for reading, overwritten in zip(reads, overwritten_in, strict=True)):
        return Wait(0, kind, maker, distance)
    # At the end of the step of each arrival: results that have arrived, less those already read.
    waiting_counts = (number + 1 - bisect_right(reads, arrival) for number, arrival in enumerate(arrivals))
    return Wait(max(waiting_counts), kind, maker, distance)
