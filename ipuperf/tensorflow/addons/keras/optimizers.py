"""``ipu_tensorflow_addons.keras.optimizers``.

Upstream's optimizers keep their state in types of their own; Keras' own ones run on the IPU in float32.
"""

from ...keras.refused import refused

AdamIpuOptimizer = refused("AdamIpuOptimizer")
LAMBIpuOptimizer = refused("LAMBIpuOptimizer")
SGDIpuOptimizer = refused("SGDIpuOptimizer")
IpuOptimizerBase = refused("IpuOptimizerBase")

__all__ = ["AdamIpuOptimizer", "IpuOptimizerBase", "LAMBIpuOptimizer", "SGDIpuOptimizer"]
