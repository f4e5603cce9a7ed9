"""Losses, element by element, of predictions ``t`` and targets ``y`` in the same type. Callers reduce them.

Compositions are those of PopTorch (``poptorch: popart_canonicalization/LossOps.cpp``).
"""

from __future__ import annotations

import math

import numpy as np

from ipuperf.ir import INT32, Tensor

from . import reductions
from .arithmetic import cast, clip, detach, equal, exp, greater, less, log, maximum, relu, softplus, square, where
from .arranging import broadcast, one_hot, picked, reshaped
from .elementary import scaled
from .making import constant
from .networks import nll_loss
from .selection import gather


def squared_error(t: Tensor, y: Tensor) -> Tensor:
    """``(t - y)^2``."""
    return square(t - y)


def absolute_error(t: Tensor, y: Tensor) -> Tensor:
    """``|t - y|``."""
    return abs(t - y)


def huber(t: Tensor, y: Tensor, delta: float, slope: float) -> Tensor:
    """With ``d = |t - y|``: ``d^2 / (2 delta)`` up to ``delta``, ``d - delta / 2`` beyond, times ``slope``."""
    difference = abs(t - y)
    near = square(difference) * (0.5 * slope / delta)
    far = scaled(difference - 0.5 * delta, slope)
    return where(difference < delta, near, far)


def binary_cross_entropy(t: Tensor, y: Tensor) -> Tensor:
    """``-(y log t + (1 - y) log(1 - t))``.

    As in PyTorch, logarithms are at least -100, and the divisor of the gradient ``(t - y) / (t (1 - t))`` is at least
    1e-12 (the smallest number in float16).
    """
    fixed = detach(t)
    complement = 1 - fixed
    log_positive, log_negative = (clip(log(probability), -100.0) for probability in (fixed, complement))
    slope = (fixed - y) / maximum(fixed * complement, 1e-12 if t.dtype.size > 2 else 6e-8)
    # The first term is 0; it only carries the bounded gradient.
    return (t - fixed) * detach(slope) - (y * log_positive + (1 - y) * log_negative)


def binary_cross_entropy_with_logits(t: Tensor, y: Tensor, positive: Tensor | None = None) -> Tensor:
    """``(1 - y) t + (1 + (p - 1) y) softplus(-t)`` with the weight ``positive`` (1) of positive labels as ``p``."""
    negative_log = softplus(-t)
    if positive is not None:
        negative_log = ((positive - 1) * y + 1) * negative_log
    return (1 - y) * t + negative_log


def kl_divergence(t: Tensor, y: Tensor, log_target: bool = False) -> Tensor:
    """``y (log y - t)`` for logarithms ``t``, 0 where ``y`` is 0; with ``log_target`` ``y`` is a logarithm as well."""
    if log_target:
        return exp(y) * (y - t)
    return y * (log(where(equal(y, 0), 1.0, y)) - t)


def poisson_nll(t: Tensor, y: Tensor, log_input: bool, full: bool, eps: float) -> Tensor:
    """``exp(t) - y t``, or ``t - y log(t + eps)``; plus Stirling's approximation when ``full``."""
    rate, logs = (exp(t), t) if log_input else (t, log(t + eps))
    losses = rate - y * logs
    return losses + _stirling(y) if full else losses


def _stirling(y: Tensor) -> Tensor:
    """``y log y - y + log(2 pi y) / 2`` where y is above 1, else 0."""
    above = y > 1
    # The logarithm of the unused branch must be finite, or its gradient would be NaN.
    safe = where(above, y, 1)
    return where(above, safe * log(safe) - safe + log(safe * (2 * math.pi)) * 0.5, 0)


def soft_margin(t: Tensor, y: Tensor) -> Tensor:
    """``log(1 + exp(-y t))``."""
    return softplus(-(t * y))


def multilabel_margin(t: Tensor, labels: Tensor) -> Tensor:
    """``max(0, 1 - t[i] + t[j])`` summed over the targets ``i`` and the other classes ``j`` of each line, divided by
    the number of classes.

    Args:
        t: ``(N, C)``.
        labels: ``(N, C)`` int32: the targets of each line, before the first negative number.
    """
    classes = t.shape[-1]
    places = constant(np.arange(classes), INT32)
    # The first negative label ends the targets of its line.
    is_target = greater(reductions.min(where(less(labels, 0), places, classes), -1, True), places)
    labels = where(is_target, labels, 0)
    # Lines have different numbers of targets, so unused places are masked out.
    counted = reshaped(cast(is_target, t.dtype), (*labels.shape, 1))
    non_targets = 1 - reductions.max(one_hot(labels, classes, t.dtype) * counted, 1, True)
    margins = relu(1 - reshaped(picked(t, labels, 1), counted.shape) + reshaped(t, non_targets.shape))
    return reductions.sum(margins * non_targets * counted, (1, 2)) * (1 / classes)


# -- classes, on the last axis of ``logs``, the logarithms of probabilities --------------------------------------------


def soft_label_nll(logs: Tensor, target: Tensor, smoothing: float = 0.0, weight: Tensor | None = None) -> Tensor:
    """``-sum(p log q)`` for target probabilities ``p``, mixed with the even distribution by ``smoothing``.

    ``weight``, where given, multiplies each class.
    """
    if smoothing:
        target = target * (1 - smoothing) + smoothing / logs.shape[-1]
    if weight is not None:
        target = target * weight
    return -reductions.sum(target * logs, -1)


def smoothed_nll(logs: Tensor, labels: Tensor, smoothing: float, ignore_index: int) -> tuple[Tensor, Tensor]:
    """``(1 - s) nll + s mean over classes of -log q``, 0 for ignored labels, and which labels are ignored."""
    hard = nll_loss(logs, labels, ignore_index, "none", log_prob=True)
    even = -reductions.mean(logs, -1)
    ignored = equal(labels, ignore_index)
    even = where(ignored, 0, even)
    return hard * (1 - smoothing) + even * smoothing, ignored


def mean_of_kept(losses: Tensor, ignored: Tensor) -> Tensor:
    """The sum of ``losses`` divided by the number of those that are not ignored; see :func:`mean_of_counted`."""
    return mean_of_counted(losses, where(ignored, 0, broadcast(constant(1, losses.dtype), losses.shape)))


def mean_of_counted(losses: Tensor, counted: Tensor) -> Tensor:
    """The sum of ``losses`` divided by the sum of ``counted``; NaN without a gradient where nothing counts."""
    total, count = reductions.sum(losses), reductions.sum(counted)
    # The divisor is replaced before the division, so that no gradient is NaN.
    nothing = equal(count, 0)
    return where(nothing, math.nan, total / where(nothing, 1, count))


def weighted_nll(
    logs: Tensor, labels: Tensor, weight: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Like :func:`smoothed_nll` with a weight for each class; gives also the weight that counts for each label.

    That is the weight of its class, 0 where the label is ignored.
    """
    ignored = equal(labels, ignore_index)
    # An ignored label may lie outside of the classes, so class 0 stands in for it.
    counted = where(ignored, 0, gather(weight, where(ignored, 0, labels)))
    losses = nll_loss(logs, labels, ignore_index, "none", log_prob=True) * counted
    if smoothing:
        even = where(ignored, 0, -reductions.mean(logs * weight, -1))
        losses = losses * (1 - smoothing) + even * smoothing
    return losses, counted
