"""Plain values: the instructions of an IPU process, and the segments of the trace of which they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from .errors import SimulationError

if TYPE_CHECKING:
    from ipuperf.lowering.steps import Step

MOST_INSTANCES = 20_000_000
"""Largest number of executions in a trace; each takes a few hundred bytes while a run is simulated."""

MOST_CYCLES = 2**62
"""Cycles and executions of steps are below this, over all IPUs together, so that int64 holds them and their sums."""


class LeafStep(NamedTuple):
    """A leaf of the program tree: a step and the id of its first control program.

    Where host and IPU copy there are three control programs, with ids one after the other. ``lane`` 1 is the lane of
    the I/O tiles.
    """

    leaf_id: int
    step: Step
    program: int
    lane: int = 0


class StepPart(NamedTuple):
    """A part of a segment: its ``kind`` in the trace, the index of its control program in the leaf, cycles, bytes."""

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
    """A template of the trace.

    Attributes:
        segment_id: its number.
        leaves: its leaves in order; those of a straight run of local steps are a range.
        parts: the parts of a shared step (a single leaf), as the simulation measured them.
        durations: the cycles of local steps, one for each leaf.
        loops: its loops, outer ones first. Two loops are nested or do not overlap.
    """

    segment_id: int
    leaves: Sequence[int]
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
        """The times of the leaves of a segment with loops."""
        return lay_out(self.durations, self.loops)

    @property
    def executions(self) -> int:
        """How many steps a segment with loops executes."""
        trips: list[int] = []
        for parent, loop in zip(self.layout.parents, self.loops, strict=True):
            trips.append(loop.trips * (trips[parent] if parent >= 0 else 1))
        return sum(trips[loop] if loop >= 0 else 1 for loop in self.layout.inside)


class LoopTimes(NamedTuple):
    """The times of a segment with loops.

    Attributes:
        starts: the start of each leaf in the first trips.
        inside: the innermost loop of each leaf (-1: none).
        parents: the loop around each loop (-1: none).
        periods: cycles of a trip of each loop.
        dur: cycles of the whole segment.
    """

    starts: tuple[int, ...]
    inside: tuple[int, ...]
    parents: tuple[int, ...]
    periods: tuple[int, ...]
    dur: int


def lay_out(durations: Sequence[int], loops: Sequence[LocalLoop]) -> LoopTimes:
    """The times of leaves with these durations, one after the other, with loops around some of them.

    >>> lay_out((5, 2), (LocalLoop(0, 2, 3), LocalLoop(1, 2, 10)))
    LoopTimes(starts=(0, 5), inside=(0, 1), parents=(-1, 0), periods=(25, 2), dur=75)
    """
    starts: list[int] = []
    inside: list[int] = []
    parents, begins, periods = [-1] * len(loops), [0] * len(loops), [0] * len(loops)
    opened: list[int] = []
    time, following = 0, 0
    for leaf, duration in enumerate(durations):
        # Loops are listed outer ones first, so those that begin here open in that order.
        while following < len(loops) and loops[following].first == leaf:
            parents[following], begins[following] = opened[-1] if opened else -1, time
            opened.append(following)
            following += 1
        # Only the first trip of a loop is laid out; when it ends, the time jumps over the other trips.
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
    """Segments (by number) one after the other.

    ``dur`` is the cycles of all of them; ``number`` identifies the stretch in its program.
    """

    number: int
    segments: tuple[int, ...]
    dur: int


@dataclass(frozen=True, slots=True)
class Shared:
    """A step that touches something shared."""

    leaf: LeafStep


@dataclass(frozen=True, slots=True)
class Enter:
    """Begin of a loop that is executed ``count`` (at least one) times; ``name`` is for messages."""

    count: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Next:
    """End of a loop's body. ``begin`` is the index of its `Enter`; ``shared`` says whether it has a shared step."""

    begin: int
    count: int
    shared: bool = True


Instruction = Stretch | Shared | Enter | Next


def count_copies(instructions: Sequence[Instruction], ipu: int) -> dict[tuple[str, str], int]:
    """How many slices of each (direction, stream) IPU ``ipu`` copies in one run of its instructions."""
    counts: dict[tuple[str, str], int] = {}
    for instruction, executions in _counted(instructions):
        if isinstance(instruction, Shared):
            for copy in instruction.leaf.step.host_slices(ipu):
                key = (copy.direction, copy.stream)
                counts[key] = counts.get(key, 0) + executions
    return counts


def count_instances(instructions: Sequence[Instruction]) -> int:
    """How many executions of segments one run of ``instructions`` makes, including those of folded trips."""
    return sum(
        executions * (len(instruction.segments) if isinstance(instruction, Stretch) else 1)
        for instruction, executions in _counted(instructions)
    )


def _counted(instructions: Sequence[Instruction]) -> Iterator[tuple[Stretch | Shared, int]]:
    """Each stretch and shared step, and how often it is executed."""
    executions = [1]
    for instruction in instructions:
        if isinstance(instruction, Enter):
            executions.append(executions[-1] * instruction.count)
        elif isinstance(instruction, Next):
            executions.pop()
        else:
            yield instruction, executions[-1]


def longest_loop(instructions: Sequence[Instruction]) -> tuple[Enter, str] | None:
    """The loop with the most trips, and the first shared step inside it ("" for none). None if there is no loop."""
    loops = {index: instruction for index, instruction in enumerate(instructions) if isinstance(instruction, Enter)}
    if not loops:
        return None
    begin = max(loops, key=lambda index: loops[index].count)
    end = next(
        index
        for index, instruction in enumerate(instructions)
        if isinstance(instruction, Next) and instruction.begin == begin
    )
    shared = (instruction.leaf.step.name for instruction in instructions[begin:end] if isinstance(instruction, Shared))
    return loops[begin], next(shared, "")


def require_countable(count: int, subject: str, unit: str = "cycles", most: int = MOST_CYCLES) -> int:
    """``count`` if int64 can hold it and its sums, :class:`SimulationError` otherwise."""
    if count >= most:
        raise SimulationError(
            f"{subject} takes {count:.4g} {unit}, more than can be counted (allowed: below {most:.4g})"
        )
    return count
