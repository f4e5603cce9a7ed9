"""Aten ops that order elements or find where they stand in an order: sorts, medians, modes, buckets, histograms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ipuperf.functions import arithmetic as f
from ipuperf.functions import reductions, selection
from ipuperf.functions.arranging import axis_of, broadcast, cut, flipped, moved, picked, reshaped, running_extreme
from ipuperf.ir import BOOL, FLOAT32, INT32, Tensor

from .lowering import Handler, Lowering, Value


def _ordered(
    low: Lowering, x: Tensor, count: int | None, dim: int, largest: bool, in_order: bool = True
) -> list[Tensor]:
    """The first ``count`` (None: all) elements of an axis in order, and their positions; of equal ones the first comes
    first."""
    shape, axis = x.shape, axis_of(dim, len(x.shape))
    whole = x if shape else reshaped(x, (1,))
    count = whole.shape[axis] if count is None else count
    if not count or not x.spec.elements:
        return [x, low.constant(np.zeros(shape), INT32)]
    keys = low.tensor(whole, INT32) if x.dtype == BOOL else whole
    values, places = selection.topk(keys, count, axis, largest, in_order)
    results = [low.tensor(values, x.dtype), places]
    return results if shape else [reshaped(t, ()) for t in results]


def topk(low: Lowering, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Tensor]:
    """The largest or smallest elements of an axis, in order, and their positions."""
    return _ordered(low, x, k, dim, largest, sorted)


def sort(
    low: Lowering, x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> list[Tensor]:
    """All elements of an axis in order, and their positions; always stable."""
    return _ordered(low, x, None, dim, descending)


def kthvalue(low: Lowering, x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> list[Tensor]:
    """The k-th smallest element of an axis, and its position."""
    values, places = _ordered(low, x, k, dim, False)
    axis = axis_of(dim, len(values.shape))
    return [reshaped(cut(t, axis, k - 1, k) if t.shape else t, low.shape) for t in (values, places)]


def median(_low: Lowering, x: Tensor) -> Tensor:
    """The lower median of all elements."""
    return reductions.median_with_position(reshaped(x, (-1,)), 0)[0] if x.shape else x


def median_along(low: Lowering, x: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
    """The lower median of an axis, and its position."""
    found = reductions.median_with_position(x if x.shape else reshaped(x, (1,)), axis_of(dim, len(x.shape)))
    return [reshaped(t, low.shape) for t in found]


def mode(low: Lowering, x: Tensor, dim: int = -1, keepdim: bool = False) -> list[Tensor]:
    """The most frequent element of an axis (the smallest of several), and its last position: every element is compared
    with every other."""
    if not x.shape:
        return [x, low.constant(0, INT32)]
    axis, last = axis_of(dim, len(x.shape)), len(x.shape) - 1
    ordered = selection.topk(x, x.shape[axis], axis, False, True)[0]
    lines = moved(ordered, [axis], [last])
    same = f.equal(reshaped(lines, (*lines.shape, 1)), reshaped(lines, (*lines.shape[:-1], 1, lines.shape[-1])))
    counts = reductions.sum(f.cast(same, INT32), last + 1)
    found = picked(lines, reductions.argmax(counts, last, True), last)
    here = f.cast(f.equal(moved(x, [axis], [last]), found), INT32)
    position = x.shape[axis] - 1 - reductions.argmax(flipped(here, [last]), last, True)
    return [reshaped(found, low.shape), reshaped(position, low.shape)]


def _running_extreme(largest: bool) -> Handler:
    """cummax and cummin."""

    def handler(low: Lowering, x: Tensor, dim: int) -> list[Tensor]:
        if not x.shape or not x.spec.elements:
            return [x, low.constant(np.zeros(x.shape), INT32)]
        return list(running_extreme(x, axis_of(dim, len(x.shape)), largest))

    return handler


# -- buckets -----------------------------------------------------------------------------------------------------------


def _place(low: Lowering, values: Tensor, limits: Tensor, right: bool) -> Tensor:
    """The position on the last axis of ``limits`` of the first that is not below each value (``right``: nor equal),
    which has a last axis of 1; their number where there is none. Every value is compared with every limit."""
    passed = f.greater_equal(values, limits) if right else f.greater(values, limits)
    count = limits.shape[-1]
    return reductions.min(f.where(passed, count, low.constant(np.arange(count), INT32)), -1)


def bucketize(
    low: Lowering, value: Value, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The interval between rising boundaries in which each element lies."""
    kind = low.promoted(value, boundaries)
    x, limits = low.tensors([value, boundaries], kind)
    if not limits.spec.elements:
        return broadcast(low.constant(0, low.dtype), low.shape)
    return low.tensor(_place(low, reshaped(x, (*x.shape, 1)), limits, right), low.dtype)


def searchsorted(
    low: Lowering,
    sequence: Value,
    value: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value = None,
) -> Tensor:
    """As :func:`bucketize`; a sequence with more axes has its own line for each line of values."""
    kind = low.promoted(value, sequence)
    x, limits = low.tensors([value, sequence], kind)
    if sorter is not None:
        limits = picked(limits, low.tensor(sorter, INT32), len(limits.shape) - 1)
    if len(limits.shape) > 1:
        limits = reshaped(limits, (*limits.shape[:-1], 1, limits.shape[-1]))
    return low.tensor(_place(low, reshaped(x, (*x.shape, 1)), limits, right or side == "right"), low.dtype)


def histc(low: Lowering, value: Value, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Numbers of elements in ``bins`` equal intervals between two limits (both 0: the least and largest element); the
    last one holds the upper limit, others do not count."""
    x = reshaped(low.tensor(value, FLOAT32), (-1,))
    bounds = (min, max) if min or max else (reductions.min(x), reductions.max(x))
    start, width = bounds[0], (bounds[1] - bounds[0]) * (1 / bins)
    place = f.floor((x - start) / width)
    inside = f.logical_and(f.greater_equal(x, start), f.less_equal(x, bounds[1]))
    # The upper limit itself would fall behind the last interval.
    place = f.where(inside, f.minimum(place, float(bins - 1)), -1.0)
    each = f.equal(reshaped(place, (1, -1)), low.constant(np.arange(bins).reshape(-1, 1), FLOAT32))
    return low.tensor(reductions.sum(f.cast(each, INT32), 1), low.dtype)


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    "bucketize": bucketize,
    "cummax": _running_extreme(largest=True),
    "cummin": _running_extreme(largest=False),
    "histc": histc,
    "kthvalue": kthvalue,
    "median": median,
    "median.dim": median_along,
    "mode": mode,
    "searchsorted": searchsorted,
    "sort": sort,
    "topk": topk,
}
