"""Shapes, axes, parts, joining, repeating and padding. Sizes and positions are known when the program is compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ipuperf.functions import arithmetic, constant, make, shapes
from ipuperf.functions.arranging import (
    bordered,
    broadcast,
    cut,
    flipped,
    joined,
    padded,
    permuted,
    reshaped,
    rolled,
    tiled,
)
from ipuperf.functions.selection import gather
from ipuperf.ir import BOOL, INT32, Tensor
from ipuperf.ops import SliceGrad

from ..node import Node
from ..table import Family
from ..values import Value

FAMILY = Family("Shapes and arrangement")
op = FAMILY.op


def shape_of(node: Node, value: Value, index: int = 0) -> tuple[int, ...]:
    """The shape of an operand.

    Raises:
        GraphError: it is not fixed.
    """
    if isinstance(value, (np.ndarray, Tensor)):
        return tuple(value.shape)
    shape = node.op.inputs[index].shape
    if not shape.is_fully_defined():
        raise node.dynamic(node.op.inputs[index])
    return tuple(shape)


# -- shapes as values --------------------------------------------------------------------------------------------------


@op("Shape")
def shape(node: Node, value: Value) -> np.ndarray:
    """The lengths of the axes."""
    return np.array(shape_of(node, value), node.attr("out_type").as_numpy_dtype)


@op("ShapeN")
def shapes_of(node: Node, *values: Value) -> list[np.ndarray]:
    """The shapes of several tensors."""
    kind = node.attr("out_type").as_numpy_dtype
    return [np.array(shape_of(node, value, i), kind) for i, value in enumerate(values)]


@op("Size")
def size(node: Node, value: Value) -> np.ndarray:
    """The number of elements."""
    return np.array(math.prod(shape_of(node, value)), node.attr("out_type").as_numpy_dtype)


@op("Rank")
def rank(node: Node, value: Value) -> np.ndarray:
    """The number of axes."""
    return np.array(len(shape_of(node, value)), np.int32)


# -- the same elements -------------------------------------------------------------------------------------------------


@op("Reshape")
def reshape(node: Node, value: Tensor, sizes: Value) -> Tensor:
    """Another shape."""
    return reshaped(value, node.integers(sizes, "the shape"))


@op("ExpandDims")
def expand_dims(node: Node, tensor: Tensor, axis: Value) -> Tensor:
    """A new axis of length 1."""
    place = node.integer(axis, "the axis")
    place += len(tensor.shape) + 1 if place < 0 else 0
    return reshaped(tensor, (*tensor.shape[:place], 1, *tensor.shape[place:]))


@op("Squeeze")
def squeeze(node: Node, tensor: Tensor) -> Tensor:
    """Without axes of length 1."""
    axes = [a % len(tensor.shape) for a in node.attr("squeeze_dims")]
    kept = [n for a, n in enumerate(tensor.shape) if (a not in axes if axes else n != 1)]
    return reshaped(tensor, kept)


@op("Transpose", "ConjugateTranspose")
def transpose(node: Node, value: Tensor, order: Value) -> Tensor:
    """The axes in another order."""
    return permuted(value, node.integers(order, "the order of the axes"))


@op("ReverseV2")
def reverse(node: Node, value: Tensor, axes: Value) -> Tensor:
    """Reversed along axes."""
    return flipped(value, node.integers(axes, "the axes"))


@op("Roll")
def roll(node: Node, tensor: Tensor, shifts: Value, axes: Value) -> Tensor:
    """Shifted in a circle."""
    for shift, axis in zip(node.integers(shifts, "the shift"), node.integers(axes, "the axis"), strict=True):
        tensor = rolled(tensor, shift, axis % len(tensor.shape))
    return tensor


def regrouped(tensor: Tensor, split: Sequence[int], order: Sequence[int], joined_shape: Sequence[int]) -> Tensor:
    """Axes cut into parts (``split``), put in another order, and joined again."""
    return reshaped(permuted(reshaped(tensor, split), order), joined_shape)


@op("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    """Pixels from channels."""
    r, out = node.attr("block_size"), node.shape()
    if node.attr("data_format") == "NCHW":
        n, c, h, w = x.shape
        return regrouped(x, (n, r, r, c // r**2, h, w), (0, 3, 4, 1, 5, 2), out)
    n, h, w, c = x.shape
    return regrouped(x, (n, h, w, r, r, c // r**2), (0, 1, 3, 2, 4, 5), out)


@op("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    """Channels from pixels."""
    r, out = node.attr("block_size"), node.shape()
    if node.attr("data_format") == "NCHW":
        n, c, h, w = x.shape
        return regrouped(x, (n, c, h // r, r, w // r, r), (0, 3, 5, 1, 2, 4), out)
    n, h, w, c = x.shape
    return regrouped(x, (n, h // r, r, w // r, r, c), (0, 1, 3, 2, 4, 5), out)


@op("SpaceToBatchND")
def space_to_batch(node: Node, x: Tensor, blocks: Value, paddings: Value) -> Tensor:
    """Blocks of the spatial axes moved to the batch."""
    sizes = node.integers(blocks, "the block shape")
    pairs = node.static(paddings, "the padding").reshape(-1, 2)
    x = padded(x, {i + 1: (int(a), int(b)) for i, (a, b) in enumerate(pairs) if a or b}) if pairs.any() else x
    m = len(sizes)
    split = [x.shape[0], *(k for n, b in zip(x.shape[1:], sizes) for k in (n // b, b)), *x.shape[1 + m :]]
    order = [*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m, 2), *range(2 * m + 1, len(split))]
    return regrouped(x, split, order, node.shape())


@op("BatchToSpaceND")
def batch_to_space(node: Node, x: Tensor, blocks: Value, crops: Value) -> Tensor:
    """Blocks of the batch moved back to the spatial axes."""
    sizes = node.integers(blocks, "the block shape")
    m, batch = len(sizes), x.shape[0] // math.prod(sizes)
    order = [m, *(k for i in range(m) for k in (m + 1 + i, i)), *range(2 * m + 1, m + len(x.shape))]
    spatial = [n * b for n, b in zip(x.shape[1:], sizes)]
    whole = regrouped(x, (*sizes, batch, *x.shape[1:]), order, (batch, *spatial, *x.shape[1 + m :]))
    for i, (before, after) in enumerate(node.static(crops, "the crops").reshape(-1, 2)):
        whole = cut(whole, i + 1, int(before), spatial[i] - int(after))
    return whole


# -- joining and cutting -----------------------------------------------------------------------------------------------


@op("Concat", "ConcatV2")
def concat(node: Node, *operands: Value) -> Tensor:
    """Tensors behind each other."""
    axis, parts = (operands[0], operands[1:]) if node.op.type == "Concat" else (operands[-1], operands[:-1])
    tensors = [t for t in node.tensors(parts) if t.spec.elements] or node.tensors(parts[:1])
    return joined(tensors, node.integer(axis, "the axis") % len(tensors[0].shape))


@op("Pack")
def pack(node: Node, *operands: Tensor) -> Tensor:
    """Tensors behind each other along a new axis."""
    axis = node.attr("axis") % len(node.shape())
    return joined([shapes.expand_dims(t, axis) for t in operands], axis)


FAMILY.formula("ParallelConcat", "Tensors behind each other along the first axis.", lambda *them: joined(them, 0))


@op("Unpack")
def unpack(node: Node, tensor: Tensor) -> list[Tensor]:
    """The slices along an axis."""
    axis = node.attr("axis") % len(tensor.shape)
    if tensor.shape[axis] == 1:
        return [reshaped(tensor, node.shape())]
    return shapes.unstack(tensor, axis) if tensor.shape[axis] else []


@op("Split")
def split(node: Node, axis: Value, tensor: Tensor) -> list[Tensor]:
    """Equal parts along an axis."""
    at = node.integer(axis, "the axis")
    return shapes.split(tensor, node.attr("num_split"), at % len(tensor.shape))


@op("SplitV")
def split_v(node: Node, tensor: Tensor, sizes: Value, axis: Value) -> list[Tensor]:
    """Parts of given sizes along an axis."""
    lengths = list(node.integers(sizes, "the sizes"))
    at = node.integer(axis, "the axis") % len(tensor.shape)
    if -1 in lengths:
        lengths[lengths.index(-1)] = tensor.shape[at] - sum(lengths) - 1
    return shapes.split(tensor, lengths, at)


@op("Slice")
def slice_(node: Node, tensor: Tensor, begins: Value, sizes: Value) -> Tensor:
    """A part of given size from a position that is known."""
    starts, lengths = node.integers(begins, "the begin"), node.integers(sizes, "the size")
    for axis, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        tensor = cut(tensor, axis, start, tensor.shape[axis] if length < 0 else start + length)
    return tensor


# -- repeating and new tensors -----------------------------------------------------------------------------------------


@op("Tile")
def tile(node: Node, tensor: Tensor, multiples: Value) -> Tensor:
    """The whole tensor several times along each axis."""
    counts = node.integers(multiples, "the multiples")
    return tensor if set(counts) <= {1} else tiled(tensor, counts)


@op("BroadcastTo")
def broadcast_to(node: Node, value: Tensor, sizes: Value) -> Tensor:
    """Repeated to a shape."""
    return broadcast(value, node.integers(sizes, "the shape"))


@op("Fill")
def fill(node: Node, sizes: Value, value: Tensor) -> Tensor:
    """One number everywhere."""
    return broadcast(value, node.integers(sizes, "the shape"))


@op("OnesLike")
def ones_like(node: Node, value: Value) -> np.ndarray:
    """Ones of the operand's shape."""
    return np.ones(shape_of(node, value), node.op.outputs[0].dtype.as_numpy_dtype)


