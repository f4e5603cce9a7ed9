"""Replica groups: which replicas share a value or take part in a collective together.

A grouping is regular (:class:`ReplicaGrouping`: members one stride apart) or any other division into groups of one size
(:class:`IrregularGrouping`), such as the transpose of a regular one. Variables take both; collectives run over regular
groups only, as upstream (popart: python/popxl/python_files/replica_grouping.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING


class Grouping:
    """Replicas in groups of one size. Two groupings are equal when they assign replicas to groups in the same way.

    Attributes:
        replicas: number of replicas.
        group_size: members of each group.
        assignment: group of each replica; groups are numbered by their smallest member.
    """

    if TYPE_CHECKING:

        @property
        def replicas(self) -> int:
            """How many replicas there are."""
            ...

        @property
        def group_size(self) -> int:
            """How many members a group has."""
            ...

        @property
        def assignment(self) -> tuple[int, ...]:
            """The number of each replica's group."""
            ...

    @property
    def regular(self) -> bool:
        """Whether the members of every group are one stride apart."""
        return isinstance(self, ReplicaGrouping)

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return self.replicas // self.group_size

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Members of each group, ascending."""
        members: list[list[int]] = [[] for _ in range(self.num_groups)]
        for replica, group in enumerate(self.assignment):
            members[group].append(replica)
        return tuple(tuple(group_members) for group_members in members)

    def transpose(self) -> Grouping:
        """The grouping whose k-th group holds the k-th member of each group of this one."""
        places = [0] * self.replicas
        for members in self.groups:
            for place, replica in enumerate(members):
                places[replica] = place
        return grouping_of(places)

    def finest(self) -> ReplicaGrouping:
        """The regular grouping that this one consists of (upstream's ``const_rg``): every group here is a union of its
        groups.

        A regular grouping gives itself. Otherwise each group is cut where neighbours are further apart than the least
        distance, into pieces of one size.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class ReplicaGrouping(Grouping):
    """Regular grouping of ``replicas`` replicas: members of a group are ``stride`` apart, ``group_size`` of them.

    With 8 replicas: stride 1, size 4 gives ``{0..3}, {4..7}``; stride 4, size 2 gives ``{0,4}, {1,5}, {2,6}, {3,7}``.
    Groups of one have stride 1.

    Raises:
        ValueError: when ``stride * group_size`` does not divide the number of replicas.
    """

    replicas: int
    stride: int = 1
    group_size: int = 0

    def __post_init__(self) -> None:
        if self.group_size == 0 and self.stride > 0:
            object.__setattr__(self, "group_size", max(1, self.replicas // self.stride))
        if self.stride < 1 or self.group_size < 1 or self.replicas % (self.stride * self.group_size):
            raise ValueError(
                f"replica group with stride {self.stride} and group_size {self.group_size} does not divide the "
                f"{self.replicas} replicas; stride * group_size must be a divisor of {self.replicas}"
            )
        if self.group_size == 1:
            # Otherwise equal groupings of single replicas would compare as different.
            object.__setattr__(self, "stride", 1)

    @cached_property
    def assignment(self) -> tuple[int, ...]:
        """Group index of each replica; groups are numbered by their smallest member."""
        span = self.stride * self.group_size
        return tuple((replica // span) * self.stride + replica % self.stride for replica in range(self.replicas))

    def finest(self) -> ReplicaGrouping:
        """Itself."""
        return self


@dataclass(frozen=True)
class IrregularGrouping(Grouping):
    """Groups of one size whose members are not one stride apart. :func:`grouping_of` makes them."""

    assignment: tuple[int, ...]

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self.assignment)

    @property
    def group_size(self) -> int:
        """Members of each group."""
        return self.assignment.count(0)

    def finest(self) -> ReplicaGrouping:
        """The regular grouping that this one consists of."""
        stride = min(
            next_replica - replica for members in self.groups for replica, next_replica in zip(members, members[1:])
        )
        # A piece size must divide every run, so the largest one is their greatest common divisor.
        size = math.gcd(*(length for members in self.groups for length in _pieces(members, stride)))
        if self.replicas % (stride * size) == 0:
            # Equal piece sizes are not enough: the pieces must also lie in one group each.
            candidate = ReplicaGrouping(self.replicas, stride, size)
            if all(len({self.assignment[member] for member in members}) == 1 for members in candidate.groups):
                return candidate
        return ReplicaGrouping(self.replicas, 1, 1)


def _pieces(members: tuple[int, ...], stride: int) -> list[int]:
    """Lengths of the runs of ``members`` in which neighbours are ``stride`` apart."""
    lengths = [1]
    for replica, next_replica in zip(members, members[1:]):
        if next_replica - replica > stride:
            lengths.append(0)
        lengths[-1] += 1
    return lengths


def grouping_of(assignment: Sequence[int]) -> Grouping:
    """The grouping that puts replica ``i`` into group ``assignment[i]``: regular where a stride and a size describe it.

    Raises:
        ValueError: groups of different sizes, or not numbered 0, 1, ... in the order of their first members.
    """
    group_of_replica = tuple(assignment)
    group_numbers = list(dict.fromkeys(group_of_replica))
    if group_numbers != list(range(len(group_numbers))):
        raise ValueError(
            f"assignment {list(group_of_replica)}: groups must be numbered 0, 1, ... in order of their first members"
        )
    sizes = {group_of_replica.count(group) for group in group_numbers}
    if len(sizes) != 1:
        raise ValueError(
            f"assignment {list(group_of_replica)}: groups have sizes {sorted(sizes)}; all must have the same"
        )
    return _regular(group_of_replica, sizes.pop()) or IrregularGrouping(group_of_replica)


def _regular(assignment: tuple[int, ...], size: int) -> ReplicaGrouping | None:
    """The regular grouping with this assignment, if there is one. Its stride is the distance to the next member of
    replica 0's group."""
    # Replica 0 is always in group 0, so its next member shows the stride.
    stride = assignment.index(0, 1) if size > 1 else 1
    if len(assignment) % (stride * size):
        return None
    candidate = ReplicaGrouping(len(assignment), stride, size)
    return candidate if candidate.assignment == assignment else None
