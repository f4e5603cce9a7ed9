"""Losses: PyTorch's arguments and reductions; the formulas are in :mod:`ipuperf.functions.losses`.

PyTorch counts reductions as 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ipuperf.functions import losses, make, networks, reductions
from ipuperf.functions.arranging import moved, reshaped
from ipuperf.ir import INT32, Tensor
from ipuperf.ops import CtcLoss

from .lowering import Handler, Lowering, Value, each

NONE, MEAN, SUM = 0, 1, 2


def reduce_loss(losses: Tensor, reduction: int) -> Tensor:
    """All elements reduced to one, or left as they are."""
    if reduction == NONE or not losses.shape:
        return losses
    return reductions.mean(losses) if reduction == MEAN else reductions.sum(losses)


# -- class labels ------------------------------------------------------------------------------------------------------


def _classes_last(x: Tensor) -> Tensor:
    """``(N, C, *)`` as ``(N, *, C)``; ``(C,)`` as it is."""
    return x if len(x.shape) < 3 else moved(x, [1], [-1])


def nll_loss(
    low: Lowering,
    value: Value,
    target: Value,
    weight: Value = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> Tensor:
    """Negative log-likelihood of labels, given logarithms of probabilities."""
    logs, labels = _classes_last(low.tensor(value)), low.tensor(target, INT32)
    if weight is None:
        return _nll(logs, labels, reduction, ignore_index)
    return _weighted_nll(logs, labels, low.tensor(weight, logs.dtype), reduction, ignore_index)


def _weighted_nll(
    logs: Tensor, labels: Tensor, weight: Tensor, reduction: int, ignore_index: int, smoothing: float = 0.0
) -> Tensor:
    """With a weight for each class; the mean is that of the weights that count."""
    terms, counted = losses.weighted_nll(logs, labels, weight, smoothing, int(ignore_index))
    if reduction == MEAN:
        return losses.mean_of_counted(terms, counted)
    return reduce_loss(terms, reduction)


def _nll(logs: Tensor, labels: Tensor, reduction: int, ignore_index: int) -> Tensor:
    """Nll of ``(*, C)`` logarithms."""
    return networks.nll_loss(logs, labels, int(ignore_index), networks.REDUCTIONS[reduction], log_prob=True)


def cross_entropy(
    low: Lowering,
    value: Value,
    target: Value,
    weight: Value = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """LogSoftmax, then the likelihood of labels, or of probabilities of classes (the mean is over the rows)."""
    x, expected = low.tensor(value), low.tensor(target)
    logs = networks.log_softmax(_classes_last(x), -1)
    if expected.dtype.is_floating_point:
        shares = low.tensor(_classes_last(expected), logs.dtype)
        scale = None if weight is None else low.tensor(weight, logs.dtype)
        return reduce_loss(losses.soft_label_nll(logs, shares, label_smoothing, scale), reduction)
    labels = low.tensor(expected, INT32)
    if weight is not None:
        scale = low.tensor(weight, logs.dtype)
        return _weighted_nll(logs, labels, scale, reduction, ignore_index, label_smoothing)
    if label_smoothing == 0:
        return _nll(logs, labels, reduction, ignore_index)
    terms, ignored = losses.smoothed_nll(logs, labels, label_smoothing, int(ignore_index))
    return losses.mean_of_kept(terms, ignored) if reduction == MEAN else reduce_loss(terms, reduction)


# -- element by element ------------------------------------------------------------------------------------------------


def _compared(function: Callable[[Tensor, Tensor], Tensor]) -> Handler:
    """The loss ``function`` of a prediction and a target in the result's type, reduced."""

    def handler(low: Lowering, value: Value, target: Value, reduction: int = MEAN) -> Tensor:
        return reduce_loss(function(*low.tensors([value, target], low.dtype)), reduction)

    return handler


