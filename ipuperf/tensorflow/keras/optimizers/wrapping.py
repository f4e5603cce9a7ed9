"""A Keras optimizer as one of ``tf.compat.v1.train``: what pipelines and gradient accumulation take.

Upstream: ``tensorflow: python/ipu/keras/optimizers/ipu_wrappers.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_LIBRARIES = ("tf_keras", "keras", "tensorflow", "ipuperf")


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
        grads = tf.gradients(scaled_loss(self.optimizer, loss), list(var_list))
        return list(zip(unscaled(self.optimizer, grads), var_list))

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Any:
        """Update the variables as the Keras optimizer does; its result, an op in a graph."""
        applied = self.optimizer.apply_gradients(list(grads_and_vars), name=name)
        if global_step is None:
            return applied
        with tf.control_dependencies([applied]):
            return global_step.assign_add(1)


class UnscalingOptimizer:
    """A ``LossScaleOptimizer`` of Keras that takes gradients of :func:`scaled_loss`, as those of pipelines are."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.name = type(optimizer).__name__

    def apply_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> Any:
        """Update the variables by the gradients without the scale."""
        grads, variables = zip(*grads_and_vars)
        return self.optimizer.apply_gradients(list(zip(unscaled(self.optimizer, grads), variables)))


def scales_loss(optimizer: Any) -> bool:
    """Whether a Keras optimizer is a ``LossScaleOptimizer``."""
    return hasattr(optimizer, "get_scaled_loss")


def scaled_loss(optimizer: Any, loss: Any) -> Any:
    """The loss as a ``LossScaleOptimizer`` scales it; for other optimizers the loss."""
    return optimizer.get_scaled_loss(loss) if scales_loss(optimizer) else loss


def unscaled(optimizer: Any, grads: Sequence[Any]) -> list[Any]:
    """Gradients of :func:`scaled_loss` without the scale."""
    return list(optimizer.get_unscaled_gradients(list(grads)) if scales_loss(optimizer) else grads)


def check_minimize(optimizer: Any) -> None:
    """The optimizer's ``minimize`` is not the program's own: it would not be called.

    Raises:
        ValueError: it is.
    """
    owner = next(c for c in type(optimizer).__mro__ if "minimize" in vars(c))
    if owner.__module__.split(".")[0] not in _LIBRARIES:
        raise ValueError(
            "When using Gradient Accumulation or Pipelining, the provided optimizer must not override "
            f"OptimizerV2.minimize. {type(optimizer).__name__} has one of its own; change gradients in "
            f"`apply_gradients`."
        )
