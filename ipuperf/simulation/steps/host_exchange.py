"""Stream copies for which several IPUs of a replica stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ipuperf.lowering.steps import HostCopy, HostExchange

from ..errors import SimulationError
from ..event_loop import Waiting
from ..gathering import Gathering, Guest, last_arrival
from ..host import Go, Sync
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..party import Party, host_ways
from ..recorder import Label
from ..world import World

HostKey = tuple[int, tuple[int, ...], str]
"""Replica, participants, and ``begin`` or ``end``."""

Ask = Callable[[int, int, int, Sync, Go], Go]
"""Prepares a request to the host, from replica, stream, IPU, host sync, and what to call when the IPU may go on."""


@simulates(HostExchange)
class HostExchangeKind(SharedKind[HostExchange]):
    """All participants meet, each makes its copies, and all meet again."""

    types = ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd")
    symmetric = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arriving: Gathering[HostKey] = Gathering()
        self._ways = host_ways(world)

    def run(self, party: Party, leaf: LeafStep, step: HostExchange) -> Waiting:
        """Meet, make the copies of this IPU, and meet again. An IPU without copies only waits (``host_end``)."""
        copies, host = step.host_slices(party.index), self.world.host
        self._meet(Guest(party, leaf), step, "begin")
        yield None
        party.parts.close("sync_external")
        if copies:
            yield from self._copy(party, step, copies)
        self._meet(Guest(party, leaf), step, "end")
        yield None
        yield from self._ask(party, step, copies, host.end_load, host.end_store)
        party.parts.close("host_end", 2)

    def _ask(self, party: Party, step: HostExchange, copies: Sequence[HostCopy], load: Ask, store: Ask) -> Waiting:
        """Send the requests of all copies to the host at once, in one sync: ``load`` or ``store``, by direction."""
        asks = [
            partial(
                _say,
                load if copy.direction == "h2d" else store,
                party.replica,
                self.world.streams[copy.direction, copy.stream],
                party.index,
                # The participants identify the host sync, which all copies of the exchange share.
                step.participants,
            )
            for copy in copies
        ]
        party.open_wait = "the host to answer its slices" if asks else ""
        yield from party.wait_all(asks)
        party.open_wait = ""

    def _copy(self, party: Party, step: HostExchange, copies: Sequence[HostCopy]) -> Waiting:
        """Ask for all slices at once, and transfer all copies together."""
        yield from self._ask(party, step, copies, self.world.host.begin_load, self.world.host.begin_store)
        party.parts.close("host_begin", 0)
        party.sleep(self.world.delays.stream)
        yield from party.wait_all(
            [partial(self._send, party, step, copy, number) for number, copy in enumerate(copies)]
        )
        arrived = sum(copy.bytes for copy in copies if copy.direction == "h2d")
        party.parts.close("host_mid", 1, arrived, sum(copy.bytes for copy in copies) - arrived)

    def _send(self, party: Party, step: HostExchange, copy: HostCopy, number: int, done: Callable[[], None]) -> None:
        party.send(self._ways[copy.direction], copy.bytes, Label("stream", step.op_id), done, number)

    def _meet(self, guest: Guest, step: HostExchange, end: str) -> None:
        """The party has arrived at the ``begin`` or ``end``. It goes on one external sync after the last arrival.

        Raises:
            SimulationError: the IPUs are at different exchanges.
        """
        # The step is not part of the key: IPUs at different exchanges meet and are reported.
        key = (guest.party.replica, step.participants, end)
        ipus = ", ".join(map(str, step.participants))
        waits_for = f"the {end} of host exchange {step.name!r} of IPUs {ipus} of its replica"
        guests = self._arriving.arrive(key, guest.party.index, guest, len(step.participants), waits_for)
        if guests:
            _require_same(guests)
            start = last_arrival(guests) + self.world.delays.external_sync
            for participant in guests:
                participant.party.arrive(start)
                participant.go_on()


def _say(ask: Ask, replica: int, stream: int, ipu: int, sync: Sync, go: Go) -> None:
    ask(replica, stream, ipu, sync, go)()


def _require_same(guests: Sequence[Guest]) -> None:
    """Raise :class:`SimulationError` unless all participants are at the same host exchange."""
    meant = {}
    for party, leaf in guests:
        assert isinstance(leaf.step, HostExchange)
        meant[leaf.step.copies] = f"{leaf.step.name!r} on {party.name}"
    if len(meant) > 1:
        raise SimulationError(
            f"the IPUs of a replica meet in different host exchanges: {'; '.join(meant.values())}; all have to execute "
            "them in the same order"
        )
