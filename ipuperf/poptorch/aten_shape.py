"""Aten ops that rename, move, join, repeat or pick elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ipuperf.ir import BOOL, FLOAT32, INT32, Tensor
from ipuperf.ops import Add, Cast, Equal, Gather, MatMul, Mul, Slice, SliceGrad, Where

from .aten_lowering import TORCH_DTYPES, Lowering, Value, axis_of

Handler = Callable[..., Any]


# -- names and axes ----------------------------------------------------------------------------------------------------


def same(low: Lowering, value: Value, *_: Any, **__: Any) -> Value:
    """The operand itself, in the result's type: clone, contiguous, alias and conversions."""
    return low.tensor(value, low.dtype)


def nothing(low: Lowering, *_: Any, **__: Any) -> None:
    """A check that holds since the program was exported."""
    return


def to_result_shape(low: Lowering, value: Value, *_: Any, **__: Any) -> Tensor:
    """The elements in the result's shape: view, reshape, flatten, squeeze, unsqueeze ..."""
    return low.reshape(low.tensor(value), low.shape)


def to_result_broadcast(low: Lowering, value: Value, *_: Any, **__: Any) -> Tensor:
    """Broadcast to the result's shape: expand, broadcast_to."""
    return low.expand(low.tensor(value), low.shape)


def broadcast_tensors(low: Lowering, values: Sequence[Value]) -> list[Tensor]:
    """All operands in their common shape."""
    found = [low.tensor(v) for v in values]
    shape = np.broadcast_shapes(*(t.shape for t in found))
    return [low.expand(t, shape) for t in found]


def permute(low: Lowering, value: Value, dims: Sequence[int]) -> Tensor:
    """Axes in a given order."""
    return low.transpose(low.tensor(value), dims)


