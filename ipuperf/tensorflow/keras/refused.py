"""Layers and optimizers of upstream that are not here, each with what to use instead."""

from __future__ import annotations

from typing import Any

_TAPE = "compute these gradients with tf.GradientTape in a `train_step` of the model's own"
_ACCUMULATE = "call `set_gradient_accumulation_options` of the model"
_SCALE = "multiply the loss by a constant, and divide the learning rate by it"
_INSTEAD = {
    "EffectiveTransformer": "use attention layers of tf.keras with padded sequences",
    "CaptureUpstreamGradients": _TAPE,
    "CaptureActivationGradients": _TAPE,
    "GradientAccumulationOptimizer": _ACCUMULATE,
    "ALSOptimizer": _SCALE,
    "ALSOptimizerGradientAccumulationWrapper": _SCALE,
    "AdamIpuOptimizer": "use tf.keras.optimizers.Adam",
    "LAMBIpuOptimizer": "use tf.keras.optimizers.Adam or an optimizer class of your own",
    "SGDIpuOptimizer": "use tf.keras.optimizers.SGD",
    "IpuOptimizerBase": "derive from tf.keras.optimizers.Optimizer",
    "IPUEstimator": "use a Keras model inside IPUStrategy, with steps_per_execution",
    "IPUPipelineEstimator": "use a Keras model inside IPUStrategy, with pipeline stages",
}


def refused(name: str) -> type:
    """A class called ``name`` that raises NotImplementedError when it is made."""

    def init(self: Any, *_: Any, **__: Any) -> None:
        raise NotImplementedError(f"{name} is not supported: {_INSTEAD[name]}.")

    return type(name, (), {"__init__": init, "__doc__": f"Not supported: {_INSTEAD[name]}."})
