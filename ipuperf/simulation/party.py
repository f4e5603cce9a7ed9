"""Parties: the IPUs (or their I/O tiles) as they take part in shared steps.

A party has its own clock, which may be ahead of the event loop. What no other party can see passes without an event.
Each party announces early when it will arrive, so a meeting knows the time of the last arrival without further events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Union

from .caches import Cache
from .event_loop import Waiting
from .flows import FlowTemplate, NetworkFlow, SendBundle
from .instructions import LeafStep, StepPart, Stretch
from .recorder import Label
from .templates import Send

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .world import World

Way = Union["tuple[Link, ...]", Callable[[int], "tuple[Link, ...]"]]
"""The route of a transfer, or a function that gives it for an IPU of the machine.

A function is needed where a party stands for parties of other replicas. It is a key of a cache, so there has to be one
function for all steps."""

_BUNDLES_KEPT = 1024
"""How many different routes of its transfers a party remembers."""

Ask = Callable[[Callable[[], None]], None]
"""Asks for something; the argument is what to call when it has happened."""


class PartsTrail:
    """The parts of a shared step so far: a node in a tree of all sequences of parts that occurred.

    A sequence that occurs again is found in the tree and not made again.

    Attributes:
        parts: the parts from the begin of the step.
        stretch: the stretch of the trace for a step of exactly these parts; None until such a step has ended.
        after: the longer trails that occurred, by what was added: the values of one `StepPart`, or several parts.
    """

    __slots__ = ("after", "parts", "stretch")

    def __init__(self, parts: tuple[StepPart, ...] = ()) -> None:
        self.parts = parts
        self.stretch: Stretch | None = None
        self.after: dict[tuple[object, ...], PartsTrail] = {}

    def then(self, part: tuple[str, int, int, int, int]) -> PartsTrail:
        """The trail with one more part, which is given as the values of a `StepPart`."""
        longer = self.after.get(part)
        if longer is None:
            longer = self.after[part] = PartsTrail((*self.parts, StepPart(*part)))
        return longer

    def then_all(self, parts: tuple[StepPart, ...]) -> PartsTrail:
        """The trail with several more parts."""
        longer = self.after.get(parts)
        if longer is None:
            longer = self.after[parts] = PartsTrail((*self.parts, *parts))
        return longer


class Parts:
    """The parts of the shared step in which ``party`` is; they are known up to the time ``mark``."""

    __slots__ = ("_party", "mark", "trail")

    def __init__(self, party: Party) -> None:
        self._party = party
        self.mark = 0
        self.trail = PartsTrail()

    def close(self, kind: str, program: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """End a part now: the time since the previous part was of this kind and this control program of the step.

        A part without cycles and bytes is left out.
        """
        self.close_at(self._party.events.now, kind, program, bytes_in, bytes_out)

    def close_at(self, time: int, kind: str, program: int = 0, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """As `close`, for a part that ends at ``time``, which may lie in the future."""
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
        """Append several parts."""
        self.mark += sum([part.dur for part in parts])
        self.trail = self.trail.then_all(parts)


class SliceColumns:
    """How many slices of each host-to-device stream were copied in, and which stream was the ``last``."""

    def __init__(self) -> None:
        self.loaded: dict[int, int] = {}
        self.last = -1

    @property
    def batch(self) -> int:
        """The number of the slice that was copied in last, -1 before the first."""
        return self.loaded[self.last] - 1 if self.loaded else -1

    def load(self, stream: int) -> None:
        """One more slice of this stream."""
        self.last = stream
        self.loaded[stream] = self.loaded.get(stream, 0) + 1

    def take_over(self, loading: SliceColumns) -> None:
        """Go over to the counts of ``loading``: from now on this party computes the slice that it copied in last."""
        if loading.loaded:
            self.loaded, self.last = dict(loading.loaded), loading.last


class Party:
    """IPU ``index`` of replica ``replica``, which is IPU ``ipu`` of the machine. With ``lane`` 1, only its I/O tiles.

    Attributes:
        number: the place of the party among all parties (replica first); it breaks ties.
        parts: the parts of the shared step in which the party is.
        slices: what the party has copied in.
        open_wait: what the party waits for without knowing how long, "" if it does not.
        clock: the time up to which it is known what the party does. While it waits, this is behind the event loop.
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
        self.open_wait: object = ""
        # Bound once, as every wait ends with these calls.
        self._soon, self._resume = world.events.soon, self.resume
        self._bundles: Cache[tuple[Way, int], SendBundle] = Cache(_BUNDLES_KEPT)
        self._flows: dict[int, NetworkFlow] = {}

    def go_on(self) -> None:
        """End the wait of the party in the present instant."""
        self._soon(self._resume)

    def resume(self) -> None:
        """Continue the program of the party now."""
        raise NotImplementedError

    @property
    def repeats(self) -> bool:
        """Whether the present step is in a loop and may come again."""
        raise NotImplementedError

    def alike_ahead(self, participants: tuple[int, ...]) -> Sequence[LeafStep]:
        """The leaf of the present sync, and those of the syncs of the same IPUs that follow it with nothing between."""
        raise NotImplementedError

    def stand(self, times: list[int]) -> None:
        """The party stands in several syncs, of which the first has to come. ``times`` will say when each is over."""
        raise NotImplementedError

    def leave_syncs(self) -> None:
        """The sync that is to come is the last one in which the party stands."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name of the party in messages."""
        tiles = "I/O tiles of " if self.lane else ""
        return f"{tiles}replica {self.replica} IPU {self.index} (IPU {self.ipu} of the machine)"

    def arrive(self, time: int = 0) -> int:
        """Move the clock to ``time`` or the present, whichever is later, unless it is later already; and return it."""
        self.clock = time = max(self.clock, self.events.now, time)
        return time

    def sleep(self, cycles: int) -> None:
        """Let ``cycles`` pass on the clock of the party.

        Raises:
            SimulationError: the run takes more cycles than can be counted.
        """
        self.clock = self.arrive() + cycles
        self.world.require_countable(self.clock)

    def catch_up(self) -> Waiting:
        """Wait until the event loop has reached the clock of the party."""
        if self.clock > self.events.now:
            yield self.clock - self.events.now

    def when_there(self, action: Callable[[], None]) -> None:
        """Call ``action`` when the event loop has reached the clock of the party."""
        ahead = self.clock - self.events.now
        if ahead > 0:
            self.events.after(ahead, action)
        else:
            action()

    def wait(self, ask: Ask) -> Waiting:
        """When the clock is reached, call ``ask`` with what ends the wait of this party, and wait for that."""
        yield from self.catch_up()
        ask(self.go_on)
        yield None

    def wait_all(self, asks: Sequence[Ask]) -> Waiting:
        """Make all requests at once and wait for the last answer."""
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
        """Start a transfer of this party at its clock.

        Args:
            way: the route.
            size: bytes of the transfer.
            label: what the trace says about it.
            done: is called when the transfer has ended.
            number: tells it apart from other transfers of this party that are under way.
        """
        flow = NetworkFlow(self.template(way, size, label, number), lambda _: done())
        self.world.network.start([flow], self.arrive() - self.events.now)

    def transfer(self, way: Way, size: int, kind: str, op_id: int) -> Waiting:
        """Start a transfer of this party and wait for its end."""
        # Such a transfer is the party's only one, so its flow has ended whenever the same step comes again.
        template = self.template(way, size, Label(kind, op_id))
        if template.number not in self._flows:
            self._flows[template.number] = NetworkFlow(template, self._sent)
        self.world.network.start([self._flows[template.number]], self.arrive() - self.events.now)
        yield None

    def _sent(self, flights: object) -> None:
        self.go_on()

    def template(self, way: Way, size: int, label: Label, number: int = 0) -> FlowTemplate:
        """The template of a transfer of this party."""
        bundle = self._bundles.get((way, number))
        if bundle is None:
            bundle = self._bundles.put((way, number), self._bundle(way, number))
        return self.world.network.templates.of(bundle, (), size, label)

    def _bundle(self, way: Way, number: int) -> SendBundle:
        """The sends of all replicas for which this party stands."""
        world, sends, alike = self.world, [], self.world.alike(self.replica)
        for replica in alike:
            # The owner is the number that the party of that replica would have by itself.
            owner, ipu = replica * world.stride + self.number % world.stride, world.placement[replica][self.index]
            sends.append(Send((0, owner, number, 0, 0), way(ipu) if callable(way) else way, ipu))
        return world.network.templates.bundle(sends, alike)


def host_ways(world: World) -> dict[str, Way]:
    """The routes of stream copies, by direction."""
    route = world.topology.host_route
    return {"h2d": lambda ipu: route(ipu, False), "d2h": lambda ipu: route(ipu, True)}
