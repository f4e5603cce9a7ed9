"""``tensorflow.python.ipu.gradient_accumulation``: see :mod:`ipuperf.tensorflow.reduction`."""

from ...reduction import GradientAccumulationReductionMethod

__all__ = ["GradientAccumulationReductionMethod"]
