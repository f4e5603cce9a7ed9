"""Reductions, softmax and pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ipuperf.functions import make
from ipuperf.functions import reductions as r
from ipuperf.functions.arithmetic import equal, square, where
from ipuperf.functions.arranging import axis_of, cut, joined, reshaped
from ipuperf.functions.elementary import number_power
from ipuperf.ir import BOOL, INT32, Tensor
from ipuperf.ops import AdaptiveAveragePool, AveragePool, MaxPool

from .lowering import Handler, Lowering, Value, both_sides, each, per_axis, with_batch
from .rules import Dims, Reduction, of_truths, reduced


def _extreme_with_index(function: Reduction, position: Reduction) -> Handler:
    """max.dim and min.dim: values and their positions."""

    def handler(low: Lowering, value: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
        x = low.tensor(value, INT32) if value.dtype == BOOL else value
        axis = axis_of(dim, len(x.shape))
        return [
            low.tensor(reduced(function, x, axis, keepdim), value.dtype),
            _position_along(position, x, axis, keepdim),
        ]

    return handler


def _position(function: Reduction) -> Handler:
    """argmax and argmin; without an axis over the flattened tensor."""

    def handler(low: Lowering, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            return reshaped(function(reshaped(x, (-1,))), low.shape)
        return _position_along(function, x, axis_of(dim, len(x.shape)), keepdim)

    return handler


def _position_along(position: Reduction, x: Tensor, axis: int, keepdim: bool) -> Tensor:
    """Positions along an axis; that of a scalar, which has axes 0 and -1 in PyTorch, is a scalar."""
    return position(x, axis, keepdim) if x.shape else reshaped(position(reshaped(x, (1,)), 0), ())


def _spread(root: bool) -> Handler:
    """var and std, in both ways to state the divisor (``unbiased`` or ``correction``)."""

    def handler(
        low: Lowering,
        x: Tensor,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Tensor:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if unbiased is not None or correction is None:
            correction = 1.0 if unbiased is None else float(unbiased)
        return reduced(partial(r.deviation if root else r.variance, correction=correction), x, dim, keepdim)

    return handler


def _spread_and_mean(root: bool) -> Handler:
    def handler(low: Lowering, value: Value, dim: Dims = None, *args: Any, **named: Any) -> list[Tensor]:
        spread = _spread(root)(low, value, dim, *args, **named)
        keepdim = named.get("keepdim", args[1] if len(args) > 1 else False)
        axes = None if isinstance(dim, bool) else dim  # ``unbiased`` stands there
        return [spread, reduced(r.mean, low.tensor(value), axes, keepdim)]

    return handler


def norm(
    low: Lowering,
    value: Value,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Vector norm of any order."""

    def of_order(t: Tensor, axes: Any, keepdims: bool) -> Tensor:
        return r.norm(t, 2.0 if p is None else float(p), axes, keepdims)

    return reduced(of_order, low.tensor(value, low.dtype), dim, keepdim)


