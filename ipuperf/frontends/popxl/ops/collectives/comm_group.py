"""``CommGroup``: groups of replicas in the words before :class:`popxl.ReplicaGrouping`
(popart: willow/src/commgroup.cpp)."""

from __future__ import annotations

from dataclasses import dataclass

from ipuperf.frontends.enumerations import NativeEnum

from ...arguments import whole
from ...ir import Ir
from ...replica_grouping import ReplicaGrouping


class CommGroupType(NativeEnum):
    """Which replicas form a group: all of them, ``size`` neighbours, ``size`` that are evenly spread, each alone."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    Ungrouped = 3


@dataclass(frozen=True)
class CommGroup:
    """Groups of ``replicaGroupSize`` replicas of one kind; the size counts for ``Consecutive`` and ``Orthogonal``."""

    type: CommGroupType = CommGroupType.All
    replicaGroupSize: int = 0

    def replica_grouping(self, ir: Ir) -> ReplicaGrouping:
        """The same groups of ``ir``'s replicas; ValueError when they do not divide."""
        replicas = ir.replication_factor
        if self.type is CommGroupType.All:
            return ir.replica_grouping()
        if self.type is CommGroupType.Ungrouped:
            return ir.replica_grouping(group_size=1)
        size = whole(self.replicaGroupSize, "CommGroup: replicaGroupSize", 1)
        if replicas % size:
            raise ValueError(f"CommGroup: groups of {size} of {replicas} replicas; the size must divide their number")
        stride = 1 if self.type is CommGroupType.Consecutive else replicas // size
        return ir.replica_grouping(stride, size)
