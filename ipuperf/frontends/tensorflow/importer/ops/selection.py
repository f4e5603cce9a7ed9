"""Choosing elements by conditions and positions: selects, gathers, scatters, segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ipuperf.functions import arithmetic, constant, make, selection
from ipuperf.functions.arranging import broadcast, cut, joined, moved, permuted, reshaped, running_sum
from ipuperf.ir import BOOL, INT32, Tensor
from ipuperf.ops import ScatterReduce

from ..node import Node
from ..table import Family
from ..values import Value

FAMILY = Family("Selection and scattering")
op = FAMILY.op


# -- conditions --------------------------------------------------------------------------------------------------------


@op("Select")
def select(_node: Node, chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """One of two tensors, element by element or, for a vector of conditions, row by row."""
    if len(chosen.shape) == 1 and len(x.shape) > 1:
        chosen = reshaped(chosen, (-1, *[1] * (len(x.shape) - 1)))
    return arithmetic.where(chosen, x, y)


FAMILY.formula("SelectV2", "One of two tensors, element by element.", arithmetic.where)


@op("ClipByValue")
def clip(node: Node, value: Tensor, low: Value, high: Value) -> Tensor:
    """Limited to an interval."""
    return arithmetic.maximum(arithmetic.minimum(value, node.tensor(high)), node.tensor(low))


@op("OneHot")
def one_hot(node: Node, positions: Tensor, depth: Value, high: Tensor, low: Tensor) -> Tensor:
    """A number at the position of each index on a new axis, another one elsewhere."""
    classes = node.integer(depth, "the depth")
    axis = node.attr("axis") % (len(positions.shape) + 1)
    if high.dtype == BOOL:
        hot = selection.onehot(positions, classes, constant([0, 1], INT32), axis)
        return arithmetic.where(arithmetic.equal(hot, 1), high, low)
    values = joined([reshaped(low, (1,)), reshaped(high, (1,))], 0)
    return selection.onehot(positions, classes, values, axis)


# -- gathers -----------------------------------------------------------------------------------------------------------


def gathered(table: Tensor, positions: Tensor, axis: int, batch: int) -> Tensor:
    """Slices of a table along ``axis`` at positions whose first ``batch`` axes go with the table's."""
    if not batch:
        return selection.gather(table, positions, axis)
    table = moved(table, [axis], [batch])
    lead, size, rest = table.shape[:batch], table.shape[batch], table.shape[batch + 1 :]
    offsets = np.arange(math.prod(lead)).reshape(*lead, *[1] * (len(positions.shape) - batch)) * size
    flat = selection.gather(reshaped(table, (-1, *rest)), positions + constant(offsets, INT32), 0)
    inner = positions.shape[batch:]
    order = [*range(batch), *range(batch + len(inner), axis + len(inner))]
    order += [*range(batch, batch + len(inner)), *range(axis + len(inner), len(flat.shape))]
    return permuted(flat, order)


@op("Gather", "GatherV2")
def gather(node: Node, data: Tensor, positions: Tensor, *axis: Value) -> Tensor:
    """Slices at positions."""
    along = node.integer(axis[0], "the axis") % len(data.shape) if axis else 0
    batch = node.attr("batch_dims") if axis else 0
    return gathered(data, positions, along, batch + len(positions.shape) if batch < 0 else batch)


@op("ResourceGather")
def resource_gather(node: Node, handle: Value, indices: Value) -> Tensor:
    """Slices of a variable at positions."""
    table, positions = node.place.read(node.resource(handle)), node.tensor(indices)
    return gathered(table, positions, node.attr("batch_dims"), node.attr("batch_dims"))