def _bent(scaled: bool) -> Handler:
    """A square near 0 and a line from ``bend`` on: Huber's loss, or smooth L1, which is not ``scaled`` by it."""

    def handler(low: Lowering, value: Value, target: Value, reduction: int = MEAN, bend: float = 1.0) -> Tensor:
        x, y = low.tensors([value, target], low.dtype)
        # Without a bend all is line, and the formula would divide by it.
        terms = losses.huber(x, y, bend, bend if scaled else 1.0) if bend else losses.absolute_error(x, y)
        return reduce_loss(terms, reduction)

    return handler


def _weighted(low: Lowering, losses: Tensor, weight: Value) -> Tensor:
    return losses if weight is None else losses * low.tensor(weight, losses.dtype)


def binary_cross_entropy(
    low: Lowering, value: Value, target: Value, weight: Value = None, reduction: int = MEAN
) -> Tensor:
    """Cross entropy of probabilities, times the weight."""
    terms = losses.binary_cross_entropy(*low.tensors([value, target], low.dtype))
    return reduce_loss(_weighted(low, terms, weight), reduction)


def binary_cross_entropy_with_logits(
    low: Lowering,
    value: Value,
    target: Value,
    weight: Value = None,
    pos_weight: Value = None,
    reduction: int = MEAN,
) -> Tensor:
    """Cross entropy of logits, times the weight."""
    x, y = low.tensors([value, target], low.dtype)
    positive = None if pos_weight is None else low.tensor(pos_weight, x.dtype)
    terms = losses.binary_cross_entropy_with_logits(x, y, positive)
    return reduce_loss(_weighted(low, terms, weight), reduction)


def kl_div(low: Lowering, value: Value, target: Value, reduction: int = MEAN, *, log_target: bool = False) -> Tensor:
    """Kullback-Leibler divergence."""
    x, y = low.tensors([value, target], low.dtype)
    return reduce_loss(losses.kl_divergence(x, y, log_target), reduction)


def poisson_nll_loss(
    low: Lowering, value: Value, target: Value, log_input: bool, full: bool, eps: float, reduction: int
) -> Tensor:
    """Likelihood of counts."""
    x, y = low.tensors([value, target], low.dtype)
    return reduce_loss(losses.poisson_nll(x, y, log_input, full, eps), reduction)


def multilabel_margin_loss(low: Lowering, value: Value, target: Value, reduction: int = MEAN) -> Tensor:
    """Margins between targets and other classes (PyTorch's own decomposition counts the labels behind the first -1)."""
    x, labels = low.tensor(value), low.tensor(target, INT32)
    classes = x.shape[-1] if x.shape else 1
    lines = (x.spec.elements // classes, classes)
    terms = losses.multilabel_margin(reshaped(x, lines), reshaped(labels, lines))
    return reshaped(reduce_loss(terms, reduction), low.shape)


# -- sequences ---------------------------------------------------------------------------------------------------------


def ctc_loss(low: Lowering, logs: Value, labels: Value, times: Value, lengths: Value, blank: int, zero: bool) -> Tensor:
    """The loss of each sequence (:mod:`.export_substitutes` reduces them)."""
    whole = low.tensors([labels, times, lengths], INT32)
    return make(CtcLoss, low.tensor(logs), *whole, blank=blank, zero_infinity=zero)


#: Handlers by aten name.
HANDLERS: Mapping[str, Callable[..., Any]] = {
    **each("nll_loss nll_loss2d nll_loss_nd", nll_loss),
    "binary_cross_entropy": binary_cross_entropy,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "cross_entropy_loss": cross_entropy,
    "ipuperf::ctc_loss": ctc_loss,
    "huber_loss": _bent(scaled=True),
    "kl_div": kl_div,
    "l1_loss": _compared(losses.absolute_error),
    "mse_loss": _compared(losses.squared_error),
    "multilabel_margin_loss": multilabel_margin_loss,
    "poisson_nll_loss": poisson_nll_loss,
    "smooth_l1_loss": _bent(scaled=False),
    "soft_margin_loss": _compared(losses.soft_margin),
}
