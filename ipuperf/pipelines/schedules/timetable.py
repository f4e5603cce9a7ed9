"""The result of every schedule: a :class:`Timetable` of cells, with its counts and its text.

A timetable knows no cycles. It says which stage runs which micro-batch in which time step, and in which order inside
the step. The rules that fill it are in the family modules (``tensorflow_family``, ``popart_family``,
``flushed_family``, ``phased``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, overload

KINDS = ("F", "R", "B", "W", "I", "O")
"""Kinds of cells, see :class:`Cell`."""


class ScheduleError(ValueError):
    """The schedule does not allow these stages, micro-batches, devices or options; the message says what it allows."""


class Cell(NamedTuple):
    """One stage execution.

    Attributes:
        kind: ``F`` forward, ``B`` backward, ``R`` recomputation of the forward, ``W`` gradients of weights (a stage
            that has such cells computes only the other gradients in its ``B``), ``I`` infeed and ``O`` outfeed on I/O
            tiles (only with overlapped I/O).
        stage: the forward stage (or forward phase) it belongs to, from 0.
        micro_batch: from 0.
    """

    kind: str
    stage: int
    micro_batch: int

    def moved(self, micro_batches: int) -> Cell:
        """The same cell of a later micro-batch."""
        return Cell(self.kind, self.stage, self.micro_batch + micro_batches)


Step = tuple[tuple[Cell, ...], ...]
"""For each IPU the cells of a time step."""


def moved(step: Step, micro_batches: int) -> Step:
    """The same step with the cells of later micro-batches."""
    return tuple(tuple(cell.moved(micro_batches) for cell in row) for row in step)


@dataclass(frozen=True, eq=False)
class FoldedSteps(Sequence[Step]):
    """Time steps of which one period is written once and counts many times; the others are made when they are read.

    Attributes:
        written: the steps of a timetable with fewer micro-batches.
        begin: the first of the ``period`` written steps that are repeated right after themselves.
        advance: how many micro-batches later each repetition is.
        more: the number of repetitions.
    """

    written: tuple[Step, ...]
    begin: int
    period: int
    advance: int
    more: int

    def __len__(self) -> int:
        return len(self.written) + self.more * self.period

    @overload
    def __getitem__(self, index: int) -> Step: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Step, ...]: ...

    def __getitem__(self, index: int | slice) -> Step | tuple[Step, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = range(len(self))[index]
        turn = self.turn(number)
        return moved(self.written[number - turn * self.period], turn * self.advance)

    def turn(self, number: int) -> int:
        """By how many periods a step comes later than the written one that it repeats."""
        # What comes before the repetitions is written as it is, what comes after them all of them earlier.
        return min(max(0, (number - self.begin) // self.period), self.more)

    def __iter__(self) -> Iterator[Step]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))


@dataclass(frozen=True)
class Timetable:
    """What runs when.

    Attributes:
        name: schedule name.
        stages, micro_batches: N and M.
        steps: for each time step, for each IPU of ``ipus``, the cells in the order the IPU executes them (``I`` and
            ``O`` cells run on I/O tiles, beside the others). Of long tables one period is written once.
        stash: per stage, how many micro-batches wait between forward and backward (TensorFlow: FIFO depth).
        stashed: what waits there: ``"activations"``, ``"stage inputs"`` (with recomputation) or ``"nothing"``.
        devices: per stage, the IPUs it runs on; more than one for a concurrent stage or a phase.
        inference: no backward cells.
        ramp_up, ramp_down: time steps before the first and after the last steady step.
        period: time steps after which the steady part repeats itself.
    """

    name: str
    stages: int
    micro_batches: int
    steps: Sequence[Step]
    stash: tuple[int, ...]
    stashed: str
    devices: tuple[tuple[int, ...], ...]
    inference: bool
    ramp_up: int
    ramp_down: int
    period: int

    @cached_property
    def ipus(self) -> tuple[int, ...]:
        """The IPUs of the rows, ascending."""
        return tuple(sorted({ipu for group in self.devices for ipu in group}))

    def shortened(self, periods: int, multiple: int = 1) -> Timetable:
        """This table without repetitions: ``periods`` of them stay (or all there are), and up to ``multiple - 1`` more,
        so that what is left out is a multiple."""
        steps = self.steps
        # The period is that of the table, unless somebody has replaced it there.
        if not isinstance(steps, FoldedSteps) or steps.period != self.period:
            return self
        out = max(0, steps.more - periods) // multiple * multiple
        left = steps.written if out == steps.more else tuple(replace(steps, more=steps.more - out))
        return replace(self, micro_batches=self.micro_batches - out * steps.advance, steps=left)

    @cached_property
    def _shortest(self) -> Timetable:
        return self.shortened(0)

    @property
    def shortest(self) -> Timetable:
        """The table whose steps are all written: what waits for what, and how long, is the same there."""
        return self._shortest if isinstance(self.steps, FoldedSteps) else self

    @cached_property
    def times(self) -> dict[tuple[str, int], list[int]]:
        """For each (kind, stage) the time steps of its micro-batches, in order."""
        times: dict[tuple[str, int], dict[int, int]] = {}
        for cell, step in self.when.items():
            times.setdefault((cell.kind, cell.stage), {})[cell.micro_batch] = step
        return {what: [steps[number] for number in sorted(steps)] for what, steps in times.items()}

    @property
    def kinds(self) -> Collection[tuple[str, int]]:
        """The (kind, stage) of all cells."""
        return self.shortest.times.keys()

    def runs(self, kind: str, stage: int, step: int) -> bool:
        """Whether a stage has a cell of a kind in a time step."""
        if not 0 <= step < len(self.steps):
            return False
        steps: Sequence[Step] = self.steps
        if isinstance(steps, FoldedSteps):
            step -= steps.turn(step) * steps.period
            steps = steps.written
        row = steps[step][self.ipus.index(self.devices[stage][0])]
        return any((cell.kind, cell.stage) == (kind, stage) for cell in row)

    @property
    def steady(self) -> int:
        """Time steps between ramp-up and ramp-down."""
        return len(self.steps) - self.ramp_up - self.ramp_down

    @cached_property
    def shared_ipus(self) -> bool:
        """Whether some IPU runs more than one stage."""
        return sum(len(group) for group in self.devices) > len(self.ipus)

    @cached_property
    def when(self) -> dict[Cell, int]:
        """Time step of every cell."""
        return {cell: time for time, step in enumerate(self.steps) for cells in step for cell in cells}

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Per stage, the most micro-batches whose forward has run and whose backward has not finished.

        Independent of ``stash``
        (``docs/reference/pipelines.md`` 2.4: grouped and PopART ``2(N-1-i) + 1``, interleaved ``N - i``, sequential 1).
        In inference a stage holds one at a time.
        """
        if self.inference:
            return (1,) * self.stages
        return tuple(self.alive(stage, "F", self.last_kind(stage)) for stage in range(self.stages))

    def last_kind(self, stage: int) -> str:
        """With which cells the backward of a stage ends: ``W`` where it has such."""
        return "W" if ("W", stage) in self.kinds else "B"

    def alive(self, stage: int, begin: str, end: str) -> int:
        """The most micro-batches whose ``begin`` cell has run on ``stage`` and whose ``end`` cell has not, in the
        order of execution."""
        # A concurrent stage has its cells in the rows of all its IPUs, so one row says everything.
        row = self.ipus.index(self.devices[stage][0])
        count = peak = 0
        for step in self.shortest.steps:
            for cell in step[row]:
                if cell.stage == stage and cell.kind in (begin, end):
                    count += 1 if cell.kind == begin else -1
                    peak = max(peak, count)
        return peak

    def label(self, cell: Cell) -> str:
        """``F1``: micro-batches count from 1; ``F1.s2`` names the stage where an IPU runs several."""
        return f"{cell.kind}{cell.micro_batch + 1}" + (f".s{cell.stage}" if self.shared_ipus else "")

    def text(self) -> str:
        """One row per IPU: ``F1``, ``B1+F4`` ... in the order of execution, empty for a bubble."""
        rows = []
        for row, ipu in enumerate(self.ipus):
            rows.append([f"IPU{ipu}", *("+".join(self.label(cell) for cell in step[row]) for step in self.steps)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("|".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + "|" for row in rows)
