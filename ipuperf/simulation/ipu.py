"""One IPU: a process that walks its instructions and yields only where something shared is touched.

Local stretches are laid out ahead of time and cost no event, however many segments, calls and loop iterations they
span: the IPU says at once when it will arrive at the next shared step (:mod:`.party`). What happens in a shared step
says its kind (:mod:`.kinds`), part by part: waiting for others, latency and transfer, work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .event_loop import Task, Waiting
from .instructions import Enter, Instruction, Next, Segment, Shared, StepPart, Stretch
from .kinds import SharedKind, local_kind
from .party import Party
from .progress import LoopCounters

if TYPE_CHECKING:
    from ipuperf.lowering.steps import Step

    from .tiles import Tiles
    from .walk import ProgramTree
    from .world import World

Context = tuple[int, int, int, int, int]
"""The columns ``epoch`` to ``iteration`` of a row (:data:`.recorder.EXECUTED`)."""


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
        self._loads: dict[int, list[int]] = {}  # streams that a shared step copies in, by instruction
        self.pc = 0
        self.loops = LoopCounters()
        self.ahead: list[tuple[int, int, tuple[StepPart, ...]]] = []
        self.inside = False
        self.serial = 0
        self.finish = -1

    @property
    def step_name(self) -> str:
        """Name of the shared step this process is in, "" elsewhere."""
        at = self.instructions[self.pc] if self.pc < len(self.instructions) else None
        return at.leaf.step.name if isinstance(at, Shared) else ""

    def begin(self) -> None:
        """Run: the fixed host cost of the run, then every instruction."""
        self.go_on = Task(self.events, self._run()).go_on

    # -- the walk ----------------------------------------------------------------------------------------------------

    def _run(self) -> Waiting:
        self.sleep(self.world.delays.run)
        yield from self.catch_up()
        instructions = self.instructions
        while self.pc < len(instructions):
            instruction = instructions[self.pc]
            if isinstance(instruction, Shared):
                yield from self._shared(instruction)
            elif isinstance(instruction, Stretch):
                if self.tiles is None:
                    self._add_row((instruction.number, self.clock, *self._context()))
                    self.ahead.append((self.pc, self.clock, ()))
                    self.clock += instruction.dur
                else:
                    yield from self._run_tiles(instruction)
            elif isinstance(instruction, Enter):
                self.ahead.append((self.pc, self.clock, ()))
                self.loops.enter(self.pc)
                self.world.looped = True
            else:
                yield from self._next(instruction)
            self.pc += 1
        self.world.require_countable(self.clock)
        yield from self.catch_up()
        self.ahead.clear()
        self.finish = self.events.now

    def _next(self, instruction: Next) -> Waiting:
        """Begin the next trip of the innermost loop, or leave it (on the way ahead as ``-1 - pc``). No trip with a
        shared step begins ahead of time, so that loops can be folded while they run."""
        self.world.require_countable(self.clock)
        if instruction.shared:
            yield from self.catch_up()
            self.ahead.clear()
        again = self.loops.again(instruction.count)
        self.ahead.append((self.pc if again else -1 - self.pc, self.clock, ()))
        if again:
            self.pc = instruction.begin
            self.world.looped = True

    def _context(self) -> Context:
        """The counters as they are now."""
        slices = self.slices
        return (self.world.recorder.epoch, slices.last, slices.batch, *self.loops.innermost)

    def _run_tiles(self, stretch: Stretch) -> Waiting:
        """The stretch with the tiles one by one, with the durations that come out."""
        assert self.tiles is not None
        tree, events = self._tree, self.events
        yield from self.catch_up()
        for number in stretch.segment.tolist():
            segment, start, durations = tree.segments[number], events.now, []
            opened: list[tuple[int, int]] = []
            for place, leaf in enumerate(segment.leaves):
                opened += [(n, events.now) for n, loop in enumerate(segment.loops) if loop.first == place]
                begin = events.now
                step = tree.leaves[leaf].step
                yield from self.tiles.work(local_kind(step).tile_cycles(step, self.tiles.count))
                durations.append(events.now - begin)
                yield from self._further_trips(segment, opened, place + 1)
            measured = tree.local_segment(segment.leaves, tuple(durations), segment.loops)
            self._add_row((tree.stretch_of((measured,)).number, start, *self._context()))
        self.arrive()

    def _further_trips(self, segment: Segment, opened: list[tuple[int, int]], stop: int) -> Waiting:
        """Let the other trips of the loops that end here pass: they last as long as the first one, which began when
        ``opened`` says."""
        while opened and segment.loops[opened[-1][0]].stop == stop:
            number, begin = opened.pop()
            self.sleep((segment.loops[number].trips - 1) * (self.events.now - begin))
            yield from self.catch_up()

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _shared(self, instruction: Shared) -> Waiting:
        """Do what the kind of the step says, and record the parts that passed."""
        leaf, parts = instruction.leaf, self.parts
        self.world.require_countable(self.clock)
        self.inside = True
        self.serial += 1
        for stream in self._loaded_by(leaf.step):
            self.slices.load(stream)
        parts.begin()
        begun = self._context()  # a fold while the step is under way moves the counters on
        yield from self._kinds[type(leaf.step)].run(self, leaf, leaf.step)
        self.arrive()
        if self.clock == self.events.now:
            self.ahead.clear()
        else:
            self.ahead.append((self.pc, self.clock, tuple(parts.found)))
        if parts.found:
            stretch = self._tree.stretch_of_shared(leaf, tuple(parts.found))
            self._add_row((stretch.number, self.clock - stretch.dur, *begun))
            parts.found = []
        self.inside = False

    def _loaded_by(self, step: Step) -> list[int]:
        """Streams of which the present step, a shared one, copies a slice in."""
        found = self._loads.get(self.pc)
        if found is None:
            copies = [copy for copy in step.host_slices(self.index) if copy.direction == "h2d"]
            found = self._loads[self.pc] = [self.world.streams[copy.direction, copy.stream] for copy in copies]
        return found

    # -- folding -----------------------------------------------------------------------------------------------------

    def state(self, now: int) -> tuple[object, ...]:
        """Everything the future and the records of this process depend on, relative to ``now``, but for loop counters,
        slice counts and how long it has been waiting already (`open_wait`)."""
        early = self.clock - now if self.clock > now else 0
        return (
            self.pc,
            self.finish >= 0,
            self.open_wait,
            self.inside,
            self.parts.mark - now if self.inside and (early or not self.open_wait) else 0,
            early,
            tuple((pc, start - now, parts) for pc, start, parts in self.ahead) if early else (),
            tuple(self.parts.found),
            self.slices.last,
            tuple(self.loops.begins),
        )
