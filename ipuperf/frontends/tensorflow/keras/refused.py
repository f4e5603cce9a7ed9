"""Layers and optimizers of upstream that are not here, each with what to use instead."""

from __future__ import annotations

from typing import Any

_TAPE = "compute these gradients with tf.GradientTape in a `train_step` of the model's own"
_ACCUMULATE = "call `set_gradient_accumulation_options` of the model"
_SCALE = "multiply the loss by a constant, and divide the learning rate by it"
_MODEL = "use a Keras model inside IPUStrategy, with steps_per_execution (TensorFlow has no estimators any more)"
_PIPELINE = "use a Keras model inside IPUStrategy, with pipeline stages (TensorFlow has no estimators any more)"
_INSTEAD = {
    "EffectiveTransformer": "use attention layers of tf.keras with padded sequences",
    "CaptureUpstreamGradients": _TAPE,
    "CaptureActivationGradients": _TAPE,
    "GradientAccumulationOptimizer": _ACCUMULATE,
    "ALSOptimizer": _SCALE,
    "ALSOptimizerGradientAccumulationWrapper": _SCALE,
    **dict.fromkeys(("IPUEstimator", "IPUEstimatorSpec", "IPURunConfig", "RunConfig"), _MODEL),
    **dict.fromkeys(("IPUPipelineEstimator", "IPUPipelineEstimatorSpec"), _PIPELINE),
}


def refused(name: str) -> type:
    """A class called ``name`` that raises NotImplementedError when it is made."""

    def init(self: Any, *_: Any, **__: Any) -> None:
        raise NotImplementedError(f"{name} is not supported: {_INSTEAD[name]}.")

    return type(name, (), {"__init__": init, "__doc__": f"Not supported: {_INSTEAD[name]}."})


IPUEstimator, IPUEstimatorSpec = refused("IPUEstimator"), refused("IPUEstimatorSpec")
IPUPipelineEstimator, IPUPipelineEstimatorSpec = refused("IPUPipelineEstimator"), refused("IPUPipelineEstimatorSpec")
IPURunConfig, RunConfig = refused("IPURunConfig"), refused("RunConfig")