@op("Range", "LinSpace", "BroadcastArgs", "BroadcastGradientArgs", "ConcatOffset", "InvertPermutation")
def of_known_operands(node: Node, *operands: Value) -> Tensor:
    """The host computes it: all operands have to be known."""
    for tensor, value in zip(node.op.inputs, operands):
        node.static(value, f"operand {tensor.name!r}")
    raise AssertionError("ops of known operands are folded")


@op("DynamicStitch", "ParallelDynamicStitch")
def stitched(node: Node, *operands: Value) -> Tensor:
    """Rows at known places of a new tensor; of equal places the last row stays, places without a row are zeros."""
    count = len(operands) // 2
    places = [node.static(value, f"operand {node.op.inputs[i].name!r}") for i, value in enumerate(operands[:count])]
    shape = node.shape()
    rows = [reshaped(node.tensor(value), (-1, *shape[1:])) for value, at in zip(operands[count:], places) if at.size]
    if not rows or not math.prod(shape):
        return node.tensor(np.zeros(shape, node.op.outputs[0].dtype.as_numpy_dtype))
    total = sum(at.size for at in places)
    sources = np.full(shape[0], total)
    for source, place in enumerate(np.concatenate([at.reshape(-1) for at in places])):
        sources[place] = source
    if (sources == total).any():
        rows.append(broadcast(constant(0, rows[0].dtype), (1, *shape[1:])))
    return gather(joined(rows, 0), constant(sources, INT32), 0)


