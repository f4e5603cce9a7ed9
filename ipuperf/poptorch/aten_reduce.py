"""Reductions, softmax and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ipuperf.ir import INT32, Tensor
from ipuperf.ops import (
    Abs,
    AdaptiveAveragePool,
    Add,
    ArgMax,
    ArgMin,
    AveragePool,
    Exp,
    Log,
    LogSoftmax,
    MaxPool,
    Mul,
    NotEqual,
    Op,
    Pow,
    ReduceL1,
    ReduceL2,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    ReduceSumSquare,
    Softmax,
    Sqrt,
    Sub,
)

from .aten_elementwise import truth
from .aten_lowering import Lowering, Value, axis_of

Handler = Callable[..., Any]
Dims = Any


def _axes(dim: Dims, rank: int) -> tuple[int, ...]:
    """Reduced axes; None or an empty list stands for all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(rank))
    return tuple(sorted(axis_of(d, rank) for d in ([dim] if isinstance(dim, int) else dim)))


def reduced(low: Lowering, op_class: type[Op], x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """``op_class`` over axes of ``x``."""
    if not x.shape:
        x = low.reshape(x, (1,))
        return low.op(op_class, [x], axes=(0,), keepdims=False)
    return low.op(op_class, [x], axes=_axes(dim, len(x.shape)), keepdims=keepdim)


def _reduction(op_class: type[Op]) -> Handler:
    """A reduction in the result's type."""

    def handler(
        low: Lowering, value: Value, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        return reduced(low, op_class, low.tensor(value, low.dtype), dim, keepdim)

    return handler


def _truths(op_class: type[Op]) -> Handler:
    """any (maximum of 0 and 1) and all (minimum)."""

    def handler(low: Lowering, value: Value, dim: Dims = None, keepdim: bool = False) -> Tensor:
        numbers = low.tensor(truth(low, value), INT32)
        return low.op(NotEqual, [reduced(low, op_class, numbers, dim, keepdim), low.constant(0, INT32)])

    return handler


def _extreme_with_index(op_class: type[Op], position: type[Op]) -> Handler:
    """max.dim and min.dim: values and their positions."""

    def handler(low: Lowering, value: Value, dim: int, keepdim: bool = False) -> list[Tensor]:
        x = low.tensor(value)
        axis = axis_of(dim, len(x.shape))
        return [reduced(low, op_class, x, axis, keepdim), low.op(position, [x], axis=axis, keepdim=keepdim)]

    return handler


def _position(op_class: type[Op]) -> Handler:
    """argmax and argmin; without an axis over the flattened tensor."""

    def handler(low: Lowering, value: Value, dim: int | None = None, keepdim: bool = False) -> Tensor:
        x = low.tensor(value)
        if dim is None:
            return low.reshape(low.op(op_class, [low.reshape(x, (-1,))], axis=0, keepdim=False), low.shape)
        return low.op(op_class, [x], axis=axis_of(dim, len(x.shape)), keepdim=keepdim)

    return handler


def _variance(low: Lowering, value: Value, dim: Dims, correction: float | None, keepdim: bool) -> Tensor:
    x = low.tensor(value)
    axes = _axes(dim, len(x.shape))
    count = math.prod(x.shape[a] for a in axes)
    mean = reduced(low, ReduceMean, x, axes, True)
    squares = reduced(low, ReduceSumSquare, low.op(Sub, [x, mean]), axes, keepdim)
    divisor = count - (1 if correction is None else correction)
    return low.op(Mul, [squares, low.constant(1 / divisor if divisor > 0 else math.nan, x.dtype)])


def _spread(root: bool) -> Handler:
    """var and std, in both ways to state the divisor (``unbiased`` or ``correction``)."""

    def handler(
        low: Lowering,
        value: Value,
        dim: Dims = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> Tensor:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if unbiased is not None:
            correction = 1.0 if unbiased else 0.0
        result = _variance(low, value, dim, correction, keepdim)
        return low.op(Sqrt, [result]) if root else result

    return handler


def _spread_and_mean(root: bool) -> Handler:
    def handler(low: Lowering, value: Value, dim: Dims = None, *args: Any, **named: Any) -> list[Tensor]:
        spread = _spread(root)(low, value, dim, *args, **named)
        keepdim = named.get("keepdim", args[1] if len(args) > 1 else False)
        return [spread, reduced(low, ReduceMean, low.tensor(value), dim, keepdim)]

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
    x = low.tensor(value, low.dtype)
    order = 2.0 if p is None else float(p)
    if order in (1.0, 2.0):
        return reduced(low, ReduceL1 if order == 1 else ReduceL2, x, dim, keepdim)
    magnitude = low.op(Abs, [x])
    if math.isinf(order):
        return reduced(low, ReduceMax if order > 0 else ReduceMin, magnitude, dim, keepdim)
    if order == 0:
        return reduced(low, ReduceSum, low.tensor(truth(low, x), x.dtype), dim, keepdim)
    powers = low.op(Pow, [magnitude, low.constant(order, x.dtype)])
    return low.op(Pow, [reduced(low, ReduceSum, powers, dim, keepdim), low.constant(1 / order, x.dtype)])


def logsumexp(low: Lowering, value: Value, dim: Dims, keepdim: bool = False) -> Tensor:
    """``log(sum(exp(x)))`` without overflow."""
    x = low.tensor(value, low.dtype)
    highest = low.detach(reduced(low, ReduceMax, x, dim, True))
    total = reduced(low, ReduceSum, low.op(Exp, [low.op(Sub, [x, highest])]), dim, keepdim)
    log = low.op(Log, [total])
    return low.op(Add, [log, low.reshape(highest, log.shape)])


# -- softmax -----------------------------------------------------------------------------------------------------------


def _along(op_class: type[Op]) -> Handler:
    """softmax and log_softmax, in the result's type."""

    def handler(low: Lowering, value: Value, dim: int, dtype: Any = None) -> Tensor:
        x = low.tensor(value, low.dtype)
        if not x.shape:
            return low.reshape(low.op(op_class, [low.reshape(x, (1,))], axis=0), ())
        return low.op(op_class, [x], axis=axis_of(dim, len(x.shape)))

    return handler


# -- pooling -----------------------------------------------------------------------------------------------------------


def _images(low: Lowering, value: Value, axes: int) -> Tensor:
    """``(N, C, *spatial)``, with an axis for the batch added when there is none."""
    x = low.tensor(value)
    return low.reshape(x, (1, *x.shape)) if len(x.shape) == axes + 1 else x


def _pairs(padding: Any, axes: int) -> tuple[tuple[int, int], ...]:
    values = [padding] if isinstance(padding, int) else list(padding)
    return tuple((p, p) for p in (values * axes if len(values) == 1 else values))


def _sizes(value: Any, axes: int) -> tuple[int, ...]:
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * axes if len(values) == 1 else values)


def _max_pool(axes: int, *, indices: bool = False) -> Handler:
    def handler(
        low: Lowering,
        value: Value,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        kernel = _sizes(kernel_size, axes)
        y = low.op(
            MaxPool,
            [_images(low, value, axes)],
            kernel_size=kernel,
            strides=_sizes(stride, axes) if stride else kernel,
            padding=_pairs(padding, axes),
            dilation=_sizes(dilation, axes),
            ceil_mode=ceil_mode,
        )
        pooled = low.reshape(y, low.shape)
        return [pooled, None] if indices else pooled

    return handler


def _avg_pool(axes: int) -> Handler:
    def handler(
        low: Lowering,
        value: Value,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel = _sizes(kernel_size, axes)
        y = low.op(
            AveragePool,
            [_images(low, value, axes)],
            kernel_size=kernel,
            strides=_sizes(stride, axes) if stride else kernel,
            padding=_pairs(padding, axes),
            ceil_mode=ceil_mode,
            count_include_pad=count_include_pad or divisor_override is not None,
        )
        if divisor_override is not None:
            if ceil_mode:
                raise low.unsupported("divisor_override with ceil_mode=True is unsupported")
            y = low.op(Mul, [y, low.constant(math.prod(kernel) / divisor_override, y.dtype)])
        return low.reshape(y, low.shape)

    return handler


def _adaptive_avg_pool(axes: int) -> Handler:
    def handler(low: Lowering, value: Value, output_size: Any) -> Tensor:
        x = _images(low, value, axes)
        wanted = _sizes(output_size, axes)
        return low.reshape(low.op(AdaptiveAveragePool, [x], output_size=wanted), low.shape)

    return handler


def _adaptive_max_pool(axes: int) -> Handler:
    def handler(low: Lowering, value: Value, output_size: Any) -> list[Tensor | None]:
        x = _images(low, value, axes)
        wanted = _sizes(output_size, axes)
        if any(n % o for n, o in zip(x.shape[2:], wanted, strict=True)):
            raise low.unsupported(f"pooling {x.shape[2:]} to {wanted} is unsupported; allowed: sizes that divide")
        kernel = tuple(n // o for n, o in zip(x.shape[2:], wanted, strict=True))
        y = low.op(MaxPool, [x], kernel_size=kernel, strides=kernel)
        return [low.reshape(y, low.shape), None]

    return handler


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    "_adaptive_avg_pool2d": _adaptive_avg_pool(2),
    "_adaptive_avg_pool3d": _adaptive_avg_pool(3),
    "_log_softmax": _along(LogSoftmax),
    "_softmax": _along(Softmax),
    "adaptive_avg_pool1d": _adaptive_avg_pool(1),
    "adaptive_avg_pool2d": _adaptive_avg_pool(2),
    "adaptive_avg_pool3d": _adaptive_avg_pool(3),
    "adaptive_max_pool1d": _adaptive_max_pool(1),
    "adaptive_max_pool2d": _adaptive_max_pool(2),
    "adaptive_max_pool3d": _adaptive_max_pool(3),
    "all": _truths(ReduceMin),
    "amax": _reduction(ReduceMax),
    "amin": _reduction(ReduceMin),
    "any": _truths(ReduceMax),
    "argmax": _position(ArgMax),
    "argmin": _position(ArgMin),
    "avg_pool1d": _avg_pool(1),
    "avg_pool2d": _avg_pool(2),
    "avg_pool3d": _avg_pool(3),
    "linalg_vector_norm": norm,
    "log_softmax": _along(LogSoftmax),
    "logsumexp": logsumexp,
    "max.default": _reduction(ReduceMax),
    "max.dim": _extreme_with_index(ReduceMax, ArgMax),
    "max_pool1d": _max_pool(1),
    "max_pool2d": _max_pool(2),
    "max_pool2d_with_indices": _max_pool(2, indices=True),
    "max_pool3d": _max_pool(3),
    "max_pool3d_with_indices": _max_pool(3, indices=True),
    "mean": _reduction(ReduceMean),
    "min.default": _reduction(ReduceMin),
    "min.dim": _extreme_with_index(ReduceMin, ArgMin),
    "norm": norm,
    "prod": _reduction(ReduceProd),
    "softmax": _along(Softmax),
    "std": _spread(root=True),
    "std_mean": _spread_and_mean(root=True),
    "sum": _reduction(ReduceSum),
    "var": _spread(root=False),
    "var_mean": _spread_and_mean(root=False),
}
