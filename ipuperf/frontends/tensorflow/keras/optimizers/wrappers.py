"""Keras optimizers around another one: gradients over replicas, gradients changed.

Upstream: ``tensorflow: python/ipu/keras/optimizers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tf_keras
from tf_keras.src.optimizers import optimizer

from ..refused import refused

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
        held = self._opt.variables
        return held() if callable(held) else held

    def get_config(self) -> dict[str, Any]:
        """Name and wrapped optimizer."""
        return {"name": self._name, "opt": tf_keras.optimizers.serialize(self._opt)}


class CrossReplicaOptimizer(IpuOptimizer):
    """Applies the mean of the gradients over the replicas (Keras alone applies their sum)."""

    def changed(self, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The means."""
        from ...facade import replicas

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
