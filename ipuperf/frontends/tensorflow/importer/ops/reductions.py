"""Reductions, positions of extremes, running sums and products, the largest elements."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ipuperf.functions import arithmetic, constant, make, reductions, selection
from ipuperf.functions.arranging import axis_of, cut, flipped, moved, padded, reshaped, running_product, running_sum
from ipuperf.ir import BOOL, FLOAT32, INT32, Tensor
from ipuperf.ops import CumSum

from ..node import Node
from ..table import Family
from ..values import Value

FAMILY = Family("Reductions")
op = FAMILY.op

REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "EuclideanNorm": reductions.l2,
    "Max": reductions.shared_max,
    "Mean": reductions.mean,
    "Min": reductions.shared_min,
    "Prod": reductions.prod,
    "Sum": reductions.sum,
}


def _axes(node: Node, tensor: Tensor, axes: Value) -> tuple[int, ...]:
    return tuple(a % len(tensor.shape) for a in node.integers(axes, "the axes")) if tensor.shape else ()


@op(*REDUCTIONS)
def reduction(node: Node, tensor: Tensor, axes: Value) -> Tensor:
    """A reduction along axes."""
    along, keep = _axes(node, tensor, axes), node.attr("keep_dims")
    if not along:
        return tensor
    if node.op.type == "Mean" and tensor.dtype.is_integer:
        total = reductions.sum(tensor, along, keep)
        return arithmetic.div(total, np.array(np.prod([tensor.shape[a] for a in along]), np.int32))
    return REDUCTIONS[node.op.type](tensor, along, keep)


@op("All", "Any")
def of_bools(node: Node, tensor: Tensor, axes: Value) -> Tensor:
    """Whether all, or some, elements along axes are true."""
    along = _axes(node, tensor, axes)
    if not along:
        return tensor
    function = reductions.min if node.op.type == "All" else reductions.max
    return arithmetic.cast(function(arithmetic.cast(tensor, INT32), along, node.attr("keep_dims")), BOOL)


@op("ArgMax", "ArgMin")
def position(node: Node, tensor: Tensor, axis: Value) -> Tensor:
    """Positions of the largest or smallest elements, of equals the first."""
    along = node.integer(axis, "the axis")
    function = reductions.argmax if node.op.type == "ArgMax" else reductions.argmin
    if not tensor.dtype.is_floating_point and tensor.dtype != INT32:
        tensor = arithmetic.cast(tensor, INT32)
    result, dtype = function(tensor, along % len(tensor.shape)), node.dtype()
    return result if result.dtype == dtype else arithmetic.cast(result, dtype)


@op("Cumsum")
def cumsum(node: Node, tensor: Tensor, axis: Value) -> Tensor:
    """Running sums."""
    along = node.integer(axis, "the axis")
    exclusive, reverse = node.attr("exclusive"), node.attr("reverse")
    if tensor.dtype.is_integer:
        return _sums_of_integers(tensor, axis_of(along, len(tensor.shape)), exclusive, reverse)
    return make(CumSum, tensor, axis=axis_of(along, len(tensor.shape)), exclusive=exclusive, reverse=reverse)


def _sums_of_integers(tensor: Tensor, axis: int, exclusive: bool, reverse: bool) -> Tensor:
    total = running_sum(flipped(tensor, [axis]) if reverse else tensor, axis)
    total = flipped(total, [axis]) if reverse else total
    return total - tensor if exclusive else total


@op("Cumprod")
def cumprod(node: Node, tensor: Tensor, axis: Value) -> Tensor:
    """Running products."""
    along = axis_of(node.integer(axis, "the axis"), len(tensor.shape))
    turned = flipped(tensor, [along]) if node.attr("reverse") else tensor
    if node.attr("exclusive"):
        turned = padded(cut(turned, along, 0, tensor.shape[along] - 1), {along: (1, 0)}, 1.0)
    result = running_product(turned, along)
    return flipped(result, [along]) if node.attr("reverse") else result


@op("CumulativeLogsumexp")
def cumulative_logsumexp(node: Node, value: Value, axis: Value) -> Tensor:
    """Logarithms of running sums of exponentials: of each element and those before it in a row of their own, so that
    none is lost beside a larger one that comes later."""
    tensor, attr = node.tensor(value), node.attr
    along = axis_of(node.integer(axis, "the axis"), len(tensor.shape))
    places, lowest = np.arange(tensor.shape[along]), float(np.finfo(tensor.dtype.numpy).min)
    to, of = places[:, None], places
    reached = (of >= to if attr("reverse") else of <= to) & ((of != to) | (not attr("exclusive")))
    last = moved(tensor, [along], [-1])
    rows = arithmetic.where(constant(reached, BOOL), reshaped(last, (*last.shape[:-1], 1, last.shape[-1])), lowest)
    result = arithmetic.where(constant(reached.any(1), BOOL), reductions.logsumexp(rows, -1), -np.inf)
    return moved(result, [-1], [along])


@op("LowerBound", "UpperBound")
def bound(node: Node, rows: Value, values: Value) -> Tensor:
    """Where each value would stand in its row of rising numbers: before those equal to it, or behind."""
    table, sought = node.tensor(rows), node.tensor(values)
    table, sought = reshaped(table, (table.shape[0], 1, -1)), reshaped(sought, (*sought.shape, 1))
    before = arithmetic.less if node.op.type == "LowerBound" else arithmetic.less_equal
    return reductions.sum(arithmetic.cast(before(table, sought), INT32), -1)


@op("TopKV2", "TopK")
def top_k(node: Node, value: Tensor, *count: Value) -> list[Tensor]:
    """The largest elements of the last axis and their positions."""
    k = node.integer(count[0], "k") if count else node.attr("k")
    values, positions = selection.topk(value, k, -1, True, True)
    return [values, positions]


@op("InTopKV2", "InTopK")
def in_top_k(node: Node, table: Tensor, targets: Value, *count: Value) -> Tensor:
    """Whether the prediction of the target is finite and fewer than k are above it."""
    k = node.integer(count[0], "k") if count else node.attr("k")
    labels = node.tensor(targets, INT32)
    labelled = arithmetic.equal(reshaped(labels, (-1, 1)), constant(np.arange(table.shape[1]), INT32))
    scores = reductions.sum(arithmetic.where(labelled, table, 0), 1, True)
    above = reductions.sum(arithmetic.cast(arithmetic.greater(table, scores), FLOAT32), 1)
    return arithmetic.logical_and(arithmetic.less(above, float(k)), arithmetic.isfinite(reshaped(scores, (-1,))))


FAMILY.formula("L2Loss", "Half the sum of squares.", lambda x: reductions.sumsquare(x) * 0.5)


def _bounds(tensor: tf.Tensor) -> tuple[float, float]:
    """The least and the largest number that a scalar can be, whatever the data are."""
    known = tf.get_static_value(tensor)
    if known is not None:
        return float(known), float(known)
    if tensor.op.type in ("Maximum", "Minimum"):
        choose = max if tensor.op.type == "Maximum" else min
        (low, high), (other_low, other_high) = (_bounds(t) for t in tensor.op.inputs)
        return choose(low, other_low), choose(high, other_high)
    return (-math.inf, math.inf) if tensor.op.type != "Identity" else _bounds(tensor.op.inputs[0])


def _length(node: Node, size: Value) -> int:
    """How many numbers are counted: the size, also where ``minlength`` and ``maxlength`` of ``tf.math.bincount`` leave
    only one."""
    low, high = _bounds(node.op.inputs[1])
    if low == high:
        return int(low)
    if not isinstance(size, np.ndarray):
        raise node.error(
            "the number of counts depends on data, and programs of the IPU have fixed shapes; give minlength and "
            "maxlength, and both the same"
        )
    return node.integer(size, "the size")


@op("Bincount", "DenseBincount")
def bincount(node: Node, values: Value, size: Value, weights: Value) -> Tensor:
    """How often each number below ``size`` occurs, or the sum of its weights; ``DenseBincount`` of rows, in each."""
    tensor, length, dtype = node.tensor(values), _length(node, size), node.dtype()
    if node.op.type == "Bincount":
        tensor = reshaped(tensor, (-1,))
    column = (*tensor.shape, 1)
    hits = arithmetic.equal(reshaped(tensor, column), constant(np.arange(length), tensor.dtype))
    if not isinstance(weights, np.ndarray) or weights.size:  # chosen: times 0, infinity would be in every sum
        hits = arithmetic.where(hits, reshaped(node.tensor(weights, FLOAT32), column), 0.0)
    else:
        hits = arithmetic.cast(hits, FLOAT32)
    total = reductions.sum(hits, len(tensor.shape) - 1)
    if node.op.type == "DenseBincount" and node.attr("binary_output"):
        total = arithmetic.cast(arithmetic.greater(total, 0.0), FLOAT32)
    return total if total.dtype == dtype else arithmetic.cast(total, dtype)