def linear(positions: Tensor, shape: Sequence[int]) -> Tensor:
    """Places in a flattened array whose first axes have the lengths ``shape``, from rows of positions."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    parts = positions * constant(np.array(strides), INT32) if set(strides) != {1} else positions
    index_rows = reshaped(parts, (-1, len(shape)))
    if len(shape) == 1:
        return reshaped(index_rows, (-1,))
    columns = [reshaped(cut(index_rows, 1, i, i + 1), (-1,)) for i in range(len(shape))]
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    return total


@op("GatherNd")
def gather_nd(node: Node, data: Tensor, positions: Tensor) -> Tensor:
    """Elements or slices at rows of positions."""
    depth = positions.shape[-1]
    flat = reshaped(data, (math.prod(data.shape[:depth]), *data.shape[depth:]))
    return reshaped(selection.gather(flat, linear(positions, data.shape[:depth]), 0), node.shape())


@op("ResourceGatherNd")
def resource_gather_nd(node: Node, handle: Value, indices: Value) -> Tensor:
    """Elements or slices of a variable at rows of positions."""
    return gather_nd(node, node.place.read(node.resource(handle)), node.tensor(indices))


@op("ReverseSequence")
def reverse_sequence(node: Node, tensor: Tensor, lengths: Value) -> Tensor:
    """The first elements of each sequence, as many as its length says, in reverse order."""
    rank = len(tensor.shape)
    batch, along = node.attr("batch_dim") % rank, node.attr("seq_dim") % rank
    rows = moved(tensor, [batch, along], [0, 1])
    counts = reshaped(node.tensor(lengths, INT32), (-1, 1))
    steps = constant(np.arange(tensor.shape[along]), INT32)
    places = arithmetic.where(arithmetic.less(steps, counts), counts - 1 - steps, steps)
    return moved(gathered(rows, places, 1, 1), [0, 1], [batch, along])


# -- scatters ----------------------------------------------------------------------------------------------------------

#: By TensorFlow's name of a combination: that of the function library.
COMBINATIONS = {"Add": "sum", "Sub": "sum", "Mul": "mul", "Min": "min", "Max": "max", "Update": "none"}


def scattered(table: Tensor, places: Tensor, updates: Tensor, how: str) -> Tensor:
    """A table ``(rows, *rest)`` with updates ``(n, *rest)`` combined at places ``(n,)``."""
    if how == "Sub":
        updates = -updates
    if how in ("Max", "Min"):
        return selection.scatter_extreme(updates, places, COMBINATIONS[how], table)
    return selection.scatter_reduce(updates, places, COMBINATIONS[how], table, 0)


def summed(updates: Tensor, places: Tensor, rows: int) -> Tensor:
    """Updates ``(n, *rest)`` added up at places ``(n,)`` of a new table."""
    return selection.scatter_reduce(updates, places, "sum", None, 0, rows)


@op("ScatterNd")
def scatter_nd(node: Node, positions: Tensor, new: Tensor, shape: Value) -> Tensor:
    """A new tensor with the sums of updates at rows of positions."""
    dims = node.integers(shape, "the shape")
    depth = positions.shape[-1]
    flat = reshaped(new, (-1, *dims[depth:]))
    sums = summed(flat, linear(positions, dims[:depth]), math.prod(dims[:depth]))
    return reshaped(sums, dims)


@op(*(f"TensorScatter{how}" for how in COMBINATIONS))
def tensor_scatter(node: Node, table: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A tensor with updates combined at rows of positions."""
    how = node.op.type.removeprefix("TensorScatter")
    return scattered_nd(table, indices, updates, how)


def scattered_nd(data: Tensor, positions: Tensor, new: Tensor, how: str) -> Tensor:
    """A tensor with updates combined at rows of positions."""
    depth = positions.shape[-1]
    rest = data.shape[depth:]
    flat, places = reshaped(data, (math.prod(data.shape[:depth]), *rest)), linear(positions, data.shape[:depth])
    return reshaped(scattered(flat, places, reshaped(new, (-1, *rest)), how), data.shape)


# -- segments ----------------------------------------------------------------------------------------------------------


