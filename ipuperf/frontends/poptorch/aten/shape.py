"""Aten ops that rename, move, join, repeat or pick elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ipuperf.functions import arranging as to
from ipuperf.functions.arranging import axis_of, broadcast, cut, joined, permuted, reshaped, swapped
from ipuperf.functions.selection import gather as gathered
from ipuperf.functions.shapes import concat_
from ipuperf.functions.shapes import split as cut_into
from ipuperf.ir import INT32, Tensor

from .lowering import TORCH_DTYPES, Handler, Lowering, Value, each
from .products import matmul

# -- names and axes ----------------------------------------------------------------------------------------------------


def same(low: Lowering, value: Value, *_: Any, **__: Any) -> Value:
    """The operand itself, in the result's type: clone, contiguous, alias and conversions."""
    return low.tensor(value, low.dtype)


def nothing(low: Lowering, *_: Any, **__: Any) -> None:
    """A check that holds since the program was exported."""
    return


def to_result_shape(low: Lowering, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """The elements in the result's shape: view, reshape, flatten, squeeze, unsqueeze ..."""
    return reshaped(x, low.shape)


def to_result_broadcast(low: Lowering, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """Broadcast to the result's shape: expand, broadcast_to."""
    return broadcast(x, low.shape)


def broadcast_tensors(low: Lowering, values: Sequence[Value]) -> list[Tensor]:
    """All operands in their common shape."""
    tensors = [low.tensor(v) for v in values]
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    return [broadcast(t, shape) for t in tensors]


def matrix_transpose(_low: Lowering, x: Tensor) -> Tensor:
    """The last two axes exchanged; a vector as it is."""
    return to.swapped(x) if len(x.shape) > 1 else x


# -- parts -------------------------------------------------------------------------------------------------------------


def _bounds(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    first, stop, _ = slice(start, end).indices(length)
    # A start behind the end gives an empty part.
    return first, max(first, stop)


def slice_(
    _low: Lowering, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """``start:end:step`` along an axis."""
    axis = axis_of(dim, len(x.shape))
    first, stop = _bounds(x.shape[axis], start, end)
    return cut(x, axis, first, stop, step)


def split(_low: Lowering, x: Tensor, size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """Pieces of equal size (the last one may be smaller), or of given sizes; their gradients are joined, as PopART's
    SplitGradOpToConcatPattern does."""
    axis = axis_of(dim, len(x.shape))
    length = x.shape[axis]
    sizes = [min(size, length - at) for at in range(0, length, size)] if isinstance(size, int) else list(size)
    return [x] if len(sizes) <= 1 else cut_into(x, sizes, axis)


def unbind(_low: Lowering, x: Tensor, dim: int = 0) -> list[Tensor]:
    """All positions of an axis."""
    return [to.row(x, dim, i) for i in range(x.shape[axis_of(dim, len(x.shape))])]


def select_scatter(low: Lowering, x: Tensor, src: Value, dim: int, index: int) -> Tensor:
    """The tensor with one position of an axis replaced."""
    axis = axis_of(dim, len(x.shape))
    index = int(index) % x.shape[axis]
    row = reshaped(low.tensor(src, x.dtype), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return to.replaced(x, row, axis, index, index + 1)


def slice_scatter(
    low: Lowering,
    x: Tensor,
    src: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """The tensor with ``start:end:step`` of an axis replaced."""
    axis = axis_of(dim, len(x.shape))
    first, stop = _bounds(x.shape[axis], start, end)
    rows = low.tensor(src, x.dtype)
    count = len(range(first, stop, step))
    if step == 1 or count <= 1:
        return to.replaced(x, rows, axis, first, first + count) if count else x
    return to.replaced(x, _spread(x, rows, axis, first, step), axis, first, first + (count - 1) * step + 1)


def _spread(x: Tensor, rows: Tensor, axis: int, first: int, step: int) -> Tensor:
    """``x`` along an axis from ``first`` to the last of ``rows``, every ``step``-th position replaced by a row."""
    # Each row but the last begins a group of `step` positions; the last row stands alone.
    groups = rows.shape[axis] - 1
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    kept = reshaped(cut(x, axis, first, first + groups * step), (*before, groups, step, *after))
    heads = reshaped(cut(rows, axis, 0, groups), (*before, groups, 1, *after))
    whole = to.joined([heads, cut(kept, axis + 1, 1, step)], axis + 1)
    return to.joined([reshaped(whole, (*before, groups * step, *after)), cut(rows, axis, groups, groups + 1)], axis)


def copy(low: Lowering, value: Value, src: Value, non_blocking: bool = False) -> Tensor:
    """The source in the destination's shape and type."""
    return broadcast(low.tensor(src, low.dtype), low.shape)


def fill(low: Lowering, value: Value, number: Value) -> Value:
    """The same number everywhere; a compile-time constant when the number is one."""
    if isinstance(number, Tensor):
        return broadcast(low.tensor(number, low.dtype), low.shape)
    return torch.as_tensor(number).to(TORCH_DTYPES[low.dtype]).reshape(()).expand(low.shape)


# -- joining and repeating ---------------------------------------------------------------------------------------------


def cat(low: Lowering, values: Sequence[Value], dim: int = 0) -> Tensor:
    """Joined along an axis; empty vectors are left out, as in PyTorch. Parameters are joined in place, as PopART does:
    each lies where the reader of the whole wants its part (``popart:willow/src/popx/op/concatx.cpp``, unwinding)."""
    tensors = low.tensors(values, low.dtype)
    tensors = [t for t in tensors if t.shape != (0,) or len(low.shape) == 1]
    if len(tensors) > 1 and low.parameters.issuperset(tensors):
        return concat_(tensors, axis_of(dim, len(low.shape)))
    return joined(tensors, axis_of(dim, len(low.shape)))


def stack(low: Lowering, values: Sequence[Value], dim: int = 0) -> Tensor:
    """Joined along a new axis."""
    axis = axis_of(dim, len(low.shape))
    shape = (*low.shape[:axis], 1, *low.shape[axis + 1 :])
    return joined([reshaped(t, shape) for t in low.tensors(values, low.dtype)], axis)


def tile(_low: Lowering, x: Tensor, dims: Sequence[int]) -> Tensor:
    """As repeat; missing counts are 1."""
    return to.tiled(x, (1,) * (len(x.shape) - len(dims)) + tuple(dims))


def repeat_interleave(
    low: Lowering, x: Tensor, repeats: Value, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element of an axis several times, or as often as a constant says."""
    if dim is None:
        x, dim = reshaped(x, (-1,)), 0
    if isinstance(repeats, torch.Tensor):
        axis = axis_of(dim, len(x.shape))
        positions = np.repeat(np.arange(x.shape[axis]), np.broadcast_to(repeats.numpy(), x.shape[axis]))
        return gathered(x, low.constant(positions, INT32), axis)
    if not isinstance(repeats, int):
        raise low.unsupported("repeats that depend on data are unsupported; allowed: an int, or a constant tensor")
    return to.interleaved(x, {axis_of(dim, len(x.shape)): repeats})


def roll(_low: Lowering, x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """Shifted in a circle."""
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    shape = x.shape
    if not dims:
        x, dims = reshaped(x, (-1,)), [0]
    for shift, dim in zip(shifts, dims, strict=True):
        x = to.rolled(x, shift, axis_of(dim, len(x.shape)))
    return reshaped(x, shape)


def pad(
    low: Lowering, x: Tensor, amounts: Sequence[int], mode: str = "constant", number: float | None = None
) -> Tensor:
    """Padding of the last axes (pairs from the last axis backwards), negative amounts cut off."""
    rank = len(x.shape)
    pairs = {rank - 1 - i: (amounts[2 * i], amounts[2 * i + 1]) for i in range(len(amounts) // 2)}
    for axis, (before, after) in pairs.items():
        x = cut(x, axis, max(0, -before), x.shape[axis] - max(0, -after))
    pairs = {axis: (max(0, b), max(0, a)) for axis, (b, a) in pairs.items() if b > 0 or a > 0}
    if not pairs:
        return x
    if mode == "constant":
        return to.padded(x, pairs, number or 0.0)
    if mode not in ("reflect", "replicate", "circular"):
        raise low.unsupported(f"mode={mode!r} is unsupported; allowed: constant, reflect, replicate, circular")
    return to.bordered(x, pairs, mode)


def constant_pad(low: Lowering, x: Tensor, amounts: Sequence[int], number: float = 0) -> Tensor:
    """Padding with a number."""
    return pad(low, x, amounts, "constant", float(number))


def upsample_nearest(low: Lowering, x: Tensor, output_size: Any = None, *scales: Any, **__: Any) -> Tensor:
    """Nearest neighbours: every element repeated where all axes grow by a whole factor, else a gather along each axis.

    ``scales`` are the factors, together or one per axis; they need not be the ratios of the sizes.
    """
    sizes = low.shape[2:]
    factors = scales[0] if len(scales) == 1 and not isinstance(scales[0], float) else scales
    exact = "exact" in low.target
    picked = _nearest(x.shape, TORCH_DTYPES[x.dtype], sizes, factors or [None] * len(sizes), exact)
    repeats = [(n, len(p) // n) for n, p in zip(x.shape[2:], picked, strict=True)]
    if all(np.array_equal(p, np.repeat(np.arange(n), k)) for p, (n, k) in zip(picked, repeats, strict=True)):
        return to.interleaved(x, {axis: k for axis, (_, k) in enumerate(repeats, start=2)})
    for axis, positions in enumerate(picked, start=2):
        if not np.array_equal(positions, np.arange(x.shape[axis])):
            x = gathered(x, low.constant(positions, INT32), axis)
    return x


def upsample_linear(low: Lowering, x: Tensor, output_size: Any, align_corners: bool, *scales: Any) -> Tensor:
    """Linear resizing of lines and volumes, and resizing of images with antialiasing: a product along each axis.

    The matrix of an axis is what PyTorch makes of the unit vectors. Upstream has none of these.
    """
    sizes, axes = low.shape[2:], range(2, len(low.shape))
    factors = scales[0] if len(scales) == 1 and not isinstance(scales[0], float) else scales
    upsample = getattr(torch.ops.aten, low.target.removeprefix("aten::")).default
    for axis, size, factor in zip(axes, sizes, factors or [None] * len(sizes), strict=True):
        length, lead = x.shape[axis], [1] * (axis - 1)
        units = torch.eye(length).reshape(length, *lead, length, *[1] * (axes[-1] - axis))
        # Axes of one element confuse PyTorch about the order of channels (torch 2.13, antialiasing).
        units = units.expand(-1, -1, *[-1 if other == axis else 2 for other in axes]).contiguous()
        asked = [factor if other == axis else None for other in axes]
        made = upsample(units, [size if other == axis else 2 for other in axes], align_corners, *asked)
        line = made[:, 0].movedim(axis - 1, 1).reshape(length, size, -1)[..., 0]
        x = swapped(matmul(low, swapped(x, axis, -1), low.constant(line.numpy(), x.dtype)), axis, -1)
    return x


def _nearest(
    shape: Sequence[int],
    dtype: torch.dtype,
    sizes: Sequence[int],
    factors: Sequence[float | None],
    exact: bool = False,
) -> list[np.ndarray]:
    """For each axis after the second, which element of the operand each result is.

    This is asked of PyTorch, with tensors of the operand's shape and type that hold positions: its kernels round the
    factor in float32, and which kernel runs, and whether it regards the factor where the size doubles or stays, depends
    on shape and type (``aten/src/ATen/native/cpu/UpSampleKernel.cpp``). More than five channels change nothing.
    """
    name = "_upsample_nearest_exact" if exact else "upsample_nearest"
    upsample = getattr(torch.ops.aten, f"{name}{len(sizes)}d").default
    probe, picks = (1, min(shape[1], 5), *shape[2:]), []
    for axis, length in enumerate(shape[2:], start=2):
        # float16 holds whole numbers exactly up to 2048.
        kind = dtype if length <= 2048 else torch.float32
        positions = torch.arange(length, dtype=kind).reshape(-1, *[1] * (len(shape) - axis - 1))
        results = upsample(positions.expand(probe).contiguous(), list(sizes), *factors)
        line = results[0, 0].movedim(axis - 2, 0).reshape(sizes[axis - 2], -1)[:, 0]
        picks.append(line.to(torch.int64).numpy())
    return picks


# -- classes and sums along an axis ------------------------------------------------------------------------------------


def one_hot(low: Lowering, value: Value, num_classes: int = -1) -> Tensor:
    """1 at the class of each element, else 0."""
    if num_classes < 0:
        raise low.unsupported("num_classes=-1 is unsupported (the shape would depend on values); give a number")
    return to.one_hot(low.tensor(value, INT32), num_classes, low.dtype)


def _triangle(lower: bool) -> Handler:
    def handler(low: Lowering, x: Tensor, diagonal: int = 0) -> Tensor:
        return to.triangle(x, lower, diagonal)

    return handler


def cumsum(low: Lowering, value: Value, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Running sum in the result's type."""
    x = low.tensor(value, low.dtype)
    return to.running_sum(x, axis_of(dim, len(x.shape))) if x.shape and x.spec.elements else x


def cumprod(low: Lowering, value: Value, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Running product in the result's type."""
    x = low.tensor(value, low.dtype)
    return to.running_product(x, axis_of(dim, len(x.shape))) if x.shape else x


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    **each("_reshape_alias _unsafe_view flatten reshape squeeze unflatten unsqueeze view view_as", to_result_shape),
    **each("_to_copy alias clone contiguous lift_fresh lift_fresh_copy to type_as", same),
    **each("broadcast_to expand expand_as", to_result_broadcast),
    **each("cat concat", cat),
    **each("mT t", matrix_transpose),
    **each("split split_with_sizes", split),
    **each("_upsample_bicubic2d_aa _upsample_bilinear2d_aa upsample_linear1d upsample_trilinear3d", upsample_linear),
    **each("_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d", upsample_nearest),
    **each("upsample_nearest1d upsample_nearest2d upsample_nearest3d", upsample_nearest),
    **each("_assert_tensor_metadata _linalg_check_errors", nothing),
    "broadcast_tensors": broadcast_tensors,
    "constant_pad_nd": constant_pad,
    "copy": copy,
    "cumprod": cumprod,
    "cumsum": cumsum,
    "fill": fill,
    "full_like": lambda low, value, number, **_: fill(low, value, number),
    "new_full": lambda low, value, size, number, **_: fill(low, value, number),
    "new_ones": lambda low, value, *_, **__: fill(low, value, 1),
    "new_zeros": lambda low, value, *_, **__: fill(low, value, 0),
    "numpy_T": lambda low, value: permuted(low.tensor(value), range(len(low.shape))[::-1]),
    "one_hot": one_hot,
    "ones_like": lambda low, value, **_: fill(low, value, 1),
    "pad": pad,
    "repeat_interleave": repeat_interleave,
    "roll": roll,
    "select_scatter": select_scatter,
    "slice": slice_,
    "slice_scatter": slice_scatter,
    "stack": stack,
    "tile": tile,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
    "unbind": unbind,
    "zeros_like": lambda low, value, **_: fill(low, value, 0),
}
