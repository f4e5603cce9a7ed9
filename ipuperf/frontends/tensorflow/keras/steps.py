"""Steps of a model as functions of a batch: what is traced into a program.

Upstream: ``keras: keras/ipu/extensions/extensions_base.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_keras.src.engine import data_adapter

from .optimizers.wrapping import KerasOptimizer, check_minimize, overridden

Step = Callable[[Any], Any]
Finish = Callable[..., Any]


def train_step(model: Any, accumulation: int, options: dict[str, Any], reduction: Any) -> Step:
    """A step of training; gradients of ``accumulation`` steps are combined before the weights are updated."""
    if accumulation > 1:
        return _accumulating(model, accumulation, options, reduction)
    method = overridden(model.optimizer, "get_gradients", "compute_gradients")
    if method == "get_gradients" or (method and hasattr(model.optimizer, "get_grads")):
        tf.get_logger().warning(
            f"`{method}` of {type(model.optimizer).__name__} acts with gradient accumulation and in pipelines only: "
            "Keras' own training takes its gradients from a tape."
        )
    return model.train_step


def _accumulating(model: Any, accumulation: int, options: dict[str, Any], reduction: Any) -> Step:
    from ..pipelining.accumulation import GradientAccumulationOptimizerV2

    check_minimize(model.optimizer)
    optimizer = GradientAccumulationOptimizerV2(
        KerasOptimizer(model.optimizer), accumulation, reduction_method=reduction, **options
    )

    def step(data: Any) -> Any:
        x, y, weights = data_adapter.unpack_x_y_sample_weight(data)
        predictions = model(x, training=True)
        loss = model.compute_loss(x, y, predictions, weights)
        model._validate_target_and_loss(y, loss)
        pairs = optimizer.compute_gradients(loss, model.trainable_variables)
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            return tf.nest.map_structure(tf.identity, model.compute_metrics(x, y, predictions, weights))

    return step


def finish_train(model: Any, share: float) -> Finish:
    """The end of the last stage in training: ``(loss, metrics)``, metrics times ``share``."""
    check_losses(model)

    def finish(y: Any, predictions: Any, weights: Any, losses: Sequence[Any]) -> tuple[Any, Any]:
        loss = model.compiled_loss(y, predictions, weights, regularization_losses=list(losses))
        model._validate_target_and_loss(y, loss)
        return loss, _metrics(model, y, predictions, weights, share)

    return finish


def finish_test(model: Any, share: float) -> Finish:
    """The end of the last stage in evaluation: the metrics times ``share``."""
    check_losses(model)

    def finish(y: Any, predictions: Any, weights: Any, losses: Sequence[Any]) -> Any:
        model.compiled_loss(y, predictions, weights, regularization_losses=list(losses))
        return _metrics(model, y, predictions, weights, share)

    return finish


def _metrics(model: Any, y: Any, predictions: Any, weights: Any, share: float) -> Any:
    model.compiled_metrics.update_state(y, predictions, weights)
    results = model.get_metrics_result()
    return results if share == 1 else tf.nest.map_structure(lambda metric: metric * share, results)


def check_losses(model: Any) -> None:
    """A pipelined model computes its loss as Keras does, of what stages have. RuntimeError: it has a way of its own."""
    from tf_keras import Model

    for name in ("compute_loss", "compute_metrics"):
        if getattr(type(model), name) is not getattr(Model, name):
            raise RuntimeError(
                f"The function `{name}` for the model {model.name} has been overridden. This is not supported for "
                "pipelined Keras models."
            )
    for one in [model, *model._flatten_layers(include_self=False)]:
        if isinstance(one, Model) and one._callable_losses:
            raise RuntimeError(
                f"The model {one.name} has a loss that is a function (`add_loss(lambda: ...)`), which belongs to no "
                "pipeline stage: add it to the layer whose weights it reads, or add a tensor."
            )
