"""``AdamOptimizerStep``: Adam with decoupled weight decay (AdamW), loss scaling and clipping by the global norm.

Source: popxl-addons: popxl_addons/optimizers/adam.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, Tensor, ops
from ipuperf.frontends.popxl.arguments import checked_arguments

from ..module import Module

Number = float | Tensor


class AdamOptimizerStep(Module):
    """One step of AdamW on one variable, or on the shard of one, in place.

    The state is ``first_order`` and ``second_order`` (zeros like the variable, sharded as it is) and, with bias
    correction, ``step``, which the step itself counts.
    """

    @popxl.in_sequence()
    @checked_arguments
    def build(
        self,
        var: popxl.TensorByRef,
        grad: Tensor,
        replica_grouping: ReplicaGrouping | None = None,
        *,
        lr: Number,
        beta1: Number = 0.9,
        beta2: Number = 0.999,
        eps: Number = 1e-5,
        weight_decay: Number = 1e-2,
        first_order_dtype: popxl.dtype = popxl.float16,
        bias_correction: bool = True,
        loss_scaling: Number = 1,
        global_norm: Tensor | None = None,
        global_norm_max: Number | None = None,
    ) -> None:
        """``var -= lr * (m' / (sqrt(v') + eps) + weight_decay * var)``: ``m'`` and ``v'`` are the averages of the
        gradient and of its square, corrected for the bias of their first steps where asked for.

        Args:
            var, grad: the variable, which is changed, and its gradient, of one shape (of the shard for sharded ones).
            replica_grouping: replicas with the same value of the variable, and so of the state (default: all).
            lr, beta1, beta2, eps, weight_decay: numbers, or tensors without axes.
            first_order_dtype: of the average of the gradient; that of its square is float32.
            loss_scaling: the gradient is divided by it.
            global_norm: norm of all gradients; the gradient is multiplied by ``global_norm_max`` over the larger of the
                two.

        Raises:
            ValueError: ``global_norm`` without ``global_norm_max``.
        """
        weight = cast(Tensor, var)  # what the annotation stands for
        scale = _gradient_scale(loss_scaling, global_norm, global_norm_max)
        if isinstance(scale, Tensor) or scale != 1:
            grad = ops.cast(grad, popxl.float32) * scale
        add = self._adding(weight, replica_grouping)
        first_moment = add("first_order", dtype=first_order_dtype)
        ops.var_updates.accumulate_moving_average_(first_moment, grad, f=beta1)
        second = add("second_order", dtype=popxl.float32)
        ops.var_updates.accumulate_moving_average_square_(second, grad, f=beta2)
        step = None
        if bias_correction:
            step = self.add_variable_input("step", partial(np.zeros, ()), popxl.float32, by_ref=True)
        updater = ops.var_updates.adam_updater(first_moment, second, weight, step, weight_decay, beta1, beta2, eps)
        ops.scaled_add_(weight, updater, b=-lr)

    def _adding(self, var: Tensor, group: ReplicaGrouping | None) -> Callable[..., Tensor]:
        """What adds an input of zeros for a state like ``var``: sharded over as many replicas as it is."""
        zeros = partial(np.zeros, var.meta_shape or var.shape)
        if not var.meta_shape:
            return partial(self.add_variable_input, data_iter=zeros, by_ref=True, replica_grouping=group)
        return partial(
            self.add_replica_sharded_variable_input,
            data_iter=zeros,
            by_ref=True,
            replica_grouping=group,
            shard_over=_shards(var),
        )


def _shards(var: Tensor) -> int:
    """Over how many replicas a sharded tensor is divided: each shard holds an equal part, the last may be padded."""
    return int(-(-np.prod(var.meta_shape) // np.prod(var.shape)))


def _gradient_scale(loss_scaling: Number, norm: Tensor | None, limit: Number | None) -> Number:
    """What the gradient is multiplied by."""
    scaled = isinstance(loss_scaling, Tensor) or loss_scaling != 1
    scale: Number = 1 / loss_scaling if scaled else 1
    if norm is None:
        return scale
    if limit is None:
        raise ValueError("AdamOptimizerStep: global_norm is given without global_norm_max, the norm to clip to")
    if not isinstance(limit, Tensor):
        limit = popxl.constant(limit, popxl.float32)
    return (limit if not scaled else scale * limit) / ops.maximum(norm, limit)
