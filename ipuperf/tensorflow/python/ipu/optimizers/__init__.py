"""``tensorflow.python.ipu.optimizers``."""

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

__all__ = [
    "AutomaticLossScalingOptimizer",
    "CrossReplicaGradientAccumulationOptimizer",
    "CrossReplicaGradientAccumulationOptimizerV2",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizer",
    "GradientAccumulationOptimizerV2",
    "GradientAccumulationReductionMethod",
    "IPUOptimizer",
    "IpuOptimizer",
    "MapGradientOptimizer",
    "ShardedOptimizer",
]
