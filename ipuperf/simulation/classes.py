"""Which replicas are taken to do the same (:mod:`.symmetry`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class ReplicaClasses:
    """Replicas that are taken to do the same: ``members`` of each class, ascending, the classes by their first ones."""

    members: tuple[tuple[int, ...], ...]

    @classmethod
    def all_alike(cls, replicas: int) -> ReplicaClasses:
        """One class."""
        return cls((tuple(range(replicas)),))

    @classmethod
    def all_apart(cls, replicas: int) -> ReplicaClasses:
        """A class for each."""
        return cls(tuple((replica,) for replica in range(replicas)))

    @cached_property
    def of(self) -> tuple[int, ...]:
        """The class of each replica."""
        classes = {replica: number for number, own in enumerate(self.members) for replica in own}
        return tuple(classes[replica] for replica in range(len(classes)))

    def split(self, apart: Sequence[Collection[int]]) -> ReplicaClasses:
        """Smaller ones: replicas of different sets ``apart``, or of none, are in different classes.

        >>> ReplicaClasses.all_alike(5).split([{1, 3}])
        ReplicaClasses(members=((0, 2, 4), (1, 3)))
        """
        found: dict[tuple[int, int], list[int]] = {}
        sets = {replica: number for number, own in enumerate(apart) for replica in own}
        for replica, number in enumerate(self.of):
            found.setdefault((number, sets.get(replica, -1)), []).append(replica)
        return ReplicaClasses(tuple(sorted(map(tuple, found.values()))))


def by_servers(classes: ReplicaClasses, servers: Sequence[int], costs: Sequence[int]) -> ReplicaClasses:
    """Smaller classes such that the servers of one cost the same and have replicas of the same classes.

    Args:
        servers: the server of each replica.
        costs: what it costs each replica there.
    """
    while True:
        held: dict[int, set[int]] = {}
        for number, server in zip(classes.of, servers, strict=True):
            held.setdefault(server, set()).add(number)
        sorts: dict[tuple[int, frozenset[int]], list[int]] = {}
        for replica, (server, cost) in enumerate(zip(servers, costs, strict=True)):
            sorts.setdefault((cost, frozenset(held[server])), []).append(replica)
        finer = classes.split(list(sorts.values()))
        if finer == classes:
            return classes
        classes = finer
