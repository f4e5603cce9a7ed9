"""Exchanges between the IPUs of a replica.

All transfers start together, one external sync after the last party arrived, as flows of the network: the two
directions of a link do not disturb each other, transfers over the same direction share it. Each IPU goes on when its
own transfers are done; until the exchange begins it waits (kind ``sync_external``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipuperf.lowering.steps import InterIpuCopy, IpuTransfer

from ..errors import SimulationError
from ..flows import FlowTemplate, NetworkFlow
from ..gathering import Arrival, Gathering, Guest, last_arrival
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..network import Network, Send
from ..party import Party
from ..recorder import Flight, Label
from ..world import World

CopyKey = tuple[int, tuple[tuple[int, int], ...]]
"""Replica and the pairs of IPUs between which something is copied."""


class _Exchange:
    """The same guests in the same copies, again and again.

    Args:
        flows: for each copy what is sent, and the places of its ends among the guests.
        moved: bytes that each guest receives and sends.
    """

    def __init__(self, flows: Sequence[tuple[FlowTemplate, tuple[int, int]]], moved: Sequence[tuple[int, int]]) -> None:
        self._moved = moved
        self._ends = {template.sent.flights[0].owner: ends for template, ends in flows}
        self._guests: Sequence[Guest] = ()
        self._states: list[tuple[int, ...]] = [tuple(sum(n in ends for _, ends in flows) for n in range(len(moved)))]
        self._state = 0  # number of the transfers that each guest has left, 0 before the first is over
        self._next: dict[tuple[int, int], tuple[tuple[Flight, ...], int, list[int]]] = {}
        by_latency: dict[int, list[NetworkFlow]] = {}
        for template, _ in flows:
            by_latency.setdefault(template.bundle.latency, []).append(NetworkFlow(template, self._arrived))
        self._flows = tuple(by_latency.values())

    def start(self, network: Network, guests: Sequence[Guest], delay: int) -> None:
        """All transfers start ``delay`` cycles from now."""
        self._guests, self._state = guests, 0
        for together in self._flows:
            network.start(together, delay)

    def _arrived(self, flights: tuple[Flight, ...]) -> None:
        """Some transfers are over; guests without further transfers go on. The network gives the same tuple for the
        same transfers, so what follows from it is known after the first time."""
        key = (self._state, id(flights))
        known = self._next.get(key)
        if known is None:
            known = self._next[key] = self._after(flights)
        _, self._state, released = known
        for place in released:
            self._release(place)

    def _after(self, flights: tuple[Flight, ...]) -> tuple[tuple[Flight, ...], int, list[int]]:
        """The flights, the state when these are over, and the guests that go on then."""
        left, released = list(self._states[self._state]), []
        for ends in [self._ends[flight.owner] for flight in flights if flight.owner in self._ends]:
            for place in ends:
                left[place] -= 1
                if left[place] == 0:
                    released.append(place)
        if tuple(left) not in self._states:
            self._states.append(tuple(left))
        return flights, self._states.index(tuple(left)), released

    def _release(self, place: int) -> None:
        party = self._guests[place].party
        received, sent = self._moved[place]
        party.parts.close_at(party.events.now, "link", 0, received, sent)
        party.go_on()


@simulates(InterIpuCopy)
class InterIpuCopyKind(SharedKind[InterIpuCopy]):
    """All IPUs that send or receive meet, and all transfers start together."""

    types = ("GlobalExchange",)
    symmetric = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arriving: Gathering[int] = Gathering()
        self._keys: dict[CopyKey, int] = {}
        self._arrivals: dict[tuple[int, int], Arrival] = {}
        self._exchanges: dict[tuple[int, ...], _Exchange] = {}

    def run(self, party: Party, leaf: LeafStep, step: InterIpuCopy) -> None:
        """Until its own transfers are over."""
        arrival = self._arrivals.get((leaf.leaf_id, party.number))
        if arrival is None:
            arrival = self._arrivals[leaf.leaf_id, party.number] = self._arrival(Guest(party, leaf), step)
        guests = self._arriving.take(arrival, party.index)
        if guests:
            self._move(guests)

    def _arrival(self, guest: Guest, step: InterIpuCopy) -> Arrival:
        own = guest.party
        key = (own.replica, tuple(sorted(copy.ends for copy in step.copies)))
        others = [f"IPU {ipu}" for ipu in step.participants if ipu != own.index]
        pairs = ", ".join(f"IPU {source} to {destination}" for source, destination in key[1])
        waits_for = f"copy {step.name!r} with {' and '.join(others)} of its replica ({pairs})"
        return Arrival(self._keys.setdefault(key, len(self._keys)), guest, len(step.participants), waits_for)

    def _move(self, guests: Sequence[Guest]) -> None:
        """All are there: every transfer starts an external sync after the last has arrived."""
        key = (guests[0].party.replica, *[leaf.leaf_id for _, leaf in guests])
        exchange = self._exchanges.get(key)
        if exchange is None:
            exchange = self._exchanges[key] = self._exchange(guests)
        start = last_arrival(guests) + self.world.delays.external_sync
        for party, _ in guests:
            party.parts.close_at(start, "sync_external")
        exchange.start(self.world.network, guests, start - self.world.events.now)

    def _exchange(self, guests: Sequence[Guest]) -> _Exchange:
        parties = {guest.party.index: guest for guest in guests}
        _require_same(parties)
        places = {index: place for place, index in enumerate(parties)}
        steps = [leaf.step for _, leaf in guests if isinstance(leaf.step, InterIpuCopy)]
        copies = sorted(steps[0].copies, key=lambda copy: copy.ends)
        step = steps[places[copies[0].source]]
        flows = [(self._template(guests[0].party.replica, step, copy), copy.ends) for copy in copies]
        return _Exchange(
            [(template, (places[source], places[end])) for template, (source, end) in flows],
            tuple([(own.received(index), own.sent(index)) for own, index in zip(steps, parties, strict=True)]),
        )

    def _template(self, replica: int, step: InterIpuCopy, copy: IpuTransfer) -> FlowTemplate:
        """The transfer of all replicas for which this one stands."""
        sends, alike, network = [], self.world.alike(replica), self.world.network
        for other in alike:
            source, destination = (self.world.placement[other][end] for end in copy.ends)
            route = self.world.topology.route(source, destination)
            sends.append(Send((2, other, *copy.ends, 0), route, source))
        return network.template(network.bundle(sends, alike), (), copy.bytes, Label("p2p", step.op_id))


def _require_same(parties: Mapping[int, Guest]) -> None:
    """All sides have to mean the same copies."""
    if len({leaf.step for _, leaf in parties.values()}) == 1:
        return
    meant: dict[tuple[int, int], dict[int, str]] = {}
    for party, leaf in parties.values():
        assert isinstance(leaf.step, InterIpuCopy)
        for copy in leaf.step.copies:
            meant.setdefault(copy.ends, {})[copy.bytes] = f"{copy.bytes} bytes in {leaf.step.name!r} on {party.name}"
    for (source, destination), sizes in meant.items():
        if len(sizes) > 1:
            raise SimulationError(
                f"IPU {source} and IPU {destination} meet in different copies: {'; '.join(sizes.values())}; "
                "all have to execute the copies between them in the same order"
            )
