"""Who takes part in shared steps: an IPU (or its I/O tiles) as those it meets know it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Union

from simpy.events import Event

from .instructions import StepPart
from .network import Send, SendBundle
from .recorder import Label

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .event_loop import EventLoop
    from .world import World

Waiting = Generator[Event, object, None]
Way = Union["tuple[Link, ...]", Callable[[int], "tuple[Link, ...]"]]
"""The route of a transfer; by IPU of the machine, where a party may stand for those of other replicas. Functions that
come again are kept: one is made for all steps."""

_BUNDLES_KEPT = 1024
"""Different ways of its transfers that a party remembers."""

Ask = Callable[[Callable[[], None]], None]
"""Hands over what to call when something has happened."""


class Parts:
    """The parts of the shared step that is under way; up to ``mark`` they are known."""

    def __init__(self, events: EventLoop) -> None:
        self._events = events
        self.mark = 0
        self.found: list[StepPart] = []

    def begin(self) -> None:
        """A step begins now."""
        self.mark, self.found = self._events.now, []

    def close(self, kind: str, program: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """What passed since the last part was of this kind (and of this control program of the step); a part of no
        cycles and no bytes is left out."""
        dur = self._events.now - self.mark
        self.mark += dur
        if dur or bytes_in or bytes_out:
            self.found.append(StepPart(kind, program, dur, bytes_in, bytes_out))

    def add(self, parts: Sequence[StepPart]) -> None:
        """These were the next parts."""
        self.mark += sum([part.dur for part in parts])
        self.found.extend(parts)


class SliceColumns:
    """The slices of host-to-device streams that were copied in: how many of each stream, and the ``last`` stream."""

    def __init__(self) -> None:
        self.loaded: dict[int, int] = {}
        self.last = -1

    @property
    def batch(self) -> int:
        """Number of the slice that was copied in last, -1 before the first."""
        return self.loaded[self.last] - 1 if self.loaded else -1

    def load(self, stream: int) -> None:
        """One more slice of this stream."""
        self.last = stream
        self.loaded[stream] = self.loaded.get(stream, 0) + 1

    def take_over(self, other: SliceColumns) -> None:
        """What is computed from now on is the slice that ``other`` counted last."""
        if other.loaded:
            self.loaded, self.last = dict(other.loaded), other.last


class Party:
    """IPU ``index`` of replica ``replica``, which is IPU ``ipu`` of the machine; ``lane`` 1: its I/O tiles alone.

    Attributes:
        number: its place among all parties (replica first), which is its path for breaking ties.
        parts: of the shared step it is in.
        slices: what it has copied in.
        open_wait: what it waits for without knowing how long, "" if it does not.
    """

    def __init__(self, world: World, number: int, replica: int, index: int, ipu: int, lane: int = 0) -> None:
        self.world = world
        self.number = number
        self.replica = replica
        self.index = index
        self.ipu = ipu
        self.lane = lane
        self.parts = Parts(world.events)
        self.slices = SliceColumns()
        self._bundles: dict[tuple[Way, int], SendBundle] = {}
        self.open_wait = ""
        self.until = -1  # end of the timeout it waits for, -1 if it waits for something else

    @property
    def name(self) -> str:
        """For messages."""
        tiles = "I/O tiles of " if self.lane else ""
        return f"{tiles}replica {self.replica} IPU {self.index} (IPU {self.ipu} of the machine)"

    def sleep(self, cycles: int) -> Waiting:
        """Let ``cycles`` pass.

        Raises:
            SimulationError: the run takes more than can be counted.
        """
        if cycles:
            self.until = self.world.events.now + cycles
            self.world.require_countable(self.until)
            yield self.world.events.timeout(cycles)
            self.until = -1

    def wait(self, ask: Ask) -> Waiting:
        """Hand ``ask`` something to call when this party may go on, and wait for that."""
        event = self.world.events.event()
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

    def send(self, way: Way, size: int, label: Label, done: Callable[[], None], number: int = 0) -> None:
        """Start a transfer of its own, of those that are under way the one of this number."""
        bundle = self._bundles.get((way, number))
        if bundle is None:
            bundle = self._bundles[way, number] = self._bundle(way, number)
        self.world.network.move(bundle, (), size, label, lambda _: done())

    def _bundle(self, way: Way, number: int) -> SendBundle:
        """The sends of all replicas for which it stands."""
        world, sends, alike = self.world, [], self.world.alike(self.replica)
        for replica in alike:
            owner, ipu = replica * world.stride + self.number % world.stride, world.placement[replica][self.index]
            sends.append(Send((0, owner, number, 0, 0), way(ipu) if callable(way) else way, ipu))
        if len(self._bundles) == _BUNDLES_KEPT:
            self._bundles.clear()
        return world.network.bundle(sends, alike)

    def transfer(self, way: Way, size: int, kind: str, op_id: int) -> Waiting:
        """Start a transfer of its own and wait for its end."""
        yield from self.wait(lambda done: self.send(way, size, Label(kind, op_id), done))


def host_ways(world: World) -> dict[str, Way]:
    """The ways of stream copies, by direction."""
    route = world.topology.host_route
    return {"h2d": lambda ipu: route(ipu, False), "d2h": lambda ipu: route(ipu, True)}


def _succeed(event: Event) -> None:
    event.succeed()
