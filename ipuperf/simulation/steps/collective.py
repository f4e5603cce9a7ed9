"""Collectives: the members of a group meet and go through the rounds together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipuperf.lowering.steps import Collective

from ..algorithms import Planner
from ..collectives import CollectiveRun, Members, RoundTemplates
from ..errors import Asymmetric
from ..gathering import Gathering, Guest, last_arrival
from ..instructions import LeafStep, StepPart
from ..kinds import SharedKind, Waiting, simulates
from ..party import Party
from ..symmetry import AllAlike
from ..world import World

CollectiveKey = tuple[int, int, int]
"""LeafStep, IPU of the replica, number of the group."""


class Guests(Members):
    """Each member is a party."""

    def __init__(self, guests: Sequence[Guest]) -> None:
        self._guests = {guest.party.ipu: guest for guest in guests}

    def begin(self) -> None:
        """All have waited until now."""
        for guest in self._guests.values():
            guest.party.parts.close("sync_external")

    def leave(self, ipu: int, parts: list[StepPart]) -> None:
        """It goes on."""
        self._guests[ipu].party.parts.add(parts)
        self._guests[ipu].go_on()


@simulates(Collective)
class CollectiveKind(SharedKind[Collective]):
    """A group of one has nothing to do."""

    types = ("GlobalExchange",)
    symmetric = True
    in_micro_batch = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._planner = Planner(world.topology, world.clock_hz, world.delays.collective_syncs)
        self._templates = RoundTemplates(world.network, world.topology)
        self._arriving: Gathering[CollectiveKey] = Gathering()
        self._starts: dict[CollectiveKey, int] = {}
        self._runs: dict[CollectiveKey, CollectiveRun] = {}

    def run(self, party: Party, leaf: LeafStep, step: Collective) -> Waiting:
        """Until its part in the last round is over."""
        number = next(i for i, group in enumerate(step.groups) if party.replica in group)
        if self.world.symmetric:
            yield from self._all_alike(party, leaf, step)
        elif len(step.groups[number]) > 1:
            self._meet(Guest(party, leaf), step, number)
            yield None

    def _meet(self, guest: Guest, step: Collective, number: int) -> None:
        group, key = step.groups[number], (guest.leaf.leaf_id, guest.party.index, number)
        waits_for = f"collective {step.name!r} of replicas {', '.join(map(str, group))}"
        guests = self._arriving.arrive(key, guest.party.replica, guest, len(group), waits_for)
        if guests:
            self._start_at(last_arrival(guests), key, step, [guest.party.ipu for guest in guests], Guests(guests))

    def _all_alike(self, party: Party, leaf: LeafStep, step: Collective) -> Waiting:
        """The party stands for its IPU of all replicas: every group is there at once."""
        sizes = {len(group) for group in step.groups}
        if len(sizes) > 1:
            raise Asymmetric(f"collective {step.name!r} has groups of different sizes")
        if sizes == {1}:
            return

        yield from party.catch_up()
        members = AllAlike(Guest(party, leaf), len(self.world.placement))
        for number, group in enumerate(step.groups):
            ipus = [self.world.placement[replica][party.index] for replica in group]
            self._start((leaf.leaf_id, party.index, number), step, ipus, members)
        yield None

    def _start_at(self, time: int, key: CollectiveKey, *what: Any) -> None:
        """All are there at this time."""
        self._starts[key] = time

        def start() -> None:
            del self._starts[key]
            self._start(key, *what)

        self.world.events.after(time - self.world.events.now, start)

    def _start(self, key: CollectiveKey, step: Collective, ipus: Sequence[int], members: Members) -> None:
        self._runs[key] = CollectiveRun(
            self.world, self._planner, self._templates, key, step, ipus, members, lambda: self._close(key)
        )

    def _close(self, key: CollectiveKey) -> None:
        del self._runs[key]

    def state(self, now: int) -> tuple[object, ...]:
        """Collectives under way."""
        starts = tuple(sorted((key, start - now) for key, start in self._starts.items()))
        return (starts, *(self._runs[key].state(now) for key in sorted(self._runs)))
