"""``tensorflow.python.ipu.keras.optimizers`` and ``tf.keras.ipu.optimizers``."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.frontends.popart.offering import offered as _offered

from .wrappers import (
    ALSOptimizer,
    ALSOptimizerGradientAccumulationWrapper,
    CrossReplicaOptimizer,
    GradientAccumulationOptimizer,
    IpuOptimizer,
    MapGradientOptimizerInvertedChaining,
)

__all__ = _offered(__name__)
