"""Collectives between replicas (upstream ``popxl.ops.collectives``)."""

from __future__ import annotations

from typing import Any

from ...errors import unsupported
from .collectives import (
    replica_sharded_slice,
    replicated_all_gather,
    replicated_all_reduce,
    replicated_all_reduce_,
    replicated_reduce_scatter,
)

__all__ = [
    "replica_sharded_slice",
    "replicated_all_gather",
    "replicated_all_reduce",
    "replicated_all_reduce_",
    "replicated_reduce_scatter",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl.ops.collectives.{name}", __all__)
