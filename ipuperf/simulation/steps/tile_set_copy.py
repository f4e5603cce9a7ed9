"""Copies between the compute tiles and the I/O tiles of an IPU."""

from __future__ import annotations

from ipuperf.lowering.steps import TileSetCopy

from ..errors import SimulationError
from ..event_loop import Waiting
from ..gathering import Gathering, Guest, last_arrival
from ..instructions import LeafStep
from ..kinds import SharedKind, simulates
from ..party import Party
from ..world import World


@simulates(TileSetCopy)
class TileSetCopyKind(SharedKind[TileSetCopy]):
    """The two tile sets meet (waiting is ``idle``), then sync and exchange together."""

    types = ("DoExchange",)
    symmetric = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arriving: Gathering[tuple[int, int]] = Gathering()

    def run(self, party: Party, leaf: LeafStep, step: TileSetCopy) -> Waiting:
        """Take part as one of the two tile sets."""
        self._meet(Guest(party, leaf), step)
        yield None
        party.parts.close("idle")
        faults = self.world.faults
        party.sleep(faults.cycles_of(party.ipu, step.sync))
        party.parts.close("sync")
        party.sleep(faults.cycles_of(party.ipu, step.cycles))
        receives = (step.destination == "io") == (party.lane == 1)
        party.parts.close("exchange", 0, step.bytes if receives else 0, 0 if receives else step.bytes)

    def _meet(self, guest: Guest, step: TileSetCopy) -> None:
        """One of the two tile sets has arrived.

        Raises:
            SimulationError: the two are at different copies.
        """
        party = guest.party
        waits_for = f"the {'compute' if party.lane else 'I/O'} tiles at copy {step.name!r}"
        guests = self._arriving.arrive((party.replica, party.index), party.lane, guest, 2, waits_for)
        if guests:
            # Guests are sorted by lane.
            (compute, _), (io, _) = guests
            partner, other_leaf = guests[1 - party.lane]
            if other_leaf.step is not step:
                raise SimulationError(
                    f"{party.name} is at copy {step.name!r} and {partner.name} at {other_leaf.step.name!r}; "
                    "compute tiles and I/O tiles have to execute the copies between them in the same order"
                )
            # With the loaded data, the compute tiles take over the number of its micro-batch.
            if step.destination == "compute":
                compute.slices.take_over(io.slices)
                compute.context = -1
            last_time = last_arrival(guests)
            for tile_set in guests:
                tile_set.party.arrive(last_time)
                tile_set.go_on()
