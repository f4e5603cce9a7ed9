"""Collectives between replicas (upstream ``popxl.ops.collectives``)."""

from __future__ import annotations

from typing import Any

from ...errors import unsupported
from .between_ipus import all_reduce
from .collectives import (
    replica_sharded_slice,
    replicated_all_gather,
    replicated_all_reduce,
    replicated_all_reduce_,
    replicated_reduce_scatter,
    replicated_slice,
)
from .comm_group import CommGroup, CommGroupType

__all__ = [
    "CommGroup",
    "CommGroupType",
    "all_reduce",
    "replica_sharded_slice",
    "replicated_all_gather",
    "replicated_all_reduce",
    "replicated_all_reduce_",
    "replicated_reduce_scatter",
    "replicated_slice",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl.ops.collectives.{name}", __all__)
