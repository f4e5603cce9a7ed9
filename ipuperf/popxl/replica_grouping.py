"""Replica groupings as PopXL shows them, on top of :class:`ipuperf.ir.ReplicaGrouping`.

Only regular groupings (a stride and a group size) exist here; an assignment that is not regular is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf import ir as _ir


class ReplicaGrouping:
    """Which replicas share a value or take part in a collective together."""

    def __init__(self, base: _ir.ReplicaGrouping) -> None:
        self._ir = base

    @property
    def stride(self) -> int:
        """Distance between the members of a group."""
        return self._ir.stride

    @property
    def group_size(self) -> int:
        """Members of a group."""
        return self._ir.group_size

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return self._ir.num_groups

    @property
    def num_replicas(self) -> int:
        """Replicas of the program."""
        return self._ir.replicas

    @property
    def assignment(self) -> list[int]:
        """Group of each replica."""
        return list(self._ir.assignment)

    @property
    def is_const(self) -> bool:
        """Always True: the grouping has one stride and one group size."""
        return True

    @property
    def const_rg(self) -> ReplicaGrouping:
        """The constant grouping behind this one: itself."""
        return self

    def transpose(self) -> ReplicaGrouping:
        """The grouping that takes one member of each of these groups."""
        return ReplicaGrouping(self._ir.transpose())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReplicaGrouping):
            raise TypeError(f"cannot compare a ReplicaGrouping with {type(other).__name__}")
        return self._ir.assignment == other._ir.assignment

    def __hash__(self) -> int:
        return hash(self._ir.assignment)

    def __repr__(self) -> str:
        return (
            f"ReplicaGrouping(num_replicas={self.num_replicas}, stride={self.stride}, group_size={self.group_size}, "
            f"num_groups={self.num_groups})"
        )


def grouping_from_assignment(replicas: int, assignment: Sequence[int]) -> ReplicaGrouping:
    """The regular grouping with this assignment of replicas to groups.

    Raises:
        ValueError: wrong length, or no stride and group size give the assignment.
    """
    if len(assignment) != replicas:
        raise ValueError(f"assignment {list(assignment)} has {len(assignment)} entries for {replicas} replicas")
    wanted = _numbered(assignment)
    for size in (s for s in range(1, replicas + 1) if replicas % s == 0):
        for stride in (s for s in range(1, replicas // size + 1) if replicas % (s * size) == 0):
            found = _ir.ReplicaGrouping(replicas, stride, size)
            if found.assignment == wanted:
                return ReplicaGrouping(found)
    raise ValueError(
        f"assignment {list(assignment)} is not regular; allowed are groups of one size with members one stride apart"
    )


def _numbered(assignment: Sequence[int]) -> tuple[int, ...]:
    """Groups renumbered by their first member."""
    seen: dict[int, int] = {}
    return tuple(seen.setdefault(group, len(seen)) for group in assignment)
