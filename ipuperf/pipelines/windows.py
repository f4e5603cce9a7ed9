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

    def moved(self, steps: int, micro_batches: int) -> Window:
        """The same window with later micro-batches, ``steps`` later."""
        cells, after = (tuple(cell.moved(micro_batches) for cell in part) for part in (self.cells, self.after))
        return Window(self.time + steps, cells, after)


@dataclass(frozen=True)
class WindowedProgram:
    """Windows before the loop, those of its first iteration, the number of iterations, and windows after the loop."""

    before: tuple[Window, ...]
    body: tuple[Window, ...]
    trips: int
    after: tuple[Window, ...]

    def crosses(self, first_kind: str, second_kind: str, stage: int) -> bool:
        """Whether, for some micro-batch, cells ``first_kind`` and ``second_kind`` of ``stage`` lie in different
        segments.

        Segments are what comes before the loop, each iteration, and what comes after it.
        """
        # A stage has cells of a kind for all micro-batches or for none, and later iterations are as the first.
        return (
            self.runs(first_kind, stage)
            and self.runs(second_kind, stage)
            and any(numbers.get((first_kind, stage)) != numbers.get((second_kind, stage)) for numbers in self._numbers)
        )

    def runs(self, kind: str, stage: int) -> bool:
        """Whether there are cells ``kind`` of ``stage``."""
        return any((kind, stage) in numbers for numbers in self._numbers)

    def loops(self, cell: Cell) -> bool:
        """Whether a cell lies in some iteration of the loop."""
        before, _, after = (numbers.get((cell.kind, cell.stage), ()) for numbers in self._numbers)
        return cell.micro_batch not in before and cell.micro_batch not in after

    @cached_property
    def _numbers(self) -> tuple[dict[tuple[str, int], set[int]], ...]:
        """The micro-batches of each kind and stage before the loop, in its first iteration and after it."""
        segments = []
        for windows in (self.before, self.body, self.after):
            numbers: dict[tuple[str, int], set[int]] = {}
            for window in windows:
                for cell in window.executes():
                    numbers.setdefault((cell.kind, cell.stage), set()).add(cell.micro_batch)
            segments.append(numbers)
        return tuple(segments)

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
    period = timetable.period * periods
    # Rounded up: a part of an iteration cannot be written out.
    settling_trips = -(-settling // period)
    # Two iterations make a loop; peeling takes two more, and the repetition may begin and end within one.
    short = timetable.shortened((6 + settling_trips) * periods, periods)
    windows = windows_of(short, rotates=rotates)
    begin, trips = _longest_repetition(windows, period)
    left_out, number = (len(timetable.steps) - len(short.steps)), timetable.micro_batches - short.micro_batches
    trips += left_out // period
    if peel:
        # One iteration less at each end.
        begin, trips = begin + period, trips - 2
    begin, trips = begin + settling_trips * period, trips - settling_trips
    # Without a loop everything comes before it.
    if trips < 2:
        return WindowedProgram(tuple(windows), (), 0, ())
    end = begin + trips * period - left_out
    return WindowedProgram(
        tuple(windows[:begin]),
        tuple(windows[begin : begin + period]),
        trips,
        tuple(window.moved(left_out, number) for window in windows[end:]),
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
    return shift if shift > 0 and earlier.moved(later.time - earlier.time, shift) == later else None
