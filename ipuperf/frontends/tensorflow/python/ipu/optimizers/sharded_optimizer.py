"""See :class:`ipuperf.tensorflow.pipelining.accumulation.ShardedOptimizer`."""

from ....pipelining.accumulation import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
