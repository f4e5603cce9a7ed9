"""See :class:`ipuperf.tensorflow.pipelining.accumulation.MapGradientOptimizer`."""

from ....pipelining.accumulation import MapGradientOptimizer

__all__ = ["MapGradientOptimizer"]
