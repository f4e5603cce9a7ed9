"""Exchanges between the IPUs of a replica.

All transfers start together, one external sync after the arrival of the last party. They are flows of the network: the
two directions of a link are independent, and transfers in the same direction share it. An IPU waits until the exchange
begins (kind ``sync_external``) and goes on when its own transfers are done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from ipuperf.lowering.steps import InterIpuCopy, IpuTransfer

from ..errors import SimulationError
from ..flows import FlowTemplate, NetworkFlow, SendBundle
from ..gathering import MeetingPlace, Meetings, last_arrival
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..party import Parts, PartsTrail, Party
from ..recorder import Flight, Label
from ..templates import Send
from ..world import World

Pairs = tuple[tuple[int, int], ...]
CopyKey = tuple[int, Pairs]
"""Replica and the pairs of IPUs between which something is copied."""


class _WaitsFor:
    """What the party ``index`` of an exchange waits for; the text is written when somebody reads it."""

    def __init__(self, step: InterIpuCopy, index: int) -> None:
        self._step, self._index = step, index

    def __str__(self) -> str:
        others = [f"IPU {ipu}" for ipu in self._step.participants if ipu != self._index]
        ends = sorted(copy.ends for copy in self._step.copies)
        pairs = ", ".join(f"IPU {source} to {destination}" for source, destination in ends)
        return f"copy {self._step.name!r} with {' and '.join(others)} of its replica ({pairs})"


class _Member(NamedTuple):
    """A party in an exchange, with what is read of it all the time.

    Attributes:
        party: the party.
        parts: the parts of its shared step.
        trails: the trails that its step had, by cycles of the transfers and cycles of the wait before them.
        resume: the call by which it goes on.
        moved: bytes that it receives and sends.
    """

    party: Party
    parts: Parts
    trails: dict[int, dict[int, PartsTrail]]
    resume: Callable[[], None]
    moved: tuple[int, int]


class _Exchange:
    """An exchange of the same copies between the same parties, which may run many times.

    Outside loops it runs once and is taken apart at its end: ramps of pipelines have very many exchanges.

    Args:
        world: what the parties share.
        parties: the parties.
        flows: for each copy, the template of its flow and the places of its two ends among the parties.
        moved: bytes that each party receives and sends.
    """

    def __init__(
        self,
        world: World,
        parties: Sequence[Party],
        flows: Sequence[tuple[FlowTemplate, tuple[int, int]]],
        moved: Sequence[tuple[int, int]],
    ) -> None:
        self._events, self._network = world.events, world.network
        self._members = [
            _Member(party, party.parts, {}, party.resume, party_bytes)
            for party, party_bytes in zip(parties, moved, strict=True)
        ]
        self._parties = parties
        self.repeats = any(party.repeats for party in parties)
        self._ends = {template.sent.flights[0].owner: ends for template, ends in flows}
        self._start = -1
        transfers = Counter(place for _, ends in flows for place in ends)
        self._states: list[tuple[int, ...]] = [tuple(transfers[place] for place in range(len(moved)))]
        self._state = 0  # number of the transfers that each party has left, 0 before the first is over
        self._next: dict[tuple[int, int], tuple[tuple[Flight, ...], int, list[_Member]]] = {}
        by_latency: dict[int, list[NetworkFlow]] = {}
        # Flows of one latency enter in the same cycle, so the network starts them together.
        for template, _ in flows:
            by_latency.setdefault(template.bundle.latency, []).append(NetworkFlow(template, self._arrived))
        self._flows = tuple(by_latency.values())

    def start(self, start: int) -> None:
        """Start all transfers at ``start``. The parties wait until then."""
        self._start, self._state = start, 0
        for party in self._parties:
            party.open_wait = ""
            party.clock = start
        delay = start - self._events.now
        for together in self._flows:
            self._network.start(together, delay)

    def _arrived(self, flights: tuple[Flight, ...]) -> None:
        """Some transfers have ended; the parties without further transfers go on."""
        # The network gives the same tuple for the same transfers, so its identity can be the key of a cache.
        key = (self._state, id(flights))
        known = self._next.get(key)
        if known is None:
            known = self._next[key] = self._after(flights)
        _, self._state, released = known
        start, time, soon = self._start, self._events.now, self._events.soon
        busy = time - start
        for member in released:
            party, parts, trails, resume, _ = member
            trail = trails[busy].get(start - parts.mark) if busy in trails else None
            parts.trail = trail or self._measure(member, time)
            party.clock = parts.mark = time
            soon(resume)
        if not self.repeats and not any(self._states[self._state]):
            vars(self).clear()  # it and its flows refer to each other

    def _measure(self, member: _Member, time: int) -> PartsTrail:
        """The trail of a member that goes on now: it waited until the start, then its transfers were under way."""
        parts, start, trails = member.parts, self._start, member.trails.setdefault(time - self._start, {})
        wait = start - parts.mark
        parts.close_at(start, "sync_external")
        parts.close_at(time, "link", 0, *member.moved)
        trails[wait] = parts.trail
        return parts.trail

    def _after(self, flights: tuple[Flight, ...]) -> tuple[tuple[Flight, ...], int, list[_Member]]:
        """The flights, the state after they have ended, and the members that go on then."""
        left, released = list(self._states[self._state]), []
        # Sends of replicas that this one stands for end with its own and concern no party here.
        for ends in [self._ends[flight.owner] for flight in flights if flight.owner in self._ends]:
            for place in ends:
                left[place] -= 1
                if left[place] == 0:
                    released.append(self._members[place])
        if tuple(left) not in self._states:
            self._states.append(tuple(left))
        return flights, self._states.index(tuple(left)), released


@simulates(InterIpuCopy)
class InterIpuCopyKind(SharedKind[InterIpuCopy]):
    """All IPUs that send or receive meet, and all transfers start together."""

    types = ("GlobalExchange",)
    symmetric = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._meetings: dict[CopyKey, Meetings] = {}
        self._known: dict[int, tuple[Pairs, dict[int, int], dict[int, Meetings]]] = {}
        self._places: dict[tuple[int, int], MeetingPlace] = {}
        self._exchanges: dict[tuple[MeetingPlace, ...], _Exchange] = {}
        self._bundles: dict[tuple[int, tuple[int, int]], SendBundle] = {}

    def prepare(self, party: Party, leaf: LeafStep, step: InterIpuCopy) -> Callable[[], None]:
        """The call by which the party arrives. It goes on when its own transfers have ended."""
        key = (leaf.leaf_id, party.number)
        place = self._places.get(key) or self._place(party, leaf, step)
        if party.repeats:
            self._places[key] = place
        return partial(self._meet, place)

    def forget(self) -> None:
        """Break the reference cycles between exchanges and their flows, too."""
        for exchange in self._exchanges.values():
            vars(exchange).clear()
        super().forget()

    def _place(self, party: Party, leaf: LeafStep, step: InterIpuCopy) -> MeetingPlace:
        known = self._known.get(id(step))
        if known is None:
            seats = {ipu: seat for seat, ipu in enumerate(step.participants)}
            # The program keeps its steps, so their identities stay unique.
            known = self._known[id(step)] = (tuple(sorted(copy.ends for copy in step.copies)), seats, {})
        pairs, seats, meetings_of = known
        if party.replica not in meetings_of:
            key = (party.replica, pairs)
            meetings_of[party.replica] = self._meetings.setdefault(key, Meetings(len(step.participants)))
        return MeetingPlace(party, leaf, meetings_of[party.replica], seats[party.index], _WaitsFor(step, party.index))

    def _meet(self, place: MeetingPlace) -> None:
        """The party has arrived. When all have, the transfers start an external sync after the last arrival."""
        places = place.meetings.take(place)
        if places:
            exchange = self._exchanges.get(places)
            if exchange is None:
                exchange = self._exchange(places)
                if exchange.repeats:
                    self._exchanges[places] = exchange
            exchange.start(last_arrival(places) + self.world.delays.external_sync)

    def _exchange(self, places: Sequence[MeetingPlace]) -> _Exchange:
        _require_same(places)
        # Copies name IPUs of the replica; flows need the places of the parties.
        seats = {place.party.index: number for number, place in enumerate(places)}
        steps = [place.leaf.step for place in places if isinstance(place.leaf.step, InterIpuCopy)]
        copies = sorted(steps[0].copies, key=lambda copy: copy.ends)
        step = steps[seats[copies[0].source]]
        flows = [(self._template(places[0].party.replica, step, copy), copy.ends) for copy in copies]
        return _Exchange(
            self.world,
            [place.party for place in places],
            [(template, (seats[source], seats[end])) for template, (source, end) in flows],
            [
                (party_step.received(index), party_step.sent(index))
                for party_step, index in zip(steps, seats, strict=True)
            ],
        )

    def _template(self, replica: int, step: InterIpuCopy, copy: IpuTransfer) -> FlowTemplate:
        """The template of a copy, with a transfer for each replica for which this one stands."""
        key, templates = (replica, copy.ends), self.world.network.templates
        if key not in self._bundles:
            sends, alike = [], self.world.alike(replica)
            for alike_replica in alike:
                source, destination = (self.world.placement[alike_replica][end] for end in copy.ends)
                route = self.world.topology.route(source, destination)
                sends.append(Send((2, alike_replica, *copy.ends, 0), route, source))
            self._bundles[key] = templates.bundle(sends, alike)
        return templates.of(self._bundles[key], (), copy.bytes, Label("p2p", step.op_id))


def _require_same(places: Sequence[MeetingPlace]) -> None:
    """Raise :class:`SimulationError` unless all IPUs are at the same copies."""
    # The parties of an exchange mostly share one object, which needs no comparison.
    if len({id(place.leaf.step) for place in places}) == 1 or len({place.leaf.step for place in places}) == 1:
        return
    meant: dict[tuple[int, int], dict[int, str]] = {}
    for place in places:
        step, where = place.leaf.step, place.party.name
        assert isinstance(step, InterIpuCopy)
        for copy in step.copies:
            meant.setdefault(copy.ends, {})[copy.bytes] = f"{copy.bytes} bytes in {step.name!r} on {where}"
    for (source, destination), sizes in meant.items():
        if len(sizes) > 1:
            raise SimulationError(
                f"IPU {source} and IPU {destination} meet in different copies: {'; '.join(sizes.values())}; "
                "all have to execute the copies between them in the same order"
            )
