"""Syncs in which IPUs wait until other IPUs are ready to communicate."""

from __future__ import annotations

from ipuperf.lowering.steps import ExternalSync

from ..errors import SimulationError
from ..gathering import MeetingPlace, Meetings, last_arrival
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..party import Party
from ..world import World

SyncKey = tuple[int, tuple[int, ...]]
"""Replica and participants."""


@simulates(ExternalSync)
class ExternalSyncKind(SharedKind[ExternalSync]):
    """All participants meet, which is a part of kind ``sync_external``, and go on together."""

    types = ("Sync",)
    symmetric = True
    in_micro_batch = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._meetings: dict[SyncKey, Meetings] = {}
        self._places: dict[tuple[int, int], MeetingPlace] = {}

    def run(self, party: Party, leaf: LeafStep, step: ExternalSync) -> None:
        """Wait until the last participant has arrived.

        Raises:
            SimulationError: the IPUs expect different communication.
        """
        place = self._places.get((leaf.leaf_id, party.number))
        if place is None:
            place = self._places[leaf.leaf_id, party.number] = self._place(party, leaf, step)
        guests = place.meetings.take(place)
        if not guests:
            return
        if len({guest.leaf.step.name for guest in guests}) > 1:
            meant = {guest.leaf.step.name: guest.party.name for guest in guests}
            told = "; ".join(f"{name!r} on {where}" for name, where in meant.items())
            raise SimulationError(
                f"the IPUs of a replica meet before different communication: {told}; all have to execute it in the "
                "same order"
            )
        last_time = last_arrival(guests)
        for guest in guests:
            guest.party.open_wait = ""
            guest.party.parts.close_at(last_time, "sync_external")
            guest.party.go_on()

    def _place(self, party: Party, leaf: LeafStep, step: ExternalSync) -> MeetingPlace:
        # The step is not part of the key: IPUs at different syncs meet and are reported.
        key = (party.replica, step.participants)
        meetings = self._meetings.get(key)
        if meetings is None:
            meetings = self._meetings[key] = Meetings(len(step.participants))
        return MeetingPlace(party, leaf, meetings, step.participants.index(party.index), f"the sync of {step.name!r}")
