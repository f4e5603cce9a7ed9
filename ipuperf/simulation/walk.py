"""From trees of steps to what an IPU process executes: a flat list of instructions.

A stretch of local steps (`Phase`, `Sync`) up to the next shared step or loop boundary becomes one :class:`Stretch`: the
trace segments in it and when each of them starts. A segment is a straight run of local steps of one function body;
calls begin a new one, so a body that is called twice gives the same segments twice. A loop without a shared step, with
the loops and calls inside it, is one segment: its leaves once, and how often they come again (:class:`LocalLoop`), so
that its trips cost nothing. Only loops that touch something shared remain loops (all do where nothing is folded).

An IPU with I/O tiles has two lists: the compute tiles (lane 0) and the I/O tiles (lane 1) each walk their own steps of
the tree, with the same loops around them, and both have the copies between the two sets, where they meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipuperf.lowering.program import (
    Call,
    Collective,
    HostCopy,
    HostExchange,
    InterIpuCopy,
    IoTiles,
    Phase,
    RemoteTransfer,
    Repeat,
    Step,
    StreamCopy,
    Sync,
    TileSetCopy,
)
from ipuperf.lowering.program import Sequence as StepSequence

from .errors import SimulationError

if TYPE_CHECKING:
    from ipuperf.lowering.program import DeviceProgram

_TYPES: dict[type[Step], tuple[str, ...]] = {
    Sync: ("Sync",),
    Collective: ("GlobalExchange",),
    InterIpuCopy: ("GlobalExchange",),
    RemoteTransfer: ("StreamCopyMid",),
    StreamCopy: ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd"),
    TileSetCopy: ("DoExchange",),
    HostExchange: ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd"),
}
"""Type of the control programs of a leaf step, as libpva calls them."""


ProgramRow = tuple[int, str, str, int, int]
"""A control program: parent, type, name, op id, IPU."""


class Leaf(NamedTuple):
    """A leaf of the program tree: the step and the ids of its control programs (three where host and IPU copy);
    ``lane`` 1 is that of the I/O tiles."""

    leaf_id: int
    step: Step
    programs: tuple[int, ...]
    lane: int = 0


class Part(NamedTuple):
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


@dataclass(frozen=True)
class Segment:
    """A template of the trace: ``leaves`` in order. ``parts`` is set for a shared step (one leaf, measured parts), and
    ``durations`` for local steps (one for each leaf). ``loops`` lie within each other or apart, outer ones first."""

    segment_id: int
    leaves: tuple[int, ...]
    parts: tuple[Part, ...] = ()
    durations: tuple[int, ...] = ()
    loops: tuple[LocalLoop, ...] = ()

    @property
    def dur(self) -> int:
        """Cycles of the whole segment."""
        if self.loops:
            return self.layout.dur
        return sum(self.durations) + sum(part.dur for part in self.parts)

    @cached_property
    def layout(self) -> Layout:
        """When its leaves run, of a segment with loops."""
        return lay_out(self.durations, self.loops)

    @property
    def executions(self) -> int:
        """How many steps are executed in the whole segment."""
        trips: list[int] = []
        for parent, loop in zip(self.layout.parents, self.loops, strict=True):
            trips.append(loop.trips * (trips[parent] if parent >= 0 else 1))
        return sum(trips[loop] if loop >= 0 else 1 for loop in self.layout.inside)


class Layout(NamedTuple):
    """``starts`` of the leaves in the first trips; ``inside``: the innermost loop of each leaf (-1: none); ``parents``
    and ``periods`` of the loops, ``dur`` of the whole."""

    starts: tuple[int, ...]
    inside: tuple[int, ...]
    parents: tuple[int, ...]
    periods: tuple[int, ...]
    dur: int


def lay_out(durations: Sequence[int], loops: Sequence[LocalLoop]) -> Layout:
    """Leaves of these durations one after the other, with loops around some of them.

    >>> lay_out((5, 2), (LocalLoop(0, 2, 3), LocalLoop(1, 2, 10)))
    Layout(starts=(0, 5), inside=(0, 1), parents=(-1, 0), periods=(25, 2), dur=75)
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
    return Layout(tuple(starts), tuple(inside), tuple(parents), tuple(periods), time)


@dataclass(frozen=True)
class Stretch:
    """Segments one after the other, in columns: number, start relative to the stretch, cycles; ``dur`` is the length of
    the whole."""

    segment: np.ndarray
    start: np.ndarray
    length: np.ndarray
    dur: int


