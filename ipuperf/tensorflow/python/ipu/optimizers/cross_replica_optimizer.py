"""See :class:`ipuperf.tensorflow.accumulation.CrossReplicaOptimizer`."""

from ....accumulation import CrossReplicaOptimizer

__all__ = ["CrossReplicaOptimizer"]
