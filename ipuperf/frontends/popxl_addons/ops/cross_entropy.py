"""Cross entropy of logits."""

from __future__ import annotations

from ipuperf.frontends.popxl import Tensor, ops
from ipuperf.frontends.popxl.arguments import checked_arguments


@checked_arguments
def cross_entropy(
    unnormalised_logits: Tensor,
    labels: Tensor,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``nll_loss(softmax(logits), labels)``, classes on the last axis."""
    probs = ops.softmax(unnormalised_logits, axis=-1)
    return ops.nll_loss(probs, labels, ignore_index=ignore_index, reduction=reduction)


@checked_arguments
def cross_entropy_with_grad(
    unnormalised_logits: Tensor,
    labels: Tensor,
    loss_scaling: float | Tensor = 1,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """The cross entropy, and its gradient with respect to the logits times ``loss_scaling``."""
    probs = ops.softmax(unnormalised_logits, axis=-1)
    return ops.nll_loss_with_softmax_grad(
        probs,
        labels,
        loss_grad=loss_scaling,
        ignore_index=ignore_index,
        reduction=reduction,
    )
