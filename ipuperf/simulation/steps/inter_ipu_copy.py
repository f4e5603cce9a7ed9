"""Exchanges between the IPUs of a replica.

All transfers start together, one external sync after the last party arrived, as flows of the network: the two
directions of a link do not disturb each other, transfers over the same direction share it. Each IPU goes on when its
own transfers are done; until the exchange begins it waits (kind ``sync_external``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ipuperf.lowering.steps import InterIpuCopy, IpuTransfer

from ..errors import SimulationError
from ..gathering import Gathering, Guest
from ..instructions import LeafStep
from ..kinds import SharedKind, Waiting, simulates
from ..network import Send, SendBundle
from ..party import Party
from ..recorder import Label
from ..world import World

CopyKey = tuple[int, tuple[tuple[int, int], ...]]
"""Replica and the pairs of IPUs between which something is copied."""


@simulates(InterIpuCopy)
class InterIpuCopyKind(SharedKind[InterIpuCopy]):
    """All IPUs that send or receive meet, and all transfers start together."""

    types = ("GlobalExchange",)
    symmetric = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arriving: Gathering[CopyKey] = Gathering()
        self._starts: dict[CopyKey, int] = {}
        self._bundles: dict[tuple[int, tuple[int, int]], SendBundle] = {}

    def run(self, party: Party, leaf: LeafStep, step: InterIpuCopy) -> Waiting:
        """Until its own transfers are over."""
        yield from party.wait(lambda done: self._meet(Guest(party, leaf, done), step))

    def _meet(self, guest: Guest, step: InterIpuCopy) -> None:
        own = guest.party
        key = (own.replica, tuple(sorted(copy.ends for copy in step.copies)))
        others = [f"IPU {ipu}" for ipu in step.participants if ipu != own.index]
        pairs = ", ".join(f"IPU {source} to {destination}" for source, destination in key[1])
        waits_for = f"copy {step.name!r} with {' and '.join(others)} of its replica ({pairs})"
        guests = self._arriving.arrive(key, own.index, guest, len(step.participants), waits_for)
        if guests:
            parties = {guest.party.index: guest for guest in guests}
            _require_same(parties)
            sync = self.world.delays.external_sync
            self._starts[key] = self.world.events.now + sync
            self.world.events.after(sync, lambda: self._move(key, parties))

    def _move(self, key: CopyKey, parties: Mapping[int, Guest]) -> None:
        """All meet: start every transfer."""
        del self._starts[key]
        step = parties[key[1][0][0]].leaf.step
        assert isinstance(step, InterIpuCopy)
        left = {index: sum(index in pair for pair in key[1]) for index in parties}
        for party, _, _ in parties.values():
            party.parts.close("sync_external")
        for copy in sorted(step.copies, key=lambda copy: copy.ends):
            self._send(key[0], step, copy, lambda copy=copy: _arrived(copy, parties, left))  # type: ignore[misc]

    def _send(self, replica: int, step: InterIpuCopy, copy: IpuTransfer, done: Callable[[], None]) -> None:
        bundle = self._bundles.get((replica, copy.ends))
        if bundle is None:
            bundle = self._bundles[replica, copy.ends] = self._bundle(replica, copy.ends)
        self.world.network.move(bundle, (), copy.bytes, Label("p2p", step.op_id), lambda _: done())

    def _bundle(self, replica: int, ends: tuple[int, int]) -> SendBundle:
        """The sends of all replicas for which this one stands."""
        sends, alike = [], self.world.alike(replica)
        for other in alike:
            source, destination = (self.world.placement[other][end] for end in ends)
            route = self.world.topology.route(source, destination)
            sends.append(Send((2, other, *ends, 0), route, source))
        return self.world.network.bundle(sends, alike)

    def state(self, now: int) -> tuple[object, ...]:
        """Syncs under way."""
        return tuple(sorted((key, start - now) for key, start in self._starts.items()))


def _arrived(copy: IpuTransfer, parties: Mapping[int, Guest], left: dict[int, int]) -> None:
    """One transfer is over; an end without further transfers goes on."""
    for index in copy.ends:
        left[index] -= 1
        if left[index] == 0:
            party, leaf, go_on = parties[index]
            assert isinstance(leaf.step, InterIpuCopy)
            party.parts.close("link", 0, leaf.step.received(index), leaf.step.sent(index))
            go_on()


def _require_same(parties: Mapping[int, Guest]) -> None:
    """All sides have to mean the same copies."""
    meant: dict[tuple[int, int], dict[int, str]] = {}
    for party, leaf, _ in parties.values():
        assert isinstance(leaf.step, InterIpuCopy)
        for copy in leaf.step.copies:
            meant.setdefault(copy.ends, {})[copy.bytes] = f"{copy.bytes} bytes in {leaf.step.name!r} on {party.name}"
    for (source, destination), sizes in meant.items():
        if len(sizes) > 1:
            raise SimulationError(
                f"IPU {source} and IPU {destination} meet in different copies: {'; '.join(sizes.values())}; "
                "all have to execute the copies between them in the same order"
            )
