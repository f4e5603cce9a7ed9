"""Losses: compositions as in PopTorch (``popart_canonicalization/LossOps.cpp``).

PyTorch counts reductions as 0 none, 1 mean, 2 sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ipuperf.ir import INT32, Tensor
from ipuperf.ops import (
    Abs,
    Add,
    Clip,
    Div,
    Equal,
    Exp,
    Greater,
    Less,
    Log,
    LogSoftmax,
    Maximum,
    Mul,
    Neg,
    Nll,
    ReduceMean,
    ReduceSum,
    Softplus,
    Sub,
    Where,
)

from .aten_lowering import Lowering, Value

Handler = Callable[..., Any]

NONE, MEAN, SUM = 0, 1, 2


def reduce_loss(low: Lowering, losses: Tensor, reduction: int) -> Tensor:
    """All elements reduced to one, or left as they are."""
    if reduction == NONE:
        return losses
    if not losses.shape:
        return losses
    return low.op(ReduceMean if reduction == MEAN else ReduceSum, [losses], axes=None, keepdims=False)


# -- class labels ------------------------------------------------------------------------------------------------------


def _classes_last(low: Lowering, x: Tensor) -> Tensor:
    """``(N, C, *)`` as ``(N, *, C)``; ``(C,)`` as it is."""
    rank = len(x.shape)
    return x if rank < 3 else low.transpose(x, [0, *range(2, rank), 1])


def nll_loss(
    low: Lowering,
    value: Value,
    target: Value,
    weight: Value = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
) -> Tensor:
    """Negative log-likelihood of labels, given logarithms of probabilities."""
    if weight is not None:
        raise low.unsupported('parameter "weight" is unsupported')
    x, labels = _classes_last(low, low.tensor(value)), low.tensor(target, INT32)
    name = ("none", "mean", "sum")[reduction]
    return low.op(Nll, [x, labels], reduction=name, ignore_index=int(ignore_index), log_prob=True)


def cross_entropy(
    low: Lowering,
    value: Value,
    target: Value,
    weight: Value = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """LogSoftmax, then the likelihood of labels, or of probabilities of classes."""
    if weight is not None:
        raise low.unsupported('parameter "weight" is unsupported')
    x, wanted = low.tensor(value), low.tensor(target)
    logs = low.op(LogSoftmax, [_classes_last(low, x)], axis=-1)
    if wanted.dtype.is_floating_point:
        return _soft_labels(low, logs, _classes_last(low, wanted), reduction, label_smoothing)
    if label_smoothing == 0:
        return nll_of_logs(low, logs, wanted, reduction, ignore_index)
    return _smoothed(low, logs, low.tensor(wanted, INT32), reduction, ignore_index, label_smoothing)


def nll_of_logs(low: Lowering, logs: Tensor, labels: Value, reduction: int, ignore_index: int) -> Tensor:
    """Nll of ``(*, C)`` logarithms."""
    name = ("none", "mean", "sum")[reduction]
    inputs = [logs, low.tensor(labels, INT32)]
    return low.op(Nll, inputs, reduction=name, ignore_index=int(ignore_index), log_prob=True)


def _soft_labels(low: Lowering, logs: Tensor, wanted: Tensor, reduction: int, smoothing: float) -> Tensor:
    """``-sum(p log q)`` over the classes."""
    probabilities = low.tensor(wanted, logs.dtype)
    if smoothing:
        kept = low.op(Mul, [probabilities, low.constant(1 - smoothing, logs.dtype)])
        probabilities = low.op(Add, [kept, low.constant(smoothing / logs.shape[-1], logs.dtype)])
    terms = low.op(Mul, [probabilities, logs])
    losses = low.op(Neg, [low.op(ReduceSum, [terms], axes=(-1,), keepdims=False)])
    return reduce_loss(low, losses, reduction)


def _smoothed(
    low: Lowering, logs: Tensor, labels: Tensor, reduction: int, ignore_index: int, smoothing: float
) -> Tensor:
    """``(1 - s) nll + s mean over classes of -log q``, both over labels that are not ignored."""
    hard = nll_of_logs(low, logs, labels, NONE, ignore_index)
    even = low.op(Neg, [low.op(ReduceMean, [logs], axes=(-1,), keepdims=False)])
    zero, one = low.constant(0, logs.dtype), low.constant(1, logs.dtype)
    ignored = low.op(Equal, [labels, low.constant(ignore_index, INT32)])
    even = low.op(Where, [ignored, zero, even])
    parts = [low.op(Mul, [t, low.constant(f, logs.dtype)]) for t, f in ((hard, 1 - smoothing), (even, smoothing))]
    losses = low.op(Add, parts)
    if reduction != MEAN:
        return reduce_loss(low, losses, reduction)
    counted = low.op(Where, [ignored, zero, low.expand(one, labels.shape)])
    total, count = (low.op(ReduceSum, [t], axes=None, keepdims=False) for t in (losses, counted))
    return low.op(Div, [total, count])


# -- differences -------------------------------------------------------------------------------------------------------


def _pair(low: Lowering, value: Value, target: Value) -> tuple[Tensor, Tensor]:
    dtype = low.dtype
    return low.tensor(value, dtype), low.tensor(target, dtype)


def mse_loss(low: Lowering, value: Value, target: Value, reduction: int = MEAN) -> Tensor:
    """Mean squared error."""
    difference = low.op(Sub, _pair(low, value, target))
    return reduce_loss(low, low.op(Mul, [difference, difference]), reduction)


def l1_loss(low: Lowering, value: Value, target: Value, reduction: int = MEAN) -> Tensor:
    """Mean absolute error."""
    return reduce_loss(low, low.op(Abs, [low.op(Sub, _pair(low, value, target))]), reduction)


def _huber(low: Lowering, value: Value, target: Value, reduction: int, delta: float, slope: float) -> Tensor:
    """``0.5 d**2 / delta`` up to delta, ``|d| - 0.5 delta`` beyond, times ``slope``."""
    difference = low.op(Abs, [low.op(Sub, _pair(low, value, target))])
    dtype = difference.dtype
    square = low.op(Mul, [low.op(Mul, [difference, difference]), low.constant(0.5 * slope / delta, dtype)])
    line = low.op(Sub, [difference, low.constant(0.5 * delta, dtype)])
    if slope != 1:
        line = low.op(Mul, [line, low.constant(slope, dtype)])
    near = low.op(Less, [difference, low.constant(delta, dtype)])
    return reduce_loss(low, low.op(Where, [near, square, line]), reduction)


def smooth_l1_loss(low: Lowering, value: Value, target: Value, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    """Square near 0, absolute value beyond ``beta``."""
    return l1_loss(low, value, target, reduction) if beta == 0 else _huber(low, value, target, reduction, beta, 1.0)


def huber_loss(low: Lowering, value: Value, target: Value, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    """As smooth L1, times ``delta``."""
    return _huber(low, value, target, reduction, delta, delta)


# -- probabilities -----------------------------------------------------------------------------------------------------


def binary_cross_entropy(
    low: Lowering, value: Value, target: Value, weight: Value = None, reduction: int = MEAN
) -> Tensor:
    """``-w (y log x + (1 - y) log(1 - x))``; logarithms are at least -100, as in PyTorch."""
    x, y = _pair(low, value, target)
    one = low.constant(1, x.dtype)
    logs = [low.op(Clip, [low.op(Log, [t])], min=-100.0, max=math.inf) for t in (x, low.op(Sub, [one, x]))]
    terms = [low.op(Mul, [y, logs[0]]), low.op(Mul, [low.op(Sub, [one, y]), logs[1]])]
    losses = low.op(Neg, [low.op(Add, terms)])
    return reduce_loss(low, _weighted(low, losses, weight), reduction)


def _weighted(low: Lowering, losses: Tensor, weight: Value) -> Tensor:
    return losses if weight is None else low.op(Mul, [losses, low.tensor(weight, losses.dtype)])


def binary_cross_entropy_with_logits(
    low: Lowering,
    value: Value,
    target: Value,
    weight: Value = None,
    pos_weight: Value = None,
    reduction: int = MEAN,
) -> Tensor:
    """``(1 - y) x + (1 + (p - 1) y) softplus(-x)``, times the weight."""
    x, y = _pair(low, value, target)
    one = low.constant(1, x.dtype)
    rest = low.op(Softplus, [low.op(Neg, [x])])
    if pos_weight is not None:
        extra = low.op(Mul, [low.op(Sub, [low.tensor(pos_weight, x.dtype), one]), y])
        rest = low.op(Mul, [low.op(Add, [extra, one]), rest])
    losses = low.op(Add, [low.op(Mul, [low.op(Sub, [one, y]), x]), rest])
    return reduce_loss(low, _weighted(low, losses, weight), reduction)


def kl_div(low: Lowering, value: Value, target: Value, reduction: int = MEAN, *, log_target: bool = False) -> Tensor:
    """``y (log y - x)`` (0 where y is 0)."""
    x, y = _pair(low, value, target)
    if log_target:
        return reduce_loss(low, low.op(Mul, [low.op(Exp, [y]), low.op(Sub, [y, x])]), reduction)
    tiny = low.constant(6.2e-5 if y.dtype.size == 2 else 1.2e-38, y.dtype)
    logs = low.op(Log, [low.op(Maximum, [y, tiny])])
    return reduce_loss(low, low.op(Mul, [y, low.op(Sub, [logs, x])]), reduction)


def poisson_nll_loss(
    low: Lowering, value: Value, target: Value, log_input: bool, full: bool, eps: float, reduction: int
) -> Tensor:
    """``exp(x) - y x``, or ``x - y log(x + eps)``; with Stirling's approximation when ``full``."""
    x, y = _pair(low, value, target)
    if log_input:
        rate, log = low.op(Exp, [x]), x
    else:
        rate, log = x, low.op(Log, [low.op(Add, [x, low.constant(eps, x.dtype)])])
    losses = low.op(Sub, [rate, low.op(Mul, [y, log])])
    if full:
        losses = low.op(Add, [losses, _stirling(low, y)])
    return reduce_loss(low, losses, reduction)


