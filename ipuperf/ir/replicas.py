"""Replica groups: which replicas share a value or take part in a collective together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplicaGrouping:
    """Regular grouping of ``replicas`` replicas: members of a group are ``stride`` apart, ``group_size`` of them.

    With 8 replicas: stride 1, size 4 gives ``{0..3}, {4..7}``; stride 4, size 2 gives ``{0,4}, {1,5}, {2,6}, {3,7}``.

    Raises:
        ValueError: when ``stride * group_size`` does not divide the number of replicas.
    """

    replicas: int
    stride: int = 1
    group_size: int = 0

    def __post_init__(self) -> None:
        if self.group_size == 0:
            object.__setattr__(self, "group_size", max(1, self.replicas // self.stride))
        if self.stride < 1 or self.group_size < 1 or self.replicas % (self.stride * self.group_size):
            raise ValueError(
                f"replica group with stride {self.stride} and group_size {self.group_size} does not divide the "
                f"{self.replicas} replicas; stride * group_size must be a divisor of {self.replicas}"
            )

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return self.replicas // self.group_size

    @property
    def assignment(self) -> tuple[int, ...]:
        """Group index of each replica; groups are numbered by their smallest member."""
        span = self.stride * self.group_size
        return tuple((r // span) * self.stride + r % self.stride for r in range(self.replicas))

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Members of each group, ascending."""
        members: list[list[int]] = [[] for _ in range(self.num_groups)]
        for replica, group in enumerate(self.assignment):
            members[group].append(replica)
        return tuple(tuple(m) for m in members)

    def transpose(self) -> ReplicaGrouping:
        """The grouping whose groups hold one member of each group of this one (only for a full span)."""
        if self.stride == 1:
            return ReplicaGrouping(self.replicas, self.group_size, self.num_groups)
        return ReplicaGrouping(self.replicas, 1, self.stride)
