"""Arguments that layers and optimizers tell or refuse, and classes of upstream that are not here."""

from __future__ import annotations

from types import FunctionType
from typing import Any, ClassVar

import tf_keras


class Configured:
    """The ``get_config`` of a class that keeps arguments of its constructor in attributes of their names.

    Class attributes:
        arguments: those names, separated by spaces; the base class tells the others.
    """

    arguments: ClassVar[str] = ""

    def get_config(self) -> dict[str, Any]:
        """The arguments: activations by name, initializers as Keras writes them."""
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        return {**config, **{name: _written(getattr(self, name)) for name in self.arguments.split()}}


def _written(value: Any) -> Any:
    if isinstance(value, tf_keras.initializers.Initializer):
        return tf_keras.initializers.serialize(value)
    return value.__name__ if isinstance(value, FunctionType) else value


def refuse(layer: str, **arguments: Any) -> None:
    """Raise for the first argument that has a value.

    Raises:
        NotImplementedError: names the argument and Keras' own layer, which takes it.
    """
    for name, value in arguments.items():
        if value:
            raise NotImplementedError(
                f"IPU custom {layer} layer does not support {name} (it is {value!r}); use tf.keras.layers.{layer}, "
                "which runs on the IPU too."
            )


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
