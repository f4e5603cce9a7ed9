"""Keras optimizers around another one, and a Keras optimizer as one of ``tf.compat.v1.train``.

``tensorflow.python.ipu.keras.optimizers`` and ``tf.keras.ipu.optimizers`` are the wrappers. Pipelines and gradient
accumulation take :class:`KerasOptimizer`. Upstream: ``tensorflow: python/ipu/keras/optimizers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.optimizers import optimizer

from .arguments import refused

__path__: list[str] = []  # upstream's is a package, whose modules are names of this one
_OF_THE_WRAPPED = ("learning_rate", "lr", "iterations")


class IpuOptimizer(tf_keras.optimizers.legacy.Optimizer):
    """A Keras optimizer that applies gradients by ``opt``, which holds learning rate and state.

    Args:
        opt: a Keras optimizer.

    Raises:
        TypeError: ``opt`` is something else.
    """

    def __init__(self, opt: Any, name: str | None = None, **kwargs: Any) -> None:
        if not isinstance(opt, (optimizer.Optimizer, tf_keras.optimizers.legacy.Optimizer)):
            raise TypeError(f"{type(self).__name__} needs a Keras optimizer to wrap, not {opt!r}")
        super().__init__(name or type(self).__name__, **kwargs)
        self._opt = opt

    def changed(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The ``(gradient, variable)`` pairs that are applied."""
        return pairs

    def apply_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Apply the changed gradients."""
        return self._opt.apply_gradients(self.changed(list(grads_and_vars)), *args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        """Hyperparameters are those of the wrapped optimizer."""
        if name in _OF_THE_WRAPPED:
            return getattr(self._opt, name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """A new learning rate is the wrapped optimizer's."""
        if name in _OF_THE_WRAPPED:
            setattr(self._opt, name, value)
        else:
            super().__setattr__(name, value)

    def variables(self) -> Any:
        """The wrapped optimizer's variables."""
        state = self._opt.variables
        return state() if callable(state) else state

    def get_config(self) -> dict[str, Any]:
        """Name and wrapped optimizer."""
        return {"name": self._name, "opt": tf_keras.optimizers.serialize(self._opt)}


class CrossReplicaOptimizer(IpuOptimizer):
    """Applies the mean of the gradients over the replicas (Keras alone applies their sum)."""

    def changed(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The means."""
        from ..facade import replicas

        return [(None if g is None else replicas.cross_replica_mean(g), v) for g, v in pairs]

    def apply_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """Apply the means."""
        legacy = isinstance(self._opt, tf_keras.optimizers.legacy.Optimizer)
        kwargs |= {"experimental_aggregate_gradients": False} if legacy else {"skip_gradients_aggregation": True}
        return super().apply_gradients(grads_and_vars, *args, **kwargs)


class MapGradientOptimizerInvertedChaining(IpuOptimizer):
    """Applies ``gradient_mapping_function(gradient, variable)``; of several such wrappers the outer one comes first."""

    def __init__(
        self,
        opt: Any,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizerInvertedChaining",
    ) -> None:
        if not callable(gradient_mapping_function):
            raise ValueError("gradient_mapping_function must be a callable.")
        super().__init__(opt, name)
        self.gradient_mapping_function = gradient_mapping_function

    def changed(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The mapped gradients."""
        return [(None if g is None else self.gradient_mapping_function(g, v), v) for g, v in pairs]


GradientAccumulationOptimizer = refused("GradientAccumulationOptimizer")
ALSOptimizer = refused("ALSOptimizer")
ALSOptimizerGradientAccumulationWrapper = refused("ALSOptimizerGradientAccumulationWrapper")


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
        method = overridden(self.optimizer, *GRADIENTS)
        if method == "get_gradients":
            return list(zip(self.optimizer.get_gradients(loss, list(var_list)), var_list))
        if method is not None:
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
    for each in _with_wrapped(optimizer):
        for method in methods:
            owner = next((c for c in type(each).__mro__ if method in vars(c)), None)
            if owner is not None and not _of_library(owner):
                return method
    return None


def _with_wrapped(optimizer: Any) -> Iterator[Any]:
    """An optimizer and those that it wraps, from outside in."""
    while optimizer is not None:
        yield optimizer
        optimizer = next((vars(optimizer)[name] for name in _INNER if name in vars(optimizer)), None)


def _of_library(kind: type) -> bool:
    return kind.__module__.split(".")[0] in _LIBRARIES


def _hands_on(optimizer: Any) -> bool:
    """Whether ``minimize``, called once, calls Keras' once, with the loss and variables that it got."""
    keras = next((c for c in type(optimizer).__mro__ if "minimize" in vars(c) and _of_library(c)), None)
    if keras is None:
        return False
    loss, variables, found = object(), list[Any](), list[tuple[Any, Any]]()

    def noted(_optimizer: Any, loss: Any, var_list: Any, *_others: Any, **_named: Any) -> None:
        found.append((loss, var_list))

    plain = keras.__dict__["minimize"]
    keras.minimize = noted  # type: ignore[attr-defined]
    try:
        optimizer.minimize(loss, variables)
    except Exception:  # whatever a program does with a loss that is none
        return False
    finally:
        keras.minimize = plain  # type: ignore[attr-defined]
    return len(found) == 1 and found[0][0] is loss and found[0][1] is variables


def check_minimize(optimizer: Any) -> None:
    """The optimizer's ``minimize`` is Keras', or hands its arguments on to that (AdamW of ``tensorflow_addons``, which
    only takes a note): a pipeline does not call it for each gradient.

    Raises:
        ValueError: it does something else.
    """
    if overridden(optimizer, "minimize") and not all(map(_hands_on, _with_wrapped(optimizer))):
        raise ValueError(
            "When using Gradient Accumulation or Pipelining, the provided optimizer must not override "
            f"OptimizerV2.minimize. {type(optimizer).__name__} has one of its own; change gradients in "
            f"`apply_gradients`."
        )


__all__ = [
    "ALSOptimizer",
    "ALSOptimizerGradientAccumulationWrapper",
    "CrossReplicaOptimizer",
    "GradientAccumulationOptimizer",
    "IpuOptimizer",
    "MapGradientOptimizerInvertedChaining",
]
