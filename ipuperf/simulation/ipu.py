"""One IPU: a SimPy process that walks its instructions and yields only where something shared is touched.

Local stretches are laid out ahead of time and cost one timeout together, however many segments, calls and loop
iterations they span. What happens in a shared step says its kind (:mod:`.kinds`), part by part: waiting for others,
latency and transfer, work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from .instructions import Enter, Instruction, Next, Segment, Shared, Stretch
from .kinds import SharedKind, local_kind
from .party import Party, Waiting
from .progress import LoopCounters
from .recorder import Ran

if TYPE_CHECKING:
    from ipuperf.lowering.steps import Step

    from .tiles import Tiles
    from .walk import ProgramTree
    from .world import World

_EMPTY = np.empty(0, dtype=np.int64)
_NOTHING = Stretch(_EMPTY, _EMPTY, _EMPTY, 0)


class IpuProcess(Party):
    """A party that walks its list of instructions in ``tree``.

    Args:
        kinds: what it does in a shared step, by class of the step.
        tiles: the tiles one by one, or None.

    Attributes:
        pc: index of the present instruction.
        loops: the open loops.
        ahead: way taken up to ``until``: instruction (``-1 - pc``: a loop was left there) and its time.
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
        self.pc = 0
        self.loops = LoopCounters()
        self.ahead: list[tuple[int, int]] = []
        self.inside = False
        self.serial = 0
        self.finish = -1

    @property
    def step_name(self) -> str:
        """Name of the shared step this process is in, "" elsewhere."""
        at = self.instructions[self.pc] if self.pc < len(self.instructions) else None
        return at.leaf.step.name if isinstance(at, Shared) else ""

    # -- the walk ----------------------------------------------------------------------------------------------------

    def run(self) -> Waiting:
        """The process: the run's fixed host cost, then every instruction."""
        events = self.world.events
        yield from self.sleep(self.world.delays.run)
        time = events.now
        while self.pc < len(self.instructions):
            instruction = self.instructions[self.pc]
            if isinstance(instruction, Stretch):
                if self.tiles is None:
                    self._record(instruction, time)
                    self.ahead.append((self.pc, time))
                    time += instruction.dur
                else:
                    yield from self._run_tiles(instruction)
                    time = events.now
            elif isinstance(instruction, Enter):
                self.ahead.append((self.pc, time))
                self.loops.enter(self.pc)
                self.world.looped = True
            elif isinstance(instruction, Next):
                self._next(instruction, time)
            else:
                yield from self._catch_up(time)
                yield from self._shared(instruction)
                time = events.now
            self.pc += 1
        yield from self._catch_up(time)
        self.finish = events.now

    def _next(self, instruction: Next, time: int) -> None:
        """Begin the next trip of the innermost loop, or leave it (on the way ahead as ``-1 - pc``)."""
        again = self.loops.again(instruction.count)
        self.ahead.append((self.pc if again else -1 - self.pc, time))
        if again:
            self.pc = instruction.begin
            self.world.looped = True

    def _catch_up(self, time: int) -> Waiting:
        """Wait until what is laid out has passed."""
        yield from self.sleep(time - self.world.events.now)
        self.ahead.clear()

    def _row(self, stretch: Stretch, start: int) -> Ran:
        """A row with the counters as they are now."""
        slices = self.slices
        return Ran(stretch, start, self.world.recorder.epoch, slices.last, slices.batch, *self.loops.innermost)

    def _record(self, stretch: Stretch, start: int) -> None:
        self.world.recorder.ran(self.number, self._row(stretch, start))

    def _run_tiles(self, stretch: Stretch) -> Waiting:
        """The stretch tile by tile, with the durations that come out."""
        assert self.tiles is not None
        tree = self._tree
        for number in stretch.segment.tolist():
            segment, start, durations = tree.segments[number], self.world.events.now, []
            opened: list[tuple[int, int]] = []
            for place, leaf in enumerate(segment.leaves):
                opened += [(n, self.world.events.now) for n, loop in enumerate(segment.loops) if loop.first == place]
                begin = self.world.events.now
                step = tree.leaves[leaf].step
                yield from local_kind(step).execute(step, self.tiles)
                durations.append(self.world.events.now - begin)
                yield from self._further_trips(segment, opened, place + 1)
            measured = tree.local_segment(segment.leaves, tuple(durations), segment.loops)
            self._record(tree.stretch_of_one(measured), start)

    def _further_trips(self, segment: Segment, opened: list[tuple[int, int]], stop: int) -> Waiting:
        """Let the other trips of the loops that end here pass: they last as long as the first one, which began when
        ``opened`` says."""
        while opened and segment.loops[opened[-1][0]].stop == stop:
            number, begin = opened.pop()
            yield from self.sleep((segment.loops[number].trips - 1) * (self.world.events.now - begin))

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _shared(self, instruction: Shared) -> Waiting:
        """Do what the kind of the step says, and record the parts that passed."""
        leaf, step = instruction.leaf, instruction.leaf.step
        self.parts.begin()
        self.inside = True
        self.serial += 1
        for copy in step.host_slices(self.index):
            if copy.direction == "h2d":
                self.slices.load(self.world.streams[copy.direction, copy.stream])
        begun = self._row(_NOTHING, self.world.events.now)  # a fold while the step is under way moves the counters on
        yield from self._kinds[type(step)].run(self, leaf, step)
        if self.parts.found:
            stretch = self._tree.stretch_of_one(self._tree.shared_segment(leaf, tuple(self.parts.found)))
            start = self.world.events.now - stretch.dur
            self.world.recorder.ran(self.number, begun._replace(stretch=stretch, start=start))
            self.parts.found = []
        self.inside = False

    # -- folding -----------------------------------------------------------------------------------------------------

    def state(self, now: int) -> tuple[object, ...]:
        """Everything the future and the records of this process depend on, relative to ``now``, but for loop counters,
        slice counts and how long it has been waiting already (`open_wait`)."""
        return (
            self.pc,
            self.finish >= 0,
            self.open_wait,
            self.inside,
            self.parts.mark - now if self.inside and not self.open_wait else 0,
            self.until - now if self.until >= 0 else -1,
            tuple((pc, start - now) for pc, start in self.ahead),
            tuple(self.parts.found),
            self.slices.last,
            tuple(self.loops.begins),
        )
