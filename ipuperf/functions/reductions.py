"""Reductions along axes, positions of extremes, running sums.

``axis`` is a number or several, negative ones count from the end, None means all; with ``keepdims`` reduced axes stay,
of length 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf import ops as _k
from ipuperf.ir import Tensor

from . import arithmetic
from .making import make, many
from .shapes import squeeze


def sum(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Sum along ``axis``."""
    return make(_k.ReduceSum, t, axes=many(axis), keepdims=keepdims)


def mean(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Mean along ``axis``."""
    return make(_k.ReduceMean, t, axes=many(axis), keepdims=keepdims)


def max(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Maximum along ``axis``."""
    return make(_k.ReduceMax, t, axes=many(axis), keepdims=keepdims)


def min(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Minimum along ``axis``."""
    return make(_k.ReduceMin, t, axes=many(axis), keepdims=keepdims)


def prod(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Product along ``axis``."""
    return make(_k.ReduceProd, t, axes=many(axis), keepdims=keepdims)


def sumsquare(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Sum of squares along ``axis``."""
    return make(_k.ReduceSumSquare, t, axes=many(axis), keepdims=keepdims)


def l1(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Sum of absolute values along ``axis``."""
    return make(_k.ReduceL1, t, axes=many(axis), keepdims=keepdims)


def l2(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Root of the sum of squares along ``axis``."""
    return make(_k.ReduceL2, t, axes=many(axis), keepdims=keepdims)


def logsum(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Logarithm of the sum along ``axis``."""
    return arithmetic.log(sum(t, axis, keepdims))


def logsumexp(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Logarithm of the sum of the exponentials along ``axis``, without overflow: the maximum is taken out first, and no
    gradient flows through it."""
    axes = tuple(range(len(t.shape))) if axis is None else many(axis)
    largest = arithmetic.detach(max(t, axes, keepdims=True))
    result = arithmetic.log(sum(arithmetic.exp(t - largest), axes, keepdims=True)) + largest
    return result if keepdims else squeeze(result, axes)


def argmax(t: Tensor, dim: int = 0, keepdim: bool = False) -> Tensor:
    """Index of the largest element along ``dim`` (the first of equals)."""
    return make(_k.ArgMax, t, axis=dim, keepdim=keepdim)


def argmin(t: Tensor, dim: int = 0, keepdim: bool = False) -> Tensor:
    """Index of the smallest element along ``dim`` (the first of equals)."""
    return make(_k.ArgMin, t, axis=dim, keepdim=keepdim)


def cumsum(t: Tensor, dim: int = 0) -> Tensor:
    """Running sums along ``dim``."""
    return make(_k.CumSum, t, axis=dim)
