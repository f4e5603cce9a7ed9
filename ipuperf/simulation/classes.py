"""Classes of replicas that are assumed to do the same (:mod:`.symmetry`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class ReplicaClasses:
    """Classes of replicas that are assumed to do the same.

    ``members`` has the replicas of each class in ascending order; the classes are sorted by their first replicas.
    """

    members: tuple[tuple[int, ...], ...]

    @classmethod
    def all_alike(cls, replicas: int) -> ReplicaClasses:
        """A single class with all replicas."""
        return cls((tuple(range(replicas)),))

    @classmethod
    def all_apart(cls, replicas: int) -> ReplicaClasses:
        """A class for each replica."""
        return cls(tuple((replica,) for replica in range(replicas)))

    @cached_property
    def of(self) -> tuple[int, ...]:
        """The class of each replica."""
        classes = {replica: number for number, members in enumerate(self.members) for replica in members}
        return tuple(classes[replica] for replica in range(len(classes)))

    def split(self, apart: Sequence[Collection[int]]) -> ReplicaClasses:
        """Smaller classes: two replicas stay together only if both are in the same set of ``apart``, or both in none.

        >>> ReplicaClasses.all_alike(5).split([{1, 3}])
        ReplicaClasses(members=((0, 2, 4), (1, 3)))
        """
        members: dict[tuple[int, int], list[int]] = {}
        # Replicas in none of the sets share the number -1, so they stay together.
        sets = {replica: number for number, replicas in enumerate(apart) for replica in replicas}
        for replica, number in enumerate(self.of):
            members.setdefault((number, sets.get(replica, -1)), []).append(replica)
        return ReplicaClasses(tuple(sorted(map(tuple, members.values()))))


def by_servers(classes: ReplicaClasses, servers: Sequence[int], costs: Sequence[int]) -> ReplicaClasses:
    """Smaller classes, such that all servers of a class cost the same and have replicas of the same classes.

    Args:
        classes: the classes to divide.
        servers: the server of each replica.
        costs: what each replica's server costs it.
    """
    # Each division can separate the servers of other classes, so it is repeated until nothing changes.
    while True:
        classes_at: dict[int, set[int]] = {}
        for number, server in zip(classes.of, servers, strict=True):
            classes_at.setdefault(server, set()).add(number)
        replica_sets: dict[tuple[int, frozenset[int]], list[int]] = {}
        for replica, (server, cost) in enumerate(zip(servers, costs, strict=True)):
            replica_sets.setdefault((cost, frozenset(classes_at[server])), []).append(replica)
        finer = classes.split(list(replica_sets.values()))
        if finer == classes:
            return classes
        classes = finer