def _stirling(low: Lowering, y: Tensor) -> Tensor:
    """``y log y - y + log(2 pi y) / 2`` where y is above 1, else 0."""
    above = low.op(Greater, [y, low.constant(1, y.dtype)])
    safe = low.op(Where, [above, y, low.constant(1, y.dtype)])
    first = low.op(Sub, [low.op(Mul, [safe, low.op(Log, [safe])]), safe])
    log = low.op(Log, [low.op(Mul, [safe, low.constant(2 * math.pi, y.dtype)])])
    term = low.op(Add, [first, low.op(Mul, [log, low.constant(0.5, y.dtype)])])
    return low.op(Where, [above, term, low.constant(0, y.dtype)])


def soft_margin_loss(low: Lowering, value: Value, target: Value, reduction: int = MEAN) -> Tensor:
    """``log(1 + exp(-y x))``."""
    x, y = _pair(low, value, target)
    return reduce_loss(low, low.op(Softplus, [low.op(Neg, [low.op(Mul, [x, y])])]), reduction)


#: Handlers by aten name.
HANDLERS: Mapping[str, Handler] = {
    "binary_cross_entropy": binary_cross_entropy,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "cross_entropy_loss": cross_entropy,
    "huber_loss": huber_loss,
    "kl_div": kl_div,
    "l1_loss": l1_loss,
    "mse_loss": mse_loss,
    "nll_loss": nll_loss,
    "nll_loss2d": nll_loss,
    "nll_loss_nd": nll_loss,
    "poisson_nll_loss": poisson_nll_loss,
    "smooth_l1_loss": smooth_l1_loss,
    "soft_margin_loss": soft_margin_loss,
}
