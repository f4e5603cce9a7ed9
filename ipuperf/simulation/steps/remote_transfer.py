"""Transfers between Streaming Memory and an IPU."""

from __future__ import annotations

from ipuperf.lowering.steps import RemoteTransfer

from ..instructions import LeafStep
from ..kinds import SharedKind, Waiting, simulates
from ..party import Party


@simulates(RemoteTransfer)
class RemoteTransferKind(SharedKind[RemoteTransfer]):
    """An external sync, the latency of the transfer, and a flow between DDR and IPU."""

    types = ("StreamCopyMid",)
    symmetric = True
    in_micro_batch = False

    def run(self, party: Party, leaf: LeafStep, step: RemoteTransfer) -> Waiting:
        """One IPU alone."""
        load, kind, delays = step.direction == "load", f"remote_{step.direction}", self.world.delays
        party.sleep(delays.external_sync)
        party.parts.close("sync_external")
        party.sleep(delays.remote)
        topology = self.world.topology
        yield from party.transfer(lambda ipu: topology.remote_route(ipu, load), step.wire_bytes, kind, step.op_id)
        party.parts.close(kind, 0, step.bytes if load else 0, 0 if load else step.bytes)
