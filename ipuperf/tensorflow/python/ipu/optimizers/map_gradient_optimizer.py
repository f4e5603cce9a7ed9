"""See :class:`ipuperf.tensorflow.accumulation.MapGradientOptimizer`."""

from ....accumulation import MapGradientOptimizer

__all__ = ["MapGradientOptimizer"]