@op("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
def unsorted_segment(node: Node, data: Tensor, numbers: Value, count: Value) -> Tensor:
    """Rows combined by the numbers of their segments; those of negative ones are left out."""
    rows = node.integer(count, "the number of segments")
    flat = reshaped(data, (math.prod(numbers.shape), *data.shape[len(numbers.shape) :]))
    places = reshaped(node.tensor(numbers), (-1,))
    return _segments(node.op.type.removeprefix("UnsortedSegment"), flat, places, rows)


def _segments(how: str, flat: Tensor, places: Tensor, rows: int) -> Tensor:
    named: dict[str, Any] = {"axis": 0, "axis_size": rows, "skip_negative": True}
    if how in ("Sum", "Prod"):
        return make(ScatterReduce, flat, places, reduction="sum" if how == "Sum" else "mul", **named)
    limits = (np.finfo if flat.dtype.is_floating_point else np.iinfo)(flat.dtype.numpy)
    start = limits.min if how == "Max" else limits.max
    table = broadcast(constant(np.array(start), flat.dtype), (rows, *flat.shape[1:]))
    return make(ScatterReduce, flat, places, table, reduction=how.lower(), share_ties=True, **named)


@op("SegmentSum", "SegmentMax", "SegmentMin", "SegmentProd", "SegmentMean")
def segment(node: Node, data: Tensor, ids: Value) -> Tensor:
    """As the unsorted ones; the numbers have to be known, because the last one is the number of segments."""
    numbers = node.static(ids, "the segment ids, which say how many segments there are,").reshape(-1)
    rows = int(numbers[-1]) + 1 if numbers.size else 0
    how = node.op.type.removeprefix("Segment")
    places = constant(numbers, INT32)
    if how == "Mean":
        counts = np.maximum(np.bincount(numbers, minlength=rows), 1).reshape(-1, *[1] * (len(data.shape) - 1))
        return summed(data, places, rows) * constant(1 / counts, data.dtype)
    sums = _segments(how, data, places, rows)
    if how in ("Max", "Min"):
        present = np.isin(np.arange(rows), numbers).reshape(-1, *[1] * (len(data.shape) - 1))
        sums = arithmetic.where(constant(present, BOOL), sums, 0)
    return sums


#: Uses of the numbers of a ``Unique`` op that see that some are repeated, and can do with it.
_KNOW_REPETITION = (
    "Shape", "Identity", "Cast", "Gather", "ResourceGather", "ResourceScatter", "ResourceSparseApply",
    "UnsortedSegmentSum",
)  # fmt: skip


@op("Unique", "UniqueV2", folds=False)
def unique(node: Node, value: Value, *axis: Value) -> list[Value]:
    """The different numbers of a vector in order, for the sums of rows with equal numbers (gradients of lookups): as
    many as the vector has, the first one repeated at the end (:attr:`Importer.first`). Other uses are refused. Known
    numbers come as they appear.
    """
    if axis and node.integers(axis[0], "the axis") not in ((), (0,)):
        raise node.error("different rows of a tensor; allowed: numbers of a vector")
    if isinstance(value, np.ndarray):
        _, first, inverse = np.unique(value, return_index=True, return_inverse=True)
        order = np.argsort(first)
        ranks = np.argsort(order)[inverse]
        return [value[first[order]], ranks.astype(node.op.outputs[1].dtype.as_numpy_dtype)]
    numbers, places = ({user.type for user in t.consumers()} for t in node.op.outputs)
    if places != {"UnsortedSegmentSum"} or not all(name.startswith(_KNOW_REPETITION) for name in numbers):
        raise node.error(
            "how many different numbers there are depends on data, and programs of the IPU have fixed shapes; it is "
            "there only for the sums of rows with equal numbers, as the gradients of lookups have them "
            "(tf.convert_to_tensor makes such a gradient dense)"
        )
    return list(_different(node, node.tensor(value)))


def _different(node: Node, numbers: Tensor) -> tuple[Tensor, Tensor]:
    count = numbers.shape[0]
    ordered, order = selection.topk(numbers, count, 0, False, True)
    ranks = _ranks(ordered)
    places = selection.scatter(broadcast(constant(0, INT32), (count,)), order, ranks, 0)
    start = broadcast(cut(ordered, 0, 0, 1), (count,))
    last = cut(ranks, 0, count - 1, count)
    node.importer.first[id(node.op.outputs[0])] = arithmetic.less_equal(constant(np.arange(count), INT32), last)
    return selection.scatter_reduce(ordered, ranks, "none", start, 0), places


def without_repetition(node: Node, index: int, updates: Tensor, how: str) -> Tensor:
    """Updates for rows whose numbers are operand ``index``: where those of a ``Unique`` op are repeated, updates that
    change nothing."""
    numbers = node.op.inputs[index]
    while numbers.op.type in ("Identity", "Cast"):
        numbers = numbers.op.inputs[0]
    first = node.importer.first.get(id(numbers))
    if first is None:
        return updates
    neutral = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}.get(how)
    column = reshaped(first, (-1, *[1] * (len(updates.shape) - 1)))
    return arithmetic.where(column, updates, cut(updates, 0, 0, 1) if neutral is None else neutral)


def _ranks(ordered: Tensor) -> Tensor:
    """How many different numbers stand before each element of an ordered vector."""
    count = ordered.shape[0]
    if count == 1:
        return constant([0], INT32)
    new = arithmetic.not_equal(cut(ordered, 0, 1, count), cut(ordered, 0, 0, count - 1))
    return running_sum(joined([constant([0], INT32), arithmetic.cast(new, INT32)], 0), 0)
