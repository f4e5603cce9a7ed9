"""Trees of steps become flat lists of instructions, which the IPU processes execute.

Local steps (`Phase`, `Sync`) up to the next shared step or loop boundary become one :class:`Stretch`: the trace
segments in it and their length. A segment is a straight run of local steps of one function body. A call begins a new
segment, so a body that is called twice gives the same segments twice. A loop without a shared step is one segment,
with the loops and calls inside it. It holds its leaves once and how often they are executed (:class:`LocalLoop`), so
that its trips cost nothing. Only loops that touch something shared remain loops; without folding all loops do.

An IPU with I/O tiles has two lists. The compute tiles (lane 0) and the I/O tiles (lane 1) each walk their own steps of
the tree, with the same loops around them. Both lists have the copies between the two sets, where the sets meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ipuperf.lowering.steps import Call, Collective, ControlStep, IoTiles, LocalStep, Repeat, Step
from ipuperf.lowering.steps import Sequence as StepSequence

from .control_programs import ControlPrograms, Leaves
from .errors import SimulationError
from .instructions import (
    Enter,
    Instruction,
    LeafStep,
    LocalLoop,
    Next,
    Segment,
    Shared,
    StepPart,
    Stretch,
    count_copies,
    require_countable,
)
from .kinds import StepKind, kind_of, local_kind

if TYPE_CHECKING:
    import numpy as np

    from ipuperf.lowering.program import DeviceProgram
    from ipuperf.machine import SlowIpu


@dataclass(frozen=True)
class _Block:
    """A local segment."""

    segment: int


@dataclass(frozen=True)
class _Loop:
    name: str
    count: int
    body: tuple[_Item, ...]


_Item = _Block | Shared | _Loop


class ProgramTree:
    """The control programs, leaves and segments of a device program, and the instructions of its IPUs.

    ``instructions`` has a list for each IPU, ``io_instructions`` one for its I/O tiles (empty where these do nothing).

    Args:
        program: the program; called functions are walked once.
        fold: whether local loops become segments. If not, they are walked trip by trip like loops with shared steps.
        tiles_per_ipu: the tiles of an IPU, to tell I/O tiles from others where some are slow.

    Raises:
        SimulationError: an unknown or recursive function, a negative count, or more trips or cycles than can be
        counted.
    """

    def __init__(self, program: DeviceProgram, *, fold: bool = True, tiles_per_ipu: int = 0) -> None:
        self.program = program
        self.tiles_per_ipu = tiles_per_ipu
        self._fold = fold
        self.programs = ControlPrograms()
        self.leaves = Leaves()
        self.segments: list[Segment] = []
        self.lengths: list[int] = []  # cycles of each segment
        self._kinds: dict[type[Step], type[StepKind[Any]]] = {}
        self._local: dict[int, tuple[int, tuple[str, ...]]] = {}  # by identity of the step, which the program keeps
        self._segment_ids: dict[tuple[object, ...], int] = {}
        self._stretches: dict[tuple[int, ...], Stretch] = {}
        self._slowed: dict[tuple[int, int, tuple[SlowIpu, ...]], tuple[Instruction, ...]] = {}
        self._functions: dict[tuple[str, int], tuple[_Item, ...]] = {}
        self._outside: dict[tuple[str, int], int] = {}
        self._io: dict[str, bool] = {}  # functions in which the I/O tiles take part
        self.lane = 0
        self._open: list[str] = []
        self.alike_ahead: dict[tuple[int, int, int], Sequence[LeafStep]] = {}  # by IPU, lane and instruction
        self._callers = _callers(program)
        self._ipu = -1
        self.instructions: list[tuple[Instruction, ...]] = []
        self.io_instructions: list[tuple[Instruction, ...]] = []
        for ipu, sequence in enumerate(program.ipus):
            self._ipu, self.lane = ipu, 0
            self.instructions.append(self._list(sequence, sequence.name))
            self.lane = 1
            takes_part = program.io_tiles and self.on_io_tiles(sequence)
            self.io_instructions.append(self._list(sequence, f"{sequence.name} (I/O tiles)") if takes_part else ())

    @property
    def kinds(self) -> set[type[StepKind[Any]]]:
        """The kinds of the leaves."""
        return set(self._kinds.values())

    @cached_property
    def copies(self) -> list[dict[tuple[str, str], int]]:
        """How many slices of each (direction, stream) each of :meth:`lists` copies in one run."""
        return [count_copies(instructions, ipu) for ipu, instructions in self.lists()]

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups of replicas in all collectives."""
        steps = self.leaves.steps
        return tuple(dict.fromkeys(group for step in steps if isinstance(step, Collective) for group in step.groups))

    def lists(self) -> Iterator[tuple[int, tuple[Instruction, ...]]]:
        """The IPU and the instructions of each lane of each IPU."""
        for ipu, pair in enumerate(zip(self.instructions, self.io_instructions, strict=True)):
            for instructions in pair:
                yield ipu, instructions

    def _list(self, sequence: StepSequence, name: str) -> tuple[Instruction, ...]:
        root = self._node(-1, "Sequence", name, sequence.op_id)
        flat: list[Instruction] = []
        self._flatten(self._body(sequence, root), flat)
        return tuple(flat)

    def on_io_tiles(self, step: Step) -> bool:
        """Whether the I/O tiles take part in a step or in a step inside it."""
        if step.io_tiles:
            return True
        if not isinstance(step, ControlStep):
            return False
        if not isinstance(step, Call):
            return any(map(self.on_io_tiles, step.inside))
        if step.function not in self._io:
            self._io[step.function] = False  # a function that calls itself is refused when it is walked
            body = self.program.functions.get(step.function)
            self._io[step.function] = body is not None and self.on_io_tiles(body)
        return self._io[step.function]

    def in_lane(self, step: Step, *, inside: bool) -> bool:
        """Whether a step belongs to the present lane; ``inside``: it stands inside an :class:`IoTiles`."""
        if self.lane == 0:
            return not isinstance(step, IoTiles)
        return inside or self.on_io_tiles(step)

    # -- segments ----------------------------------------------------------------------------------------------------

    def local_segment(
        self, leaves: Sequence[int], durations: tuple[int, ...], loops: tuple[LocalLoop, ...] = ()
    ) -> int:
        """The id of the segment of these local leaves with these durations."""
        return self._intern(leaves, (), durations, loops)

    def slowed(self, index: int, lane: int, faults: tuple[SlowIpu, ...]) -> tuple[Instruction, ...]:
        """The instructions of an IPU of a replica, or of its I/O tiles, on an IPU of the machine with these faults."""
        instructions = (self.io_instructions if lane else self.instructions)[index]
        key = (index, lane, faults)
        if faults and key not in self._slowed:
            durations: dict[int, int] = {}
            self._slowed[key] = tuple(
                self.stretch_of(tuple([self._slowed_segment(number, faults, durations) for number in part.segments]))
                if isinstance(part, Stretch)
                else part
                for part in instructions
            )
        return self._slowed[key] if faults else instructions

    def _slowed_segment(self, number: int, faults: tuple[SlowIpu, ...], durations: dict[int, int]) -> int:
        """The segment of the same leaves on a slow IPU; ``durations`` are those known already, by leaf."""
        segment = self.segments[number]
        for leaf in segment.leaves:
            if leaf not in durations:
                durations[leaf] = int(self.slow_tiles(leaf, faults).max())
        return self.local_segment(segment.leaves, tuple([durations[leaf] for leaf in segment.leaves]), segment.loops)

    def slow_tiles(self, leaf: int, faults: tuple[SlowIpu, ...], tiles: int = 0) -> np.ndarray:
        """Cycles of the tiles in a local leaf, on a slow IPU; ``tiles``: how many there are (0: those of the step)."""
        step, program = self.leaves.steps[leaf], self.program
        assert isinstance(step, LocalStep)
        first_tile = self.tiles_per_ipu - program.io_tiles if self.leaves.lanes[leaf] else 0
        return local_kind(step).slowed(step, tiles or step.tiles, faults, first_tile)

    def shared_segment(self, leaf: LeafStep, parts: tuple[StepPart, ...]) -> int:
        """The id of the segment of a shared step that consisted of these parts."""
        return self._intern((leaf.leaf_id,), parts, ())

    def waiting_segment(self, kind: str, dur: int, program: int = -1) -> int:
        """The id of the segment in which an IPU waits for ``dur`` cycles outside of any step.

        ``program`` is a control program of :meth:`program_outside`, or -1 for none.
        """
        return self._intern((), (StepPart(kind, program, dur),), ())

    def program_outside(self, name: str, ipu: int) -> int:
        """The number of a control program of the engine that contains no step of the main program."""
        key = (name, ipu)
        if key not in self._outside:
            self._ipu = ipu
            self._outside[key] = self._node(-1, "Sequence", name, -1)
        return self._outside[key]

    def stretch_of(self, segments: tuple[int, ...]) -> Stretch:
        """The stretch of these segments one after the other. The same segments give the same object."""
        stretch = self._stretches.get(segments)
        if stretch is None:
            lengths = self.lengths
            dur = require_countable(sum([lengths[segment] for segment in segments]), "a stretch of local steps")
            stretch = self._stretches[segments] = Stretch(len(self._stretches), segments, dur)
        return stretch

    @property
    def stretches(self) -> list[Stretch]:
        """All stretches, by number."""
        return list(self._stretches.values())

    def _intern(
        self,
        leaves: Sequence[int],
        parts: tuple[StepPart, ...],
        durations: tuple[int, ...],
        loops: tuple[LocalLoop, ...] = (),
    ) -> int:
        key, number = (leaves, parts, durations, loops), len(self.segments)
        known = self._segment_ids.setdefault(key, number)
        if known == number:
            segment = Segment(number, leaves, parts, durations, loops)
            self.segments.append(segment)
            self.lengths.append(segment.dur)
        return known

    # -- control programs --------------------------------------------------------------------------------------------

    def _node(self, parent: int, kind: str, name: str, op_id: int) -> int:
        return self.programs.add(parent, kind, name, op_id, self._ipu)

    def _kind(self, step: Step) -> type[StepKind[Any]]:
        kind = self._kinds.get(type(step))
        if kind is None:
            kind = self._kinds[type(step)] = kind_of(step)
        return kind

    def _leaf(self, step: Step, parent: int) -> LeafStep:
        number = self.leaves.add(step, len(self.programs), self.lane)
        for name in self._kind(step).programs(step):
            self._node(parent, name, step.name, step.op_id)
        return self.leaves[number]

    # -- items -------------------------------------------------------------------------------------------------------

    def _body(self, sequence: StepSequence, node: int) -> tuple[_Item, ...]:
        """The items of a body. Local steps are collected up to the next call, loop or shared step."""
        items: list[_Item] = []
        durations: list[int] = []
        # Nearly all steps are local, and many of them are one object: its facts are asked for once.
        known, programs, ipu, lane = self._local, self.programs, self._ipu, self.lane
        add_leaf, add_program, number_of_programs = self.leaves.add, programs.add, programs.types.__len__
        for step, parent in _unnest(self, sequence, node):
            facts = known.get(id(step))
            if facts is None and isinstance(step, LocalStep):
                facts = known[id(step)] = step.duration, self._kind(step).programs(step)
            if facts is not None:
                durations.append(facts[0])
                add_leaf(step, number_of_programs(), lane)
                for name in facts[1]:
                    add_program(parent, name, step.name, step.op_id, ipu)
            else:
                self._close(durations, items)
                items += self._control_items(step, parent)
        self._close(durations, items)
        return tuple(items)

    def _close(self, durations: list[int], items: list[_Item]) -> None:
        """End a block: its leaves are the last ones, as many as there are durations."""
        if durations:
            stop = len(self.leaves)
            items.append(_Block(self.local_segment(range(stop - len(durations), stop), tuple(durations))))
            durations.clear()

    def _control_items(self, step: Step, parent: int) -> list[_Item]:
        if isinstance(step, Call):
            self._node(parent, "Call", step.function, step.op_id)
            return list(self._function(step))
        if isinstance(step, Repeat):
            body = self._body(step.body, self._node(parent, "Repeat", step.name, step.op_id))
            return self._repeat(step, body)
        return [Shared(self._leaf(step, parent))]

    def _repeat(self, step: Repeat, body: tuple[_Item, ...]) -> list[_Item]:
        """The items of a loop: a single segment when everything in it is local."""
        if step.count < 0:
            raise SimulationError(f"Repeat {step.name!r} has count {step.count}, it must be 0 or more")
        if step.count == 0 or not body:
            return []
        blocks = [self.segments[part.segment] for part in body if isinstance(part, _Block)]
        if len(blocks) < len(body) or not self._fold:
            return [_Loop(step.name, step.count, body)]
        leaves: list[int] = []
        durations: list[int] = []
        loops = [LocalLoop(0, sum(len(block.leaves) for block in blocks), step.count)]
        for block in blocks:
            loops += [LocalLoop(len(leaves) + start, len(leaves) + stop, count) for start, stop, count in block.loops]
            leaves += block.leaves
            durations += block.durations
        segment = self.local_segment(tuple(leaves), tuple(durations), tuple(loops))
        name = f"Repeat {step.name!r} of {step.count:,} trips"
        # The trips cost nothing here, so only this check notices loops that are too long.
        require_countable(self.lengths[segment], name)
        require_countable(self.segments[segment].executions, name, "executions of steps")
        return [_Block(segment)]

    def _function(self, call: Call) -> tuple[_Item, ...]:
        name = call.function
        if name in self._open:
            raise SimulationError(f"function {name!r} calls itself: {' -> '.join([*self._open, name])}")
        # The same function has other steps on the I/O tiles.
        key = (name, self.lane)
        if key not in self._functions:
            if name not in self.program.functions:
                known = ", ".join(self.program.functions) or "none"
                raise SimulationError(f"step {call.name!r} calls {name!r}, the functions of the program are: {known}")
            self._open.append(name)
            ipu = self._ipu
            # A function that several IPUs call is walked once, so its control programs belong to no single IPU.
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
        # The None at the end closes the stretch of the last blocks.
        blocks: list[int] = []
        for part in [*items, None]:
            if isinstance(part, _Block):
                blocks.append(part.segment)
                continue
            if blocks:
                flat.append(self.stretch_of(tuple(blocks)))
                blocks = []
            if isinstance(part, Shared):
                flat.append(part)
            elif isinstance(part, _Loop):
                begin = len(flat)
                flat.append(Enter(part.count, part.name))
                self._flatten(part.body, flat)
                flat.append(
                    Next(begin, part.count, any(isinstance(instruction, Shared) for instruction in flat[begin:]))
                )


