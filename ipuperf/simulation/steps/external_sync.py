"""IPUs that wait for others to communicate."""

from __future__ import annotations

from ipuperf.lowering.steps import ExternalSync

from ..errors import SimulationError
from ..gathering import Arrival, Gathering, Guest, last_arrival
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..party import Party
from ..world import World

SyncKey = tuple[int, tuple[int, ...]]
"""Replica and participants."""


@simulates(ExternalSync)
class ExternalSyncKind(SharedKind[ExternalSync]):
    """All participants meet and go on (``sync_external``)."""

    types = ("Sync",)
    symmetric = True
    in_micro_batch = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arriving: Gathering[SyncKey] = Gathering()
        self._arrivals: dict[tuple[int, int], Arrival] = {}

    def run(self, party: Party, leaf: LeafStep, step: ExternalSync) -> None:
        """Until the last one is there.

        Raises:
            SimulationError: the IPUs mean different communication.
        """
        arrival = self._arrivals.get((leaf.leaf_id, party.number))
        if arrival is None:
            key, waits_for = (party.replica, step.participants), f"the sync of {step.name!r}"
            arrival = Arrival(key, Guest(party, leaf), len(step.participants), waits_for)
            self._arrivals[leaf.leaf_id, party.number] = arrival
        guests = self._arriving.take(arrival, party.index)
        if not guests:
            return
        meant = {one.leaf.step.name: one.party.name for one in guests}
        if len(meant) > 1:
            told = "; ".join(f"{name!r} on {where}" for name, where in meant.items())
            raise SimulationError(
                f"the IPUs of a replica meet before different communication: {told}; all have to execute it in the "
                "same order"
            )
        last = last_arrival(guests)
        for one in guests:
            one.party.parts.close_at(last, "sync_external")
            one.go_on()
