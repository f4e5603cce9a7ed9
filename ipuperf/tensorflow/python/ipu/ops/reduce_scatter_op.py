"""Sums of which each replica gets a part."""

from ....refusals import refused

_INSTEAD = "of the collectives over replicas sums and means are there: ipu.cross_replica_ops"
reduce_scatter = refused("reduce_scatter_op.reduce_scatter", _INSTEAD)

__all__ = ["reduce_scatter"]
