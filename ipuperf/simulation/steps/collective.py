"""Collectives: the members of a group meet and go through the rounds together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ipuperf.lowering.steps import Collective

from ..algorithms import Planner
from ..classes import ReplicaClasses
from ..collectives import CollectiveRun, Courses, Members
from ..errors import Asymmetric
from ..event_loop import Waiting
from ..gathering import Gathering, Guest
from ..instructions import LeafStep, StepPart
from ..kinds import SharedKind, simulates
from ..party import Party
from ..symmetry import Seat
from ..world import World

CollectiveKey = tuple[int, int, int]
"""Id of the leaf step, IPU of the replica, number of the group."""


class Seating:
    """The groups of a collective by classes: for each group the replicas of each class, for each class its groups.

    Groups with a single member have nothing to do and are left out.

    Args:
        groups: the replicas of each group.
        classes: the classes of replicas.
        placement: the IPUs of each replica.

    Raises:
        Asymmetric: replicas of a class are in groups of different sizes.
    """

    def __init__(
        self, groups: Sequence[Sequence[int]], classes: ReplicaClasses, placement: Sequence[Sequence[int]]
    ) -> None:
        self._replicas, self._placement = groups, placement
        self._ipus: dict[tuple[int, int], dict[int, int]] = {}
        self.groups: dict[int, dict[int, list[int]]] = {}
        self.of: dict[int, list[int]] = {}
        sizes: dict[int, list[int]] = {}
        for number, group in enumerate(groups):
            sizes.setdefault(len(group), []).extend(group)
            if len(group) > 1:
                members = self.groups[number] = {}
                for replica in group:
                    members.setdefault(classes.of[replica], []).append(replica)
                for replica_class in members:
                    self.of.setdefault(replica_class, []).append(number)
        # Replicas in groups of different sizes do different rounds, so they cannot be of one class.
        if classes.split(list(sizes.values())) != classes:
            raise Asymmetric("a collective has groups of different sizes", list(sizes.values()))

    def count(self, replica_class: int) -> int:
        """How many replicas of a class are in all its groups together."""
        return sum(len(self.groups[number][replica_class]) for number in self.of[replica_class])

    def ipus(self, number: int, index: int) -> dict[int, int]:
        """IPU ``index`` of each replica of a group, by replica; the same object each time."""
        if (number, index) not in self._ipus:
            self._ipus[number, index] = {replica: self._placement[replica][index] for replica in self._replicas[number]}
        return self._ipus[number, index]


class Group(Members):
    """The members of a group.

    Args:
        seats: the seats, each with the replicas for which it stands in this group.
        ipus: for each replica, its IPU of the machine.
    """

    def __init__(self, seats: Sequence[tuple[Seat, list[int]]], ipus: dict[int, int]) -> None:
        self._seats = seats
        self._ipus = ipus
        self._begun = -1

    def begin(self, time: int) -> None:
        """All members have waited until ``time``."""
        self._begun = time
        for seat, _ in self._seats:
            seat.begin()

    def leave(self, ipus: Sequence[int], parts: tuple[StepPart, ...]) -> None:
        """The members on these IPUs go on."""
        gone = None if len(ipus) == len(self._ipus) else {self._replicas[ipu] for ipu in ipus}
        for seat, replicas in self._seats:
            leaving = replicas if gone is None else [replica for replica in replicas if replica in gone]
            if leaving:
                seat.leave(self._begun, parts, leaving)

    @cached_property
    def _replicas(self) -> dict[int, int]:
        return {ipu: replica for replica, ipu in self._ipus.items()}


@simulates(Collective)
class CollectiveKind(SharedKind[Collective]):
    """The members of each group meet and go through the rounds. A group with a single member has nothing to do."""

    types = ("GlobalExchange",)
    symmetric = True
    in_micro_batch = False

    def __init__(self, world: World) -> None:
        super().__init__(world)
        planner = Planner(world.planned, world.clock_hz, world.delays.collective_syncs)
        self._courses = Courses(planner, world.network, world.topology, world.faults)
        self._seatings: dict[tuple[tuple[int, ...], ...], Seating] = {}
        self._seats: dict[tuple[int, int], Seat] = {}  # by class and IPU of the replica
        self._arriving: Gathering[CollectiveKey] = Gathering()
        self._runs: dict[CollectiveKey, CollectiveRun] = {}

    def run(self, party: Party, leaf: LeafStep, step: Collective) -> Waiting:
        """Take part in all groups in which the party stands for replicas, until its last round is over in each."""
        if step.groups not in self._seatings:
            self._seatings[step.groups] = Seating(step.groups, self.world.classes, self.world.placement)
        seating = self._seatings[step.groups]
        if self.world.classes.of[party.replica] in seating.of:
            yield from party.wait(lambda _: self._meet(Guest(party, leaf), step, seating))

    def _meet(self, guest: Guest, step: Collective, seating: Seating) -> None:
        party, replica_class = guest.party, self.world.classes.of[guest.party.replica]
        # A seat is for one execution; the next one has members to count again.
        self._seats[replica_class, party.index] = Seat(guest, seating.count(replica_class))
        for number in seating.of[replica_class]:
            classes, key = seating.groups[number], (guest.leaf.leaf_id, party.index, number)
            # A single class arrives with all its members at once, so it waits for nobody.
            if len(classes) > 1:
                waits_for = f"collective {step.name!r} of replicas {', '.join(map(str, step.groups[number]))}"
                if not self._arriving.arrive(key, replica_class, guest, len(classes), waits_for):
                    continue
            self._start(key, step, classes, seating.ipus(number, party.index))

    def _start(self, key: CollectiveKey, step: Collective, classes: dict[int, list[int]], ipus: dict[int, int]) -> None:
        _, index, _ = key
        members = Group(
            [(self._seats[replica_class, index], replicas) for replica_class, replicas in classes.items()], ipus
        )
        course = self._courses.of(step, tuple(ipus.values()))
        self._runs[key] = CollectiveRun(
            self.world, course, key, step, list(ipus.values()), members, lambda: self._close(key)
        )

    def _close(self, key: CollectiveKey) -> None:
        del self._runs[key]

    def state(self, time: int) -> tuple[object, ...]:
        """The states of the collectives under way."""
        return tuple(self._runs[key].state(time) for key in sorted(self._runs))
