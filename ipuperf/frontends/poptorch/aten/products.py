"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipuperf.functions import make, reductions
from ipuperf.functions.arranging import broadcast, permuted, reshaped, swapped
from ipuperf.functions.elementary import scaled
from ipuperf.ir import INT32, Tensor
from ipuperf.ops import AddBias, Cholesky, Conv, ConvTranspose, MatMul, TriangularSolve

from .lowering import Handler, Lowering, Value, both_sides, each, per_axis, with_batch

# -- matrix products ---------------------------------------------------------------------------------------------------


def product(low: Lowering, lhs: Tensor, rhs: Tensor) -> Tensor:
    """``lhs @ rhs`` with the fully connected pass of the program (PopART: training forward, or inference)."""
    return make(MatMul, lhs, rhs, pass_="fcfwd" if low.training else "fcinf")


def matmul(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """Matrix product with NumPy's rules for 1-D and batched operands: matmul, mm, bmm, mv, dot."""
    return product(low, *low.tensors([lhs, rhs], low.dtype))


def linear(low: Lowering, value: Value, weight: Value, bias: Value = None) -> Tensor:
    """``x @ weight^T + bias``."""
    x, w = low.tensors([value, weight], low.dtype)
    y = product(low, x, swapped(w) if len(w.shape) > 1 else w)
    return y if bias is None else y + low.tensor(bias, low.dtype)


def bilinear(low: Lowering, lhs: Value, rhs: Value, weight: Value, bias: Value = None) -> Tensor:
    """``x^T W_o y + b_o`` for each result ``o``: one product of ``x`` and all ``W``, then one of each row and ``y``."""
    x, y, w = low.tensors([lhs, rhs, weight], low.dtype)
    results, wide, narrow = w.shape
    lead, x, y = x.shape[:-1], reshaped(x, (-1, wide)), reshaped(y, (-1, narrow, 1))
    both = product(low, x, reshaped(permuted(w, (1, 0, 2)), (wide, results * narrow)))
    found = reshaped(product(low, reshaped(both, (-1, results, narrow)), y), (*lead, results))
    return found if bias is None else found + low.tensor(bias, low.dtype)


def _added(low: Lowering, value: Value, result: Tensor, beta: float, alpha: float) -> Tensor:
    """``beta value + alpha result``; what is multiplied by 0 is not looked at, whatever it holds."""
    terms = [(low.tensor(value, low.dtype), beta), (result, alpha)]
    kept = [scaled(term, factor) for term, factor in terms if factor != 0]
    return broadcast(sum(kept[1:], kept[0]) if kept else low.constant(0, low.dtype), low.shape)


def add_product(low: Lowering, value: Value, lhs: Value, rhs: Value, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta value + alpha lhs @ rhs``: addmm, baddbmm, addmv."""
    return _added(low, value, matmul(low, lhs, rhs), beta, alpha)


def add_batch_product(
    low: Lowering, value: Value, lhs: Value, rhs: Value, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta value + alpha sum over the batch of lhs @ rhs``: addbmm."""
    return _added(low, value, reductions.sum(matmul(low, lhs, rhs), 0), beta, alpha)


def outer(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """All products of two vectors' elements."""
    a, b = low.tensors([lhs, rhs], low.dtype)
    return reshaped(a, (-1, 1)) * b


# -- convolutions ------------------------------------------------------------------------------------------------------


def _paddings(
    low: Lowering, padding: Any, x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """``(before, after)`` for each axis, from numbers or ``valid`` / ``same`` (the odd element goes to the end)."""
    axes = len(kernel)
    if padding == "valid":
        return ((0, 0),) * axes
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return tuple((t // 2, t - t // 2) for t in totals)
    if isinstance(padding, str):
        raise low.unsupported(f"padding={padding!r}; allowed: numbers, 'valid', 'same'")
    return both_sides(padding, axes)


def conv(
    low: Lowering,
    value: Value,
    weight: Value,
    bias: Value = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of ``(N, C, *spatial)`` or of one image ``(C, *spatial)``."""
    x, w = low.tensors([value, weight], low.dtype)
    kernel = w.shape[2:]
    strides, spread = per_axis(stride, len(kernel)), per_axis(dilation, len(kernel))
    x = with_batch(x, len(kernel))
    pads = _paddings(low, padding, x, kernel, strides, spread)
    y = make(Conv, x, w, strides=strides, padding=pads, dilation=spread, groups=groups)
    return reshaped(_biased(low, y, bias), low.shape)


def _biased(low: Lowering, y: Tensor, bias: Value) -> Tensor:
    return y if bias is None else make(AddBias, y, low.tensor(bias, y.dtype))


def conv_transpose(
    low: Lowering,
    value: Value,
    weight: Value,
    bias: Value = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Transposed convolution."""
    x, w = low.tensors([value, weight], low.dtype)
    axes = len(w.shape) - 2
    y = make(
        ConvTranspose,
        with_batch(x, axes),
        w,
        strides=per_axis(stride, axes),
        padding=both_sides(padding, axes),
        dilation=per_axis(dilation, axes),
        output_padding=per_axis(output_padding, axes),
        groups=groups,
    )
    return reshaped(_biased(low, y, bias), low.shape)


def convolution(
    low: Lowering,
    value: Value,
    weight: Value,
    bias: Value,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Tensor:
    """The general form of both."""
    if transposed:
        return conv_transpose(low, value, weight, bias, stride, padding, output_padding, groups, dilation)
    return conv(low, value, weight, bias, stride, padding, dilation, groups)


def cholesky(low: Lowering, value: Value, *, upper: bool = False, check_errors: bool = False) -> list[Tensor]:
    """The lower factor, and that all went well: a matrix that is not positive definite gives NaN."""
    if upper or check_errors:
        raise low.unsupported("upper=True and check_errors=True are unsupported; use torch.linalg.cholesky")
    x = low.tensor(value)
    return [make(Cholesky, x), low.constant(np.zeros(x.shape[:-2]), INT32)]


def solve_triangular(
    low: Lowering, matrix: Value, right: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Equations whose matrix is triangular, as many of them as right sides (``export.formulas`` sees to both)."""
    if unitriangular:
        raise low.unsupported("unitriangular=True is unsupported within a derivative")
    a, b = low.tensors([matrix, right], low.dtype)
    if left:
        return make(TriangularSolve, a, b, lower=not upper)
    return swapped(make(TriangularSolve, a, swapped(b), lower=not upper, adjoint=True))


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    **each("addmm addmv baddbmm", add_product),
    **each("bmm dot matmul mm mv", matmul),
    **each("conv1d conv2d conv3d", conv),
    **each("conv_transpose1d conv_transpose2d conv_transpose3d", conv_transpose),
    "addbmm": add_batch_product,
    "bilinear": bilinear,
    "convolution": convolution,
    "linalg_cholesky_ex": cholesky,
    "linalg_solve_triangular": solve_triangular,
    "linear": linear,
    "outer": outer,
}
