"""Collectives: the members of a group meet and go through the rounds together."""

from __future__ import annotations

from ipuperf.lowering.steps import Collective

from ..algorithms import Planner
from ..collectives import CollectiveRun
from ..gathering import Gathering, Guest
from ..instructions import LeafStep
from ..kinds import SharedKind, Waiting, simulates
from ..party import Party
from ..world import World

CollectiveKey = tuple[int, int, int]
"""LeafStep, IPU of the replica, number of the group."""


@simulates(Collective)
class CollectiveKind(SharedKind[Collective]):
    """A group of one has nothing to do."""

    types = ("GlobalExchange",)
    in_micro_batch = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._planner = Planner(world.topology, world.clock_hz, world.delays.collective_syncs)
        self._arriving: Gathering[CollectiveKey] = Gathering()
        self._runs: dict[CollectiveKey, CollectiveRun] = {}

    def run(self, party: Party, leaf: LeafStep, step: Collective) -> Waiting:
        """Until its part in the last round is over."""
        number = next(i for i, group in enumerate(step.groups) if party.replica in group)
        if len(step.groups[number]) > 1:
            yield from party.wait(lambda done: self._meet(Guest(party, leaf, done), step, number))

    def _meet(self, guest: Guest, step: Collective, number: int) -> None:
        group, key = step.groups[number], (guest.leaf.leaf_id, guest.party.index, number)
        waits_for = f"collective {step.name!r} of replicas {', '.join(map(str, group))}"
        guests = self._arriving.arrive(key, guest.party.replica, guest, len(group), waits_for)
        if guests:
            self._runs[key] = CollectiveRun(self.world, self._planner, key, step, guests, lambda: self._close(key))

    def _close(self, key: CollectiveKey) -> None:
        del self._runs[key]

    def state(self, now: int) -> tuple[object, ...]:
        """Collectives under way."""
        return tuple(self._runs[key].state(now) for key in sorted(self._runs))
