"""``StridedSlice``: Python's indexing with masks, its gradient and its assignments."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ipuperf.functions import arithmetic, constant, make
from ipuperf.functions.arranging import broadcast, cut, joined, reshaped
from ipuperf.functions.selection import dynamic_slice, dynamic_update
from ipuperf.ir import BOOL, INT32, Tensor
from ipuperf.ops import DynamicSlicePadGrad, Slice

from ..node import Node
from ..table import Family
from ..values import Value
from .random import RandomSource
from .shapes import unsliced

FAMILY = Family("Slices")
op = FAMILY.op


@dataclass
class Cuts:
    """What a slice takes of a tensor.

    Attributes:
        parts: ``(start, stop, step)`` of each axis of the tensor; the stop of a negative step may be None.
        kept: shape of the part with every axis of the tensor.
        shape: shape of the result: new axes are there, indexed ones are not.
        full: shape of the tensor.
        indexed: by entry of the operands, the axis that it gives one position of.
    """

    parts: list[tuple[int, int | None, int]]
    kept: list[int]
    shape: list[int]
    full: tuple[int, ...]
    indexed: dict[int, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return all(step == 1 and start == 0 and stop == n for (start, stop, step), n in zip(self.parts, self.full))


def _bit(mask: int, place: int) -> bool:
    return bool(mask >> place & 1)


def cuts(node: Node, shape: tuple[int, ...], begins: Value, ends: Value, strides: Value) -> Cuts:
    """Read the operands and masks of an op whose operand has this shape."""
    begin, end = node.integers(begins, "the begin"), node.integers(ends, "the end")
    stride = node.integers(strides, "the strides")
    masks = {name: node.attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    window = Cuts([], [], [], shape)
    entries = len(begin)
    dots = [i for i in range(entries) if _bit(masks["ellipsis"], i)]
    new = [i for i in range(entries) if _bit(masks["new_axis"], i) and i not in dots]
    missing = len(shape) - (entries - len(new) - len(dots))
    for i in range(entries):
        axis = len(window.parts)
        if i in dots:
            for n in shape[axis : axis + missing]:
                _take(window, (0, n, 1), n)
        elif i in new:
            window.shape.append(1)
        elif _bit(masks["shrink_axis"], i):
            at = begin[i] + shape[axis] if begin[i] < 0 else begin[i]
            window.indexed[i] = axis
            window.parts.append((at, at + 1, 1))
            window.kept.append(1)
        else:
            start = None if _bit(masks["begin"], i) else begin[i]
            stop = None if _bit(masks["end"], i) else end[i]
            low, high, step = slice(start, stop, stride[i]).indices(shape[axis])
            _take(window, (low, None if high < 0 else high, step), len(range(low, high, step)))
    for n in shape[len(window.parts) :]:
        _take(window, (0, n, 1), n)
    return window


def _take(window: Cuts, part: tuple[int, int | None, int], length: int) -> None:
    window.parts.append(part)
    window.kept.append(length)
    window.shape.append(length)


def _cut(tensor: Tensor, window: Cuts) -> Tensor:
    if window.whole:
        return tensor
    chosen = [i for i, (part, n) in enumerate(zip(window.parts, window.full)) if part != (0, n, 1)]
    start, stop, step = zip(*(window.parts[i] for i in chosen))
    return make(Slice, tensor, axis=chosen, start=start, stop=stop, step=step)


@op("StridedSlice")
def strided_slice(node: Node, value: Value, begins: Value, ends: Value, strides: Value) -> Value:
    """A part of a tensor; indices may be computed on the IPU. Key and counter of random numbers stay together."""
    if isinstance(value, RandomSource):
        return value
    tensor = node.tensor(value)
    if isinstance(begins, Tensor):
        place = _moving(node, tensor.shape, begins, ends, strides)
        part = _cut(dynamic_slice(tensor, place.position, place.axes, [1] * len(place.axes)), place.cuts)
        return reshaped(part, place.cuts.shape)
    window = cuts(node, tensor.shape, begins, ends, strides)
    return reshaped(_cut(tensor, window), window.shape)


@dataclass
class _Moving:
    """A slice whose place is computed on the IPU.

    Attributes:
        axes: of the tensor, those whose index is computed.
        position: the indices.
        cuts: what is taken of the tensor with one position of these axes.
    """

    axes: list[int]
    position: Tensor
    cuts: Cuts


def _moving(node: Node, shape: tuple[int, ...], begins: Tensor, ends: Value, strides: Value) -> _Moving:
    """Read the operands of an op whose operand has this shape.

    Raises:
        GraphError: other entries than whole indices are computed.
    """
    shrink = node.attr("shrink_axis_mask")
    begin = _entries(node, 1, begins, node.attr("begin_mask"))
    end = _entries(node, 2, ends, node.attr("end_mask") | shrink)
    moving = [i for i, entry in enumerate(begin) if isinstance(entry, Tensor)]
    if not all(_bit(shrink, i) for i in moving) or any(isinstance(entry, Tensor) for entry in end):
        raise node.error(
            "its begin is computed on the IPU, and then only whole indices (x[i]) give a fixed shape; use tf.gather"
        )
    known = [np.array([0 if i in moving else entry for i, entry in enumerate(bounds)]) for bounds in (begin, end)]
    window = cuts(node, shape, known[0], known[1], strides)
    axes = [window.indexed[i] for i in moving]
    window.full = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    position = joined([reshaped(node.tensor(begin[i], INT32), (1,)) for i in moving], 0)
    return _Moving(axes, position, window)


def _entries(node: Node, index: int, value: Value, unused: int) -> list[Value]:
    """The elements of an operand: numbers, or tensors where they are computed; 0 where bits of ``unused`` are set."""
    unused |= node.attr("ellipsis_mask") | node.attr("new_axis_mask")
    return [0 if _bit(unused, i) else entry for i, entry in enumerate(_elements(node, index, value))]


def _elements(node: Node, index: int, value: Value) -> list[Value]:
    if isinstance(value, np.ndarray):
        return [int(n) for n in value]
    made = node.op.inputs[index].op
    values = node.importer.values
    if made.type == "Pack" and all(id(t) in values for t in made.inputs):
        operands = [values[id(t)] for t in made.inputs]
        return [int(v) if isinstance(v, np.ndarray) else v for v in operands]
    return [cut(value, 0, i, i + 1) for i in range(value.shape[0])]


@op("StridedSliceGrad")
def strided_slice_grad(node: Node, shape: Value, begins: Value, ends: Value, strides: Value, tensor: Tensor) -> Tensor:
    """Zeros with the gradient where the slice was taken."""
    dims = node.integers(shape, "the shape")
    if isinstance(begins, Tensor):
        place = _moving(node, dims, begins, ends, strides)
        part = _padded(reshaped(tensor, place.cuts.kept), place.cuts)
        sizes = (1,) * len(place.axes)
        return make(DynamicSlicePadGrad, part, place.position, axes=tuple(place.axes), sizes=sizes, shape=dims)
    window = cuts(node, dims, begins, ends, strides)
    return _padded(reshaped(tensor, window.kept), window)


def _padded(part: Tensor, window: Cuts) -> Tensor:
    return part if window.whole else unsliced(part, window.full, window.parts)


@op("TensorStridedSliceUpdate")
def strided_slice_update(node: Node, whole: Tensor, begins: Value, ends: Value, strides: Value, part: Tensor) -> Tensor:
    """A tensor with a part replaced: a scatter to the positions of the slice."""
    return replaced_part(whole, cuts(node, whole.shape, begins, ends, strides), part)


def replaced_part(tensor: Tensor, window: Cuts, part: Tensor) -> Tensor:
    """A tensor with the part that ``found`` describes replaced."""
    part = reshaped(broadcast(part, window.shape), window.kept)
    if window.whole:
        return part
    inside = np.zeros(tensor.shape, bool)
    inside[tuple(slice(*p) for p in window.parts)] = True
    return arithmetic.where(constant(inside, BOOL), unsliced(part, tensor.shape, window.parts), tensor)


@op("DynamicUpdateSlice", "XlaDynamicUpdateSlice")
def dynamic_update_slice(node: Node, tensor: Tensor, new: Tensor, index: Value) -> Tensor:
    """A tensor with the part at a position replaced."""
    return dynamic_update(tensor, node.tensor(index, INT32), new, range(len(tensor.shape)), new.shape)
