"""``tensorflow.python.ipu.optimizers``."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.frontends.popart.offering import offered as _offered

from ..gradient_accumulation import GradientAccumulationReductionMethod
from .automatic_loss_scaling_optimizer import AutomaticLossScalingOptimizer
from .cross_replica_optimizer import CrossReplicaOptimizer
from .gradient_accumulation_optimizer import (
    CrossReplicaGradientAccumulationOptimizer,
    CrossReplicaGradientAccumulationOptimizerV2,
    GradientAccumulationOptimizer,
    GradientAccumulationOptimizerV2,
)
from .ipu_optimizer import IPUOptimizer, IpuOptimizer
from .map_gradient_optimizer import MapGradientOptimizer
from .sharded_optimizer import ShardedOptimizer

__all__ = _offered(__name__)
