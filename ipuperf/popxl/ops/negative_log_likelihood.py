"""Negative log likelihood losses."""

from __future__ import annotations

from typing import Literal

from ipuperf import ops as _k

from ..arguments import whole_arguments
from ..handle import Tensor
from .operands import emit, emit_all, ensure_tensor

REDUCTION_TYPE = Literal["mean", "sum", "none"]


def _check(reduction: str | None) -> str:
    reduction = "none" if reduction is None else reduction
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction {reduction!r}; allowed: 'mean', 'sum', 'none'")
    return reduction


@whole_arguments
def nll_loss(
    probs: Tensor,
    labels: Tensor,
    ignore_index: int | None = None,
    reduction: REDUCTION_TYPE = "mean",
    log_prob: bool = False,
) -> Tensor:
    """Negative log of the probability of each label.

    Args:
        probs: probabilities (with ``log_prob`` their logarithms), classes on the last axis.
        labels: integer classes, the shape of ``probs`` without the last axis.
        ignore_index: label that does not count.
        reduction: over the labels.
    """
    return emit(
        _k.Nll,
        [probs, labels],
        "nll_loss_out",
        reduction=_check(reduction),
        ignore_index=ignore_index,
        log_prob=log_prob,
    )


@whole_arguments
def nll_loss_with_softmax_grad(
    probs: Tensor,
    labels: Tensor,
    loss_grad: float | Tensor = 1,
    ignore_index: int | None = None,
    reduction: REDUCTION_TYPE = "mean",
) -> tuple[Tensor, Tensor]:
    """Loss, and its gradient with respect to the logits of the softmax that gave ``probs``, times ``loss_grad``."""
    grad = ensure_tensor(loss_grad, probs.dtype)
    loss, dlogits = emit_all(
        _k.NlllWithSoftmaxGradDirect,
        [probs, labels, grad],
        ["loss", "logits_grad"],
        reduction=_check(reduction),
        ignore_index=ignore_index,
    )
    return loss, dlogits
