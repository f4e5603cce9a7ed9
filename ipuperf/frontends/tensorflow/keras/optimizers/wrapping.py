"""A Keras optimizer as one of ``tf.compat.v1.train``: what pipelines and gradient accumulation take.

Upstream: ``tensorflow: python/ipu/keras/optimizers/ipu_wrappers.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_LIBRARIES = ("tf_keras", "keras", "tensorflow", "ipuperf")
_INNER = ("inner_optimizer", "_optimizer", "optimizer", "_opt")
"""Where wrappers of this library, of Keras and of version 1 keep the optimizer inside."""
GRADIENTS = (
    "get_gradients",
    "compute_gradients",
    "_compute_gradients",
    "_get_gradients",
    "_transform_loss",
    "_transform_unaggregated_gradients",
)
"""Methods by which Keras optimizers of either age compute gradients."""


class KerasOptimizer(tf.compat.v1.train.Optimizer):
    """``optimizer`` of Keras with ``compute_gradients`` and ``apply_gradients`` of TensorFlow 1.

    Args:
        optimizer: any Keras optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(use_locking=False, name="KerasOptimizer")
        self.optimizer = optimizer

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None, **_: Any) -> list[tuple[Any, Any]]:
        """``(gradient, variable)`` for each variable of ``var_list``.

        Raises:
            ValueError: there is no ``var_list``, which Keras optimizers need.
        """
        if var_list is None:
            raise ValueError(
                "The optimizer is one of Keras, so `var_list` must be provided, e.g. `model.trainable_weights`."
            )
        if hasattr(self.optimizer, "get_grads"):  # Keras' wrapper of an optimizer of version 1
            return list(self.optimizer.get_grads(loss, list(var_list)))
        own = overridden(self.optimizer, *GRADIENTS)
        if own == "get_gradients":
            return list(zip(self.optimizer.get_gradients(loss, list(var_list)), var_list))
        if own is not None:
            compute = getattr(self.optimizer, "_compute_gradients", None) or self.optimizer.compute_gradients
            return list(compute(loss, list(var_list), tape=_GraphTape()))
        grads = tf.gradients(scaled_loss(self.optimizer, loss), list(var_list))
        return list(zip(unscaled(self.optimizer, grads), var_list))

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Any:
        """Update the variables as the Keras optimizer does; its result, an op in a graph."""
        applied = self.optimizer.apply_gradients(list(grads_and_vars), **({} if name is None else {"name": name}))
        if global_step is None:
            return applied
        with tf.control_dependencies([applied]):
            return global_step.assign_add(1)


class _GraphTape:
    """Gradients of the graph that is being traced, as Keras asks a tape for them."""

    def __enter__(self) -> _GraphTape:
        return self

    def __exit__(self, *_: object) -> None:
        """A graph needs no recording."""

    def gradient(self, target: Any, sources: Sequence[Any], output_gradients: Any = None) -> list[Any]:
        """The gradients of ``target``, None where it does not depend on a source."""
        return list(tf.gradients(target, list(sources), output_gradients))


class UnscalingOptimizer:
    """A ``LossScaleOptimizer`` of Keras that takes gradients of :func:`scaled_loss`, as those of pipelines are."""

    def __init__(self, optimizer: Any) -> None:
        self.inner_optimizer = optimizer
        self.name = type(optimizer).__name__

    def apply_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> Any:
        """Update the variables by the gradients without the scale."""
        grads, variables = zip(*grads_and_vars)
        optimizer = self.inner_optimizer
        return optimizer.apply_gradients(list(zip(unscaled(optimizer, grads), variables)))


def scales_loss(optimizer: Any) -> bool:
    """Whether a Keras optimizer is a ``LossScaleOptimizer``."""
    return hasattr(optimizer, "get_scaled_loss")


def scaled_loss(optimizer: Any, loss: Any) -> Any:
    """The loss as a ``LossScaleOptimizer`` scales it; for other optimizers the loss."""
    return optimizer.get_scaled_loss(loss) if scales_loss(optimizer) else loss


def unscaled(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
    """Gradients of :func:`scaled_loss` without the scale."""
    return list(optimizer.get_unscaled_gradients(list(grads)) if scales_loss(optimizer) else grads)


def overridden(optimizer: Any, *methods: str) -> str | None:
    """The first of these methods that an optimizer, or one that it wraps, has from the program itself."""
    for method in methods:
        owner = next((c for c in type(optimizer).__mro__ if method in vars(c)), None)
        if owner is not None and owner.__module__.split(".")[0] not in _LIBRARIES:
            return method
    inner = next((vars(optimizer)[name] for name in _INNER if name in vars(optimizer)), None)
    return None if inner is None else overridden(inner, *methods)


def check_minimize(optimizer: Any) -> None:
    """The optimizer's ``minimize`` is not the program's own: it would not be called.

    Raises:
        ValueError: it is.
    """
    if overridden(optimizer, "minimize"):
        raise ValueError(
            "When using Gradient Accumulation or Pipelining, the provided optimizer must not override "
            f"OptimizerV2.minimize. {type(optimizer).__name__} has one of its own; change gradients in "
            f"`apply_gradients`."
        )
