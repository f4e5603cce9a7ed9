"""Stream copies during which several IPUs of a replica stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ipuperf.lowering.steps import HostCopy, HostExchange

from ..errors import SimulationError
from ..gathering import Gathering, Guest
from ..instructions import LeafStep
from ..kinds import SharedKind, Waiting, simulates
from ..party import Party
from ..recorder import Label
from ..world import World

HostKey = tuple[int, tuple[int, ...], str]
"""Replica, participants, and ``begin`` or ``end``."""


@simulates(HostExchange)
class HostExchangeKind(SharedKind[HostExchange]):
    """All participants meet, each does its own copies, all meet again."""

    types = ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd")

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arriving: Gathering[HostKey] = Gathering()
        self._starts: dict[HostKey, int] = {}

    def run(self, party: Party, leaf: LeafStep, step: HostExchange) -> Waiting:
        """Meet, do the own copies, meet again. An IPU without copies only waits (``host_end``)."""
        own, host = step.host_slices(party.index), self.world.host
        numbers = [(copy, self.world.streams[copy.direction, copy.stream]) for copy in own]
        yield from party.wait(lambda done: self._meet(Guest(party, leaf, done), step, "begin"))
        party.parts.close("sync_external")
        if own:
            yield from self._copy(party, step, own, [n for copy, n in numbers if copy.direction == "h2d"])
        yield from party.wait(lambda done: self._meet(Guest(party, leaf, done), step, "end"))
        party.parts.close("host_end", 2)
        for copy, stream in numbers:
            if copy.direction == "d2h":
                host.take(party.replica, stream, party.index)

    def _copy(self, party: Party, step: HostExchange, own: Sequence[HostCopy], loads: Sequence[int]) -> Waiting:
        """All slices of the streams ``loads`` are claimed at once, and all copies are transferred together."""
        host, replica, index = self.world.host, party.replica, party.index
        party.open_wait = "the host to prepare slices" if loads else ""
        yield from party.wait_all([partial(host.claim, replica, stream, index) for stream in loads])
        party.open_wait = ""
        yield from party.sleep(self.world.delays.stream)
        party.parts.close("host_begin", 0)
        yield from party.wait_all([partial(self._send, party, step, copy, n) for n, copy in enumerate(own)])
        arrived = sum(copy.bytes for copy in own if copy.direction == "h2d")
        party.parts.close("host_mid", 1, arrived, sum(copy.bytes for copy in own) - arrived)
        for stream in loads:
            host.release(replica, stream, index)

    def _send(self, party: Party, step: HostExchange, copy: HostCopy, number: int, done: Callable[[], None]) -> None:
        route = self.world.topology.host_route(party.ipu, copy.direction == "d2h")
        party.send(route, copy.bytes, Label("stream", step.op_id, party.ipu), done, number)

    def _meet(self, guest: Guest, step: HostExchange, end: str) -> None:
        """The party has arrived at the ``begin`` or ``end``; it goes on one external sync after the last one.

        Raises:
            SimulationError: the IPUs mean different exchanges.
        """
        key = (guest.party.replica, step.participants, end)
        ipus = ", ".join(map(str, step.participants))
        waits_for = f"the {end} of host exchange {step.name!r} of IPUs {ipus} of its replica"
        guests = self._arriving.arrive(key, guest.party.index, guest, len(step.participants), waits_for)
        if guests:
            _require_same(guests)
            sync = self.world.delays.external_sync
            self._starts[key] = self.world.events.now + sync
            self.world.events.after(sync, lambda: self._met(key, guests))

    def _met(self, key: HostKey, guests: Sequence[Guest]) -> None:
        del self._starts[key]
        for guest in sorted(guests, key=lambda guest: guest.party.index):
            guest.go_on()

    def state(self, now: int) -> tuple[object, ...]:
        """Syncs under way."""
        return tuple(sorted((key, start - now) for key, start in self._starts.items()))


def _require_same(guests: Sequence[Guest]) -> None:
    """All participants have to mean the same host exchange."""
    meant = {}
    for party, leaf, _ in guests:
        assert isinstance(leaf.step, HostExchange)
        meant[leaf.step.copies] = f"{leaf.step.name!r} on {party.name}"
    if len(meant) > 1:
        raise SimulationError(
            f"the IPUs of a replica meet in different host exchanges: {'; '.join(meant.values())}; all have to execute "
            "them in the same order"
        )
