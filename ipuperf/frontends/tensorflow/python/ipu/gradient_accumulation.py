"""``tensorflow.python.ipu.gradient_accumulation``: see :mod:`ipuperf.tensorflow.pipelining.reduction`."""

from ...pipelining.reduction import GradientAccumulationReductionMethod

__all__ = ["GradientAccumulationReductionMethod"]
