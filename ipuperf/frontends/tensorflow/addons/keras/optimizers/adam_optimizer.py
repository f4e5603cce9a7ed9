"""``AdamIpuOptimizer``.

Upstream: ``ipu_tensorflow_addons: keras/optimizers/adam_optimizer.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_keras.src.optimizers.legacy import adam

from ....configured import Configured
from .ipu_optimizer_base import IpuOptimizerBase
from .moments import moved, prepared, unbiased


class AdamIpuOptimizer(Configured, adam.Adam, IpuOptimizerBase):
    """Adam whose moments have types of their own.

    Args:
        learning_rate: a number, tensor or schedule.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the (unbiased) second moment.
        amsgrad: divide by the root of the largest second moment so far.
        name: name of the ops.
        m_dtype: type of the first moment; that of the variable by default.
        v_dtype: type of the second moment.
        vhat_dtype: type of the largest second moment.
        debiasing: correct the moments for beginning at zero.
        kwargs: of :class:`.IpuOptimizerBase`; updates are computed in ``optimizer_compute_precisions[0]``.
    """

    arguments = "m_dtype v_dtype vhat_dtype debiasing"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        m_dtype: Any = None,
        v_dtype: Any = None,
        vhat_dtype: Any = None,
        debiasing: bool = True,
        **kwargs: Any,
    ) -> None:
        adams: dict[str, Any] = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "amsgrad": amsgrad}
        super().__init__(learning_rate=learning_rate, name=name, **adams, **kwargs)
        self.m_dtype, self.v_dtype, self.vhat_dtype = m_dtype, v_dtype, vhat_dtype
        self.debiasing = debiasing

    def get_slot_dtype(self, var: tf.Variable, slot_name: str) -> Any:
        """The type given for the moment."""
        return {"m": self.m_dtype, "v": self.v_dtype, "vhat": self.vhat_dtype}[slot_name]

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        for slot in ("m", "v", "vhat")[: 3 if self.amsgrad else 2]:
            for var in var_list:
                self.add_slot(var, slot)

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        apply_state[(var_device, var_dtype)].update(prepared(self, self.epsilon))

    def _resource_apply_dense(self, grad: Any, var: tf.Variable, apply_state: Any = None) -> Any:
        at = self.coefficients(var, apply_state)
        state = [self.get_slot(var, slot) for slot in ("m", "v", "vhat")[: 3 if self.amsgrad else 2]]

        def step(grad: Any, value: Any, m: Any, v: Any, *largest: Any) -> list[tf.Tensor]:
            m, v = moved(grad, m, v, at)
            held = [m, v]
            if self.debiasing:
                m, v = unbiased(m, v, at)
            if largest:
                v = tf.maximum(tf.cast(largest[0], v.dtype), v)
                held.append(v)
            change = tf.cast(at["lr_t"], m.dtype) * (m / (tf.sqrt(v) + at["epsilon"]))
            return [value - tf.cast(change, value.dtype), *(tf.cast(new, slot.dtype) for new, slot in zip(held, state))]

        found = self.outlined(step)(grad, var, *state)
        return tf.group(*(variable.assign(new) for variable, new in zip([var, *state], found)))

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
        return IpuOptimizerBase._resource_apply_sparse(self, grad, var, indices, apply_state)
