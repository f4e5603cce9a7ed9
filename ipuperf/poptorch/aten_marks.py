"""PopTorch's own ops as they stand in an exported program: marks that survive ``torch.export``.

Each is an op of the library ``ipuperf`` with a value and a gradient in PyTorch, so that a marked model also runs
natively.
"""

from __future__ import annotations

import torch

_REDUCTIONS = ("sum", "mean", "none")


@torch.library.custom_op("ipuperf::identity_loss", mutates_args=())
def _identity_loss(value: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "sum":
        return value.sum()
    return value.mean() if reduction == "mean" else value.clone()


@_identity_loss.register_fake
def _(value: torch.Tensor, reduction: str) -> torch.Tensor:
    return torch.empty_like(value) if reduction == "none" else value.new_empty(())


def _keep_for_loss(ctx, inputs, output) -> None:
    value, ctx.reduction = inputs
    ctx.shape, ctx.count = value.shape, max(value.numel(), 1)


def _loss_gradient(ctx, grad):
    scale = 1 / ctx.count if ctx.reduction == "mean" else 1
    return (grad * scale).expand(ctx.shape), None


_identity_loss.register_autograd(_loss_gradient, setup_context=_keep_for_loss)


@torch.library.custom_op("ipuperf::recomputation_checkpoint", mutates_args=())
def _recomputation_checkpoint(value: torch.Tensor) -> torch.Tensor:
    return value.clone()


@_recomputation_checkpoint.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


_recomputation_checkpoint.register_autograd(lambda ctx, grad: grad)


def identity_loss(value: torch.Tensor, reduction: str) -> torch.Tensor:
    """``value`` reduced (``sum``, ``mean`` or ``none``) and marked as a loss.

    Raises:
        ValueError: another reduction.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"identity_loss: reduction {reduction!r}; allowed: {', '.join(_REDUCTIONS)}")
    return torch.ops.ipuperf.identity_loss(value, reduction)


def recomputation_checkpoint(value: torch.Tensor) -> torch.Tensor:
    """``value``, marked to be stashed instead of recomputed."""
    return torch.ops.ipuperf.recomputation_checkpoint(value)