def distances(low: Lowering, lhs: Value, rhs: Value, p: float, compute_mode: int | None = None) -> Tensor:
    """The p-norm of the difference of each two rows; equal rows get no gradient, as in PyTorch."""
    x, y = low.tensors([lhs, rhs], low.dtype)
    difference = reshaped(x, (*x.shape[:-1], 1, x.shape[-1])) - reshaped(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    if p in (0, 1, math.inf):
        return r.norm(difference, float(p), -1, False)
    total = r.sum(square(difference) if p == 2 else abs(difference) ** p, -1)
    same = equal(total, 0)
    return where(same, 0, number_power(where(same, 1, total), 1 / p))


# -- pooling -----------------------------------------------------------------------------------------------------------


def _max_pool(axes: int, *, indices: bool = False) -> Handler:
    def handler(
        low: Lowering,
        x: Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        kernel = per_axis(kernel_size, axes)
        y = make(
            MaxPool,
            with_batch(x, axes),
            kernel_size=kernel,
            strides=per_axis(stride, axes) if stride else kernel,
            padding=both_sides(padding, axes),
            dilation=per_axis(dilation, axes),
            ceil_mode=ceil_mode,
        )
        pooled = reshaped(y, low.shape)
        return [pooled, None] if indices else pooled

    return handler


def _avg_pool(axes: int) -> Handler:
    def handler(
        low: Lowering,
        x: Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel = per_axis(kernel_size, axes)
        y = make(
            AveragePool,
            with_batch(x, axes),
            kernel_size=kernel,
            strides=per_axis(stride, axes) if stride else kernel,
            padding=both_sides(padding, axes),
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad or divisor_override is not None,
        )
        if divisor_override is not None:
            if ceil_mode:
                raise low.unsupported("divisor_override with ceil_mode=True is unsupported")
            y = y * (math.prod(kernel) / divisor_override)
        return reshaped(y, low.shape)

    return handler


def _adaptive_avg_pool(axes: int) -> Handler:
    def handler(low: Lowering, value: Tensor, output_size: Any) -> Tensor:
        x = with_batch(value, axes)
        sizes = per_axis(output_size, axes)
        return reshaped(make(AdaptiveAveragePool, x, output_size=sizes), low.shape)

    return handler


def _uneven_max(x: Tensor, sizes: Sequence[int]) -> Tensor:
    """Maxima of windows that differ in size, axis by axis (PyTorch's limits: ``floor(i n / o)`` to
    ``ceil((i + 1) n / o)``)."""
    for axis, count in enumerate(sizes, start=2):
        length = x.shape[axis]
        limits = [(i * length // count, -(-(i + 1) * length // count)) for i in range(count)]
        x = joined([r.first_max(cut(x, axis, *limit), axis, True) for limit in limits], axis)
    return x


def _adaptive_max_pool(axes: int) -> Handler:
    def handler(low: Lowering, value: Tensor, output_size: Any) -> list[Tensor | None]:
        x = with_batch(value, axes)
        sizes = per_axis(output_size, axes)
        if any(n % o for n, o in zip(x.shape[2:], sizes, strict=True)):
            return [reshaped(_uneven_max(x, sizes), low.shape), None]
        kernel = tuple(n // o for n, o in zip(x.shape[2:], sizes, strict=True))
        y = make(MaxPool, x, kernel_size=kernel, strides=kernel)
        return [reshaped(y, low.shape), None]

    return handler


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    **each("_adaptive_avg_pool2d adaptive_avg_pool2d", _adaptive_avg_pool(2)),
    **each("_adaptive_avg_pool3d adaptive_avg_pool3d", _adaptive_avg_pool(3)),
    **each("linalg_vector_norm norm", norm),
    "_cdist_forward": distances,
    "adaptive_avg_pool1d": _adaptive_avg_pool(1),
    "adaptive_max_pool1d": _adaptive_max_pool(1),
    "adaptive_max_pool2d": _adaptive_max_pool(2),
    "adaptive_max_pool3d": _adaptive_max_pool(3),
    "all": of_truths(r.min),
    "any": of_truths(r.max),
    "argmax": _position(r.argmax),
    "argmin": _position(r.argmin),
    "avg_pool1d": _avg_pool(1),
    "avg_pool2d": _avg_pool(2),
    "avg_pool3d": _avg_pool(3),
    "max.dim": _extreme_with_index(r.first_max, r.argmax),
    "max_pool1d": _max_pool(1),
    "max_pool2d": _max_pool(2),
    "max_pool2d_with_indices": _max_pool(2, indices=True),
    "max_pool3d": _max_pool(3),
    "max_pool3d_with_indices": _max_pool(3, indices=True),
    "min.dim": _extreme_with_index(r.first_min, r.argmin),
    "std": _spread(root=True),
    "std_mean": _spread_and_mean(root=True),
    "var": _spread(root=False),
    "var_mean": _spread_and_mean(root=False),
}
