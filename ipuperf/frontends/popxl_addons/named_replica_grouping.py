"""``NamedReplicaGrouping``: replica groupings by dotted name, for sharding a collection of tensors; and the parts of a
grouping that lie in one host process or one IPU-Link domain.

Source: popxl-addons: popxl_addons/named_replica_grouping.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from ipuperf.frontends.popxl import ReplicaGrouping, gir
from ipuperf.frontends.popxl.arguments import checked_arguments

from .dot_tree import DotTree

ILD_REPLICAS = 64
"""IPUs of an IPU-Link domain where nothing says otherwise: those of a Pod64 rack."""


class NamedReplicaGrouping(DotTree[ReplicaGrouping]):
    """A tree of replica groupings."""

    @classmethod
    @checked_arguments
    def build_groups(cls, names: Iterable[str], value: ReplicaGrouping | None = None) -> NamedReplicaGrouping:
        """The same grouping (default: all replicas) under each name."""
        group = value or gir().replica_grouping()
        return cls.from_dict(dict.fromkeys(names, group))


@checked_arguments
def fill_none_group(rg: ReplicaGrouping | None, none_value: ReplicaGrouping) -> ReplicaGrouping:
    """``rg``, or ``none_value`` where there is none."""
    return none_value if rg is None else rg


@checked_arguments
def get_instance_replica_grouping(replica_grouping: ReplicaGrouping | None = None) -> ReplicaGrouping:
    """The part of a grouping (default: of all replicas) within one host process: groups of the same stride.

    Raises:
        ValueError: the stride leads out of the process.
    """
    return _within(replica_grouping, gir().instance_replication_factor, "ir.instance_replication_factor")


@checked_arguments
def is_cross_instance(replica_grouping: ReplicaGrouping) -> bool:
    """Whether a group has replicas of several host processes."""
    return _reach(replica_grouping) > gir().instance_replication_factor


def get_ild_size_from_popdist() -> int:
    """Replicas in an IPU-Link domain: ``ipuLinkDomainSize`` of the environment variable ``POPLAR_TARGET_OPTIONS`` (a
    JSON object), otherwise all replicas, :data:`ILD_REPLICAS` at most."""
    options = json.loads(os.environ.get("POPLAR_TARGET_OPTIONS", "{}"))
    return int(options.get("ipuLinkDomainSize", min(gir().replication_factor, ILD_REPLICAS)))


@checked_arguments
def get_ild_replica_grouping(replica_grouping: ReplicaGrouping | None = None) -> ReplicaGrouping:
    """The part of a grouping (default: of all replicas) within one IPU-Link domain: groups of the same stride.

    Raises:
        ValueError: the stride leads out of the domain.
    """
    return _within(replica_grouping, get_ild_size_from_popdist(), "IPU-Link Domain size")


@checked_arguments
def is_cross_ild(replica_grouping: ReplicaGrouping) -> bool:
    """Whether a group has replicas of several IPU-Link domains."""
    return _reach(replica_grouping) > get_ild_size_from_popdist()


def _reach(group: ReplicaGrouping) -> int:
    return group.group_size * group.stride


def _within(group: ReplicaGrouping | None, size: int, subject: str) -> ReplicaGrouping:
    group = group or gir().replica_grouping()
    if group.stride > size:
        raise ValueError(f"replica grouping stride is {group.stride}; at most {subject} is allowed, {size}")
    if _reach(group) <= size:
        return group
    return gir().replica_grouping(stride=group.stride, group_size=size // group.stride)


__all__ = [
    "NamedReplicaGrouping",
    "fill_none_group",
    "get_ild_replica_grouping",
    "get_ild_size_from_popdist",
    "get_instance_replica_grouping",
    "is_cross_ild",
    "is_cross_instance",
]
