"""The result of every schedule: a :class:`Timetable` of cells, with its counts and its text.

A timetable knows no cycles. It says which stage runs which micro-batch in which time step, and in which order inside
the step. The rules that fill it are in the family modules (``tensorflow_family``, ``popart_family``,
``flushed_family``, ``phased``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

KINDS = ("F", "R", "B", "W", "I", "O")
"""Kinds of cells, see :class:`Cell`."""


class ScheduleError(ValueError):
    """The schedule does not allow these stages, micro-batches, devices or options; the message says what it allows."""


@dataclass(frozen=True)
class Cell:
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


@dataclass(frozen=True)
class Timetable:
    """What runs when.

    Attributes:
        name: schedule name.
        stages, micro_batches: N and M.
        steps: for each time step, for each IPU of ``ipus``, the cells in the order the IPU executes them (``I`` and
            ``O`` cells run on I/O tiles, beside the others).
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
    steps: tuple[tuple[tuple[Cell, ...], ...], ...]
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
        return "W" if Cell("W", stage, 0) in self.when else "B"

    def alive(self, stage: int, begin: str, end: str) -> int:
        """The most micro-batches whose ``begin`` cell has run on ``stage`` and whose ``end`` cell has not, in the
        order of execution."""
        # A concurrent stage has its cells in the rows of all its IPUs, so one row says everything.
        row = self.ipus.index(self.devices[stage][0])
        count = peak = 0
        for step in self.steps:
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
