"""``ipu_tensorflow_addons``: layers and optimizers for programs on the IPU, which upstream keeps in a package of its
own."""

from ..surface import Names, make_modules

_LAYERS = Names(
    "Recurrent layers.",
    {
        "addons.recurrent": "PopnnDynamicGRU",
        "facade.popnn_layers": "PopnnAUGRU PopnnDynamicLSTM PopnnGRU PopnnLSTM",
    },
)


def _optimizers(names: str) -> Names:
    return Names("Optimizers whose state and arithmetic have types of their own.", {"addons.optimizers": names})


make_modules(
    __name__,
    {
        "v1": Names("What is for TensorFlow 1."),
        "v1.layers": _LAYERS,
        "v1.layers.rnn_ops": _LAYERS,
        "keras": Names("Optimizers, and the layers of Keras on the IPU.", {"keras": "layers"}),
        "keras.optimizers": _optimizers("AdamIpuOptimizer IpuOptimizerBase LAMBIpuOptimizer SGDIpuOptimizer"),
        "keras.optimizers.adam_optimizer": _optimizers("AdamIpuOptimizer"),
        "keras.optimizers.ipu_optimizer_base": _optimizers("IpuOptimizerBase"),
        "keras.optimizers.lamb_optimizer": _optimizers("LAMBIpuOptimizer"),
        "keras.optimizers.sgd_optimizer": _optimizers("SGDIpuOptimizer"),
    },
)

__all__ = ["keras", "layers", "v1"]  # as above


def __getattr__(name: str) -> object:
    """``layers``: those of version 1."""
    from sys import modules

    if name == "layers":
        return modules[f"{__name__}.v1.layers"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