@dataclass(frozen=True)
class Shared:
    """A step that touches something shared."""

    leaf: Leaf


@dataclass(frozen=True)
class Enter:
    """Begin of a loop that is executed ``count`` (at least one) times."""

    count: int


@dataclass(frozen=True)
class Next:
    """End of a loop's body; ``begin`` is the index of its `Enter`."""

    begin: int
    count: int


Instruction = Stretch | Shared | Enter | Next


@dataclass(frozen=True)
class _Block:
    """A local segment."""

    segment: int


@dataclass(frozen=True)
class _Loop:
    count: int
    body: tuple[_Item, ...]


_Item = _Block | Shared | _Loop


_START = np.array([0])

MOST_CYCLES = 2**62
"""Cycles and executions of steps are below this, over all IPUs together, so that int64 holds them and their sums."""


class ProgramTree:
    """The control programs of a device program, its leaves and segments, and the instructions of each IPU
    (``instructions``) and of its I/O tiles (``io_instructions``, empty where they have nothing to do).

    Args:
        program: what to walk; called functions are walked once.
        fold: local loops become segments; otherwise they are walked trip by trip as those with shared steps.

    Raises:
        SimulationError: an unknown or recursive function, a negative count, or more trips or cycles than can be
        counted.
    """

    def __init__(self, program: DeviceProgram, *, fold: bool = True) -> None:
        self.program = program
        self._fold = fold
        self.rows: list[ProgramRow] = []
        self.leaves: list[Leaf] = []
        self.segments: list[Segment] = []
        self._lengths: list[int] = []  # cycles of each segment
        self._segment_ids: dict[tuple[object, ...], int] = {}
        self._stretches: dict[tuple[int, ...], Stretch] = {}
        self._single: dict[int, Stretch] = {}
        self._functions: dict[tuple[str, int], tuple[_Item, ...]] = {}
        self._io: dict[str, bool] = {}  # functions in which the I/O tiles take part
        self._lane = 0
        self._open: list[str] = []
        self._callers = _callers(program)
        self._ipu = -1
        self.instructions: list[tuple[Instruction, ...]] = []
        self.io_instructions: list[tuple[Instruction, ...]] = []
        for ipu, sequence in enumerate(program.ipus):
            self._ipu, self._lane = ipu, 0
            self.instructions.append(self._list(sequence, sequence.name))
            self._lane = 1
            takes_part = program.io_tiles and self.on_io_tiles(sequence)
            self.io_instructions.append(self._list(sequence, f"{sequence.name} (I/O tiles)") if takes_part else ())

    def lists(self) -> Iterator[tuple[int, tuple[Instruction, ...]]]:
        """IPU and instructions of every lane of every IPU."""
        for ipu, pair in enumerate(zip(self.instructions, self.io_instructions, strict=True)):
            for instructions in pair:
                yield ipu, instructions

    def _list(self, sequence: StepSequence, name: str) -> tuple[Instruction, ...]:
        root = self._node(-1, "Sequence", name, sequence.op_id)
        flat: list[Instruction] = []
        self._flatten(self._body(sequence, root), flat)
        return tuple(flat)

    def on_io_tiles(self, step: Step) -> bool:
        """Whether the I/O tiles take part in a step or in one inside it."""
        if isinstance(step, (IoTiles, TileSetCopy)):
            return True
        if isinstance(step, StepSequence):
            return any(self.on_io_tiles(inner) for inner in step.steps)
        if isinstance(step, Repeat):
            return self.on_io_tiles(step.body)
        if not isinstance(step, Call):
            return False
        if step.function not in self._io:
            self._io[step.function] = False  # a function that calls itself is refused when it is walked
            body = self.program.functions.get(step.function)
            self._io[step.function] = body is not None and self.on_io_tiles(body)
        return self._io[step.function]

    def in_lane(self, step: Step, *, inside: bool) -> bool:
        """Whether a step, which stands inside an :class:`IoTiles` or not, is one of the present lane."""
        if self._lane == 0:
            return not isinstance(step, IoTiles)
        return inside or self.on_io_tiles(step)

    # -- segments ----------------------------------------------------------------------------------------------------

    def local_segment(
        self, leaves: tuple[int, ...], durations: tuple[int, ...] | None = None, loops: tuple[LocalLoop, ...] = ()
    ) -> int:
        """Id of the segment of these local leaves; with their own durations unless others were measured."""
        if durations is None:
            durations = tuple([local_cycles(self.leaves[leaf].step) for leaf in leaves])
        return self._intern(leaves, (), durations, loops)

    def shared_segment(self, leaf: Leaf, parts: tuple[Part, ...]) -> int:
        """Id of the segment of a shared step that took these parts."""
        return self._intern((leaf.leaf_id,), parts, ())

    def waiting_segment(self, kind: str, dur: int) -> int:
        """Id of the segment in which an IPU waits for ``dur`` cycles outside of any step."""
        return self._intern((), (Part(kind, -1, dur),), ())

    def stretch_of(self, segments: tuple[int, ...]) -> Stretch:
        """These segments one after the other (the same object for the same segments)."""
        if segments not in self._stretches:
            dur = require_countable(sum(self._lengths[s] for s in segments), "a stretch of local steps")
            length = np.array([self._lengths[s] for s in segments], dtype=np.int64)
            self._stretches[segments] = Stretch(np.array(segments), np.cumsum(length) - length, length, dur)
        return self._stretches[segments]

    def stretch_of_one(self, segment: int) -> Stretch:
        """One segment alone."""
        found = self._single.get(segment)
        if found is None:
            dur = self._lengths[segment]
            found = self._single[segment] = Stretch(np.array([segment]), _START, np.array([dur]), dur)
        return found

    def _intern(
        self,
        leaves: tuple[int, ...],
        parts: tuple[Part, ...],
        durations: tuple[int, ...],
        loops: tuple[LocalLoop, ...] = (),
    ) -> int:
        key = (leaves, parts, durations, loops)
        if key not in self._segment_ids:
            self._segment_ids[key] = len(self.segments)
            self.segments.append(Segment(len(self.segments), leaves, parts, durations, loops))
            self._lengths.append(self.segments[-1].dur)
        return self._segment_ids[key]

    # -- control programs --------------------------------------------------------------------------------------------

    def _node(self, parent: int, kind: str, name: str, op_id: int) -> int:
        self.rows.append((parent, kind, name, op_id, self._ipu))
        return len(self.rows) - 1

    def _leaf(self, step: Step, parent: int) -> Leaf:
        if isinstance(step, Phase):
            kind = "OnTileExecute" if step.kind == "compute" else "DoExchange"
            ids: tuple[int, ...] = (self._node(parent, kind, step.name, step.op_id),)
        else:
            ids = tuple([self._node(parent, kind, step.name, step.op_id) for kind in _TYPES[type(step)]])
        leaf = Leaf(len(self.leaves), step, ids, self._lane)
        self.leaves.append(leaf)
        return leaf

    # -- items -------------------------------------------------------------------------------------------------------

    def _body(self, sequence: StepSequence, node: int) -> tuple[_Item, ...]:
        """The items of a body; its local steps are gathered up to the next call, loop or shared step."""
        items: list[_Item] = []
        local: list[int] = []
        for step, parent in _unnest(self, sequence, node):
            if isinstance(step, (Phase, Sync)):
                local.append(self._leaf(step, parent).leaf_id)
            else:
                self._close(local, items)
                items += self._other(step, parent)
        self._close(local, items)
        return tuple(items)

    def _close(self, local: list[int], items: list[_Item]) -> None:
        if local:
            items.append(_Block(self.local_segment(tuple(local))))
            local.clear()

    def _other(self, step: Step, parent: int) -> list[_Item]:
        if isinstance(step, Call):
            self._node(parent, "Call", step.function, step.op_id)
            return list(self._function(step))
        if isinstance(step, Repeat):
            body = self._body(step.body, self._node(parent, "Repeat", step.name, step.op_id))
            return self._repeat(step, body)
        return [Shared(self._leaf(step, parent))]

    def _repeat(self, step: Repeat, body: tuple[_Item, ...]) -> list[_Item]:
        """A loop; one segment when everything in it is local."""
        if step.count < 0:
            raise SimulationError(f"Repeat {step.name!r} has count {step.count}, it must be 0 or more")
        if step.count == 0 or not body:
            return []
        blocks = [self.segments[item.segment] for item in body if isinstance(item, _Block)]
        if len(blocks) < len(body) or not self._fold:
            return [_Loop(step.count, body)]
        leaves: list[int] = []
        durations: list[int] = []
        loops = [LocalLoop(0, sum(len(block.leaves) for block in blocks), step.count)]
        for block in blocks:
            loops += [LocalLoop(len(leaves) + a, len(leaves) + b, count) for a, b, count in block.loops]
            leaves += block.leaves
            durations += block.durations
        segment = self.local_segment(tuple(leaves), tuple(durations), tuple(loops))
        name = f"Repeat {step.name!r} of {step.count:,} trips"
        require_countable(self._lengths[segment], name)
        require_countable(self.segments[segment].executions, name, "executions of steps")
        return [_Block(segment)]

    def _function(self, call: Call) -> tuple[_Item, ...]:
        name = call.function
        if name in self._open:
            raise SimulationError(f"function {name!r} calls itself: {' -> '.join([*self._open, name])}")
        key = (name, self._lane)
        if key not in self._functions:
            if name not in self.program.functions:
                known = ", ".join(self.program.functions) or "none"
                raise SimulationError(f"step {call.name!r} calls {name!r}, the functions of the program are: {known}")
            self._open.append(name)
            ipu = self._ipu
            self._ipu = ipu if len(self._callers.get(name, ())) == 1 else -1
            sequence = self.program.functions[name]
            root = self._node(-1, "Sequence", name, sequence.op_id)
            self._functions[key] = self._body(sequence, root)
            self._ipu = ipu
            self._open.pop()
        return self._functions[key]

    # -- instructions ------------------------------------------------------------------------------------------------

    def _flatten(self, items: Sequence[_Item], flat: list[Instruction]) -> None:
        """Append the instructions of ``items``; neighbouring blocks become one stretch."""
        blocks: list[int] = []
        for item in [*items, None]:
            if isinstance(item, _Block):
                blocks.append(item.segment)
                continue
            if blocks:
                flat.append(self.stretch_of(tuple(blocks)))
                blocks = []
            if isinstance(item, Shared):
                flat.append(item)
            elif isinstance(item, _Loop):
                begin = len(flat)
                flat.append(Enter(item.count))
                self._flatten(item.body, flat)
                flat.append(Next(begin, item.count))


