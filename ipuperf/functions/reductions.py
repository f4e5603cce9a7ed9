"""Reductions along axes, positions of extremes, running sums.

``axis`` is one number or several. Negative ones count from the end, and None means all axes. With ``keepdims`` reduced
axes stay, with length 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ipuperf import ops as _k
from ipuperf.ir import OptionError, Tensor

from . import arithmetic
from .families import reduction
from .making import make, make_all, many

sum = reduction("sum", _k.ReduceSum, "Sum along ``axis``.")
mean = reduction("mean", _k.ReduceMean, "Mean along ``axis``.")
max = reduction("max", _k.ReduceMax, "Maximum along ``axis``.")
min = reduction("min", _k.ReduceMin, "Minimum along ``axis``.")
shared_max = reduction(
    "shared_max",
    _k.ReduceMax,
    "Maximum along ``axis``; equal ones get equal parts of the gradient.",
    ties="shared",
)
shared_min = reduction(
    "shared_min",
    _k.ReduceMin,
    "Minimum along ``axis``; equal ones get equal parts of the gradient.",
    ties="shared",
)


def first_max(t: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Maximum along one ``axis``; of equal ones the first gets the gradient."""
    return make(_k.ReduceMax, t, axes=many(axis), keepdims=keepdims, ties="first")


def first_min(t: Tensor, axis: int, keepdims: bool = False) -> Tensor:
    """Minimum along one ``axis``; of equal ones the first gets the gradient."""
    return make(_k.ReduceMin, t, axes=many(axis), keepdims=keepdims, ties="first")


prod = reduction("prod", _k.ReduceProd, "Product along ``axis``.")
sumsquare = reduction("sumsquare", _k.ReduceSumSquare, "Sum of squares along ``axis``.")
l1 = reduction("l1", _k.ReduceL1, "Sum of absolute values along ``axis``.")
l2 = reduction("l2", _k.ReduceL2, "Root of the sum of squares along ``axis``.")
logsum = reduction("logsum", _k.ReduceLogSum, "Logarithm of the sum along ``axis``.")


def logsumexp(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Logarithm of the sum of the exponentials along ``axis``, without overflow."""
    return make(_k.ReduceLogSumExp, t, axes=many(axis), keepdims=keepdims)


def median(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Median along ``axis``; for an even number of elements the lower of the two in the middle."""
    return median_with_position(t, axis, keepdims)[0]


def median_with_position(
    t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """Like :func:`median`, with its position (int32) in the reduced axes taken as one."""
    names = ["median_out", "median_indices_out"]
    values, positions = make_all(_k.ReduceMedian, [t], names, axes=many(axis), keepdims=keepdims)
    return values, positions


def lamb_square(t: Tensor) -> Tensor:
    """Sum of the squares of all elements, a float32 scalar."""
    return make(_k.LambSquare, t)


def histogram(t: Tensor, levels: Sequence[float], absolute_of_input: bool) -> Tensor:
    """Numbers of elements (uint32) below the first of ``levels``, between neighbouring ones, and from the last one on.

    Args:
        levels: each above the one before.
        absolute_of_input: count absolute values.

    Raises:
        ValueError: the levels do not rise.
    """
    levels = tuple(float(level) for level in levels)
    if not all(low < high for low, high in zip(levels, levels[1:], strict=False)):
        raise OptionError(f"histogram of {t.id!r}: levels {list(levels)} do not rise")
    return make(_k.Histogram, t, levels=levels, absolute_of_input=absolute_of_input)


def variance(t: Tensor, axes: Sequence[int], correction: float = 0, keepdims: bool = False) -> Tensor:
    """Mean square difference to the mean along ``axes``.

    The sum of squares is divided by ``count - correction``; the result is NaN where that is not above 0.
    """
    squares = sumsquare(t - mean(t, axes, keepdims=True), axes, keepdims)
    divisor = math.prod(t.shape[axis] for axis in axes) - correction
    return squares * (1 / divisor if divisor > 0 else math.nan)


def deviation(t: Tensor, axes: Sequence[int], correction: float = 0, keepdims: bool = False) -> Tensor:
    """Root of :func:`variance`, also where the variance overflows; without a gradient at 0."""
    divisor = math.prod(t.shape[axis] for axis in axes) - correction
    if divisor <= 0:
        return variance(t, axes, correction, keepdims)
    differences = t - mean(t, axes, keepdims=True)
    return make(
        _k.RootMeanSquare, differences, axes=many(axes), keepdims=keepdims, flat_at_zero=True, divisor=float(divisor)
    )


def norm(t: Tensor, order: float, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Vector norm of any order along ``axis``. Where it is 0, so is its gradient.

    Order 0 counts the elements that are not 0; the infinite orders give the largest and the smallest magnitude.
    """
    # Orders with an op of their own are cheaper than powers and roots.
    if order == 1:
        return l1(t, axis, keepdims)
    if order == 2:
        return make(_k.ReduceL2, t, axes=many(axis), keepdims=keepdims, flat_at_zero=True)
    if order == 0:
        return sum(arithmetic.cast(arithmetic.not_equal(t, 0), t.dtype), axis, keepdims)
    magnitude = abs(t)
    if math.isinf(order):
        return shared_max(magnitude, axis, keepdims) if order > 0 else shared_min(magnitude, axis, keepdims)
    return _positive_power(sum(_positive_power(magnitude, order), axis, keepdims), 1 / order)


def _positive_power(t: Tensor, exponent: float) -> Tensor:
    """``t ** exponent`` for elements that are not negative; without a gradient at 0."""
    if exponent >= 2:
        return t**exponent
    # At 0 the gradient of some powers is infinite or NaN, so 0 is replaced before the power.
    is_zero = arithmetic.equal(t, 0)
    power = arithmetic.where(is_zero, 1, t) ** exponent
    return arithmetic.where(is_zero, 0 if exponent > 0 else math.inf, power)


def argmax(t: Tensor, dim: int = 0, keepdim: bool = False) -> Tensor:
    """Index of the largest element along ``dim`` (the first of equals)."""
    return make(_k.ArgMax, t, axis=dim, keepdim=keepdim)


def argmin(t: Tensor, dim: int = 0, keepdim: bool = False) -> Tensor:
    """Index of the smallest element along ``dim`` (the first of equals)."""
    return make(_k.ArgMin, t, axis=dim, keepdim=keepdim)


def cumsum(t: Tensor, dim: int = 0) -> Tensor:
    """Running sums along ``dim``."""
    return make(_k.CumSum, t, axis=dim)
