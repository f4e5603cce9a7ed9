"""``SGDIpuOptimizer``.

Upstream: ``ipu_tensorflow_addons: keras/optimizers/sgd_optimizer.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tf_keras.src.optimizers.legacy import gradient_descent

from ....configured import Configured
from .ipu_optimizer_base import IpuOptimizerBase


class SGDIpuOptimizer(Configured, gradient_descent.SGD, IpuOptimizerBase):
    """Stochastic gradient descent whose momentum has a type of its own.

    Args:
        learning_rate: a number, tensor or schedule.
        momentum: what is kept of the last change; 0 keeps no state.
        nesterov: Nesterov's momentum.
        name: name of the ops.
        momentum_accum_dtype: type of the momentum; that of the variable by default.
        kwargs: of :class:`.IpuOptimizerBase`; momentum is computed in ``optimizer_compute_precisions[0]``.
    """

    arguments = "momentum_accum_dtype"

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        momentum_accum_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov, name=name, **kwargs)
        self.momentum_accum_dtype = momentum_accum_dtype

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        if self._momentum:
            for var in var_list:
                self.add_slot_with_dtype(var, "momentum", self.momentum_accum_dtype)

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        momentum = tf.identity(self._get_hyper("momentum", self.opt_dtypes[0]))
        apply_state[(var_device, var_dtype)]["momentum"] = momentum

    def _resource_apply_dense(self, grad: Any, var: tf.Variable, apply_state: Any = None) -> Any:
        if not self._momentum:
            return super()._resource_apply_dense(grad, var, apply_state)
        at = self.coefficients(var, apply_state)
        accum = self.get_slot(var, "momentum")

        def step(grad: Any, value: Any, held: Any) -> tuple[tf.Tensor, tf.Tensor]:
            momentum = at["momentum"]
            scaled = tf.cast(at["lr_t"], momentum.dtype) * tf.cast(grad, momentum.dtype)
            moving = tf.cast(held, momentum.dtype) * momentum - scaled
            change = moving * momentum - scaled if self.nesterov else moving
            return value + tf.cast(change, value.dtype), tf.cast(moving, accum.dtype)

        value, moving = self.outlined(step)(grad, var, accum)
        return tf.group(var.assign(value), accum.assign(moving))

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
        return IpuOptimizerBase._resource_apply_sparse(self, grad, var, indices, apply_state)
