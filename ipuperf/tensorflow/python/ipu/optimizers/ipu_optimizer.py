"""See :class:`ipuperf.tensorflow.accumulation.IpuOptimizer`."""

from ....accumulation import IpuOptimizer

IPUOptimizer = IpuOptimizer

__all__ = ["IPUOptimizer", "IpuOptimizer"]
