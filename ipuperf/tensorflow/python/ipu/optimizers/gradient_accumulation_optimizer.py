"""See :mod:`ipuperf.tensorflow.accumulation`."""

from ....accumulation import (
    CrossReplicaGradientAccumulationOptimizer,
    CrossReplicaGradientAccumulationOptimizerV2,
    GradientAccumulationOptimizer,
    GradientAccumulationOptimizerV2,
)

__all__ = [
    "CrossReplicaGradientAccumulationOptimizer",
    "CrossReplicaGradientAccumulationOptimizerV2",
    "GradientAccumulationOptimizer",
    "GradientAccumulationOptimizerV2",
]
