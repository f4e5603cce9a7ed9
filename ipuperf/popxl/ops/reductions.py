"""Reductions along axes, arg-reductions, softmax."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf import ops as _k

from ..arguments import whole_arguments
from ..handle import Tensor
from .operands import emit


def _axes(axis: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if axis is None:
        return None
    return (axis,) if isinstance(axis, int) else tuple(axis)


@whole_arguments
def sum(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Sum along ``axis`` (None: all axes)."""
    return emit(_k.ReduceSum, [t], "sum_out", axes=_axes(axis), keepdims=keepdims)


@whole_arguments
def mean(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Mean along ``axis`` (None: all axes)."""
    return emit(_k.ReduceMean, [t], "mean_out", axes=_axes(axis), keepdims=keepdims)


@whole_arguments
def max(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Maximum along ``axis`` (None: all axes)."""
    return emit(_k.ReduceMax, [t], "max_out", axes=_axes(axis), keepdims=keepdims)


@whole_arguments
def min(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Minimum along ``axis`` (None: all axes)."""
    return emit(_k.ReduceMin, [t], "min_out", axes=_axes(axis), keepdims=keepdims)


@whole_arguments
def prod(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Product along ``axis`` (None: all axes)."""
    return emit(_k.ReduceProd, [t], "prod_out", axes=_axes(axis), keepdims=keepdims)


@whole_arguments
def sumsquare(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Sum of squares along ``axis`` (None: all axes)."""
    return emit(_k.ReduceSumSquare, [t], "sumsquare_out", axes=_axes(axis), keepdims=keepdims)


@whole_arguments
def l1(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Sum of absolute values along ``axis`` (None: all axes)."""
    return emit(_k.ReduceL1, [t], "l1_out", axes=_axes(axis), keepdims=keepdims)


@whole_arguments
def l2(t: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor:
    """Root of the sum of squares along ``axis`` (None: all axes)."""
    return emit(_k.ReduceL2, [t], "l2_out", axes=_axes(axis), keepdims=keepdims)


@whole_arguments
def argmax(t: Tensor, dim: int = 0, keepdim: bool = False) -> Tensor:
    """Index of the largest element along ``dim`` (the first of equals)."""
    return emit(_k.ArgMax, [t], "argmax_out", axis=dim, keepdim=keepdim)


@whole_arguments
def argmin(t: Tensor, dim: int = 0, keepdim: bool = False) -> Tensor:
    """Index of the smallest element along ``dim`` (the first of equals)."""
    return emit(_k.ArgMin, [t], "argmin_out", axis=dim, keepdim=keepdim)


@whole_arguments
def softmax(t: Tensor, axis: int) -> Tensor:
    """Softmax along ``axis``."""
    return emit(_k.Softmax, [t], "softmax_out", axis=axis)
