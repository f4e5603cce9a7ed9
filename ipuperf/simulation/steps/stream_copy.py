"""A stream copy of one IPU: begin (waiting for the host), mid (the transfer), end (a sync)."""

from __future__ import annotations

from ipuperf.lowering.steps import StreamCopy

from ..instructions import LeafStep
from ..kinds import SharedKind, Waiting, simulates
from ..party import Party


@simulates(StreamCopy)
class StreamCopyKind(SharedKind[StreamCopy]):
    """Nobody else stands meanwhile."""

    types = ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd")

    def run(self, party: Party, leaf: LeafStep, step: StreamCopy) -> Waiting:
        """A load claims a slice first and frees its buffer after the transfer; a store hands the slice to the host at
        the end."""
        world, host, load = self.world, self.world.host, step.direction == "h2d"
        stream = world.streams[step.direction, step.stream]
        if load:
            party.open_wait = "the host to prepare a slice"
            yield from party.wait(lambda ready: host.claim(party.replica, stream, party.index, ready))
            party.open_wait = ""
        yield from party.sleep(world.delays.stream)
        party.parts.close("host_begin", 0)
        route = world.topology.host_route(party.ipu, not load)
        yield from party.transfer(route, step.bytes, "stream", step.op_id)
        party.parts.close("host_mid", 1, step.bytes if load else 0, 0 if load else step.bytes)
        if load:
            host.release(party.replica, stream, party.index)
        yield from party.sleep(world.delays.external_sync)
        party.parts.close("host_end", 2)
        if not load:
            host.take(party.replica, stream, party.index)
