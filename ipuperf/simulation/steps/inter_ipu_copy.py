"""Exchanges between the IPUs of a replica.

All transfers start together, one external sync after the last party arrived, as flows of the network: the two
directions of a link do not disturb each other, transfers over the same direction share it. Each IPU goes on when its
own transfers are done; until the exchange begins it waits (kind ``sync_external``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ipuperf.lowering.steps import InterIpuCopy, IpuTransfer

from ..errors import SimulationError
from ..gathering import Gathering, Guest, last_arrival
from ..instructions import LeafStep
from ..kinds import SharedKind, Waiting, simulates
from ..network import FlowTemplate, Send
from ..party import Party
from ..recorder import Flight, Label
from ..world import World

CopyKey = tuple[int, tuple[tuple[int, int], ...]]
"""Replica and the pairs of IPUs between which something is copied."""


class _Seat(NamedTuple):
    """What a party says when it arrives: number of the :data:`CopyKey`, how many are expected, what it waits for."""

    key: int
    expected: int
    waits_for: str


class _Exchange(NamedTuple):
    """What is the same each time parties meet in the same copies: the flows, each with the places of its ends among the
    guests, and for each guest its transfers, and the bytes it receives and sends."""

    flows: tuple[tuple[FlowTemplate, tuple[int, int]], ...]
    transfers: tuple[int, ...]
    moved: tuple[tuple[int, int], ...]


@simulates(InterIpuCopy)
class InterIpuCopyKind(SharedKind[InterIpuCopy]):
    """All IPUs that send or receive meet, and all transfers start together."""

    types = ("GlobalExchange",)
    symmetric = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arriving: Gathering[int] = Gathering()
        self._keys: dict[CopyKey, int] = {}
        self._seats: dict[tuple[int, int], _Seat] = {}
        self._exchanges: dict[tuple[int, ...], _Exchange] = {}

    def run(self, party: Party, leaf: LeafStep, step: InterIpuCopy) -> Waiting:
        """Until its own transfers are over."""
        seat = self._seats.get((leaf.leaf_id, party.number))
        if seat is None:
            seat = self._seats[leaf.leaf_id, party.number] = self._seat(party, step)
        guests = self._arriving.arrive(seat.key, party.index, Guest(party, leaf), seat.expected, seat.waits_for)
        if guests:
            self._move(guests)
        yield None

    def _seat(self, own: Party, step: InterIpuCopy) -> _Seat:
        key = (own.replica, tuple(sorted(copy.ends for copy in step.copies)))
        others = [f"IPU {ipu}" for ipu in step.participants if ipu != own.index]
        pairs = ", ".join(f"IPU {source} to {destination}" for source, destination in key[1])
        waits_for = f"copy {step.name!r} with {' and '.join(others)} of its replica ({pairs})"
        return _Seat(self._keys.setdefault(key, len(self._keys)), len(step.participants), waits_for)

    def _move(self, guests: Sequence[Guest]) -> None:
        """All are there: every transfer starts an external sync after the last has arrived."""
        key = (guests[0].party.replica, *[leaf.leaf_id for _, leaf in guests])
        exchange = self._exchanges.get(key)
        if exchange is None:
            exchange = self._exchanges[key] = self._exchange(guests)
        start = last_arrival(guests) + self.world.delays.external_sync
        for party, _ in guests:
            party.arrive(start)
            party.parts.close("sync_external")
        network, delay, left = self.world.network, start - self.world.events.now, list(exchange.transfers)
        for template, ends in exchange.flows:
            network.start(template, partial(_arrived, ends, guests, exchange, left), delay)

    def _exchange(self, guests: Sequence[Guest]) -> _Exchange:
        parties = {guest.party.index: guest for guest in guests}
        _require_same(parties)
        places = {index: place for place, index in enumerate(parties)}
        steps = [leaf.step for _, leaf in guests if isinstance(leaf.step, InterIpuCopy)]
        copies = sorted(steps[0].copies, key=lambda copy: copy.ends)
        step = steps[places[copies[0].source]]
        flows = [(self._template(guests[0].party.replica, step, copy), copy.ends) for copy in copies]
        return _Exchange(
            tuple([(template, (places[source], places[end])) for template, (source, end) in flows]),
            tuple([sum(index in copy.ends for copy in copies) for index in parties]),
            tuple([(own.received(index), own.sent(index)) for own, index in zip(steps, parties, strict=True)]),
        )

    def _template(self, replica: int, step: InterIpuCopy, copy: IpuTransfer) -> FlowTemplate:
        sends = []
        for alike in self.world.alike(replica):
            source, destination = (self.world.placement[alike][end] for end in copy.ends)
            route = self.world.topology.route(source, destination)
            sends.append(Send((2, alike, *copy.ends, 0), route, source))
        network = self.world.network
        return network.template(network.single(sends), (), copy.bytes, Label("p2p", step.op_id), one=True)


def _arrived(
    ends: tuple[int, int], guests: Sequence[Guest], exchange: _Exchange, left: list[int], flights: Sequence[Flight]
) -> None:
    """One transfer is over; an end without further transfers goes on."""
    for place in ends:
        left[place] -= 1
        if left[place] == 0:
            party = guests[place].party
            party.parts.close("link", 0, *exchange.moved[place])
            party.go_on()


def _require_same(parties: Mapping[int, Guest]) -> None:
    """All sides have to mean the same copies."""
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
