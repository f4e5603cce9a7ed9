"""Parts of neural networks besides products: softmax, normalisation, losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from ipuperf import ops as _k
from ipuperf.ir import Operand, Tensor

from . import reductions
from .arithmetic import sqrt
from .making import constant, make, make_all

REDUCTION_TYPE = Literal["mean", "sum", "none"]
REDUCTIONS: tuple[REDUCTION_TYPE, ...] = ("none", "mean", "sum")


def softmax(t: Tensor, axis: int) -> Tensor:
    """Softmax along ``axis``."""
    return make(_k.Softmax, t, axis=axis)


def log_softmax(t: Tensor, axis: int) -> Tensor:
    """Logarithm of the softmax along ``axis``."""
    return make(_k.LogSoftmax, t, axis=axis)


def rms_norm(t: Tensor, axes: Sequence[int], eps: float) -> Tensor:
    """``t / sqrt(mean(t**2) + eps)`` over ``axes``."""
    # One reduction and a factor, which is known when the program is built.
    mean = reductions.sumsquare(t, axes, keepdims=True) * (1 / math.prod(t.shape[axis] for axis in axes))
    return t / sqrt(mean + eps)


def group_norm(
    t: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float = 1e-5, **attributes: Any
) -> Tensor:
    """``t`` (N, C, ...) normalised over groups of channels, times ``weight`` (C,), plus ``bias`` (C,).

    Args:
        attributes: further attributes of :class:`~ipuperf.ops.GroupNormalization`.

    Raises:
        IrError (``popart_exception``): shapes or dtypes do not fit, or the groups do not divide the channels.
    """
    names = ["group_norm_out", "group_norm_mean", "group_norm_inv_std_dev"]
    attributes |= {"num_groups": num_groups, "epsilon": eps}
    return make_all(_k.GroupNormalization, [t, weight, bias], names, **attributes)[0]


def layer_norm(t: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """:func:`group_norm` with one group."""
    return group_norm(t, weight, bias, 1, eps)


def batch_norm_inference(
    t: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    epsilon: float = 1e-5,
) -> Tensor:
    """``(t - mean) / sqrt(var + epsilon) * scale + bias`` per channel."""
    return make(_k.BatchNormalizationInference, t, scale, bias, mean, var, name="batch_norm_out", epsilon=epsilon)


def _check(reduction: str | None) -> str:
    reduction = "none" if reduction is None else reduction
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction {reduction!r}; allowed: 'mean', 'sum', 'none'")
    return reduction


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
    return make(
        _k.Nll,
        probs,
        labels,
        reduction=_check(reduction),
        ignore_index=ignore_index,
        log_prob=log_prob,
    )


def nll_loss_with_softmax_grad(
    probs: Tensor,
    labels: Tensor,
    loss_grad: Operand = 1,
    ignore_index: int | None = None,
    reduction: REDUCTION_TYPE = "mean",
) -> tuple[Tensor, Tensor]:
    """Loss, and its gradient with respect to the logits of the softmax that gave ``probs``, times ``loss_grad``.

    Args:
        labels: integer classes, one for each row of ``probs``; all axes but the classes are flattened in both.
        ignore_index, reduction: as in :func:`nll_loss`.
    """
    grad = loss_grad if isinstance(loss_grad, Tensor) else constant(loss_grad, probs.dtype)
    loss, dlogits = make_all(
        _k.NlllWithSoftmaxGradDirect,
        [probs, labels, grad],
        ["loss", "logits_grad"],
        reduction=_check(reduction),
        ignore_index=ignore_index,
    )
    return loss, dlogits
