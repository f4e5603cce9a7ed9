"""A stream copy of one IPU: begin (waiting for the host), mid (the transfer), end (a sync)."""

from __future__ import annotations

from ipuperf.lowering.steps import StreamCopy

from ..instructions import LeafStep
from ..kinds import SharedKind, Waiting, simulates
from ..party import Party, host_ways
from ..world import World


@simulates(StreamCopy)
class StreamCopyKind(SharedKind[StreamCopy]):
    """Nobody else stands meanwhile."""

    types = ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd")
    symmetric = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._ways = host_ways(world)

    def run(self, party: Party, leaf: LeafStep, step: StreamCopy) -> Waiting:
        """The host is asked before the transfer and told after it; see :mod:`ipuperf.simulation.host`."""
        world, host, load = self.world, self.world.host, step.direction == "h2d"
        stream = world.streams[step.direction, step.stream]
        begin, end = (host.begin_load, host.end_load) if load else (host.begin_store, host.end_store)
        sync = (-1, stream)
        party.open_wait = f"the host to {'prepare' if load else 'accept'} a slice"
        yield from party.wait(lambda go: begin(party.replica, stream, party.index, sync, go))
        party.open_wait = ""
        party.parts.close("host_begin", 0)
        party.sleep(world.delays.stream)
        yield from party.transfer(self._ways[step.direction], step.bytes, "stream", step.op_id)
        party.parts.close("host_mid", 1, step.bytes if load else 0, 0 if load else step.bytes)
        party.sleep(world.delays.external_sync)
        party.open_wait = "the host to answer a slice"
        yield from party.wait(lambda go: end(party.replica, stream, party.index, sync, go))
        party.open_wait = ""
        party.parts.close("host_end", 2)
