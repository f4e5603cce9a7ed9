"""``NamedReplicaGrouping``: replica groupings by dotted name, for sharding a collection of tensors."""

from __future__ import annotations

from collections.abc import Iterable

from ipuperf.popxl import ReplicaGrouping, gir

from .dot_tree import DotTree


class NamedReplicaGrouping(DotTree[ReplicaGrouping]):
    """A tree of replica groupings."""

    @classmethod
    def build_groups(cls, names: Iterable[str], value: ReplicaGrouping | None = None) -> NamedReplicaGrouping:
        """The same grouping (default: all replicas) under each name."""
        group = value or gir().replica_grouping()
        return cls.from_dict(dict.fromkeys(names, group))


def get_ild_replica_grouping(replica_group: ReplicaGrouping | None = None) -> ReplicaGrouping:
    """The part of a grouping within one IPU-Link domain: the grouping itself, as there is one domain here."""
    return replica_group or gir().replica_grouping()


get_instance_replica_grouping = get_ild_replica_grouping
