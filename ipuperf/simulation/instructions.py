"""What an IPU process executes: instructions, and the segments of the trace they are made of. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from .errors import SimulationError

if TYPE_CHECKING:
    from ipuperf.lowering.steps import Step

MOST_INSTANCES = 20_000_000
"""Executions of segments that a trace holds at most; each takes a few hundred bytes while a run is simulated."""

MOST_CYCLES = 2**62
"""Cycles and executions of steps are below this, over all IPUs together, so that int64 holds them and their sums."""


class LeafStep(NamedTuple):
    """A leaf of the program tree: the step and the ids of its control programs (three where host and IPU copy);
    ``lane`` 1 is that of the I/O tiles."""

    leaf_id: int
    step: Step
    programs: tuple[int, ...]
    lane: int = 0


class StepPart(NamedTuple):
    """A stretch of time inside a segment: ``kind`` of the trace, which of the leaf's programs, cycles and bytes."""

    kind: str
    program: int
    dur: int
    bytes_in: int = 0
    bytes_out: int = 0


class LocalLoop(NamedTuple):
    """The leaves ``first`` to ``stop`` (half open, positions in a segment) are executed ``trips`` times."""

    first: int
    stop: int
    trips: int


@dataclass(eq=False)
class Segment:
    """A template of the trace: ``leaves`` in order. ``parts`` is set for a shared step (one leaf, measured parts), and
    ``durations`` for local steps (one for each leaf). ``loops`` lie within each other or apart, outer ones first."""

    segment_id: int
    leaves: tuple[int, ...]
    parts: tuple[StepPart, ...] = ()
    durations: tuple[int, ...] = ()
    loops: tuple[LocalLoop, ...] = ()

    @property
    def dur(self) -> int:
        """Cycles of the whole segment."""
        if self.loops:
            return self.layout.dur
        return sum(self.durations) + sum([part.dur for part in self.parts])

    @cached_property
    def layout(self) -> LoopTimes:
        """When its leaves run, of a segment with loops."""
        return lay_out(self.durations, self.loops)

    @property
    def executions(self) -> int:
        """How many steps are executed in the whole segment."""
        trips: list[int] = []
        for parent, loop in zip(self.layout.parents, self.loops, strict=True):
            trips.append(loop.trips * (trips[parent] if parent >= 0 else 1))
        return sum(trips[loop] if loop >= 0 else 1 for loop in self.layout.inside)


class LoopTimes(NamedTuple):
    """``starts`` of the leaves in the first trips; ``inside``: the innermost loop of each leaf (-1: none); ``parents``
    and ``periods`` of the loops, ``dur`` of the whole."""

    starts: tuple[int, ...]
    inside: tuple[int, ...]
    parents: tuple[int, ...]
    periods: tuple[int, ...]
    dur: int


def lay_out(durations: Sequence[int], loops: Sequence[LocalLoop]) -> LoopTimes:
    """Leaves of these durations one after the other, with loops around some of them.

    >>> lay_out((5, 2), (LocalLoop(0, 2, 3), LocalLoop(1, 2, 10)))
    LoopTimes(starts=(0, 5), inside=(0, 1), parents=(-1, 0), periods=(25, 2), dur=75)
    """
    starts: list[int] = []
    inside: list[int] = []
    parents, begins, periods = [-1] * len(loops), [0] * len(loops), [0] * len(loops)
    opened: list[int] = []
    time, following = 0, 0
    for leaf, duration in enumerate(durations):
        while following < len(loops) and loops[following].first == leaf:
            parents[following], begins[following] = opened[-1] if opened else -1, time
            opened.append(following)
            following += 1
        starts.append(time)
        inside.append(opened[-1] if opened else -1)
        time += duration
        while opened and loops[opened[-1]].stop == leaf + 1:
            loop = opened.pop()
            periods[loop] = time - begins[loop]
            time = begins[loop] + loops[loop].trips * periods[loop]
    return LoopTimes(tuple(starts), tuple(inside), tuple(parents), tuple(periods), time)


@dataclass(eq=False, slots=True)
class Stretch:
    """Segments (their numbers) one after the other; ``dur`` is the length of the whole, ``number`` its own among the
    stretches of a program."""

    number: int
    segments: tuple[int, ...]
    dur: int


@dataclass(frozen=True)
class Shared:
    """A step that touches something shared."""

    leaf: LeafStep


@dataclass(frozen=True)
class Enter:
    """Begin of a loop that is executed ``count`` (at least one) times; ``name`` is for messages."""

    count: int
    name: str = ""


@dataclass(frozen=True)
class Next:
    """End of a loop's body; ``begin`` is the index of its `Enter`. ``shared``: there is a shared step in it."""

    begin: int
    count: int
    shared: bool = True


Instruction = Stretch | Shared | Enter | Next


def count_copies(instructions: Sequence[Instruction], ipu: int) -> dict[tuple[str, str], int]:
    """How many slices of each (direction, stream) IPU ``ipu`` copies in one run of its instructions."""
    counts: dict[tuple[str, str], int] = {}
    factors = [1]
    for instruction in instructions:
        if isinstance(instruction, Enter):
            factors.append(factors[-1] * instruction.count)
        elif isinstance(instruction, Next):
            factors.pop()
        elif isinstance(instruction, Shared):
            for copy in instruction.leaf.step.host_slices(ipu):
                key = (copy.direction, copy.stream)
                counts[key] = counts.get(key, 0) + factors[-1]
    return counts


def count_instances(instructions: Sequence[Instruction]) -> int:
    """How many executions of segments one run of ``instructions`` adds to the trace, those of folded loops included."""
    count, factors = 0, [1]
    for instruction in instructions:
        if isinstance(instruction, Enter):
            factors.append(factors[-1] * instruction.count)
        elif isinstance(instruction, Next):
            factors.pop()
        else:
            count += factors[-1] * (len(instruction.segments) if isinstance(instruction, Stretch) else 1)
    return count


def longest_loop(instructions: Sequence[Instruction]) -> tuple[Enter, str] | None:
    """The loop with most trips and the first shared step inside it ("" for none); None where there is no loop."""
    begins = [index for index, instruction in enumerate(instructions) if isinstance(instruction, Enter)]
    if not begins:
        return None
    begin = max(begins, key=lambda index: instructions[index].count)  # type: ignore[union-attr]
    end = next(
        index
        for index, instruction in enumerate(instructions)
        if isinstance(instruction, Next) and instruction.begin == begin
    )
    shared = (instruction.leaf.step.name for instruction in instructions[begin:end] if isinstance(instruction, Shared))
    loop = instructions[begin]
    assert isinstance(loop, Enter)
    return loop, next(shared, "")


def require_countable(count: int, subject: str, unit: str = "cycles", most: int = MOST_CYCLES) -> int:
    """``count`` if int64 can hold it and its sums, :class:`SimulationError` otherwise."""
    if count >= most:
        raise SimulationError(
            f"{subject} takes {count:.4g} {unit}, more than can be counted (allowed: below {most:.4g})"
        )
    return count
