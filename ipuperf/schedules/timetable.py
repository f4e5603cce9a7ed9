"""Training timetables of an ``N``-stage pipeline over ``M`` micro-batches.

Formulas: ``../shared/reference/pipelines.md`` 2.4. TensorFlow's schedules place forward stage ``i`` at position ``i``
and backward stage ``i`` at position ``2N - 1 - i``; PopART merges the last forward with the first backward, so its
positions are ``i`` and ``2N - 2 - i``. The two families are different schedules and stay separate functions.
"""

from __future__ import annotations

from dataclasses import dataclass


class ScheduleError(ValueError):
    """A number of stages or micro-batches that the schedule cannot run."""


@dataclass(frozen=True)
class Cell:
    """One stage execution: ``kind`` is ``F`` or ``B``, ``stage`` and ``micro_batch`` count from 0."""

    kind: str
    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Timetable:
    """What runs when.

    Attributes:
        name: schedule name.
        stages, micro_batches: N and M.
        steps: for each time step, for each stage, the cells in the order the IPU executes them.
        stash: per stage, how many micro-batches' activations wait between forward and backward (FIFO depth).
    """

    name: str
    stages: int
    micro_batches: int
    steps: tuple[tuple[tuple[Cell, ...], ...], ...]
    stash: tuple[int, ...]

    def text(self) -> str:
        """One row per stage: ``F1``, ``B1+F4`` ... (micro-batches counted from 1), empty for a bubble."""
        rows = []
        for stage in range(self.stages):
            cells = ["+".join(f"{c.kind}{c.micro_batch + 1}" for c in step[stage]) for step in self.steps]
            rows.append([f"IPU{stage}", *cells])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("|".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + "|" for row in rows)


def _positive(name: str, stages: int, micro_batches: int) -> None:
    if stages < 1 or micro_batches < 1:
        raise ScheduleError(f"{name}: {stages} stages and {micro_batches} micro-batches; both have to be at least 1")


def _divisible(name: str, stages: int, micro_batches: int, by: int) -> None:
    _positive(name, stages, micro_batches)
    if micro_batches % by:
        raise ScheduleError(
            f"{name} with {stages} stages: the number of micro-batches (gradient accumulation count) must be a "
            f"multiple of {by}, but it is {micro_batches}"
        )


def _build(
    name: str, stages: int, micro_batches: int, stride: int, last: int, order: str, stash: tuple[int, ...]
) -> Timetable:
    """Place position ``p`` of micro-batch ``m`` at step ``p + stride * m``; ``last`` is backward stage 0's position."""
    total = last + stride * (micro_batches - 1) + 1
    grid: list[list[list[Cell]]] = [[[] for _ in range(stages)] for _ in range(total)]
    for micro_batch in range(micro_batches):
        for stage in range(stages):
            grid[stage + stride * micro_batch][stage].append(Cell("F", stage, micro_batch))
            grid[last - stage + stride * micro_batch][stage].append(Cell("B", stage, micro_batch))
    for step in grid:
        for cells in step:
            cells.sort(key=lambda c: (order.index(c.kind), c.micro_batch))
    return Timetable(name, stages, micro_batches, tuple(tuple(tuple(c) for c in step) for step in grid), stash)


def grouped(stages: int, micro_batches: int) -> Timetable:
    """TensorFlow Grouped: ``M + 2N - 1`` steps, backward before forward in a step; M a multiple of 2N."""
    _divisible("grouped", stages, micro_batches, 2 * stages)
    stash = tuple(2 * (stages - 1 - i) for i in range(stages))
    return _build("grouped", stages, micro_batches, 1, 2 * stages - 1, "BF", stash)


def interleaved(stages: int, micro_batches: int) -> Timetable:
    """TensorFlow Interleaved: ``2(M + N - 1)`` steps, one of forward and backward in a step; M a multiple of N."""
    _divisible("interleaved", stages, micro_batches, stages)
    stash = tuple(stages - 1 - i for i in range(stages))
    return _build("interleaved", stages, micro_batches, 2, 2 * stages - 1, "BF", stash)


def sequential(stages: int, micro_batches: int) -> Timetable:
    """TensorFlow Sequential: ``2NM`` steps, one stage of one IPU at a time; any M."""
    _positive("sequential", stages, micro_batches)
    return _build("sequential", stages, micro_batches, 2 * stages, 2 * stages - 1, "FB", (0,) * stages)


def popart_pipeline(stages: int, micro_batches: int) -> Timetable:
    """PopART (PopTorch): ``M + 2N - 2`` pipeline cycles, forward before backward; M at least ``2N - 1``."""
    _positive("popart_pipeline", stages, micro_batches)
    if micro_batches < 2 * stages - 1:
        raise ScheduleError(
            f"popart_pipeline with {stages} stages: gradient accumulation has to be at least {2 * stages - 1} "
            f"(2N - 1), but it is {micro_batches}"
        )
    stash = tuple(2 * (stages - 1 - i) + 1 if i < stages - 1 else 0 for i in range(stages))
    return _build("popart_pipeline", stages, micro_batches, 1, 2 * stages - 2, "FB", stash)
