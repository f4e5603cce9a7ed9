"""The squared norm of a scaled gradient. Semantics of popxl-addons: popxl_addons/ops/grad_reduce_square_add."""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import Tensor
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.ops.operands import emit

__all__ = ["grad_reduce_square_add"]


@checked_arguments
def grad_reduce_square_add(t: Tensor, loss_scaling: float | Tensor) -> Tensor:
    """``sum((t / loss_scaling) ** 2)`` in float32, also of a float16 tensor.

    ``grad_norm = ops.sqrt(grad_reduce_square_add(grad, loss_scaling=64))``
    """
    scale = 1 / (loss_scaling * loss_scaling)
    if not isinstance(scale, Tensor):
        scale = popxl.constant(scale, popxl.float32)
    return emit(_k.GradReduceSquareAdd, [t, scale], "grad_reduced")
