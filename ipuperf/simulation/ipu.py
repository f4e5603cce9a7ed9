"""One IPU: a SimPy process that walks its instructions and yields only where something shared is touched.

Local stretches are laid out ahead of time and cost one timeout together, however many segments, calls and loop
iterations they span. A shared step is taken apart into parts (`Part`): waiting for others, latency and transfer, work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from simpy.events import Event

from ipuperf.lowering.program import (
    Collective,
    HostCopy,
    HostExchange,
    InterIpuCopy,
    RemoteTransfer,
    StreamCopy,
    TileSetCopy,
)

from .network import Label
from .recorder import Ran
from .walk import Enter, Instruction, Leaf, Next, Part, Segment, Shared, Stretch, require_countable

if TYPE_CHECKING:
    from ipuperf.machine import Link, Topology

    from .host import Host
    from .kernel import Kernel
    from .meetings import Meetings
    from .network import Network
    from .recorder import Recorder
    from .tiles import Tiles
    from .walk import ProgramTree

_EMPTY = np.empty(0, dtype=np.int64)
_NOTHING = Stretch(_EMPTY, _EMPTY, _EMPTY, 0)

Waiting = Generator[Event, object, None]
Ask = Callable[[Callable[[], None]], None]
"""Hands over what to call when something has happened."""


@dataclass(frozen=True)
class Delays:
    """Fixed costs in cycles: external sync, latency of a remote transfer and of a stream copy, start of a run."""

    external_sync: int
    remote: int
    stream: int
    run: int


@dataclass
class World:
    """What the IPU processes of a simulation share. ``streams`` numbers each (direction, stream); ``looped`` is set
    whenever an iteration of a loop begins; ``folded``: cycles added by folding, ``most``: cycles a run must not
    reach."""

    kernel: Kernel
    network: Network
    host: Host
    meetings: Meetings
    recorder: Recorder
    topology: Topology
    tree: ProgramTree
    delays: Delays
    streams: dict[tuple[str, str], int]
    most: int
    looped: bool = False
    folded: int = 0

    def require_countable(self, time: int) -> None:
        """Raise :class:`SimulationError` unless this moment of the event loop can be told in true time."""
        require_countable(time + self.folded, "the run", most=self.most)


class IpuProcess:
    """IPU ``index`` of replica ``replica``, which is IPU ``ipu`` of the machine; ``lane`` 1: its I/O tiles alone.

    ``number`` is its place among all processes (replica first), which is its path for breaking ties.
    """

    def __init__(
        self, world: World, number: int, replica: int, index: int, ipu: int, tiles: Tiles | None, lane: int = 0
    ) -> None:
        self.world = world
        self.number = number
        self.replica = replica
        self.index = index
        self.ipu = ipu
        self.tiles = tiles
        self.lane = lane
        lists = world.tree.io_instructions if lane else world.tree.instructions
        self.instructions: tuple[Instruction, ...] = lists[index]
        self.pc = 0
        self.loops: list[int] = []  # index of the Enter of each open loop
        self.counters: list[int] = []  # its iteration
        self.ahead: list[tuple[int, int]] = []  # way taken up to `until`: instruction and its time
        self.until = -1  # end of the timeout this process waits for, -1 if it waits for something else
        self.mark = 0  # up to here the parts of the step are known
        self.parts: list[Part] = []
        self.open_wait = ""  # what this process waits for without knowing how long
        self.inside = False  # in a shared step
        self.serial = 0  # shared steps begun
        self.loaded: dict[int, int] = {}  # slices copied in, by stream
        self.last_stream = -1
        self.finish = -1

    @property
    def name(self) -> str:
        """For messages."""
        tiles = "I/O tiles of " if self.lane else ""
        return f"{tiles}replica {self.replica} IPU {self.index} (IPU {self.ipu} of the machine)"

    @property
    def step_name(self) -> str:
        """Name of the shared step this process is in, "" elsewhere."""
        at = self.instructions[self.pc] if self.pc < len(self.instructions) else None
        return at.leaf.step.name if isinstance(at, Shared) else ""

    # -- the walk ----------------------------------------------------------------------------------------------------

    def run(self) -> Waiting:
        """The process: the run's fixed host cost, then every instruction."""
        kernel = self.world.kernel
        yield from self._sleep(self.world.delays.run)
        time = kernel.now
        while self.pc < len(self.instructions):
            instruction = self.instructions[self.pc]
            if isinstance(instruction, Stretch):
                if self.tiles is None:
                    self._record(instruction, time)
                    self.ahead.append((self.pc, time))
                    time += instruction.dur
                else:
                    yield from self._run_tiles(instruction)
                    time = kernel.now
            elif isinstance(instruction, Enter):
                self.ahead.append((self.pc, time))
                self.loops.append(self.pc)
                self.counters.append(0)
                self.world.looped = True
            elif isinstance(instruction, Next):
                self._next(instruction, time)
            else:
                yield from self._catch_up(time)
                yield from self._shared(instruction)
                time = kernel.now
            self.pc += 1
        yield from self._catch_up(time)
        self.finish = kernel.now

    def _next(self, instruction: Next, time: int) -> None:
        """Begin the next trip of the innermost loop, or leave it (on the way ahead as ``-1 - pc``)."""
        if self.counters[-1] + 1 < instruction.count:
            self.ahead.append((self.pc, time))
            self.counters[-1] += 1
            self.pc = instruction.begin
            self.world.looped = True
        else:
            self.ahead.append((-1 - self.pc, time))
            self.counters.pop()
            self.loops.pop()

    def _catch_up(self, time: int) -> Waiting:
        """Wait until what is laid out has passed."""
        yield from self._sleep(time - self.world.kernel.now)
        self.ahead.clear()

    def _sleep(self, cycles: int) -> Waiting:
        if cycles:
            self.until = self.world.kernel.now + cycles
            self.world.require_countable(self.until)
            yield self.world.kernel.timeout(cycles)
            self.until = -1

    def _row(self, stretch: Stretch, start: int) -> Ran:
        """A row with the counters as they are now."""
        loop, iteration = (self.loops[-1], self.counters[-1]) if self.loops else (-1, -1)
        batch = self.loaded[self.last_stream] - 1 if self.loaded else -1
        return Ran(stretch, start, self.world.recorder.epoch, self.last_stream, batch, loop, iteration)

    def _record(self, stretch: Stretch, start: int) -> None:
        self.world.recorder.ran(self.number, self._row(stretch, start))

    def _run_tiles(self, stretch: Stretch) -> Waiting:
        """The stretch tile by tile, with the durations that come out."""
        assert self.tiles is not None
        tree = self.world.tree
        for number in stretch.segment.tolist():
            segment, start, durations = tree.segments[number], self.world.kernel.now, []
            opened: list[tuple[int, int]] = []
            for place, leaf in enumerate(segment.leaves):
                opened += [(n, self.world.kernel.now) for n, loop in enumerate(segment.loops) if loop.first == place]
                begin = self.world.kernel.now
                yield from self.tiles.execute(tree.leaves[leaf].step)
                durations.append(self.world.kernel.now - begin)
                yield from self._further_trips(segment, opened, place + 1)
            measured = tree.local_segment(segment.leaves, tuple(durations), segment.loops)
            self._record(tree.stretch_of_one(measured), start)

    def _further_trips(self, segment: Segment, opened: list[tuple[int, int]], stop: int) -> Waiting:
        """Let the other trips of the loops that end here pass: they last as long as the first one, which began when
        ``opened`` says."""
        while opened and segment.loops[opened[-1][0]].stop == stop:
            number, begin = opened.pop()
            yield from self._sleep((segment.loops[number].trips - 1) * (self.world.kernel.now - begin))

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _shared(self, instruction: Shared) -> Waiting:
        leaf, start = instruction.leaf, self.world.kernel.now
        self.mark, self.parts = start, []
        self.inside = True
        self.serial += 1
        step, tree = leaf.step, self.world.tree
        copies = step.of(self.index) if isinstance(step, HostExchange) else (step,)
        for copy in copies:
            if isinstance(copy, (StreamCopy, HostCopy)) and copy.direction == "h2d":
                self.last_stream = self.world.streams[copy.direction, copy.stream]
                self.loaded[self.last_stream] = self.loaded.get(self.last_stream, 0) + 1
        begun = self._row(_NOTHING, start)  # a fold while this step is under way moves the counters on
        if isinstance(step, Collective):
            yield from self.wait(lambda done: self.world.meetings.collective(self, leaf, done))
        elif isinstance(step, InterIpuCopy):
            yield from self.wait(lambda done: self.world.meetings.copy(self, leaf, done))
        elif isinstance(step, RemoteTransfer):
            yield from self._remote(leaf, step)
        elif isinstance(step, HostExchange):
            yield from self._host_exchange(leaf, step)
        elif isinstance(step, TileSetCopy):
            yield from self._tile_set_copy(leaf, step)
        else:
            assert isinstance(step, StreamCopy)
            yield from self._stream(leaf, step)
        if self.parts:
            segment = tree.shared_segment(leaf, tuple(self.parts))
            stretch = tree.stretch_of_one(segment)
            self.world.recorder.ran(
                self.number, begun._replace(stretch=stretch, start=self.world.kernel.now - stretch.dur)
            )
            self.parts = []
        self.inside = False

    def _tile_set_copy(self, leaf: Leaf, step: TileSetCopy) -> Waiting:
        """Meet the other tile set (waiting is ``idle``), then sync and exchange together with it."""
        yield from self.wait(lambda done: self.world.meetings.tile_sets(self, leaf, done))
        self.close_part("idle")
        yield from self._sleep(step.sync)
        self.close_part("sync")
        yield from self._sleep(step.cycles)
        receives = (step.destination == "io") == (self.lane == 1)
        self.close_part("exchange", 0, step.bytes if receives else 0, 0 if receives else step.bytes)

    def takes_over(self, other: IpuProcess) -> None:
        """What the compute tiles compute from now on is the slice that the I/O tiles have loaded last."""
        if other.loaded:
            self.loaded, self.last_stream = dict(other.loaded), other.last_stream

    def _remote(self, leaf: Leaf, step: RemoteTransfer) -> Waiting:
        load = step.direction == "load"
        kind = f"remote_{step.direction}"
        yield from self._sleep(self.world.delays.external_sync)
        self.close_part("sync_external")
        yield from self._sleep(self.world.delays.remote)
        yield from self._transfer(self.world.topology.remote_route(self.ipu, load), step.wire_bytes, kind, step.op_id)
        self.close_part(kind, 0, step.bytes if load else 0, 0 if load else step.bytes)

    def _stream(self, leaf: Leaf, step: StreamCopy) -> Waiting:
        host, load = self.world.host, step.direction == "h2d"
        stream = self.world.streams[step.direction, step.stream]
        if load:
            self.open_wait = "the host to prepare a slice"
            yield from self.wait(lambda ready: host.claim(self.replica, stream, self.index, ready))
            self.open_wait = ""
        yield from self._sleep(self.world.delays.stream)
        self.close_part("host_begin", 0)
        yield from self._transfer(self.world.topology.host_route(self.ipu, not load), step.bytes, "stream", step.op_id)
        self.close_part("host_mid", 1, step.bytes if load else 0, 0 if load else step.bytes)
        if load:
            host.release(self.replica, stream, self.index)
        yield from self._sleep(self.world.delays.external_sync)
        self.close_part("host_end", 2)
        if not load:
            host.take(self.replica, stream, self.index)

    def _host_exchange(self, leaf: Leaf, step: HostExchange) -> Waiting:
        """Meet, do the own copies, meet again. An IPU without copies only waits (``host_end``)."""
        own, host, meetings = step.of(self.index), self.world.host, self.world.meetings
        numbers = [(copy, self.world.streams[copy.direction, copy.stream]) for copy in own]
        loads = [stream for copy, stream in numbers if copy.direction == "h2d"]
        yield from self.wait(lambda done: meetings.host(self, leaf, "begin", done))
        self.close_part("sync_external")
        if own:
            self.open_wait = "the host to prepare slices" if loads else ""
            yield from self.wait_all([partial(host.claim, self.replica, stream, self.index) for stream in loads])
            self.open_wait = ""
            yield from self._sleep(self.world.delays.stream)
            self.close_part("host_begin", 0)
            yield from self.wait_all([partial(self._send_host, step, copy, n) for n, copy in enumerate(own)])
            arrived = sum(copy.bytes for copy in own if copy.direction == "h2d")
            self.close_part("host_mid", 1, arrived, sum(copy.bytes for copy in own) - arrived)
            for stream in loads:
                host.release(self.replica, stream, self.index)
        yield from self.wait(lambda done: meetings.host(self, leaf, "end", done))
        self.close_part("host_end", 2)
        for copy, stream in numbers:
            if copy.direction == "d2h":
                host.take(self.replica, stream, self.index)

    def _send_host(self, step: HostExchange, copy: HostCopy, number: int, done: Callable[[], None]) -> None:
        """Start the transfer of one of the own copies of a host exchange."""
        route = self.world.topology.host_route(self.ipu, copy.direction == "d2h")
        label = Label("stream", step.op_id, self.ipu)
        self.world.network.send((0, self.number, number, 0, 0), route, copy.bytes, label, done)

    def _transfer(self, route: tuple[Link, ...], size: int, kind: str, op_id: int) -> Waiting:
        label = Label(kind, op_id, self.ipu)
        yield from self.wait(lambda done: self.world.network.send((0, self.number, 0, 0, 0), route, size, label, done))

    def wait(self, ask: Ask) -> Waiting:
        """Hand ``ask`` something to call when this process may go on, and wait for that."""
        event = self.world.kernel.event()
        ask(lambda: _succeed(event))
        yield event

    def wait_all(self, asks: Sequence[Ask]) -> Waiting:
        """Ask for all at once and wait for the last."""
        left = len(asks)

        def ask_all(done: Callable[[], None]) -> None:
            def one() -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    done()

            for ask in asks:
                ask(one)

        if asks:
            yield from self.wait(ask_all)

    def close_part(self, kind: str, program: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """What passed since the last part was of this kind; a part of no cycles and no bytes is left out."""
        now = self.world.kernel.now
        self.add_part(kind, now - self.mark, program, bytes_in, bytes_out)

    def add_part(self, kind: str, dur: int, program: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """The next ``dur`` cycles were of this kind."""
        self.mark += dur
        if dur or bytes_in or bytes_out:
            self.parts.append(Part(kind, program, dur, bytes_in, bytes_out))

    def add_parts(self, parts: Sequence[Part]) -> None:
        """These were the next parts."""
        self.mark += sum([part.dur for part in parts])
        self.parts.extend(parts)

    # -- folding -----------------------------------------------------------------------------------------------------

    def state(self, now: int) -> tuple[object, ...]:
        """Everything the future and the records of this process depend on, relative to ``now``, but for loop counters,
        slice counts and how long it has been waiting already (`open_wait`)."""
        return (
            self.pc,
            self.finish >= 0,
            self.open_wait,
            self.inside,
            self.mark - now if self.inside and not self.open_wait else 0,
            self.until - now if self.until >= 0 else -1,
            tuple((pc, start - now) for pc, start in self.ahead),
            tuple(self.parts),
            self.last_stream,
            tuple(self.loops),
        )


def _succeed(event: Event) -> None:
    event.succeed()
