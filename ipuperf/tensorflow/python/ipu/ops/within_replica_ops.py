"""Collectives between the IPUs of a replica."""

from ....refusals import refused

_INSTEAD = "operands from other shards are copied where they are needed: compute on one shard (ipu.scopes.ipu_shard)"
all_gather = refused("within_replica_ops.all_gather", _INSTEAD)
reduce_scatter = refused("within_replica_ops.reduce_scatter", _INSTEAD)
all_reduce = refused("within_replica_ops.all_reduce", _INSTEAD)

__all__ = ["all_gather", "all_reduce", "reduce_scatter"]
