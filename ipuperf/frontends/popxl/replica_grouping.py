"""Replica groupings as PopXL shows them, on top of :class:`ipuperf.ir.Grouping`.

Semantics of popart: python/popxl/python_files/replica_grouping.py: a grouping without a constant stride (from
assignments, or as a transpose) says how variables are shared; collectives refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf import ir as _ir

from .arguments import several, whole


class ReplicaGrouping:
    """Which replicas share a value or take part in a collective together; made by ``ir.replica_grouping``."""

    _base: _ir.Grouping

    def __init__(self) -> None:
        raise RuntimeError(
            "popxl.ReplicaGrouping cannot be constructed; use ir.replica_grouping or "
            "ir.replica_grouping_from_assignments"
        )

    @classmethod
    def _from_ir(cls, base: _ir.Grouping) -> ReplicaGrouping:
        self = cls.__new__(cls)
        self._base = base
        return self

    @property
    def _ir(self) -> _ir.ReplicaGrouping:
        """The regular grouping (NotImplementedError when the stride is not constant)."""
        if not isinstance(self._base, _ir.ReplicaGrouping):
            raise NotImplementedError(
                f"{self} has no constant stride; only variables take it, collectives and sharding need a stride and "
                "a group size (see const_rg)"
            )
        return self._base

    @property
    def stride(self) -> int:
        """Distance between the members of a group (NotImplementedError when it is not constant)."""
        return self._ir.stride

    @property
    def group_size(self) -> int:
        """Members of a group."""
        return self._base.group_size

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return self._base.num_groups

    @property
    def num_replicas(self) -> int:
        """Replicas of the program."""
        return self._base.replicas

    @property
    def assignment(self) -> list[int]:
        """Group of each replica."""
        return list(self._base.assignment)

    @property
    def is_const(self) -> bool:
        """Whether the members of all groups are one stride apart."""
        return self._base.regular

    @property
    def const_rg(self) -> ReplicaGrouping:
        """The grouping with a constant stride into whose groups these split: itself when it has one."""
        return self if self.is_const else ReplicaGrouping._from_ir(self._base.finest())

    @property
    def to_device_map(self) -> list[int] | None:
        """For each group of :attr:`const_rg` the group here that it is part of; None with a constant stride."""
        if self.is_const:
            return None
        return [self.assignment[members[0]] for members in self._base.finest().groups]

    @property
    def to_host_map(self) -> list[int] | None:
        """For each group here the first group of :attr:`const_rg` that is part of it; None with a constant stride."""
        if self.is_const:
            return None
        parts = self._base.finest().assignment
        return [parts[members[0]] for members in self._base.groups]

    def transpose(self) -> ReplicaGrouping:
        """The grouping whose k-th group holds the k-th member of each of these groups."""
        return ReplicaGrouping._from_ir(self._base.transpose())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReplicaGrouping):
            raise TypeError(f"cannot compare a ReplicaGrouping with {type(other).__name__}")
        return self._base.assignment == other._base.assignment

    def __hash__(self) -> int:
        return hash(self._base.assignment)

    def __repr__(self) -> str:
        if not self.is_const:
            return f"ReplicaGrouping(assignment={self.assignment})"
        return (
            f"ReplicaGrouping(num_replicas={self.num_replicas}, stride={self.stride}, group_size={self.group_size}, "
            f"num_groups={self.num_groups})"
        )


def grouping_from_assignment(replicas: int, assignment: Sequence[int]) -> ReplicaGrouping:
    """The grouping with this assignment of replicas to groups.

    Raises:
        ValueError: wrong length, groups of different sizes, or not numbered in the order of their first members.
    """
    members = list(several(assignment, "assignment"))
    if len(members) != replicas:
        raise ValueError(f"assignment {members} has {len(members)} entries for {replicas} replicas")
    groups = [whole(group, "assignment: group of a replica", 0) for group in members]
    return ReplicaGrouping._from_ir(_ir.grouping_of(groups))
