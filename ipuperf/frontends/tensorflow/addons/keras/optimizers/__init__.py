"""``ipu_tensorflow_addons.keras.optimizers``: optimizers whose state and arithmetic have types of their own.

Upstream: ``ipu_tensorflow_addons: keras/optimizers``.
"""

from .ipu_optimizer_base import IpuOptimizerBase  # isort: skip
from .adam_optimizer import AdamIpuOptimizer
from .lamb_optimizer import LAMBIpuOptimizer
from .sgd_optimizer import SGDIpuOptimizer

__all__ = ["AdamIpuOptimizer", "IpuOptimizerBase", "LAMBIpuOptimizer", "SGDIpuOptimizer"]
