"""Who takes part in shared steps: an IPU (or its I/O tiles) as those it meets know it.

A party has a clock of its own, which may be ahead of the event loop: what nobody else can see passes without an event,
and who waits for several parties knows when the last of them arrives as soon as the last has said so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Union

from .event_loop import Waiting
from .flows import FlowTemplate, NetworkFlow, SendBundle
from .instructions import StepPart, Stretch
from .network import Send
from .recorder import Label

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .world import World

Way = Union["tuple[Link, ...]", Callable[[int], "tuple[Link, ...]"]]
"""The route of a transfer; by IPU of the machine, where a party may stand for those of other replicas. Functions that
come again are kept: one is made for all steps."""

_BUNDLES_KEPT = 1024
"""Different ways of its transfers that a party remembers."""

Ask = Callable[[Callable[[], None]], None]
"""Hands over what to call when something has happened."""


class PartsTrail:
    """Parts of a shared step that followed each other, and what followed them at other times: each is made once.

    Attributes:
        parts: from the begin of the step.
        stretch: what a step of these parts is in the trace, None until it was one.
        after: with one more part (the values of a `StepPart`) or several, as far as it happened.
    """

    __slots__ = ("after", "parts", "stretch")

    def __init__(self, parts: tuple[StepPart, ...] = ()) -> None:
        self.parts = parts
        self.stretch: Stretch | None = None
        self.after: dict[tuple[object, ...], PartsTrail] = {}

    def then(self, part: tuple[str, int, int, int, int]) -> PartsTrail:
        """With one more part, as the values of a `StepPart`."""
        longer = self.after.get(part)
        if longer is None:
            longer = self.after[part] = PartsTrail((*self.parts, StepPart(*part)))
        return longer

    def then_all(self, parts: tuple[StepPart, ...]) -> PartsTrail:
        """With these as well."""
        longer = self.after.get(parts)
        if longer is None:
            longer = self.after[parts] = PartsTrail((*self.parts, *parts))
        return longer


class Parts:
    """The parts of the shared step that ``party`` is in; up to ``mark`` they are known."""

    __slots__ = ("_party", "mark", "trail")

    def __init__(self, party: Party) -> None:
        self._party = party
        self.mark = 0
        self.trail = PartsTrail()

    def close(self, kind: str, program: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """What passed since the last part was of this kind (and of this control program of the step); a part of no
        cycles and no bytes is left out."""
        self.close_at(self._party.events.now, kind, program, bytes_in, bytes_out)

    def close_at(self, time: int, kind: str, program: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """As `close` for what passed until ``time``, which may be yet to come."""
        party = self._party
        if party.clock < time:
            party.clock = time
        else:
            time = party.clock
        dur = time - self.mark
        self.mark = time
        if dur or bytes_in or bytes_out:
            part = (kind, program, dur, bytes_in, bytes_out)
            self.trail = self.trail.after.get(part) or self.trail.then(part)

    def add(self, parts: tuple[StepPart, ...]) -> None:
        """These were the next parts."""
        self.mark += sum([part.dur for part in parts])
        self.trail = self.trail.then_all(parts)


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

    def take_over(self, loading: SliceColumns) -> None:
        """What is computed from now on is the slice that ``other`` counted last."""
        if loading.loaded:
            self.loaded, self.last = dict(loading.loaded), loading.last


class Party:
    """IPU ``index`` of replica ``replica``, which is IPU ``ipu`` of the machine; ``lane`` 1: its I/O tiles alone.

    Attributes:
        number: its place among all parties (replica first), which is its path for breaking ties.
        parts: of the shared step it is in.
        slices: what it has copied in.
        open_wait: what it waits for without knowing how long, "" if it does not.
        clock: until when it is known what it does; behind the event loop while it waits.
        context: number of the counters of its rows (:data:`.recorder.COUNTERS`), -1 when one of them has changed.
    """

    def __init__(self, world: World, number: int, replica: int, index: int, ipu: int, lane: int = 0) -> None:
        self.world = world
        self.events = world.events
        self.number = number
        self.replica = replica
        self.index = index
        self.ipu = ipu
        self.lane = lane
        self.clock = 0
        self.context = -1
        self.parts = Parts(self)
        self.slices = SliceColumns()
        self.open_wait = ""
        self._soon, self._resume = world.events.soon, self.resume
        self._bundles: dict[tuple[Way, int], SendBundle] = {}
        self._flows: dict[int, NetworkFlow] = {}

    def go_on(self) -> None:
        """It has waited for this."""
        self._soon(self._resume)

    def resume(self) -> None:
        """Go on with what it does, now."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """For messages."""
        tiles = "I/O tiles of " if self.lane else ""
        return f"{tiles}replica {self.replica} IPU {self.index} (IPU {self.ipu} of the machine)"

    def arrive(self, time: int = 0) -> int:
        """Its clock, which is at ``time`` and the present at least."""
        self.clock = time = max(self.clock, self.events.now, time)
        return time

    def sleep(self, cycles: int) -> None:
        """Let ``cycles`` pass on its clock.

        Raises:
            SimulationError: the run takes more than can be counted.
        """
        self.clock = self.arrive() + cycles
        self.world.require_countable(self.clock)

    def catch_up(self) -> Waiting:
        """Wait until the event loop is where its clock is."""
        if self.clock > self.events.now:
            yield self.clock - self.events.now

    def when_there(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the event loop is where its clock is."""
        ahead = self.clock - self.events.now
        if ahead > 0:
            self.events.after(ahead, action)
        else:
            action()

    def wait(self, ask: Ask) -> Waiting:
        """At its time, hand ``ask`` something to call when this party may go on, and wait for that."""
        yield from self.catch_up()
        ask(self.go_on)
        yield None

    def wait_all(self, asks: Sequence[Ask]) -> Waiting:
        """Ask for all at once and wait for the last."""
        unanswered = len(asks)

        def answered() -> None:
            nonlocal unanswered
            unanswered -= 1
            if unanswered == 0:
                self.go_on()

        yield from self.catch_up()
        for ask in asks:
            ask(answered)
        if asks:
            yield None

    def send(self, way: Way, size: int, label: Label, done: Callable[[], None], number: int = 0) -> None:
        """Start a transfer of its own when its clock says, of those that are under way the one of this number."""
        flow = NetworkFlow(self.template(way, size, label, number), lambda _: done())
        self.world.network.start([flow], self.arrive() - self.events.now)

    def transfer(self, way: Way, size: int, kind: str, op_id: int) -> Waiting:
        """Start a transfer of its own and wait for its end."""
        template = self.template(way, size, Label(kind, op_id))
        if template.number not in self._flows:
            self._flows[template.number] = NetworkFlow(template, self._sent)
        self.world.network.start([self._flows[template.number]], self.arrive() - self.events.now)
        yield None

    def _sent(self, flights: object) -> None:
        self.go_on()

    def template(self, way: Way, size: int, label: Label, number: int = 0) -> FlowTemplate:
        """A transfer of its own."""
        bundle = self._bundles.get((way, number))
        if bundle is None:
            bundle = self._bundles[way, number] = self._bundle(way, number)
        return self.world.network.template(bundle, (), size, label)

    def _bundle(self, way: Way, number: int) -> SendBundle:
        """The sends of all replicas for which it stands."""
        world, sends, alike = self.world, [], self.world.alike(self.replica)
        for replica in alike:
            owner, ipu = replica * world.stride + self.number % world.stride, world.placement[replica][self.index]
            sends.append(Send((0, owner, number, 0, 0), way(ipu) if callable(way) else way, ipu))
        if len(self._bundles) == _BUNDLES_KEPT:
            self._bundles.clear()
        return world.network.bundle(sends, alike)


def host_ways(world: World) -> dict[str, Way]:
    """The ways of stream copies, by direction."""
    route = world.topology.host_route
    return {"h2d": lambda ipu: route(ipu, False), "d2h": lambda ipu: route(ipu, True)}
