"""``tensorflow.python.ipu.keras.optimizers`` and ``tf.keras.ipu.optimizers``."""

from .wrappers import (
    ALSOptimizer,
    ALSOptimizerGradientAccumulationWrapper,
    CrossReplicaOptimizer,
    GradientAccumulationOptimizer,
    IpuOptimizer,
    MapGradientOptimizerInvertedChaining,
)

__all__ = [
    "ALSOptimizer",
    "ALSOptimizerGradientAccumulationWrapper",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizer",
    "IpuOptimizer",
    "MapGradientOptimizerInvertedChaining",
]