def _unnest(
    tree: ProgramTree, sequence: StepSequence, node: int, *, inside: bool = False
) -> Iterator[tuple[Step, int]]:
    """The steps of a sequence that belong to the present lane, and the node of each; inner sequences are new nodes."""
    lane = tree.lane
    for step in sequence.steps:
        # Nearly all steps are such leaves, so they come first and need no further test.
        if lane == 0 and not isinstance(step, ControlStep):
            yield step, node
            continue
        if not tree.in_lane(step, inside=inside):
            continue
        if isinstance(step, IoTiles):
            yield from _unnest(tree, step, node, inside=True)
        elif isinstance(step, StepSequence):
            yield from _unnest(tree, step, tree._node(node, "Sequence", step.name, step.op_id))
        else:
            yield step, node


def _callers(program: DeviceProgram) -> dict[str, set[int]]:
    """The IPUs on which each function is called, directly or through other functions."""
    callers: dict[str, set[int]] = {}
    waiting: list[tuple[int, ControlStep]] = list(enumerate(program.ipus))
    while waiting:
        ipu, step = waiting.pop()
        waiting += [(ipu, child) for child in step.inside if isinstance(child, ControlStep)]
        if isinstance(step, Call) and ipu not in callers.setdefault(step.function, set()):
            callers[step.function].add(ipu)
            if step.function in program.functions:
                waiting.append((ipu, program.functions[step.function]))
    return callers
