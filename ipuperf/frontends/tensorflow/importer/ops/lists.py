"""Lists of tensors, as loops over sequences and their gradients use them.

They are values of their own where lengths and positions are known, one tensor in loops of the IPU (:mod:`.stacked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ipuperf.functions import arithmetic, make, shapes
from ipuperf.functions.arranging import joined, reshaped
from ipuperf.functions.selection import gather
from ipuperf.ir import INT32, Tensor
from ipuperf.ops import DynamicSlicePadGrad

from ..lists import TensorList
from ..node import Node
from ..stacked import OneItem, StackedList, added
from ..table import Family
from ..values import Value

FAMILY = Family("Lists of tensors")
op = FAMILY.op


def list_of(node: Node, value: Value) -> TensorList:
    """An operand that is a list, as values of their own."""
    if isinstance(value, OneItem):
        value = stacked_list(node, value)
    if isinstance(value, StackedList):
        return value.listed(node)
    if not isinstance(value, TensorList):
        raise node.error(f"operand {value!r} is no list of tensors")
    return value


def stacked_list(node: Node, value: TensorList | StackedList | OneItem) -> StackedList:
    """A list in one tensor."""
    if isinstance(value, StackedList):
        return value
    if isinstance(value, OneItem):
        tensor = node.place.get(value.value)
        operands = [reshaped(tensor, (1, *tensor.shape)), reshaped(node.place.get(value.index), (1,))]
        shape = (value.length, *tensor.shape)
        buffer = make(DynamicSlicePadGrad, *operands, axes=(0,), sizes=(1,), shape=shape)
        return StackedList(buffer, value.dtype, value.length)
    return StackedList(node.tensor(stacked(node, value, None)), value.dtype, len(value.items))


def _shape(value: Value) -> tuple[int, ...] | None:
    """The shape that an operand states, None where it leaves something open."""
    if not isinstance(value, np.ndarray):
        return None
    entries = tuple(int(n) for n in value.reshape(-1))
    return None if any(n < 0 for n in entries) or value.ndim == 0 else entries


@op("EmptyTensorList", folds=False)
def empty_list(node: Node, element_shape: Value, _most: Value) -> TensorList:
    """A list without items."""
    return TensorList((), node.attr("element_dtype"), _shape(element_shape))


@op("TensorListReserve", folds=False)
def reserve(node: Node, element_shape: Value, count: Value) -> TensorList:
    """A list of so many items that have not been written."""
    items = (None,) * node.integer(count, "the number of elements")
    return TensorList(items, node.attr("element_dtype"), _shape(element_shape))


@op("TensorListFromTensor", folds=False)
def from_tensor(node: Node, value: Value, _element_shape: Value) -> TensorList | StackedList:
    """The slices along the first axis."""
    dtype = node.attr("element_dtype")
    if isinstance(value, Tensor) and value.shape[0]:
        return StackedList(value, dtype, value.shape[0])
    return TensorList(tuple(slices_of(value)), dtype, tuple(value.shape[1:]))


def slices_of(value: Value) -> list[Value]:
    """The slices of a value along its first axis."""
    if isinstance(value, np.ndarray):
        return [np.asarray(part) for part in value]
    if value.shape[0] == 1:
        return [reshaped(value, value.shape[1:])]
    return list(shapes.unstack(value, 0)) if value.shape[0] else []


@op("TensorListStack", folds=False)
def stack(node: Node, handle: Value, element_shape: Value) -> Value:
    """The items along a new first axis."""
    if isinstance(handle, StackedList):
        return handle.whole(node)
    return stacked(node, list_of(node, handle), _shape(element_shape))


def stacked(node: Node, items: TensorList, shape: tuple[int, ...] | None) -> Value:
    """The items along a new first axis."""
    values = [items.item(node, i, shape) for i in range(len(items.items))]
    if all(isinstance(v, np.ndarray) for v in values):
        known = items.shape if items.shape is not None else shape
        empty = np.zeros((0, *(known or ())), items.dtype.as_numpy_dtype)
        return np.stack(values) if values else empty
    return joined([shapes.expand_dims(node.tensor(v), 0) for v in values], 0)


@op("TensorListGetItem", folds=False)
def get_item(node: Node, handle: Value, index: Value, element_shape: Value) -> Value:
    """The item at a position; one that is computed on the IPU is gathered."""
    if isinstance(handle, StackedList):
        return handle.item(node, _position(node, handle, index))
    items = list_of(node, handle)
    if isinstance(index, Tensor):
        return gather(node.tensor(stacked(node, items, _shape(element_shape))), index, 0)
    return items.item(node, node.integer(index, "the index"), _shape(element_shape))


def _position(node: Node, items: StackedList, index: Value) -> Tensor | int:
    """An index of an item as its place."""
    return index if isinstance(index, Tensor) else items.place_of(node, node.integer(index, "the index"))


@op("TensorListSetItem", folds=False)
def set_item(node: Node, handle: Value, index: Value, item: Value) -> Value:
    """Another item at a position."""
    if isinstance(handle, StackedList):
        return handle.with_item(node, _position(node, handle, index), item)
    if isinstance(index, Tensor):
        items = list_of(node, handle)
        if all(one is None for one in items.items):
            return OneItem(index, node.tensor(item), len(items.items), items.dtype)
        return stacked_list(node, items).with_item(node, index, item)
    return list_of(node, handle).with_item(node.integer(index, "the index"), item)


@op("TensorListPushBack", folds=False)
def push_back(node: Node, handle: Value, item: Value) -> Value:
    """One more item."""
    if isinstance(handle, StackedList) and handle.storage is not None:
        return handle.pushed(node, item)
    items = list_of(node, handle)
    return items.with_items([*items.items, item])


@op("TensorListPopBack", folds=False)
def pop_back(node: Node, handle: Value, element_shape: Value) -> list[Value]:
    """Without the last item, and that item."""
    if isinstance(handle, StackedList):
        return [handle.without_last(), handle.item(node, handle.place_of(node, -1))]
    items = list_of(node, handle)
    return [items.with_items(items.items[:-1]), items.item(node, -1, _shape(element_shape))]


@op("TensorListLength", folds=False)
def length(node: Node, handle: Value) -> Value:
    """The number of items."""
    if isinstance(handle, (StackedList, OneItem)):
        if isinstance(handle, StackedList) and handle.counter is not None:
            return handle.end(node)
        return np.array(handle.length, np.int32)
    return np.array(len(list_of(node, handle).items), np.int32)


@op("TensorListElementShape", folds=False)
def element_shape_of(node: Node, handle: Value) -> np.ndarray:
    """The shape of the items, -1 where it is not known."""
    shape = handle.shape if isinstance(handle, StackedList) else list_of(node, handle).shape
    return np.array(-1 if shape is None else shape, node.attr("shape_type").as_numpy_dtype)


@op("TensorListResize", folds=False)
def resize(node: Node, handle: Value, size: Value) -> TensorList:
    """A list of another length: cut, or with items that have not been written."""
    items, count = list_of(node, handle), node.integer(size, "the size")
    return items.with_items([*items.items, *[None] * count][:count])


@op("TensorListGather", folds=False)
def gather_items(node: Node, handle: Value, indices: Value, element_shape: Value) -> Value:
    """The items at positions, along a new first axis."""
    if isinstance(handle, StackedList):
        positions = indices if isinstance(indices, Tensor) else node.tensor(indices, INT32)
        return gather(handle.whole(node), positions, 0)
    items, shape = list_of(node, handle), _shape(element_shape)
    if isinstance(indices, Tensor):
        return gather(node.tensor(stacked(node, items, shape)), indices, 0)
    chosen = [items.item(node, i, shape) for i in node.integers(indices, "the indices")]
    return stacked(node, items.with_items(chosen), shape)


@op("TensorListScatterV2", "TensorListScatter", folds=False)
def scatter_items(node: Node, value: Value, indices: Value, _element_shape: Value, *count: Value) -> TensorList:
    """A list with the slices of a tensor at positions."""
    places = node.integers(indices, "the indices")
    least = max(places, default=-1) + 1
    total = max(least, node.integer(count[0], "the number of elements") if count else 0)
    items: list[Value] = [None] * total
    for place, item in zip(places, slices_of(value), strict=True):
        items[place] = item
    return TensorList(tuple(items), node.attr("element_dtype"), tuple(value.shape[1:]))


@op("TensorListConcatV2", "TensorListConcat", folds=False)
def concat_items(node: Node, handle: Value, *_options: Value) -> list[Value]:
    """The items behind each other, and their lengths."""
    items = list_of(node, handle)
    values = [items.item(node, i) for i in range(len(items.items))]
    lengths = np.array([v.shape[0] for v in values], np.int64)
    return [joined(node.tensors(values), 0), lengths]


@op("TensorListSplit", folds=False)
def split_items(node: Node, tensor: Tensor, _element_shape: Value, lengths: Value) -> TensorList:
    """Parts of a tensor of given lengths."""
    sizes = node.integers(lengths, "the lengths")
    parts: Sequence[Tensor] = shapes.split(tensor, sizes, 0) if len(sizes) > 1 else [tensor]
    return TensorList(tuple(parts), node.attr("element_dtype"))


@op("AddN", folds=False)
def add_n(node: Node, *values: Value) -> Value:
    """The sum of tensors, or of lists item by item."""
    total = values[0]
    for value in values[1:]:
        lists = isinstance(total, (TensorList, StackedList, OneItem))
        total = _added_lists(node, total, value) if lists else _added(node, total, value)
    return total


def _added(node: Node, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return np.asarray(left + right)
    return arithmetic.add(node.tensor(left), node.tensor(right))


def _added_lists(node: Node, left: Value, right: Value) -> Value:
    if isinstance(left, TensorList) and isinstance(right, TensorList):
        if len(left.items) != len(right.items):
            return left if len(left.items) > len(right.items) else right
        return left.with_items([_added(node, a, b) for a, b in zip(left.items, right.items)])
    if isinstance(left, OneItem) or _unwritten(left):
        left, right = right, left
    if _unwritten(right):
        return left
    total = stacked_list(node, left)
    if isinstance(right, OneItem):
        return added(node, total, right)
    sum_ = arithmetic.add(total.whole(node), stacked_list(node, right).whole(node))
    return replace(total, tensor=sum_, storage=None)


def _unwritten(value: Value) -> bool:
    return isinstance(value, TensorList) and all(item is None for item in value.items)


@op("ZerosLike", folds=False)
def zeros_like(node: Node, value: Value) -> Value:
    """Zeros of the operand's shape; for a list one whose items have not been written."""
    if isinstance(value, (StackedList, OneItem)):
        return TensorList((None,) * value.length, value.dtype, value.shape)
    if isinstance(value, TensorList):
        return value.with_items([None] * len(value.items))
    if isinstance(value, (np.ndarray, Tensor)):
        return np.zeros(value.shape, node.op.outputs[0].dtype.as_numpy_dtype)
    return np.zeros(node.shape(), node.op.outputs[0].dtype.as_numpy_dtype)
