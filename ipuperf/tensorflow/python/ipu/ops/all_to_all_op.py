"""Exchanges between replicas."""

from ....refusals import refused

_INSTEAD = "of the collectives over replicas sums and means are there: ipu.cross_replica_ops"
all_to_all = refused("all_to_all_op.all_to_all", _INSTEAD)
all_gather = refused("all_to_all_op.all_gather", _INSTEAD)

__all__ = ["all_gather", "all_to_all"]