def transpose(low: Lowering, value: Value, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    x = low.tensor(value)
    return low.swapped(x, dim0, dim1) if x.shape else x


def matrix_transpose(low: Lowering, value: Value) -> Tensor:
    """The last two axes exchanged; a vector as it is."""
    x = low.tensor(value)
    return low.swapped(x) if len(x.shape) > 1 else x


def movedim(low: Lowering, value: Value, source: Any, destination: Any) -> Tensor:
    """Axes moved to new places."""
    x = low.tensor(value)
    rank = len(x.shape)
    sources = [a % rank for a in ([source] if isinstance(source, int) else source)]
    places = [a % rank for a in ([destination] if isinstance(destination, int) else destination)]
    order: list[int] = [a for a in range(rank) if a not in sources]
    for place, axis in sorted(zip(places, sources, strict=True)):
        order.insert(place, axis)
    return low.transpose(x, order)


# -- parts -------------------------------------------------------------------------------------------------------------


def _bounds(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    first, stop, _ = slice(start, end).indices(length)
    return first, max(first, stop)


def slice_(
    low: Lowering, value: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """``start:end:step`` along an axis."""
    x = low.tensor(value)
    axis = axis_of(dim, len(x.shape))
    first, stop = _bounds(x.shape[axis], start, end)
    return low.slice(x, axis, first, stop, step)


def select(low: Lowering, value: Value, dim: int, index: int) -> Tensor:
    """One position of an axis."""
    x = low.tensor(value)
    axis = axis_of(dim, len(x.shape))
    index = int(index) % x.shape[axis]
    return low.reshape(low.slice(x, axis, index, index + 1), low.shape)


def narrow(low: Lowering, value: Value, dim: int, start: int, length: int) -> Tensor:
    """``length`` elements of an axis."""
    x = low.tensor(value)
    axis = axis_of(dim, len(x.shape))
    start = start % x.shape[axis] if start < 0 else start
    return low.slice(x, axis, start, start + length)


def _pieces(low: Lowering, x: Tensor, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    stops = list(itertools.accumulate(sizes))
    return [low.slice(x, axis, stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


def split(low: Lowering, value: Value, size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """Pieces of equal size (the last one may be smaller), or of given sizes."""
    x = low.tensor(value)
    axis = axis_of(dim, len(x.shape))
    length = x.shape[axis]
    sizes = [min(size, length - at) for at in range(0, length, size)] if isinstance(size, int) else list(size)
    return _pieces(low, x, axis, sizes)


def chunk(low: Lowering, value: Value, chunks: int, dim: int = 0) -> list[Tensor]:
    """At most so many pieces of equal size."""
    x = low.tensor(value)
    return split(low, x, max(1, math.ceil(x.shape[axis_of(dim, len(x.shape))] / chunks)), dim)


def unbind(low: Lowering, value: Value, dim: int = 0) -> list[Tensor]:
    """All positions of an axis."""
    x = low.tensor(value)
    axis = axis_of(dim, len(x.shape))
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    return [low.reshape(low.slice(x, axis, i, i + 1), rest) for i in range(x.shape[axis])]


def select_scatter(low: Lowering, value: Value, src: Value, dim: int, index: int) -> Tensor:
    """The tensor with one position of an axis replaced."""
    x = low.tensor(value)
    axis = axis_of(dim, len(x.shape))
    index = int(index) % x.shape[axis]
    row = low.reshape(low.tensor(src, x.dtype), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return _replaced(low, x, row, axis, index, index + 1)


def slice_scatter(
    low: Lowering,
    value: Value,
    src: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """The tensor with ``start:end`` of an axis replaced."""
    if step != 1:
        raise low.unsupported(f"step={step} is unsupported; allowed: 1")
    x = low.tensor(value)
    axis = axis_of(dim, len(x.shape))
    first, stop = _bounds(x.shape[axis], start, end)
    return _replaced(low, x, low.tensor(src, x.dtype), axis, first, stop)


def _replaced(low: Lowering, x: Tensor, part: Tensor, axis: int, start: int, stop: int) -> Tensor:
    length = x.shape[axis]
    pieces = [low.slice(x, axis, 0, start)] if start else []
    pieces.append(part)
    if stop < length:
        pieces.append(low.slice(x, axis, stop, length))
    return low.concat(pieces, axis)


def copy(low: Lowering, value: Value, src: Value, non_blocking: bool = False) -> Tensor:
    """The source in the destination's shape and type."""
    return low.expand(low.tensor(src, low.dtype), low.shape)


def fill(low: Lowering, value: Value, number: Value) -> Value:
    """The same number everywhere; a compile-time constant when the number is one."""
    if isinstance(number, Tensor):
        return low.expand(low.tensor(number, low.dtype), low.shape)
    return torch.as_tensor(number).to(TORCH_DTYPES[low.dtype]).reshape(()).expand(low.shape)


# -- joining and repeating ---------------------------------------------------------------------------------------------


def cat(low: Lowering, values: Sequence[Value], dim: int = 0) -> Tensor:
    """Joined along an axis; empty vectors are left out, as in PyTorch."""
    found = low.tensors(values, low.dtype)
    found = [t for t in found if t.shape != (0,) or len(low.shape) == 1]
    return low.concat(found, axis_of(dim, len(low.shape)))


def stack(low: Lowering, values: Sequence[Value], dim: int = 0) -> Tensor:
    """Joined along a new axis."""
    axis = axis_of(dim, len(low.shape))
    shape = (*low.shape[:axis], 1, *low.shape[axis + 1 :])
    return low.concat([low.reshape(t, shape) for t in low.tensors(values, low.dtype)], axis)


def repeat(low: Lowering, value: Value, repeats: Sequence[int]) -> Tensor:
    """Tiled along each axis."""
    x = low.tensor(value)
    shape = (1,) * (len(repeats) - len(x.shape)) + x.shape
    single = [n for length in shape for n in (1, length)]
    tiled = [n for count, length in zip(repeats, shape, strict=True) for n in (count, length)]
    return low.reshape(low.expand(low.reshape(x, single), tiled), low.shape)


def tile(low: Lowering, value: Value, dims: Sequence[int]) -> Tensor:
    """As repeat; missing counts are 1."""
    x = low.tensor(value)
    return repeat(low, x, (1,) * (len(x.shape) - len(dims)) + tuple(dims))


def repeat_interleave(
    low: Lowering, value: Value, repeats: Value, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element of an axis several times."""
    if not isinstance(repeats, int):
        raise low.unsupported("a tensor of repeats is unsupported (its sum gives the shape); allowed: an int")
    x = low.tensor(value)
    if dim is None:
        x, dim = low.reshape(x, (-1,)), 0
    axis = axis_of(dim, len(x.shape))
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    return low.reshape(low.expand(low.reshape(x, (*before, 1, *after)), (*before, repeats, *after)), low.shape)


def flip(low: Lowering, value: Value, dims: Sequence[int]) -> Tensor:
    """Reversed along axes."""
    x = low.tensor(value)
    axes = [axis_of(d, len(x.shape)) for d in dims]
    free = [None] * len(axes)
    return low.op(Slice, [x], axis=axes, start=free, stop=free, step=[-1] * len(axes)) if axes else x


def roll(low: Lowering, value: Value, shifts: Any, dims: Any = ()) -> Tensor:
    """Shifted in a circle."""
    x = low.tensor(value)
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        shape, x, dims = x.shape, low.reshape(x, (-1,)), [0]
    else:
        shape = x.shape
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, len(x.shape))
        length = x.shape[axis]
        cut = (-shift) % length if length else 0
        if cut:
            x = low.concat([low.slice(x, axis, cut, length), low.slice(x, axis, 0, cut)], axis)
    return low.reshape(x, shape)


def pad(
    low: Lowering, value: Value, amounts: Sequence[int], mode: str = "constant", number: float | None = None
) -> Tensor:
    """Padding of the last axes (pairs from the last axis backwards), negative amounts cut off."""
    x = low.tensor(value)
    rank = len(x.shape)
    pairs = {rank - 1 - i: (amounts[2 * i], amounts[2 * i + 1]) for i in range(len(amounts) // 2)}
    for axis, (before, after) in pairs.items():
        x = low.slice(x, axis, max(0, -before), x.shape[axis] - max(0, -after))
    pairs = {axis: (max(0, b), max(0, a)) for axis, (b, a) in pairs.items() if b > 0 or a > 0}
    if not pairs:
        return x
    if mode == "constant":
        return _padded(low, x, pairs, number or 0.0)
    if mode not in ("reflect", "replicate", "circular"):
        raise low.unsupported(f"mode={mode!r} is unsupported; allowed: constant, reflect, replicate, circular")
    for axis, (before, after) in pairs.items():
        x = low.concat(_borders(low, x, axis, before, after, mode), axis)
    return x


def _padded(low: Lowering, x: Tensor, pairs: Mapping[int, tuple[int, int]], number: float) -> Tensor:
    axes = list(pairs)
    shape = tuple(n + sum(pairs.get(axis, (0, 0))) for axis, n in enumerate(x.shape))
    starts = [pairs[a][0] for a in axes]
    stops = [pairs[a][0] + x.shape[a] for a in axes]
    result = low.op(SliceGrad, [x], shape=shape, axis=axes, start=starts, stop=stops, step=[1] * len(axes))
    if number == 0:
        return result
    border = np.full(shape, number, x.dtype.numpy)
    inside = {a: slice(begin, begin + x.shape[a]) for a, (begin, _) in pairs.items()}
    border[tuple(inside.get(a, slice(None)) for a in range(len(shape)))] = 0
    return low.op(Add, [result, low.constant(border, x.dtype)])


def _borders(low: Lowering, x: Tensor, axis: int, before: int, after: int, mode: str) -> list[Tensor]:
    length = x.shape[axis]
    pieces: list[Tensor] = []
    for amount, first in ((before, True), (after, False)):
        if not first:
            pieces.append(x)
        if amount == 0:
            continue
        if mode == "circular":
            piece = low.slice(x, axis, length - amount, length) if first else low.slice(x, axis, 0, amount)
        elif mode == "replicate":
            edge = low.slice(x, axis, 0, 1) if first else low.slice(x, axis, length - 1, length)
            piece = low.expand(edge, (*x.shape[:axis], amount, *x.shape[axis + 1 :]))
        else:
            inner = low.slice(x, axis, 1, 1 + amount) if first else low.slice(x, axis, length - 1 - amount, length - 1)
            piece = flip(low, inner, [axis])
        pieces.append(piece)
    return pieces


def constant_pad(low: Lowering, value: Value, amounts: Sequence[int], number: float = 0) -> Tensor:
    """Padding with a number."""
    return pad(low, value, amounts, "constant", float(number))


def pixel_shuffle(low: Lowering, value: Value, factor: int) -> Tensor:
    """``(*, C r r, H, W)`` as ``(*, C, H r, W r)``."""
    x = low.tensor(value)
    *lead, channels, height, width = x.shape
    n = len(lead)
    split_ = low.reshape(x, (*lead, channels // factor**2, factor, factor, height, width))
    order = [*range(n + 1), n + 3, n + 1, n + 4, n + 2]
    return low.reshape(low.transpose(split_, order), low.shape)


def upsample_nearest(low: Lowering, value: Value, output_size: Any = None, *scales: Any, **__: Any) -> Tensor:
    """Nearest neighbours: every element repeated where all axes grow by a whole factor, else a gather along each axis.

    ``scales`` are the factors, together or one per axis; they need not be the ratios of the sizes.
    """
    x, sizes = low.tensor(value), low.shape[2:]
    factors = scales[0] if len(scales) == 1 and not isinstance(scales[0], float) else scales
    picked = _nearest(x.shape, TORCH_DTYPES[x.dtype], sizes, factors or [None] * len(sizes))
    wanted = [(n, len(p) // n) for n, p in zip(x.shape[2:], picked, strict=True)]
    if all(np.array_equal(p, np.repeat(np.arange(n), k)) for p, (n, k) in zip(picked, wanted, strict=True)):
        return _repeated(low, x, wanted)
    for axis, positions in enumerate(picked, start=2):
        if not np.array_equal(positions, np.arange(x.shape[axis])):
            x = _gather(low, x, low.constant(positions, INT32), axis)
    return x


def _nearest(
    shape: Sequence[int], dtype: torch.dtype, sizes: Sequence[int], factors: Sequence[float | None]
) -> list[np.ndarray]:
    """For each axis after the second, which element of the operand each result is.

    This is asked of PyTorch, with tensors of the operand's shape and type that hold positions: its kernels round the
    factor in float32, and which kernel runs, and whether it regards the factor where the size doubles or stays, depends
    on shape and type (``aten/src/ATen/native/cpu/UpSampleKernel.cpp``). More than five channels change nothing.
    """
    upsample = getattr(torch.ops.aten, f"upsample_nearest{len(sizes)}d").default
    wanted, found = (1, min(shape[1], 5), *shape[2:]), []
    for axis, length in enumerate(shape[2:], start=2):
        exact = dtype if length <= 2048 else torch.float32
        positions = torch.arange(length, dtype=exact).reshape(-1, *[1] * (len(shape) - axis - 1))
        results = upsample(positions.expand(wanted).contiguous(), list(sizes), *factors)
        line = results[0, 0].movedim(axis - 2, 0).reshape(sizes[axis - 2], -1)[:, 0]
        found.append(line.to(torch.int64).numpy())
    return found


def _repeated(low: Lowering, x: Tensor, axes: Sequence[tuple[int, int]]) -> Tensor:
    """The axes after the second, each element of length ``n`` repeated ``k`` times, by pairs ``(n, k)``."""
    single = [m for n, _ in axes for m in (n, 1)]
    wide = [m for pair in axes for m in pair]
    shape = x.shape[:2]
    return low.reshape(low.expand(low.reshape(x, (*shape, *single)), (*shape, *wide)), low.shape)


# -- picking by index --------------------------------------------------------------------------------------------------


def _gather(low: Lowering, data: Tensor, indices: Tensor, axis: int) -> Tensor:
    return low.op(Gather, [data, indices], axis=axis)


def embedding(
    low: Lowering,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table; the row ``padding_idx`` gets no gradient."""
    if scale_grad_by_freq:
        raise low.unsupported("scale_grad_by_freq=True is unsupported")
    padding = None if padding_idx == -1 else padding_idx
    return low.op(Gather, [low.tensor(weight), low.tensor(indices, INT32)], axis=0, padding_idx=padding)


def index_select(low: Lowering, value: Value, dim: int, index: Value) -> Tensor:
    """Positions of one axis, given by a vector."""
    x = low.tensor(value)
    return low.reshape(_gather(low, x, low.tensor(index, INT32), axis_of(dim, len(x.shape))), low.shape)


def gather(low: Lowering, value: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Tensor:
    """One element for each element of ``index``, from the same place but for one axis. Lowered as a Gather from the
    flattened tensor at linear positions."""
    x, positions = low.tensor(value), low.tensor(index, INT32)
    axis = axis_of(dim, len(x.shape))
    strides = [math.prod(x.shape[i + 1 :]) for i in range(len(x.shape))]
    places = np.zeros(positions.shape, np.int64)
    for i, n in enumerate(positions.shape):
        if i != axis:
            places += (np.arange(n) * strides[i]).reshape([-1 if j == i else 1 for j in range(len(positions.shape))])
    linear = positions
    if strides[axis] != 1:
        linear = low.op(Mul, [linear, low.constant(strides[axis], INT32)])
    if places.any():
        linear = low.op(Add, [linear, low.constant(places, INT32)])
    flat = _gather(low, low.reshape(x, (-1,)), low.reshape(linear, (-1,)), 0)
    return low.reshape(flat, low.shape)


def index(low: Lowering, value: Value, indices: Sequence[Value]) -> Tensor:
    """Indexing with integer tensors (not negative at run time); bool masks only as constants."""
    x = low.tensor(value)
    chosen = _index_tensors(low, x, indices)
    axes = list(chosen)
    shape = np.broadcast_shapes(*(t.shape for t in chosen.values()))
    linear: Tensor | None = None
    for position, axis in enumerate(axes):
        stride = math.prod(x.shape[a] for a in axes[position + 1 :])
        part = chosen[axis]
        if stride != 1:
            part = low.op(Mul, [part, low.constant(stride, INT32)])
        linear = part if linear is None else low.op(Add, [linear, part])
    assert linear is not None
    rest = [a for a in range(len(x.shape)) if a not in axes]
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if len(axes) == 1:
        return low.reshape(_gather(low, x, low.expand(linear, shape), axes[0]), low.shape)
    table = low.transpose(x, [*axes, *rest])
    rows = math.prod(x.shape[a] for a in axes)
    table = low.reshape(table, (rows, *(x.shape[a] for a in rest)))
    found = _gather(low, table, low.expand(linear, shape), 0)
    if adjacent and axes[0] > 0:
        picked, before = len(shape), axes[0]
        order = [*range(picked, picked + before), *range(picked), *range(picked + before, picked + len(rest))]
        found = low.transpose(found, order)
    return low.reshape(found, low.shape)


def _index_tensors(low: Lowering, x: Tensor, indices: Sequence[Value]) -> dict[int, Tensor]:
    """Index tensors by axis; constant masks become positions, constant negative indices count from the end."""
    found: dict[int, Tensor] = {}
    axis = 0
    for part in indices:
        if part is None:
            axis += 1
            continue
        if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
            for positions in part.nonzero(as_tuple=True):
                found[axis] = low.constant(positions.numpy(), INT32)
                axis += 1
            continue
        if isinstance(part, torch.Tensor):
            found[axis] = low.constant(torch.remainder(part.cpu(), x.shape[axis]).numpy(), INT32)
        elif part.dtype == BOOL:
            raise low.unsupported(
                "indexing with a bool tensor is unsupported (the shape would depend on values); use torch.where"
            )
        else:
            found[axis] = low.tensor(part, INT32)
        axis += 1
    return found


def index_put(low: Lowering, value: Value, indices: Sequence[Value], values: Value, accumulate: bool = False) -> Tensor:
    """``x[mask] = number`` for one bool mask."""
    x, masks = low.tensor(value), [i for i in indices if i is not None]
    mask = low.tensor(masks[0]) if len(masks) == 1 and indices[0] is not None else None
    if mask is None or mask.dtype != BOOL or accumulate:
        raise low.unsupported("only `x[mask] = number` with one bool mask is supported")
    number = low.tensor(values, x.dtype)
    if number.spec.elements != 1:
        raise low.unsupported(f"values of shape {number.shape} are unsupported; allowed: one number")
    mask = low.reshape(mask, (*mask.shape, *(1,) * (len(x.shape) - len(mask.shape))))
    return low.op(Where, [mask, low.reshape(number, ()), x])


def one_hot(low: Lowering, value: Value, num_classes: int = -1) -> Tensor:
    """1 at the class of each element, else 0."""
    if num_classes < 0:
        raise low.unsupported("num_classes=-1 is unsupported (the shape would depend on values); give a number")
    x = low.tensor(value, INT32)
    classes = low.constant(np.arange(num_classes), INT32)
    hit = low.op(Equal, [low.reshape(x, (*x.shape, 1)), classes])
    return low.op(Cast, [hit], dtype=low.dtype)


# -- triangles and sums along an axis ----------------------------------------------------------------------------------


def _triangle(lower: bool) -> Handler:
    def handler(low: Lowering, value: Value, diagonal: int = 0) -> Tensor:
        x = low.tensor(value)
        ones = np.ones(x.shape[-2:], bool)
        kept = np.tril(ones, diagonal) if lower else np.triu(ones, diagonal)
        return low.op(Where, [low.constant(kept, BOOL), x, low.constant(0, x.dtype)])

    return handler


def cumsum(low: Lowering, value: Value, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Running sum as a product with a triangle of ones (PopART popx/op/cumsumx.cpp); whole numbers in float32, exact
    to 2**24."""
    x = low.tensor(value)
    if not x.shape:
        return low.tensor(x, low.dtype)
    kind = low.dtype if low.dtype.is_floating_point else FLOAT32
    axis, last = axis_of(dim, len(x.shape)), len(x.shape) - 1
    order = [a for a in range(last + 1) if a != axis] + [axis]
    moved = low.transpose(low.tensor(x, kind), order)
    triangle = low.constant(np.triu(np.ones((x.shape[axis],) * 2)), kind)
    summed = low.op(MatMul, [moved, triangle])
    inverse = [order.index(a) for a in range(last + 1)]
    return low.tensor(low.transpose(summed, inverse), low.dtype)


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    "_assert_tensor_metadata": nothing,
    "_reshape_alias": to_result_shape,
    "_to_copy": same,
    "_unsafe_view": to_result_shape,
    "alias": same,
    "broadcast_tensors": broadcast_tensors,
    "broadcast_to": to_result_broadcast,
    "cat": cat,
    "chunk": chunk,
    "clone": same,
    "concat": cat,
    "constant_pad_nd": constant_pad,
    "contiguous": same,
    "copy": copy,
    "cumsum": cumsum,
    "embedding": embedding,
    "expand": to_result_broadcast,
    "expand_as": to_result_broadcast,
    "fill": fill,
    "flatten": to_result_shape,
    "flip": flip,
    "full_like": lambda low, value, number, **_: fill(low, value, number),
    "gather": gather,
    "index": index,
    "index_put": index_put,
    "index_select": index_select,
    "lift_fresh": same,
    "lift_fresh_copy": same,
    "mT": matrix_transpose,
    "movedim": movedim,
    "narrow": narrow,
    "new_full": lambda low, value, size, number, **_: fill(low, value, number),
    "new_ones": lambda low, value, *_, **__: fill(low, value, 1),
    "new_zeros": lambda low, value, *_, **__: fill(low, value, 0),
    "numpy_T": lambda low, value: permute(low, value, range(len(low.shape))[::-1]),
    "one_hot": one_hot,
    "ones_like": lambda low, value, **_: fill(low, value, 1),
    "pad": pad,
    "permute": permute,
    "pixel_shuffle": pixel_shuffle,
    "repeat": repeat,
    "repeat_interleave": repeat_interleave,
    "reshape": to_result_shape,
    "roll": roll,
    "select": select,
    "select_scatter": select_scatter,
    "slice": slice_,
    "slice_scatter": slice_scatter,
    "split": split,
    "split_with_sizes": split,
    "squeeze": to_result_shape,
    "stack": stack,
    "swapaxes": transpose,
    "t": matrix_transpose,
    "tile": tile,
    "to": same,
    "transpose": transpose,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
    "type_as": same,
    "unbind": unbind,
    "unflatten": to_result_shape,
    "unsqueeze": to_result_shape,
    "upsample_nearest1d": upsample_nearest,
    "upsample_nearest2d": upsample_nearest,
    "upsample_nearest3d": upsample_nearest,
    "view": to_result_shape,
    "view_as": to_result_shape,
    "zeros_like": lambda low, value, **_: fill(low, value, 0),
}
