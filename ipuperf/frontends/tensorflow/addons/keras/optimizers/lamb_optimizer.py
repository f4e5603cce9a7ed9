"""``LAMBIpuOptimizer``.

Upstream: ``ipu_tensorflow_addons: keras/optimizers/lamb_optimizer.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from .ipu_optimizer_base import IpuOptimizerBase
from .moments import moved, prepared, unbiased


class LAMBIpuOptimizer(IpuOptimizerBase):
    """LAMB (https://arxiv.org/abs/1904.00962): Adam's step, whose length follows the norm of the variable.

    Args:
        learning_rate: a number, tensor or schedule.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the second moment.
        weight_decay_rate: part of a variable that joins its step.
        exclude_from_weight_decay: expressions; variables in whose names one is found have no weight decay.
        exclude_from_layer_adaptation: the same for the norms.
        name: name of the ops.
        debiasing: correct the moments for beginning at zero.
        m_dtype: type of the first moment; that of the variable by default.
        v_dtype: type of the second moment.
        weight_norm_clip: largest norm of a variable that counts.
        optimizer_compute_precisions: types of the step, and of its product with the learning rate.
        kwargs: of :class:`.IpuOptimizerBase`.

    Raises:
        ValueError: there are not two ``optimizer_compute_precisions``.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LAMB",
        debiasing: bool = True,
        m_dtype: Any = None,
        v_dtype: Any = None,
        weight_norm_clip: float | None = None,
        optimizer_compute_precisions: Sequence[Any] = (tf.float32, tf.float32),
        **kwargs: Any,
    ) -> None:
        if len(optimizer_compute_precisions) != 2:
            raise ValueError(
                "LAMBIpuOptimizer: optimizer_compute_precisions needs two types, one of the step and one of its "
                f"product with the learning rate; it has {len(optimizer_compute_precisions)}"
            )
        super().__init__(name, optimizer_compute_precisions, **kwargs)
        self._set_hyper("weight_decay_rate", weight_decay_rate)
        self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
        self._set_hyper("decay", self._initial_decay)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon or tf_keras.backend.epsilon()
        self.exclude_from_weight_decay = exclude_from_weight_decay
        self.exclude_from_layer_adaptation = exclude_from_layer_adaptation
        self.weight_norm_clip = weight_norm_clip
        self.m_dtype, self.v_dtype = m_dtype, v_dtype
        self.debiasing = debiasing

    def get_slot_dtype(self, var: tf.Variable, slot_name: str) -> Any:
        """The type given for the moment."""
        return {"m": self.m_dtype, "v": self.v_dtype}[slot_name]

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for slot in ("m", "v"):
            for var in var_list:
                self.add_slot(var, slot)

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        decay = tf.identity(self._get_hyper("weight_decay_rate", self.opt_dtypes[0]))
        apply_state[(var_device, var_dtype)].update(prepared(self, self.epsilon) | {"weight_decay_rate": decay})

    def _resource_apply_dense(self, grad: Any, handle: tf.Variable, apply_state: Any = None) -> Any:
        at = self.coefficients(handle, apply_state)
        slots = self.get_slot(handle, "m"), self.get_slot(handle, "v")
        name = handle.name.rpartition(":")[0] or handle.name

        def step(grad: Any, value: Any, m: Any, v: Any) -> list[tf.Tensor]:
            m, v = moved(grad, m, v, at)
            held = [tf.cast(new, slot.dtype) for new, slot in zip((m, v), slots)]
            if self.debiasing:
                m, v = unbiased(m, v, at)
            update = m / (tf.sqrt(v) + at["epsilon"])
            if not _named(name, self.exclude_from_weight_decay):
                update += tf.cast(value, update.dtype) * at["weight_decay_rate"]
            rate = tf.cast(at["lr_t"], update.dtype) * self._trust(name, value, update)
            change = tf.cast(rate, self.opt_dtypes[1]) * tf.cast(update, self.opt_dtypes[1])
            return [value - tf.cast(change, value.dtype), *held]

        found = self.outlined(step)(grad, handle, *slots)
        return tf.group(*(variable.assign(new) for variable, new in zip((handle, *slots), found)))

    def _trust(self, name: str, value: Any, update: tf.Tensor) -> Any:
        """The norm of the variable over that of its step; 1 where either is 0 or the variable is excluded."""
        if _named(name, self.exclude_from_layer_adaptation):
            return tf.ones((), update.dtype)
        weight, step = tf.norm(tf.cast(value, update.dtype)), tf.norm(update)
        if self.weight_norm_clip is not None:
            weight = tf.minimum(weight, tf.cast(self.weight_norm_clip, weight.dtype))
        return tf.where((weight > 0) & (step > 0), weight / step, tf.ones_like(weight))

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        hyper = ("learning_rate", "weight_decay_rate", "decay", "beta_1", "beta_2")
        kept = (
            *("epsilon", "m_dtype", "v_dtype", "debiasing", "weight_norm_clip"),
            *("exclude_from_weight_decay", "exclude_from_layer_adaptation"),
        )
        own = {name: self._serialize_hyperparameter(name) for name in hyper}
        return super().get_config() | own | {name: getattr(self, name) for name in kept}


def _named(name: str, expressions: Sequence[str] | None) -> bool:
    """Whether one of the regular expressions is found in ``name``."""
    return any(re.search(expression, name) is not None for expression in expressions or ())
