"""Puts the IPU into Keras: ``attach`` gives models made inside an ``IPUStrategy`` their IPU side, ``detach`` takes it
away.

Keras' own ``fit``, ``evaluate`` and ``predict`` stay: they print, call callbacks and keep the history. What they ask
for data and for one execution is answered here, for models of an ``IPUStrategy``; all other models are left to Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src import backend
from tf_keras.src.engine import base_layer, base_layer_utils, data_adapter, functional, sequential
from tf_keras.src.mixed_precision import loss_scale_optimizer
from tf_keras.src.optimizers import optimizer
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2
from tf_keras.src.saving.legacy.saved_model import load as saved_model

from ..importer.origins import PHASE, written
from . import methods, scopes
from .data import IPUDataHandler
from .extension import extension, on_ipu
from .graphs import is_functional, is_sequential, keras_inputs, trace
from .saving import config_with_options, model_with_options, reconstructed_with_options
from .scopes import MARKED, marking, placing

_KEPT: list[tuple[Any, str, Any]] = []
_ABSENT = object()


def attach() -> None:
    """Give Keras its IPU side; a second call does nothing."""
    if _KEPT:
        return
    for owner in MARKED:
        _replace(owner, "__init__", marking)
    _replace(base_layer.Layer, "__call__", placing)
    _replace(backend.RandomGenerator, "__init__", _drawing)
    for owner, name in ((optimizer._BaseOptimizer, "apply_gradients"), (OptimizerV2, "_distributed_apply")):
        _replace(owner, name, _updating)
    for mode in ("train", "test", "predict"):
        _replace(tf_keras.Model, f"make_{mode}_function", _making(mode))
    _replace(tf_keras.Model, "_validate_and_get_metrics_result", _metrics)
    _replace(tf_keras.Model, "_reset_compile_cache", _resetting)
    _replace(tf_keras.Model, "build", _building)
    _replace(data_adapter, "get_data_handler", _data_handler)
    _replace(loss_scale_optimizer, "strategy_supports_loss_scaling", scopes.supporting_loss_scaling)
    _replace(functional.Functional, "_init_graph_network", _adopting)
    for name in ("add", "pop"):
        _replace(sequential.Sequential, name, _invalidating(name))
    for owner in (functional.Functional, sequential.Sequential):
        _replace(owner, "get_config", config_with_options)
    for owner in (tf_keras.Model, sequential.Sequential):
        _replace(owner, "from_config", model_with_options)
    _replace(saved_model.KerasObjectLoader, "_reconstruct_model", reconstructed_with_options)
    for name, method in methods.public().items():
        _set(tf_keras.Model, name, method)
    for package in (tf.keras, tf_keras):
        _set(package, "ipu", methods.namespace())


def detach() -> None:
    """Leave Keras as it was before :func:`attach`."""
    # Last in, first out: where something was replaced twice, its original comes back last.
    while _KEPT:
        owner, name, value = _KEPT.pop()
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def _set(owner: Any, name: str, value: Any) -> None:
    # Only the owner's own attribute counts: one that it inherits must not become its own by detaching.
    _KEPT.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def _replace(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    _set(owner, name, around(vars(owner)[name]))


# -- what is put around functions of Keras -----------------------------------------------------------------------------


def _drawing(initialise: Any) -> Any:
    """Initializers without a seed follow ``tf.random.set_seed``, as in TensorFlow 2.6; now they follow ``random``."""

    @wraps(initialise)
    def around(self: Any, seed: Any = None, rng_type: str | None = None, **options: Any) -> None:
        stateless = seed is None and rng_type == backend.RandomGenerator.RNG_STATELESS
        initialise(self, seed, backend.RandomGenerator.RNG_LEGACY_STATEFUL if stateless else rng_type, **options)

    return around


def _making(mode: str) -> Callable[[Any], Any]:
    def around(make: Any) -> Any:
        @wraps(make)
        def make_function(self: Any, force: bool = False) -> Any:
            if not on_ipu(self):
                _check_made_outside(self, mode)
                return make(self, force)
            _check_make(self, mode, make_function)
            function = extension(self).function(mode)
            setattr(self, f"{mode}_function", function)
            return function

        return make_function

    return around


def _check_made_outside(model: Any, mode: str) -> None:
    if mode == "train" and scopes.is_ipu(tf.distribute.get_strategy()):
        raise RuntimeError(
            f"Model {model.name} is trained inside `IPUStrategy.scope()`, but was not made there: make the model "
            "in the scope."
        )


def _check_make(model: Any, mode: str, expected: Any) -> None:
    name = f"make_{mode}_function"
    if getattr(type(model), name) is not expected:
        raise RuntimeError(
            f"The function `{name}` for the model {model.name} has been overridden. This is not supported when using "
            "Keras within an IPUStrategy. Either remove the override from your model definition or set "
            "`enable_keras_extensions=False` when creating the IPUStrategy."
        )


def _updating(apply: Any) -> Any:
    """``apply`` of an optimizer, whose ops are of the weight update."""

    @wraps(apply)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() or not scopes.is_ipu(tf.distribute.get_strategy()):
            return apply(self, *args, **kwargs)
        with written(PHASE, "update"):
            return apply(self, *args, **kwargs)

    return update


def _metrics(validate: Any) -> Any:
    # The outfeed has sent the results themselves, so there is nothing left to validate.
    @wraps(validate)
    def validate_and_get(self: Any, logs: Any) -> Any:
        return logs if on_ipu(self) else validate(self, logs)

    return validate_and_get


def _resetting(reset: Any) -> Any:
    @wraps(reset)
    def reset_cache(self: Any) -> None:
        reset(self)
        if on_ipu(self):
            extension(self).reset()

    return reset_cache


def _building(build: Any) -> Any:
    @wraps(build)
    def build_and_trace(self: Any, input_shape: Any) -> None:
        if not on_ipu(self) or is_functional(self) or is_sequential(self) or base_layer_utils.call_context().in_call:
            build(self, input_shape)
            return
        inputs = keras_inputs(input_shape)
        build(self, tf.nest.map_structure(lambda tensor: tuple(tensor.shape), inputs))
        trace(self, inputs)
        extension(self).adopt_scopes()

    return build_and_trace


def _adopting(initialise: Any) -> Any:
    @wraps(initialise)
    def initialise_and_adopt(self: Any, inputs: Any, outputs: Any) -> None:
        initialise(self, inputs, outputs)
        if on_ipu(self) and is_functional(self):
            extension(self).adopt_scopes()

    return initialise_and_adopt


def _invalidating(name: str) -> Callable[[Any], Any]:
    def around(change: Any) -> Any:
        @wraps(change)
        def change_layers(self: Any, *args: Any) -> None:
            if on_ipu(self) and extension(self).pipelined:
                extension(self).valid = False
                tf.get_logger().info(
                    f"{'Adding a layer to' if name == 'add' else 'Removing a layer from'} a pipelined Sequential model "
                    "has invalidated the pipeline stage assignment. You need to call "
                    "`set_pipeline_stage_assignment()` before executing again."
                )
            change(self, *args)

        return change_layers

    return around


def _data_handler(get: Any) -> Any:
    @wraps(get)
    def get_handler(*args: Any, **options: Any) -> Any:
        model = options.get("model")
        if model is None or not on_ipu(model):
            return get(*args, **options)
        return IPUDataHandler(extension(model), *args, **options)

    return get_handler
