"""Collectives between replicas (upstream ``popxl.ops.collectives``)."""

# ruff: noqa: F401  # what is imported is the package's content
from ...package import offer as _offer
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

__all__, __getattr__ = _offer(__name__)
