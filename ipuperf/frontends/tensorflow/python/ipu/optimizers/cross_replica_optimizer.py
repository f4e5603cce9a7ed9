"""See :class:`ipuperf.tensorflow.pipelining.accumulation.CrossReplicaOptimizer`."""

from ....pipelining.accumulation import CrossReplicaOptimizer

__all__ = ["CrossReplicaOptimizer"]
