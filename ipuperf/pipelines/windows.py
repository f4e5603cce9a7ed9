"""A timetable as a program: straight-line steps before and after a loop.

The steps of a schedule repeat in its steady part. The builder writes out the ramp-up and the ramp-down and makes one
loop of the rest. Where a step runs backwards before forwards (TensorFlow), the loop's body may begin between the two. A
backward then comes in the same body as the forward or recomputation of the step before it, and no values need to be
carried from one iteration to the next. This is not done where copies follow the cells at once, as it would part a step
in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ipuperf.pipelines.schedules import Cell, Timetable


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
            tuple(Cell(cell.kind, cell.stage, cell.micro_batch + micro_batches) for cell in self.cells),
            tuple(Cell(cell.kind, cell.stage, cell.micro_batch + micro_batches) for cell in self.after),
        )


@dataclass(frozen=True)
class WindowedProgram:
    """Windows before the loop, those of one iteration, the number of iterations, and windows after the loop."""

    before: tuple[Window, ...]
    body: tuple[Window, ...]
    trips: int
    after: tuple[Window, ...]
    segment_of: dict[Cell, int]

    def crosses(self, first_kind: str, second_kind: str, stage: int) -> bool:
        """Whether, for some micro-batch, cells ``first_kind`` and ``second_kind`` of ``stage`` lie in different
        segments.

        Segments are what comes before the loop, each iteration, and what comes after it.
        """
        first, second = self._segments.get((first_kind, stage), {}), self._segments.get((second_kind, stage), {})
        return any(second.get(micro_batch, segment) != segment for micro_batch, segment in first.items())

    def runs(self, kind: str, stage: int) -> bool:
        """Whether there are cells ``kind`` of ``stage``."""
        return (kind, stage) in self._segments

    @cached_property
    def _segments(self) -> dict[tuple[str, int], dict[int, int]]:
        """For each kind and stage, the segment of each micro-batch."""
        segments: dict[tuple[str, int], dict[int, int]] = {}
        for cell, segment in self.segment_of.items():
            segments.setdefault((cell.kind, cell.stage), {})[cell.micro_batch] = segment
        return segments

    def immediate(self, first_kind: str, second_kind: str, stage: int) -> bool:
        """Whether cells ``first_kind`` and ``second_kind`` of ``stage`` are always in one window with no copies between
        them."""
        first, second = self._places.get((first_kind, stage), {}), self._places.get((second_kind, stage), {})
        # In its window, the second cell has to come before the copies.
        return all(second.get(micro_batch) == (window, True) for micro_batch, (window, _) in first.items())

    @cached_property
    def _places(self) -> dict[tuple[str, int], dict[int, tuple[int, bool]]]:
        """For each kind and stage: the window of each micro-batch, and whether its cell comes before the copies."""
        places: dict[tuple[str, int], dict[int, tuple[int, bool]]] = {}
        for number, window in enumerate((*self.before, *self.body, *self.after)):
            for cells, early in ((window.after, False), (window.cells, True)):
                for cell in cells:
                    places.setdefault((cell.kind, cell.stage), {})[cell.micro_batch] = (number, early)
        return places


def _ordered(rows: Sequence[tuple[Cell, ...]]) -> list[Cell]:
    """The cells of a step, each once, in an order that agrees with every row (rows of one step never contradict)."""
    cells: dict[Cell, None] = {}
    for row in rows:
        for cell in row:
            cells.setdefault(cell)
    return list(cells)


def windows_of(timetable: Timetable, *, rotates: bool = True) -> list[Window]:
    """The steps of ``timetable`` as windows.

    A window holds all cells of a step. When backwards come first in a step and ``rotates``, it holds the rest of the
    step followed by the backwards of the next.
    """
    steps = [_ordered(rows) for rows in timetable.steps]
    # Rotation needs every backward at the begin of its row, undivided.
    rotate = rotates and not any(_backward_late(row) for rows in timetable.steps for row in rows)
    if not rotate or timetable.inference:
        return [Window(time, tuple(cells), ()) for time, cells in enumerate(steps)]
    heads = [tuple(cell for cell in cells if cell.kind == "B") for cells in steps]
    tails = [tuple(cell for cell in cells if cell.kind != "B") for cells in steps]
    return [Window(time, tails[time], heads[time + 1] if time + 1 < len(steps) else ()) for time in range(len(steps))]


def _backward_late(row: tuple[Cell, ...]) -> bool:
    """Whether a backward comes after another cell, or is split."""
    kinds = "".join(cell.kind for cell in row)
    return "W" in kinds or "B" in kinds.lstrip("B")


def program_of(
    timetable: Timetable, periods: int = 1, *, peel: bool = False, settling: int = 0, rotates: bool = True
) -> WindowedProgram:
    """Find the longest repetition with a period of ``periods`` times the timetable's and make it the loop (none below
    two iterations).

    ``peel`` writes out the first and the last iteration, in which overlapped I/O has nothing to store yet or nothing
    more to load. ``settling`` writes out as many iterations as last at least so many windows.
    """
    windows = windows_of(timetable, rotates=rotates)
    period = timetable.period * periods
    begin, trips = _longest_repetition(windows, period)
    if peel:
        # One iteration less at each end.
        begin, trips = begin + period, trips - 2
    # Rounded up: a part of an iteration cannot be written out.
    settling_trips = -(-settling // period)
    begin, trips = begin + settling_trips * period, trips - settling_trips
    if trips < 2:
        begin = trips = 0
    end = begin + trips * period
    segments: dict[Cell, int] = {}
    for index, window in enumerate(windows):
        inside = begin <= index < end
        # 0 is what comes before the loop, then one for each iteration, then what comes after.
        segment = (index - begin) // period + 1 if inside else (0 if index < begin else trips + 1)
        for cell in window.executes():
            segments[cell] = segment
    # Without a loop everything lies in one segment.
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
        shift = _moved(windows[index], windows[index + period])
        # A run of equal windows ends where cells differ or where micro-batches advance by another number.
        if shift is None or (shift and step and shift != step):
            run, step = 0, 0
        if shift is not None:
            # Two empty windows fit any shift, so the known one stays.
            run, step = run + 1, shift or step
        # ``run`` counts pairs of windows a period apart, so there is one iteration more.
        trips = run // period + 1
        if run and trips >= 2 and trips > best[1]:
            best = (index + 1 - run, trips)
    return best


def _moved(earlier: Window, later: Window) -> int | None:
    """By how many micro-batches ``later`` comes after ``earlier``, when they are otherwise equal (0: both are
    empty)."""
    earlier_cells = earlier.executes()
    later_cells = later.executes()
    if len(earlier_cells) != len(later_cells):
        return None
    if not earlier_cells:
        return 0
    shift = later_cells[0].micro_batch - earlier_cells[0].micro_batch
    return shift if shift > 0 and earlier.shifted(shift) == (later.cells, later.after) else None