@op("Where")
def where_positions(node: Node, condition: Value) -> Tensor:
    """Positions of true elements: their number is no fixed shape, unless the host knows them."""
    raise node.error(
        "the number of positions depends on data, and programs of the IPU have fixed shapes; select by a condition "
        "(tf.where(condition, x, y)) or multiply by a mask"
    )


# -- padding -----------------------------------------------------------------------------------------------------------


def _amounts(node: Node, paddings: Value) -> dict[int, tuple[int, int]]:
    pairs = node.static(paddings, "the padding").reshape(-1, 2)
    return {axis: (int(a), int(b)) for axis, (a, b) in enumerate(pairs) if a or b}


@op("Pad")
def pad(node: Node, tensor: Tensor, paddings: Value) -> Tensor:
    """Zeros around a tensor."""
    return zero_padded(tensor, _amounts(node, paddings))


def zero_padded(tensor: Tensor, amounts: dict[int, tuple[int, int]]) -> Tensor:
    """Zeros around a tensor of any type."""
    if not amounts:
        return tensor
    if tensor.dtype == BOOL:
        return joined_border(tensor, amounts, constant(np.zeros((), bool), BOOL))
    return padded(tensor, amounts)


def joined_border(tensor: Tensor, amounts: dict[int, tuple[int, int]], number: Tensor) -> Tensor:
    """A tensor with one number (a scalar) around it."""
    for axis, (before, after) in amounts.items():
        parts = [tensor]
        for place, length in ((0, before), (2, after)):
            border = (*tensor.shape[:axis], length, *tensor.shape[axis + 1 :])
            parts.insert(place, broadcast(number, border)) if length else None
        tensor = joined(parts, axis)
    return tensor


@op("PadV2")
def pad_with(node: Node, value: Tensor, paddings: Value, number: Tensor) -> Tensor:
    """One number around a tensor."""
    return joined_border(value, _amounts(node, paddings), number)


@op("MirrorPad")
def mirror_pad(node: Node, tensor: Tensor, paddings: Value) -> Tensor:
    """Elements mirrored around a tensor, those at the border twice (SYMMETRIC) or not (REFLECT)."""
    amounts = _amounts(node, paddings)
    if node.attr("mode") == "REFLECT":
        return bordered(tensor, amounts, "reflect")
    for axis, (before, after) in amounts.items():
        length = tensor.shape[axis]
        first = [flipped(cut(tensor, axis, 0, before), [axis])] if before else []
        last = [flipped(cut(tensor, axis, length - after, length), [axis])] if after else []
        tensor = joined([*first, tensor, *last], axis)
    return tensor


