"""See :class:`ipuperf.tensorflow.pipelining.accumulation.IpuOptimizer`."""

from ....pipelining.accumulation import IpuOptimizer

IPUOptimizer = IpuOptimizer

__all__ = ["IPUOptimizer", "IpuOptimizer"]
