"""See :class:`ipuperf.tensorflow.accumulation.ShardedOptimizer`."""

from ....accumulation import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
