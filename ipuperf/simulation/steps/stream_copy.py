"""A stream copy of one IPU: begin (waiting for the host), mid (the transfer), end (a sync)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ipuperf.lowering.steps import StreamCopy

from ..flows import NetworkFlow
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..party import Party, Way, host_ways
from ..recorder import Label
from ..world import World


class _Copy:
    """A copy of one party, which may run many times. Each method is called when the one before it has taken effect.

    The party sends a request to the host before the transfer and another one after it; see
    :mod:`ipuperf.simulation.host`.
    """

    def __init__(self, world: World, party: Party, step: StreamCopy, way: Way) -> None:
        self._world, self._party, load = world, party, step.direction == "h2d"
        host, soon, stream = world.host, world.events.soon, world.streams[step.direction, step.stream]
        begin, end = (host.begin_load, host.end_load) if load else (host.begin_store, host.end_store)
        # No IPU has the number -1, so this host sync is never that of an exchange.
        who = (party.replica, stream, party.index, (-1, stream))
        self._ask, self._tell = begin(*who, partial(soon, self._begun)), end(*who, partial(soon, self._ended))
        self._flow = [NetworkFlow(party.template(way, step.bytes, Label("stream", step.op_id)), self._arrived)]
        self._moved = (step.bytes, 0) if load else (0, step.bytes)
        self._waits_for = f"the host to {'prepare' if load else 'accept'} a slice"

    def run(self) -> None:
        """Send the first request to the host when the party's clock is reached."""
        self._party.open_wait = self._waits_for
        self._party.when_there(self._ask)

    def _begun(self) -> None:
        """The host has answered: start the transfer."""
        party, world = self._party, self._world
        party.open_wait = ""
        party.parts.close("host_begin", 0)
        party.sleep(world.delays.stream)
        world.network.start(self._flow, party.clock - world.events.now)

    def _arrived(self, flights: object) -> None:
        """The transfer has ended: sync, and send the second request to the host."""
        party = self._party
        party.parts.close("host_mid", 1, *self._moved)
        party.sleep(self._world.delays.external_sync)
        party.open_wait = "the host to answer a slice"
        party.when_there(self._tell)

    def _ended(self) -> None:
        """The host has answered the second request: go on."""
        party = self._party
        party.open_wait = ""
        party.parts.close("host_end", 2)
        party.resume()


@simulates(StreamCopy)
class StreamCopyKind(SharedKind[StreamCopy]):
    """A stream copy for which no other IPU stops."""

    types = ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd")
    symmetric = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._ways = host_ways(world)
        self._copies: dict[tuple[int, int], _Copy] = {}

    def prepare(self, party: Party, leaf: LeafStep, step: StreamCopy) -> Callable[[], None]:
        """The call that begins the copy. The party goes on when the host has answered after the transfer."""
        key = (leaf.leaf_id, party.number)
        if key not in self._copies:
            self._copies[key] = _Copy(self.world, party, step, self._ways[step.direction])
        return self._copies[key].run

    def forget(self) -> None:
        """Break the reference cycles between copies and their flows, too."""
        for copy in self._copies.values():
            vars(copy).clear()
        super().forget()
