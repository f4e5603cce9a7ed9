"""A timetable as a program: straight-line steps before and after a loop.

A schedule's steps repeat themselves in its steady part. The builder writes the ramp-up and ramp-down out and makes one
loop of the rest. Where a step runs backwards before forwards (TensorFlow), the loop's body may begin between the two:
then a backward comes in the same body as the forward or the recomputation of the step before it, whose values need not
be carried from one iteration to the next. Where copies follow the cells at once, that would part a step in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipuperf.schedules import Cell, Timetable


@dataclass(frozen=True)
class Window:
    """One step of the program, see :func:`windows_of`.

    Attributes:
        cells: stage executions in order, before this window's copies.
        after: stage executions after the copies (the backwards of the next time step).
    """

    time: int
    cells: tuple[Cell, ...]
    after: tuple[Cell, ...]

    def executes(self) -> tuple[Cell, ...]:
        """All cells in order."""
        return self.cells + self.after

    def shifted(self, micro_batches: int) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
        """The cells with their micro-batches moved on, for comparison."""
        return (
            tuple(Cell(c.kind, c.stage, c.micro_batch + micro_batches) for c in self.cells),
            tuple(Cell(c.kind, c.stage, c.micro_batch + micro_batches) for c in self.after),
        )


@dataclass(frozen=True)
class WindowedProgram:
    """Windows before the loop, those of one iteration, how many iterations, windows after it."""

    before: tuple[Window, ...]
    body: tuple[Window, ...]
    trips: int
    after: tuple[Window, ...]
    segment_of: dict[Cell, int]

    def crosses(self, one: str, other: str, stage: int) -> bool:
        """Whether for some micro-batch cell ``one`` and cell ``other`` of ``stage`` lie in different segments.

        Segments are what comes before the loop, each iteration, and what comes after it.
        """
        for cell, segment in self.segment_of.items():
            if cell.kind == one and cell.stage == stage:
                partner = self.segment_of.get(Cell(other, stage, cell.micro_batch))
                if partner is not None and partner != segment:
                    return True
        return False

    def immediate(self, one: str, other: str, stage: int) -> bool:
        """Whether cells ``one`` and ``other`` of ``stage`` are always in one window with no copies between them."""
        for window in (*self.before, *self.body, *self.after):
            here = set(window.cells)
            for cell in window.executes():
                if cell.kind == one and cell.stage == stage and Cell(other, stage, cell.micro_batch) not in here:
                    return False
        return True


def _ordered(rows: Sequence[tuple[Cell, ...]]) -> list[Cell]:
    """The cells of a step, each once, in an order that agrees with every row (rows of one step never contradict)."""
    found: dict[Cell, None] = {}
    for row in rows:
        for cell in row:
            found.setdefault(cell)
    return list(found)


def windows_of(timetable: Timetable, *, rotates: bool = True) -> list[Window]:
    """The steps of ``timetable`` as windows: all cells of a step, or, when backwards come first in it and ``rotates``,
    the rest of the step followed by the backwards of the next."""
    steps = [_ordered(rows) for rows in timetable.steps]
    rotate = rotates and not any(_backward_late(row) for rows in timetable.steps for row in rows)
    if not rotate or timetable.inference:
        return [Window(time, tuple(cells), ()) for time, cells in enumerate(steps)]
    heads = [tuple(c for c in cells if c.kind == "B") for cells in steps]
    tails = [tuple(c for c in cells if c.kind != "B") for cells in steps]
    return [Window(t, tails[t], heads[t + 1] if t + 1 < len(steps) else ()) for t in range(len(steps))]


def _backward_late(row: tuple[Cell, ...]) -> bool:
    """Whether a backward comes after something else, or is split."""
    kinds = "".join(cell.kind for cell in row)
    return "W" in kinds or "B" in kinds.lstrip("B")


def program_of(
    timetable: Timetable, periods: int = 1, *, peel: bool = False, settling: int = 0, rotates: bool = True
) -> WindowedProgram:
    """Find the longest repetition with so many periods of the timetable and make it the loop (none below two
    iterations).

    ``peel`` writes the first and the last iteration out: those in which overlapped I/O has nothing to store yet and
    nothing more to load. ``settling`` writes out as many iterations as last at least so many windows.
    """
    windows = windows_of(timetable, rotates=rotates)
    period = timetable.period * periods
    begin, trips = _longest_repetition(windows, period)
    if peel:
        begin, trips = begin + period, trips - 2
    first = -(-settling // period)
    begin, trips = begin + first * period, trips - first
    if trips < 2:
        begin = trips = 0
    end = begin + trips * period
    segments: dict[Cell, int] = {}
    for index, window in enumerate(windows):
        inside = begin <= index < end
        segment = (index - begin) // period + 1 if inside else (0 if index < begin else trips + 1)
        for cell in window.executes():
            segments[cell] = segment
    if trips == 0:
        return WindowedProgram(tuple(windows), (), 0, (), dict.fromkeys(segments, 0))
    return WindowedProgram(
        tuple(windows[:begin]), tuple(windows[begin : begin + period]), trips, tuple(windows[end:]), segments
    )


def _longest_repetition(windows: Sequence[Window], period: int) -> tuple[int, int]:
    """(first window, iterations) of the longest stretch in which ``period`` windows repeat with later micro-batches."""
    best = (0, 0)
    run = step = 0
    for index in range(len(windows) - period):
        moved = _moved(windows[index], windows[index + period])
        if moved is None or (moved and step and moved != step):
            run, step = 0, 0
        if moved is not None:
            run, step = run + 1, moved or step
        trips = run // period + 1
        if run and trips >= 2 and trips > best[1]:
            best = (index + 1 - run, trips)
    return best


def _moved(one: Window, two: Window) -> int | None:
    """By how many micro-batches ``two`` is later than ``one``, when they are otherwise equal (0: both are empty)."""
    first = one.executes()
    second = two.executes()
    if len(first) != len(second):
        return None
    if not first:
        return 0
    by = second[0].micro_batch - first[0].micro_batch
    return by if by > 0 and one.shifted(by) == (two.cells, two.after) else None