@op("MirrorPadGrad")
def mirror_pad_grad(node: Node, tensor: Tensor, paddings: Value) -> Tensor:
    """The gradient of mirrored elements goes to those that they mirror."""
    amounts, skip = _amounts(node, paddings), node.attr("mode") == "REFLECT"
    for axis, (before, after) in amounts.items():
        length = tensor.shape[axis] - before - after
        inner = cut(tensor, axis, before, before + length)
        if before:
            part = flipped(cut(tensor, axis, 0, before), [axis])
            inner = inner + padded(part, {axis: (int(skip), length - before - int(skip))})
        if after:
            part = flipped(cut(tensor, axis, before + length, before + length + after), [axis])
            inner = inner + padded(part, {axis: (length - after - int(skip), int(skip))})
        tensor = inner
    return tensor


# -- triangles and diagonals -------------------------------------------------------------------------------------------


@op("MatrixBandPart", "BatchMatrixBandPart")
def matrix_band_part(node: Node, tensor: Tensor, lower: Value, upper: Value) -> Tensor:
    """A band of the last two axes, zeros elsewhere."""
    low, high = node.integer(lower, "num_lower"), node.integer(upper, "num_upper")
    rows, columns = np.indices(tensor.shape[-2:])
    kept = ((low < 0) | (rows - columns <= low)) & ((high < 0) | (columns - rows <= high))
    return masked(tensor, kept)


def masked(tensor: Tensor, kept: np.ndarray) -> Tensor:
    """A tensor where ``kept`` holds, zeros elsewhere."""
    zero = constant(np.zeros((), tensor.dtype.numpy), tensor.dtype)
    return arithmetic.where(constant(kept, BOOL), tensor, zero)


def _diagonal(node: Node, options: Sequence[Value]) -> int:
    """Which diagonal is meant: above the main one, or below it where it is negative."""
    chosen = set(node.integers(options[0], "the diagonal k")) if options else {0}
    if len(chosen) > 1:
        raise node.error(f"diagonals k={tuple(sorted(chosen))}; allowed: one diagonal")
    return chosen.pop()


def _spread(vector: Tensor, shape: Sequence[int], k: int) -> Tensor:
    """Matrices all rows of which have the elements of diagonal ``k`` in their columns."""
    last, columns = len(vector.shape) - 1, shape[-1]
    before = max(k, 0)
    wide = (
        padded(vector, {last: (before, columns - before - vector.shape[-1])}) if columns > vector.shape[-1] else vector
    )
    return broadcast(reshaped(wide, (*vector.shape[:-1], 1, columns)), shape)


@op("MatrixDiag", "BatchMatrixDiag", "Diag", "MatrixDiagV2", "MatrixDiagV3")
def matrix_diag(node: Node, tensor: Tensor, *options: Value) -> Tensor:
    """Vectors on a diagonal of new matrices, with a number around it."""
    k = _diagonal(node, options)
    if node.op.type == "Diag" and len(tensor.shape) != 1:
        raise node.error(f"a diagonal of shape {tensor.shape}; allowed: a vector")
    shape = node.shape() if options else (*tensor.shape, tensor.shape[-1])
    around = node.tensor(options[3]) if options else constant(np.zeros((), tensor.dtype.numpy), tensor.dtype)
    return arithmetic.where(
        constant(np.eye(shape[-2], shape[-1], k, dtype=bool), BOOL), _spread(tensor, shape, k), around
    )


@op("MatrixDiagPart", "DiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3")
def matrix_diag_part(node: Node, tensor: Tensor, *options: Value) -> Tensor:
    """A diagonal of each matrix."""
    k = _diagonal(node, options)
    *lead, rows, columns = tensor.shape
    below, right = max(-k, 0), max(k, 0)
    count = min(rows - below, columns - right)
    part = cut(cut(tensor, len(lead), below, below + count), len(lead) + 1, right, right + count)
    flat = reshaped(part, (*lead, count * count))
    return cut(flat, len(lead), 0, count * count, count + 1) if count > 1 else flat


@op("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3")
def matrix_set_diag(node: Node, tensor: Tensor, vector: Tensor, *options: Value) -> Tensor:
    """Matrices with another diagonal."""
    k = _diagonal(node, options)
    kept = constant(np.eye(tensor.shape[-2], tensor.shape[-1], k, dtype=bool), BOOL)
    return arithmetic.where(kept, _spread(vector, tensor.shape, k), tensor)


# -- gradients of slices -----------------------------------------------------------------------------------------------


def unsliced(tensor: Tensor, sizes: Sequence[int], parts: Sequence[tuple[int, int | None, int]]) -> Tensor:
    """Zeros of shape ``wanted`` with a tensor at ``start:stop:step`` of each axis."""
    axes = list(range(len(sizes)))
    start, stop, step = zip(*parts)
    return make(SliceGrad, tensor, shape=tuple(sizes), axis=axes, start=start, stop=stop, step=step)
