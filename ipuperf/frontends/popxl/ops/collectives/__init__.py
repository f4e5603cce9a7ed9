"""Collectives between replicas (upstream ``popxl.ops.collectives``)."""

from ...package import refuse as _refuse
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

__all__ = ["CommGroup", "CommGroupType", "all_reduce", "replica_sharded_slice", "replicated_all_gather"]
__all__ += ["replicated_all_reduce", "replicated_all_reduce_", "replicated_reduce_scatter", "replicated_slice"]
__getattr__ = _refuse(__name__, __all__)
