"""Loss scales that follow the gradients."""

from ....refusals import refused

AutomaticLossScalingOptimizer = refused(
    "optimizers.AutomaticLossScalingOptimizer", "scale the loss and the gradients by a constant"
)

__all__ = ["AutomaticLossScalingOptimizer"]