def local_cycles(step: Step) -> int:
    """Cycles of a local step: those of its slowest tile, or of the sync."""
    if isinstance(step, Phase):
        return step.cycles.max
    assert isinstance(step, Sync)
    return step.cycles


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
            for copy in _copies(instruction.leaf.step, ipu):
                key = (copy.direction, copy.stream)
                counts[key] = counts.get(key, 0) + factors[-1]
    return counts


def _copies(step: Step, ipu: int) -> tuple[StreamCopy | HostCopy, ...]:
    """Host copies that IPU ``ipu`` makes in a step."""
    if isinstance(step, HostExchange):
        return step.of(ipu)
    return (step,) if isinstance(step, StreamCopy) else ()


def require_countable(count: int, what: str, unit: str = "cycles", most: int = MOST_CYCLES) -> int:
    """``count`` if int64 can hold it and its sums, :class:`SimulationError` otherwise."""
    if count >= most:
        raise SimulationError(f"{what} takes {count:.4g} {unit}, more than can be counted (allowed: below {most:.4g})")
    return count


def _unnest(
    tree: ProgramTree, sequence: StepSequence, node: int, *, inside: bool = False
) -> Iterator[tuple[Step, int]]:
    """The steps of a sequence that are of the present lane, with the node they stand under; sequences inside it become
    nodes of their own."""
    for step in sequence.steps:
        if not tree.in_lane(step, inside=inside):
            continue
        if isinstance(step, IoTiles):
            yield from _unnest(tree, step, node, inside=True)
        elif isinstance(step, StepSequence):
            yield from _unnest(tree, step, tree._node(node, "Sequence", step.name, step.op_id))
        else:
            yield step, node


def _callers(program: DeviceProgram) -> dict[str, set[int]]:
    """IPUs on which each function is called, directly or through other functions."""
    found: dict[str, set[int]] = {}

    def visit(step: Step, ipu: int) -> None:
        if isinstance(step, StepSequence):
            for inner in step.steps:
                visit(inner, ipu)
        elif isinstance(step, Repeat):
            visit(step.body, ipu)
        elif isinstance(step, Call) and ipu not in found.setdefault(step.function, set()):
            found[step.function].add(ipu)
            if step.function in program.functions:
                visit(program.functions[step.function], ipu)

    for ipu, sequence in enumerate(program.ipus):
        visit(sequence, ipu)
    return found
