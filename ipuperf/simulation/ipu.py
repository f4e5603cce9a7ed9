"""One IPU: a process that walks its instructions and stops only where it touches something shared.

Local stretches are laid out ahead of time. They cost no event, however many segments, calls and loop iterations they
span: the IPU announces at once when it will arrive at the next shared step (:mod:`.party`). The kind of a shared step
(:mod:`.kinds`) says what happens in it, part by part: waiting for others, latency and transfer, work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from ipuperf.lowering.steps import ExternalSync

from .event_loop import Waiting
from .gathering import sync_of
from .instructions import Instruction, LeafStep, Next, Segment, Shared, StepPart, Stretch
from .kinds import SharedKind, local_kind
from .party import PartsTrail, Party
from .progress import LoopCounters
from .recorder import Stood

if TYPE_CHECKING:
    from ipuperf.lowering.steps import Step

    from .tiles import Tiles
    from .walk import ProgramTree
    from .world import World


class _Prepared:
    """A shared step, prepared for execution: what to call, the streams that it copies in, and where its parts begin."""

    __slots__ = ("loads", "run", "trail")

    def __init__(self, run: Callable[[], Waiting | None], loads: list[int]) -> None:
        self.run = run
        self.loads = loads
        self.trail = PartsTrail()


class IpuProcess(Party):
    """A party that walks its list of instructions in ``tree``.

    Args:
        kinds: the kind of each shared step, by class of the step.
        tiles: the single tiles, or None where they are not simulated.

    Attributes:
        pc: index of the present instruction.
        loops: the open loops.
        ahead: what was laid out since the event loop last caught up: instruction (``-1 - pc``: a loop was left there),
            time, and the parts of a shared step.
        inside: whether the process is in a shared step.
        serial: how many shared steps have begun.
        finish: when the process finished, -1 before.
    """

    def __init__(
        self,
        world: World,
        tree: ProgramTree,
        kinds: Mapping[type[Step], SharedKind[Any]],
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
        self._faults = world.faults.of_ipu(self.ipu)
        self.instructions: tuple[Instruction, ...] = tree.slowed(index, lane, self._faults)
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
        self._stood: tuple[list[int], int] | None = None  # times of syncs, and the number of the present one

    @property
    def step_name(self) -> str:
        """Name of the shared step in which this process is, "" elsewhere."""
        self.settle()
        instruction = self.instructions[self.pc] if self.pc < len(self.instructions) else None
        return instruction.leaf.step.name if isinstance(instruction, Shared) else ""

    @property
    def repeats(self) -> bool:
        """As the party says: some loop is open."""
        return bool(self.loops.begins)

    # -- the walk ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the run: first the fixed cost of the host, then every instruction."""
        self.sleep(self.world.delays.run)
        self.events.after(self.clock, self._walk)

    def _walk(self) -> None:
        """Walk from the present instruction until the process has to wait."""
        # This loop is the busiest of the simulation, hence the local names for attributes.
        instructions, prepared, add, world = self.instructions, self._shared, self._add_row, self.world
        folds = world.folds
        pc, end = self.pc, len(self.instructions)
        while pc < end:
            instruction = instructions[pc]
            if isinstance(instruction, Shared):
                self.pc = pc
                shared = prepared[pc] or self._prepare(instruction)
                clock, parts = self.clock, self.parts
                # The comparison is repeated here to save a call for each step.
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
                    # Only folding looks at what was laid out ahead of the event loop.
                    if folds:
                        self.ahead.append((pc, clock, ()))
                    self.clock = clock + instruction.dur
                else:
                    self.pc, self._waiting = pc, self._run_tiles(instruction)
                    if not self._is_over():
                        return
            elif isinstance(instruction, Next):
                # A fold compares states between trips, so a trip with a shared step must not begin ahead of time.
                if folds and instruction.shared and self._behind(pc):
                    return
                pc = self._next(pc, instruction)
            else:
                self._enter(pc)
            pc += 1
        # The process has finished only when the event loop has caught up with its last step.
        if not self._behind(pc):
            self.finish = self.events.now

    def resume(self) -> None:
        """Continue the present instruction; when it is over, walk on."""
        if self._waiting is None or self._is_over():
            if self.inside:
                self._leave_shared()
            self.pc += 1
            self._walk()

    def _is_over(self) -> bool:
        """Continue the present instruction, which may wait several times, and return whether it is over."""
        assert self._waiting is not None
        for cycles in self._waiting:
            if cycles is not None:
                self.events.after(cycles, self.resume)
            return False
        self._waiting = None
        return True

    def _behind(self, pc: int) -> bool:
        """Whether the event loop is behind what was laid out up to this instruction.

        If it is, the walk is continued when the event loop has caught up.
        """
        self.pc = pc
        self.world.require_countable(self.clock)
        if self.clock > self.events.now:
            self.events.after(self.clock - self.events.now, self._walk)
            return True
        self.ahead.clear()
        return False

    def _enter(self, pc: int) -> None:
        """Enter a loop."""
        self.ahead.append((pc, self.clock, ()))
        self.loops.enter(pc)
        self.context = -1
        self.world.looped = True

    def _next(self, pc: int, instruction: Next) -> int:
        """Begin the next trip of the innermost loop, or leave the loop (``-1 - pc`` in :attr:`ahead`).

        Returns:
            The instruction before the next one.
        """
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
        """The number of the present counters, which stays the same until one of them changes."""
        slices, loops, recorder = self.slices, self.loops, self.world.recorder
        loop, trip = (loops.begins[-1], loops.trips[-1]) if loops.begins else (-1, -1)
        self.context = context = recorder.context((recorder.epoch, slices.last, slices.batch, loop, trip))
        return context

    def _run_tiles(self, stretch: Stretch) -> Waiting:
        """Run the stretch with its single tiles, and record the durations that the clock shows."""
        assert self.tiles is not None
        tree, events = self._tree, self.events
        # Single tiles live in the time of the event loop, so the IPU must not be ahead of it.
        yield from self.catch_up()
        for number in stretch.segments:
            segment, start, durations = tree.segments[number], events.now, []
            opened: list[tuple[int, int]] = []
            for place, leaf in enumerate(segment.leaves):
                opened += [
                    (loop_number, events.now) for loop_number, loop in enumerate(segment.loops) if loop.first == place
                ]
                begin = events.now
                step = tree.leaves.steps[leaf]
                yield from self.tiles.work(
                    tree.slow_tiles(leaf, self._faults, self.tiles.count)
                    if self._faults
                    else local_kind(step).tile_cycles(step, self.tiles.count)
                )
                durations.append(events.now - begin)
                yield from self._further_trips(segment, opened, place + 1)
            # The segment is that of the durations which the clock has shown.
            measured = tree.local_segment(segment.leaves, tuple(durations), segment.loops)
            context = self.context if self.context >= 0 else self._count()
            self._add_row((tree.stretch_of((measured,)).number, start, context))
        self.arrive()

    def _further_trips(self, segment: Segment, opened: list[tuple[int, int]], stop: int) -> Waiting:
        """Let the other trips of the loops that end here pass. Each lasts as long as the first trip.

        Args:
            segment: the segment with the loops.
            opened: the open loops, and when the first trip of each began.
            stop: the position in the segment.
        """
        while opened and segment.loops[opened[-1][0]].stop == stop:
            number, begin = opened.pop()
            self.sleep((segment.loops[number].trips - 1) * (self.events.now - begin))
            yield from self.catch_up()

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _load(self, streams: Sequence[int]) -> None:
        """Count a slice of each of these streams as copied in."""
        for stream in streams:
            self.slices.load(stream)
        self.context = -1

    def _leave_shared(self) -> None:
        """End the shared step and record its parts."""
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
        if not self.repeats:
            self._shared[self.pc] = None  # outside loops a step runs once
        self.inside = False

    def _prepare(self, instruction: Shared) -> _Prepared:
        leaf, streams = instruction.leaf, self.world.streams
        loads = [copy for copy in leaf.step.host_slices(self.index) if copy.direction == "h2d"]
        numbers = [streams[copy.direction, copy.stream] for copy in loads]
        shared = _Prepared(self._kinds[type(leaf.step)].prepare(self, leaf, leaf.step), numbers)
        self._shared[self.pc] = shared
        return shared

    # -- syncs one after the other -----------------------------------------------------------------------------------

    def alike_ahead(self, participants: tuple[int, ...]) -> Sequence[LeafStep]:
        """The leaf of the present sync, and those of the syncs of the same IPUs that follow it with nothing between."""
        # The IPUs of other replicas have the same instructions.
        place, known = (self.index, self.lane, self.pc), self._tree.alike_ahead
        if place not in known:
            known[place] = list(self._alike_ahead(participants))
        return known[place]

    def _alike_ahead(self, participants: tuple[int, ...]) -> Iterator[LeafStep]:
        expected = -1
        for pc in range(self.pc, len(self.instructions)):
            instruction = self.instructions[pc]
            if not isinstance(instruction, Shared) or not isinstance(step := instruction.leaf.step, ExternalSync):
                return
            # The rows of syncs rely on leaves that are numbered one after the other, as those of one body are.
            if expected >= 0 and (instruction.leaf.leaf_id != expected or step.participants != participants):
                return
            expected = instruction.leaf.leaf_id + 1
            yield instruction.leaf

    def stand(self, times: list[int]) -> None:
        """Each sync then costs this process nothing; its place and its rows follow from ``times`` (:meth:`settle`)."""
        self._stood = times, len(times)

    def settle(self) -> None:
        """Take note of the syncs in which this process has stood, and go to the one that is still to come."""
        if self._stood is None or len(self._stood[0]) == self._stood[1]:
            return
        (times, first), world, parts = self._stood, self.world, self.parts
        stop = len(times)
        if self.context < 0:
            self._count()
        leaf = self.instructions[self.pc].leaf  # type: ignore[union-attr]
        stood = Stood(times, first, stop, leaf.leaf_id, parts.mark, self.context)
        self._add_row((world.recorder.stand(stood), parts.mark, self._begun))
        self._begun = self.context
        due = bisect_right(times, self.events.now, first, stop)
        if due > first:
            self.ahead.clear()
        if world.folds:
            for number in range(due, stop):
                wait = times[number] - (times[number - 1] if number > first else parts.mark)
                waited = (StepPart("sync_external", 0, wait),) if wait else ()
                self.ahead.append((self.pc + number - first, times[number], waited))
        self.pc += stop - first
        self.serial += stop - first
        self.clock = parts.mark = times[-1]
        instruction = self.instructions[self.pc]
        assert isinstance(instruction, Shared)
        parts.trail = (self._shared[self.pc] or self._prepare(instruction)).trail
        self.open_wait = sync_of(instruction.leaf)
        self._stood = times, stop

    def leave_syncs(self) -> None:
        """The present sync is the last one in which this process stands."""
        self.settle()
        self._stood = None

    def waiting_place(self) -> tuple[object, ...] | None:
        """Where this process waits for others or has finished, without counts of trips; None: it goes on by itself.

        What it does when they let it go on depends on nothing else.
        """
        self.settle()
        if self.finish >= 0:
            return (self.pc,)
        if not self.open_wait or self.clock > self.events.now:
            return None
        frames: list[int] = []
        waiting: Any = self._waiting
        while isinstance(waiting, GeneratorType) and waiting.gi_frame is not None:
            frames.append(waiting.gi_frame.f_lasti)
            waiting = waiting.gi_yieldfrom
        return (self.pc, self.inside, str(self.open_wait), tuple(frames), tuple(self.loops.begins))

    # -- folding -----------------------------------------------------------------------------------------------------

    def state(self, time: int) -> tuple[object, ...]:
        """Everything on which the future and the records of this process depend, relative to ``time``.

        Loop counters, slice counts and how long the process has been waiting already (`open_wait`) are left out.
        """
        self.settle()
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
