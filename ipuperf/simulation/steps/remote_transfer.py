"""Transfers between Streaming Memory and an IPU."""

from __future__ import annotations

from ipuperf.lowering.steps import RemoteTransfer

from ..event_loop import Waiting
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..party import Party
from ..world import World


@simulates(RemoteTransfer)
class RemoteTransferKind(SharedKind[RemoteTransfer]):
    """An external sync, the latency of the transfer, and a flow between DDR and IPU."""

    types = ("StreamCopyMid",)
    symmetric = True
    in_micro_batch = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        remote = world.topology.remote_route
        self._ways = {"load": lambda ipu: remote(ipu, True), "store": lambda ipu: remote(ipu, False)}

    def run(self, party: Party, leaf: LeafStep, step: RemoteTransfer) -> Waiting:
        """Make the transfer; no other IPU takes part."""
        load, kind, delays = step.direction == "load", f"remote_{step.direction}", self.world.delays
        party.sleep(delays.external_sync)
        party.parts.close("sync_external")
        party.sleep(delays.remote)
        yield from party.transfer(self._ways[step.direction], step.wire_bytes, kind, step.op_id)
        party.parts.close(kind, 0, step.bytes if load else 0, 0 if load else step.bytes)
