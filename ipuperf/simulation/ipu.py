"""One IPU: a process that walks its instructions and yields only where something shared is touched.

Local stretches are laid out ahead of time and cost no event, however many segments, calls and loop iterations they
span: the IPU says at once when it will arrive at the next shared step (:mod:`.party`). What happens in a shared step
says its kind (:mod:`.kinds`), part by part: waiting for others, latency and transfer, work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from .event_loop import Waiting
from .instructions import Instruction, Next, Segment, Shared, StepPart, Stretch
from .kinds import SharedKind, local_kind
from .party import PartsTrail, Party
from .progress import LoopCounters

if TYPE_CHECKING:
    from ipuperf.lowering.steps import Step

    from .tiles import Tiles
    from .walk import ProgramTree
    from .world import World


class _Prepared:
    """A shared step: what to call, the streams that it copies in, and the parts that it can have."""

    __slots__ = ("loads", "run", "trail")

    def __init__(self, run: Callable[[], Waiting | None], loads: list[int]) -> None:
        self.run = run
        self.loads = loads
        self.trail = PartsTrail()


class IpuProcess(Party):
    """A party that walks its list of instructions in ``tree``.

    Args:
        kinds: what it does in a shared step, by class of the step.
        tiles: the tiles one by one, or None.

    Attributes:
        pc: index of the present instruction.
        loops: the open loops.
        ahead: what was laid out since it last caught up: instruction (``-1 - pc``: a loop was left there), time, and
            the parts of a shared step.
        inside: in a shared step.
        serial: shared steps begun.
        finish: when it was through, -1 before.
    """

    def __init__(
        self,
        world: World,
        tree: ProgramTree,
        kinds: Mapping[type[Step], SharedKind],
        number: int,
        replica: int,
        index: int,
        tiles: Tiles | None,
        lane: int = 0,
    ) -> None:
        super().__init__(world, number, replica, index, world.placement[replica][index], lane)
        self._tree = tree
        self._kinds = kinds
        self.tiles = tiles
        self.instructions: tuple[Instruction, ...] = (tree.io_instructions if lane else tree.instructions)[index]
        self._add_row = world.recorder.stretches[number].add
        self._shared: list[_Prepared | None] = [None] * len(self.instructions)
        self.pc = 0
        self.loops = LoopCounters()
        self.ahead: list[tuple[int, int, tuple[StepPart, ...]]] = []
        self.inside = False
        self._waiting: Waiting | None = (
            None  # what it does in the present instruction, if that takes more than one wait
        )
        self._begun = -1  # the counters as the present shared step began; a fold meanwhile moves them on
        self.serial = 0
        self.finish = -1

    @property
    def step_name(self) -> str:
        """Name of the shared step this process is in, "" elsewhere."""
        instruction = self.instructions[self.pc] if self.pc < len(self.instructions) else None
        return instruction.leaf.step.name if isinstance(instruction, Shared) else ""

    # -- the walk ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Run: the fixed host cost of the run, then every instruction."""
        self.sleep(self.world.delays.run)
        self.events.after(self.clock, self._walk)

    def _walk(self) -> None:
        """Walk on from the present instruction up to something that has to be waited for."""
        instructions, prepared, add, world = self.instructions, self._shared, self._add_row, self.world
        folds = world.folds
        pc, end = self.pc, len(self.instructions)
        while pc < end:
            instruction = instructions[pc]
            if isinstance(instruction, Shared):
                self.pc = pc
                shared = prepared[pc] or self._prepare(instruction)
                clock, parts = self.clock, self.parts
                if clock + world.folded >= world.most:
                    world.require_countable(clock)
                self.inside = True
                self.serial += 1
                if shared.loads:
                    self._load(shared.loads)
                parts.mark, parts.trail = clock, shared.trail
                self._begun = self.context if self.context >= 0 else self._count()
                self._waiting = shared.run()
                if self._waiting is None or not self._is_over():
                    return
                self._leave_shared()
            elif isinstance(instruction, Stretch):
                if self.tiles is None:
                    clock = self.clock
                    add((instruction.number, clock, self.context if self.context >= 0 else self._count()))
                    if folds:
                        self.ahead.append((pc, clock, ()))
                    self.clock = clock + instruction.dur
                else:
                    self.pc, self._waiting = pc, self._run_tiles(instruction)
                    if not self._is_over():
                        return
            elif isinstance(instruction, Next):
                if folds and instruction.shared and self._behind(pc):
                    return
                pc = self._next(pc, instruction)
            else:
                self._enter(pc)
            pc += 1
        if not self._behind(pc):
            self.finish = self.events.now

    def resume(self) -> None:
        """Go on with the present instruction, and when that is over, walk on."""
        if self._waiting is None or self._is_over():
            if self.inside:
                self._leave_shared()
            self.pc += 1
            self._walk()

    def _is_over(self) -> bool:
        """Go on with the present instruction, which waits several times; whether it waits no longer."""
        assert self._waiting is not None
        for cycles in self._waiting:
            if cycles is not None:
                self.events.after(cycles, self.resume)
            return False
        self._waiting = None
        return True

    def _behind(self, pc: int) -> bool:
        """Whether the event loop is behind what was laid out up to this instruction; then the walk goes on with it when
        that has passed."""
        self.pc = pc
        self.world.require_countable(self.clock)
        if self.clock > self.events.now:
            self.events.after(self.clock - self.events.now, self._walk)
            return True
        self.ahead.clear()
        return False

    def _enter(self, pc: int) -> None:
        """A loop begins."""
        self.ahead.append((pc, self.clock, ()))
        self.loops.enter(pc)
        self.context = -1
        self.world.looped = True

    def _next(self, pc: int, instruction: Next) -> int:
        """Begin the next trip of the innermost loop, or leave it (on the way ahead as ``-1 - pc``); the instruction
        before the next one. Where loops are folded, no trip with a shared step begins ahead of time."""
        world = self.world
        if self.clock + world.folded >= world.most:
            world.require_countable(self.clock)
        another_trip = self.loops.again(instruction.count)
        self.context = -1
        if world.folds:
            self.ahead.append((pc if another_trip else -1 - pc, self.clock, ()))
            world.looped = True
        return instruction.begin if another_trip else pc

    def _count(self) -> int:
        """Number of the counters as they are now, kept until one of them changes."""
        slices, loops, recorder = self.slices, self.loops, self.world.recorder
        loop, trip = (loops.begins[-1], loops.trips[-1]) if loops.begins else (-1, -1)
        self.context = context = recorder.context((recorder.epoch, slices.last, slices.batch, loop, trip))
        return context

    def _run_tiles(self, stretch: Stretch) -> Waiting:
        """The stretch with the tiles one by one, with the durations that come out."""
        assert self.tiles is not None
        tree, events = self._tree, self.events
        yield from self.catch_up()
        for number in stretch.segments:
            segment, start, durations = tree.segments[number], events.now, []
            opened: list[tuple[int, int]] = []
            for place, leaf in enumerate(segment.leaves):
                opened += [
                    (loop_number, events.now) for loop_number, loop in enumerate(segment.loops) if loop.first == place
                ]
                begin = events.now
                step = tree.leaves[leaf].step
                yield from self.tiles.work(local_kind(step).tile_cycles(step, self.tiles.count))
                durations.append(events.now - begin)
                yield from self._further_trips(segment, opened, place + 1)
            measured = tree.local_segment(segment.leaves, tuple(durations), segment.loops)
            context = self.context if self.context >= 0 else self._count()
            self._add_row((tree.stretch_of((measured,)).number, start, context))
        self.arrive()

    def _further_trips(self, segment: Segment, opened: list[tuple[int, int]], stop: int) -> Waiting:
        """Let the other trips of the loops that end here pass: they last as long as the first one, which began when
        ``opened`` says."""
        while opened and segment.loops[opened[-1][0]].stop == stop:
            number, begin = opened.pop()
            self.sleep((segment.loops[number].trips - 1) * (self.events.now - begin))
            yield from self.catch_up()

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _load(self, streams: Sequence[int]) -> None:
        """A slice of each of these is copied in."""
        for stream in streams:
            self.slices.load(stream)
        self.context = -1

    def _leave_shared(self) -> None:
        """The shared step is over: record the parts that passed."""
        time, trail = self.events.now, self.parts.trail
        if self.clock <= time:
            self.clock = time
            if self.ahead:
                self.ahead.clear()
        elif self.world.folds:
            self.ahead.append((self.pc, self.clock, trail.parts))
        if trail.parts:
            stretch = trail.stretch
            if stretch is None:
                segment = self._tree.shared_segment(self.instructions[self.pc].leaf, trail.parts)  # type: ignore[union-attr]
                stretch = trail.stretch = self._tree.stretch_of((segment,))
            self._add_row((stretch.number, self.clock - stretch.dur, self._begun))
        self.inside = False

    def _prepare(self, instruction: Shared) -> _Prepared:
        leaf, streams = instruction.leaf, self.world.streams
        loads = [copy for copy in leaf.step.host_slices(self.index) if copy.direction == "h2d"]
        numbers = [streams[copy.direction, copy.stream] for copy in loads]
        shared = _Prepared(self._kinds[type(leaf.step)].prepare(self, leaf, leaf.step), numbers)
        self._shared[self.pc] = shared
        return shared

    # -- folding -----------------------------------------------------------------------------------------------------

    def state(self, time: int) -> tuple[object, ...]:
        """Everything the future and the records of this process depend on, relative to ``now``, but for loop counters,
        slice counts and how long it has been waiting already (`open_wait`)."""
        early = self.clock - time if self.clock > time else 0
        return (
            self.pc,
            self.finish >= 0,
            self.open_wait,
            self.inside,
            self.parts.mark - time if self.inside and (early or not self.open_wait) else 0,
            early,
            tuple((pc, start - time, parts) for pc, start, parts in self.ahead) if early else (),
            self.parts.trail.parts if self.inside else (),
            self.slices.last,
            tuple(self.loops.begins),
        )
