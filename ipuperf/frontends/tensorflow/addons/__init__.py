"""``ipu_tensorflow_addons``: layers and optimizers for programs on the IPU, which upstream keeps in a package of its
own."""

import sys as _sys

from ..surface import make_modules, table

make_modules(
    __name__,
    table("""
v1: What is for TensorFlow 1.
v1.layers, v1.layers.rnn_ops: Recurrent layers.
    addons.recurrent: PopnnDynamicGRU
    facade.popnn_layers: PopnnAUGRU PopnnDynamicLSTM PopnnGRU PopnnLSTM
keras: Optimizers, and the layers of Keras on the IPU.
    keras: layers
keras.optimizers: Optimizers whose state and arithmetic have types of their own.
    addons.optimizers: AdamIpuOptimizer IpuOptimizerBase LAMBIpuOptimizer SGDIpuOptimizer
keras.optimizers.adam_optimizer: Adam.
    addons.optimizers: AdamIpuOptimizer
keras.optimizers.ipu_optimizer_base: Their base.
    addons.optimizers: IpuOptimizerBase
keras.optimizers.lamb_optimizer: LAMB.
    addons.optimizers: LAMBIpuOptimizer
keras.optimizers.sgd_optimizer: Stochastic gradient descent.
    addons.optimizers: SGDIpuOptimizer
"""),
)
keras, v1, layers = (_sys.modules[f"{__name__}.{name}"] for name in ("keras", "v1", "v1.layers"))

__all__ = ["keras", "layers", "v1"]
