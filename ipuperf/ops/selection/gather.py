"""Gather (embedding lookup), its gradient and one-hot encoding.

Upstream: PopART ``willow/src/op`` (``gather.cpp``, ``onehot.cpp``); popops ``multiSlice`` and ``multiUpdateAdd``. The
device does not check indices. Here an index outside of the axis raises :class:`~ipuperf.ops.DynamicIndexError`
unless ``zero_out_of_range`` (PopART's ``zeroOutOfRangeIndices``) is set. Sums are made in a fixed order, that of the
updates, and in float32. The device accumulates fp16 in fp16.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.ir import DType, DTypeError, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, NUMBER, Attribute, optional

from .. import shape, vertices
from ..axes import axis_of, wrapped
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, align, contiguous, result_buffer, sequence
from ..reductions import axes_reduced as reduce
from ..work import DEFAULT_SHARE, Lookup, TableUpdate, Vertices, Work
from .dynamic import DynamicIndexError

if TYPE_CHECKING:
    from ipuperf.machine import Chip

INDEX_TYPES = ("int32", "uint32", "int64")

#: Elements of one piece of a sum over rows: its positions (8 bytes each) stay in the level-2 cache.
PIECE = 1 << 15

# -- cost --------------------------------------------------------------------------------------------------------------

#: Elements per vector and cycles per vector of a MultiSlice copy by element size (PerformanceEstimation.cpp:39-205).
MULTI_SLICE_VECTORS = {1: (4, 3), 2: (2, 2), 4: (2, 2)}


def multi_slice(dtype: DType, indices: int, width: int) -> Vertices:
    """popops MultiSlice (PerformanceEstimation.cpp:39-205): ``W * (30 + k * (19 + ceil(e / w) * c) + o * 8)``.

    A tile with n elements of the result has e = ceil(n / indices) elements of each slice (the width of a slice is split
    before the indices, as popops plans it for few indices), so n / e indices, k of them for each worker; each worker
    passes over the o other ones.
    """

    def cycles(elements: np.ndarray, chip: Chip) -> np.ndarray:
        tile_elements = np.asarray(elements, dtype=np.int64)
        slice_elements = np.maximum(vertices.ceil_div(tile_elements, max(indices, 1)), 1)
        # A tile holds parts of this many slices.
        offsets = vertices.ceil_div(tile_elements, slice_elements)
        worker_slices = vertices.ceil_div(offsets, chip.workers)
        total = multi_slice_cycles(slice_elements, worker_slices, offsets - worker_slices, dtype.size, chip.workers)
        return np.where(tile_elements > 0, total, 0).astype(np.int64)

    return Vertices(f"popops::MultiSlice<{vertices.poplar_type(dtype)}>", indices * width, cycles)


def multi_update_add(dtype: DType, indices: int, rows: int, width: int, operation: str = "ADD") -> Vertices:
    """popops ScaledMultiUpdateOp (of ADD, MAX ...) (PerformanceEstimation.cpp:39-205) on a table of ``rows`` slices.

    ``W * (3 + 35 | 34 + k * (11 | 13 + 3 * (e / a - 1)) + o * 5)`` for 4-byte and 2-byte elements, a = 1 and 2 elements
    per write; odd slices of 2-byte elements take 20 more for each element instead of the loop. A tile with n elements
    of the table has e = ceil(n / rows) elements of each slice; the indices are assumed to hit all rows alike, and k of
    those that hit the tile's rows fall to each worker.
    """

    def cycles(elements: np.ndarray, chip: Chip) -> np.ndarray:
        tile_elements = np.asarray(elements, dtype=np.int64)
        slice_elements = np.maximum(vertices.ceil_div(tile_elements, max(rows, 1)), 1)
        hits = vertices.ceil_div(
            indices * np.minimum(vertices.ceil_div(tile_elements, slice_elements), rows), max(rows, 1)
        )
        worker_slices = vertices.ceil_div(hits, chip.workers)
        total = multi_update_cycles(slice_elements, worker_slices, indices - worker_slices, dtype.size, chip.workers)
        return np.where(tile_elements > 0, total, 0).astype(np.int64)

    name = f"popops::ScaledMultiUpdateOp<{vertices.poplar_type(dtype)},{operation}>"
    return Vertices(name, rows * width, cycles, 2 * indices * width)


def multi_slice_cycles(
    slice_elements: vertices.Counts, copied: vertices.Counts, passed: vertices.Counts, size: int, workers: int
) -> vertices.Counts:
    """Tile cycles of a MultiSlice vertex (PerformanceEstimation.cpp:39-205). Its slowest worker copies ``copied``
    slices of ``slice_elements`` elements of ``size`` bytes, and passes over ``passed`` indices that lie on other
    tiles."""
    vector, cost = MULTI_SLICE_VECTORS[min(size, 4)]
    cycles: vertices.Counts = workers * (
        30 + copied * (19 + vertices.ceil_div(slice_elements, vector) * cost) + passed * 8
    )
    return cycles


def multi_update_cycles(
    slice_elements: vertices.Counts, added: vertices.Counts, passed: vertices.Counts, size: int, workers: int
) -> vertices.Counts:
    """Tile cycles of a ScaledMultiUpdateOp vertex (PerformanceEstimation.cpp:39-205). Its slowest worker adds
    ``added`` slices of ``slice_elements`` elements of ``size`` bytes, and passes over ``passed`` indices of
    other rows."""
    fixed, per_index, atom = (38, 11, 1) if size >= 4 else (37, 13, 2)
    loop = np.where(slice_elements % atom == 0, 3 * (slice_elements // atom - 1), 20 * slice_elements)
    cycles: vertices.Counts = workers * (fixed + added * (per_index + loop) + passed * 5)
    return cycles


# -- indices -----------------------------------------------------------------------------------------------------------


def plan_share(op: Op, share: float | None) -> float | None:
    """Check that ``share`` of a tile's memory is above 0 and at most 1; return it."""
    op.require(share is None or 0 < share <= 1, f"available_memory_proportion={share}; allowed: above 0, up to 1")
    return share


class Indexed(Op, abstract=True):
    """Base of ops that find slices along ``axis`` by indices. ``available_memory_proportion`` is the share of a
    tile's memory that temporary data of the plan may take, above 0 and at most 1 (default 0.6)."""

    axis = Attribute(INTEGER, 0, settle=axis_of)
    available_memory_proportion = Attribute(optional(NUMBER), None, settle=plan_share)

    @property
    def memory(self) -> float:
        """The share of memory that the plan may use."""
        stated = self.available_memory_proportion
        return DEFAULT_SHARE if stated is None else stated


class GroupIndexed(Indexed, abstract=True):
    """Base of ops with groups (``group_size``, default 1), each of which has indices of its own. With more than one
    group, the first axis of data and indices goes over the groups."""

    group_size = Attribute(INTEGER, 1)

    @property
    def grouped(self) -> int:
        """How many axes go over groups: 1 or 0."""
        return int(self.group_size > 1)


def check_indices(op: Op, tensor: Tensor) -> None:
    """Raise ``DTypeError`` unless ``tensor``, an operand of ``op``, has a type that indices may have."""
    if tensor.dtype.name not in INDEX_TYPES:
        raise DTypeError(
            f"{op.where()}: indices {tensor.id!r} are {tensor.dtype.name}; allowed are {', '.join(INDEX_TYPES)}"
        )


def _padding(op: Op, padding: int | None, size: int) -> int | None:
    """The position ``padding`` on an axis of ``size``, counted from its begin."""
    if padding is None:
        return None
    op.require(-size <= padding < size, f"padding_idx {padding} is out of range; allowed: {-size} to {size - 1}")
    return padding % size


def raw_contiguous(array: np.ndarray, env: Environment, slot: int) -> tuple[np.ndarray, list[Step]]:
    """``array`` in C order and its own type: itself, or a temporary and the step that fills it."""
    if array.flags.c_contiguous:
        return array, []
    copy = env.scratch(array.shape, array.dtype, slot=slot)
    return copy, [partial(np.copyto, copy, array)]


def bind_indices(
    op: Indexed, indices: np.ndarray, size: int, env: Environment, slot: int, *, check: bool,
    negative: np.ndarray | None = None,
) -> tuple[np.ndarray, list[Step]]:  # fmt: skip
    """Indices as int64 in C order, and the steps that fetch them. With ``check`` the steps also raise for an index
    out of range. If ``negative`` is an array, negative indices are marked in it and become 0."""
    rows = env.scratch(indices.shape, np.int64, slot=slot)
    steps: list[Step] = [partial(np.copyto, rows, indices, casting="same_kind")]
    if negative is not None:
        steps += [partial(np.less, rows, 0, out=negative), partial(np.maximum, rows, 0, out=rows)]
    if check and rows.size:
        steps.append(partial(_check_range, op, rows, rows.reshape(-1).view(np.uint64), size))
    return rows, steps


def _check_range(op: Indexed, rows: np.ndarray, unsigned: np.ndarray, size: int) -> None:
    """Raise unless all indices are in range (negative ones look huge when unsigned)."""
    # One comparison finds both negative and large indices, which keeps the check cheap.
    if unsigned.max() >= size:
        bad = int(rows[(rows < 0) | (rows >= size)][0])
        raise DynamicIndexError(
            f"{op.where()}: index {bad} is out of range on axis {op.axis}; allowed: 0 to {size - 1}"
        )


# -- gather ------------------------------------------------------------------------------------------------------------


def group_count(op: Indexed, count: int) -> int:
    """Check that the operands fit ``count`` groups: with more than one, the first axis of both goes over them."""
    op.require(count >= 1, f"group_size {count}; at least 1 is needed")
    if count > 1:
        data, indices = op.inputs[:2]
        lengths = (data.shape[:1], indices.shape[:1])
        op.require(
            lengths == ((count,), (count,)),
            f"group_size {count}: the first axis of data {data.shape} and of indices {indices.shape} has to be {count}",
        )
        op.require(op.axis > 0, f"axis 0 goes over the {count} groups; another one is needed")
    return count


class Gather(GroupIndexed):
    """Slices of ``data`` along ``axis`` (attribute, default 0) at ``indices``; an embedding lookup for axis 0.

    The indices' axes take the place of ``axis`` in the result. Attributes: ``zero_out_of_range`` (indices out of range
    give zeros instead of an error), ``padding_idx`` (a position that receives no gradient, as in
    ``torch.nn.functional.embedding``), ``group_size`` (with more than one group, the first axis of data and indices
    goes over groups, each of which has indices of its own).
    """

    padding_idx = Attribute(
        optional(INTEGER), None, settle=lambda op, index: _padding(op, index, op.inputs[0].shape[op.axis])
    )
    zero_out_of_range = Attribute(FLAG, False)
    group_size = Attribute(INTEGER, 1, settle=group_count)

    def infer(self) -> list[TensorSpec]:
        """The data's shape with the indices' shape (without the groups) in the place of the axis."""
        self.require(len(self.inputs) == 2, f"needs data and indices, got {len(self.inputs)} operands")
        data, indices = self.inputs
        check_indices(self, indices)
        axis = self.axis
        index_shape = indices.shape[self.grouped :]
        return [TensorSpec(data.shape[:axis] + index_shape + data.shape[axis + 1 :], data.dtype)]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """For one group: the elements before the axis, on it and after it, and the number of indices."""
        data, axis = self.inputs[0].shape, self.axis
        # The index axes count as one.
        indices = math.prod(self.inputs[1].shape[self.grouped :])
        return math.prod(data[self.grouped : axis]), data[axis], math.prod(data[axis + 1 :]), indices

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One ``take`` per replica and group."""
        outer_elements, size, inner_elements, count = self.sizes
        zeroing, out = self.zero_out_of_range, outputs[0]
        data, steps = raw_contiguous(inputs[0], env, slot=0)
        rows, fetch = bind_indices(self, inputs[1], size, env, 1, check=not zeroing)
        steps += fetch
        # The result is written through a reshaped view.
        target = out if out.flags.c_contiguous else env.scratch(out.shape, out.dtype, slot=2)
        replicas = len(out) * self.group_size
        source, result = (
            data.reshape(replicas, outer_elements, size, inner_elements),
            target.reshape(replicas, outer_elements, count, inner_elements),
        )
        flat = rows.reshape(replicas, count)
        # An empty axis has nothing to take.
        if size:
            # `clip` makes indices out of range harmless: they were checked before, or their slices are zeroed below.
            steps += [partial(source[r].take, flat[r], 1, result[r], "clip") for r in range(replicas)]
        if zeroing:
            # As unsigned numbers negative indices are large.
            outside = env.scratch(flat.shape, np.bool_, slot=3)
            steps += [
                partial(np.greater_equal, flat.view(np.uint64), np.uint64(size), outside),
                partial(np.copyto, result, 0, where=outside[:, None, :, None]),
            ]
        if target is not out:
            steps.append(partial(np.copyto, out, target))
        return sequence(*steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Add up the gradient's slices at the indices."""
        inputs = [grad, builder.forward(self.inputs[1])]
        return [builder.op(GatherGrad, inputs, size=self.sizes[1], **self.attributes), None]

    def work(self) -> list[Work]:
        """A planned lookup. With ``zero_out_of_range`` the result is also multiplied by a mask (PopART
        popx/op/gatherx.cpp)."""
        out, index = self.outputs[0].spec, self.inputs[1].spec
        if not out.elements:
            return []
        outer_elements, size, inner_elements, count = self.sizes
        works: list[Work] = [
            Lookup(size, outer_elements * inner_elements, count, out.dtype, self.group_size, self.memory)
        ]
        return [*works, *_mask_work(index, out)] if self.zero_out_of_range else works


class TiedGather(Gather):
    """A Gather that leaves the layout of its data to the product that shares them (PopART
    ``willow/src/op/tiedgather.cpp``). Values and cost are those of :class:`Gather`, which arranges no data
    either."""

    type = "PopartTiedGather"


def _mask_work(index: TensorSpec, masked: TensorSpec) -> list[Work]:
    """Compare the indices with the size, select those in range, cast, and multiply the slices."""
    row = masked.elements // max(index.elements, 1)
    return [
        vertices.broadcast_scalar("GREATER_THAN", index.dtype, index.elements),
        vertices.select(index.dtype, index.elements),
        vertices.cast(index.dtype, masked.dtype, index.elements),
        vertices.broadcast_outer("MULTIPLY", masked.dtype, masked.elements, max(row, 1), in_place=True),
    ]


class GatherGrad(GroupIndexed):
    """``(gradient, indices) -> zeros with the gradient's slices added at the indices`` along ``axis``.

    Attributes: ``axis``, ``size`` (length of the result's axis), ``padding_idx`` (a position that stays 0),
    ``zero_out_of_range`` (slices at other indices are dropped instead of an error), ``group_size`` as in
    :class:`Gather`.
    """

    axis = Attribute(INTEGER, 0, settle=lambda op, axis: wrapped(op, axis, op.rank))
    size = Attribute(INTEGER)
    padding_idx = Attribute(optional(INTEGER), None, settle=lambda op, index: _padding(op, index, op.size))
    zero_out_of_range = Attribute(FLAG, False)

    @property
    def own_index_shape(self) -> tuple[int, ...]:
        """The indices' shape without the groups."""
        return self.inputs[1].shape[self.grouped :]

    @property
    def rank(self) -> int:
        """Axes of the gathered tensor."""
        grad, indices = self.inputs
        rank = len(grad.shape) - len(self.own_index_shape) + 1
        self.require(rank >= 1, f"gradient {grad.shape} has fewer axes than the indices {indices.shape}")
        return rank

    def infer(self) -> list[TensorSpec]:
        """The gathered tensor's shape."""
        grad, indices = self.inputs
        self.floating(grad)
        check_indices(self, indices)
        axis, index_shape = self.axis, self.own_index_shape
        gathered = grad.shape[axis : axis + len(index_shape)]
        self.require(
            gathered == index_shape,
            f"gradient {grad.shape} has {gathered} from axis {axis} on; the indices' shape {index_shape} is needed",
        )
        return [TensorSpec((*grad.shape[:axis], self.size, *grad.shape[axis + len(index_shape) :]), grad.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Clear, then add the slices in order; fp16 is added in float32."""
        axis, size, count = self.axis, self.size, math.prod(self.own_index_shape)
        zeroing, replicas = self.zero_out_of_range, len(inputs[0]) * self.group_size
        grad, steps = contiguous(inputs[0], env, slot=0)
        rows, fetch = bind_indices(self, inputs[1], size, env, 1, check=not zeroing)
        out, store_steps = result_buffer(outputs[0], env, slot=2)
        shape_ = self.outputs[0].shape
        outer_elements, width = math.prod(shape_[self.grouped : axis]), math.prod(shape_[axis + 1 :])
        result = out.reshape(replicas, outer_elements, size, width)
        table, flat = result, rows.reshape(replicas, count)
        steps += fetch
        if zeroing:  # a further row receives the slices that are dropped
            table = env.scratch((replicas, outer_elements, size + 1, width), out.dtype, slot=3)
            # As unsigned numbers negative indices are
            # large, so they go to the further row as well.
            unsigned = flat.view(np.uint64)
            steps.append(partial(np.minimum, unsigned, np.uint64(size), out=unsigned))
        steps += [
            partial(table.fill, 0),
            *_add_rows(table, grad.reshape(replicas, outer_elements, count, width), flat, env),
        ]
        if zeroing:
            steps.append(partial(np.copyto, result, table[:, :, :size]))
        if self.padding_idx is not None:
            steps.append(partial(result[:, :, self.padding_idx].fill, 0))
        return sequence(*steps, *store_steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """A gather (without the padding's slices, which gave nothing)."""
        # The padding's slice received no gradient, which a plain gather would not show.
        if self.padding_idx is not None:
            return super().gradient_from(builder, grad)
        inputs = [grad, builder.forward(self.inputs[1])]
        named: dict[str, Any] = {name: value for name, value in self.attributes.items() if name in Gather.declared}
        return [builder.op(Gather, inputs, **named), None]

    def work(self) -> list[Work]:
        """Zeros, then a planned update by addition (PopART popx/op/gatherx.cpp)."""
        grad, index = (t.spec for t in self.inputs)
        out, groups = self.outputs[0].spec, self.group_size
        if not out.elements:
            return []
        if not grad.elements:
            return [vertices.fill(out.dtype, out.elements)]
        works: list[Work] = _mask_work(index, grad) if self.zero_out_of_range else []
        width = out.elements // (self.size * groups)
        count = index.elements // groups
        works.append(TableUpdate(self.size, width, count, out.dtype, groups, self.memory, cleared=True))
        if self.padding_idx is not None:
            # One slice, that of the padding, is cleared again.
            works.append(vertices.fill(out.dtype, out.elements // self.size))
        return works


def _add_rows(table: np.ndarray, updates: np.ndarray, rows: np.ndarray, env: Environment) -> list[Step]:
    """Steps for ``table[r, a, rows[r, k]] += updates[r, a, k]`` in order of k.

    ``table (R, A, D, B)`` and ``updates (R, A, K, B)`` are contiguous and of one type. Both are treated as vectors of
    rows of B elements. The rows are added in pieces, through positions in the flat table: NumPy's quick path for
    ``ufunc.at``.
    """
    replicas, outer_elements, size, width = table.shape
    count = rows.shape[1]
    if not updates.size:
        return []
    starts = env.scratch((replicas, outer_elements, count), np.int64, slot=4)
    base = (np.arange(replicas * outer_elements, dtype=np.int64) * size).reshape(replicas, outer_elements, 1)
    steps: list[Step] = [
        partial(np.add, rows[:, None, :], base, starts),
        partial(np.multiply, starts, np.int64(width), starts),
    ]
    target, lines, column_of_starts = table.reshape(-1), updates.reshape(-1, width), starts.reshape(-1, 1)
    # Whole rows only, so that a row is never split over two pieces.
    step = max(1, PIECE // width)
    positions = env.scratch((min(step, len(lines)), width), np.int64, slot=5)
    columns = np.arange(width, dtype=np.int64)
    for at in range(0, len(lines), step):
        piece = positions[: min(step, len(lines) - at)]
        steps += [
            partial(np.add, column_of_starts[at : at + step], columns, piece),
            partial(np.add.at, target, piece.reshape(-1), lines[at : at + step].reshape(-1)),
        ]
    return steps


# -- one-hot -----------------------------------------------------------------------------------------------------------


class OneHot(Op):
    """``values[1]`` where the position on the new axis is the index, ``values[0]`` elsewhere.

    Inputs ``indices``, ``values [2]`` (off, on); attributes ``depth`` (length of the new axis), ``axis`` (its place in
    the result, default last). As on the device, an index out of range gives a line of ``values[0]``.
    """

    depth = Attribute(INTEGER)
    axis = Attribute(INTEGER, -1, settle=lambda op, axis: wrapped(op, axis, len(op.inputs[0].shape) + 1))

    def infer(self) -> list[TensorSpec]:
        """The indices' shape with the new axis, the values' type."""
        indices, values = self.inputs
        check_indices(self, indices)
        self.require(values.shape == (2,), f"values have shape {values.shape}; (2,) is needed: off, on")
        axis, depth = self.axis, self.depth
        self.require(depth >= 1, f"depth {depth}; at least 1 is needed")
        return [TensorSpec((*indices.shape[:axis], depth, *indices.shape[axis:]), values.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compare with the positions, write off, then on."""
        (indices, values), out = inputs, outputs[0]
        axis, depth = self.axis + 1, self.depth
        # In the indices' own type, so that the comparison converts nothing.
        line = np.arange(depth, dtype=indices.dtype).reshape(-1, *([1] * (out.ndim - axis - 1)))
        mask = env.scratch(out.shape, np.bool_, slot=0)
        off, on = (align(values[:, i], out.ndim) for i in range(2))
        return sequence(
            partial(np.equal, np.expand_dims(indices, axis), line, mask),
            partial(np.copyto, out, off),
            partial(np.copyto, out, on, where=mask),
        )

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """For the values: the sum of the gradient where the position is not the index, and where it is."""
        index = builder.forward(self.inputs[0])
        sums = []
        # First the sum where the index is elsewhere (off), then where it is here (on).
        for chosen in ((1, 0), (0, 1)):
            values = builder.constant(np.array(chosen), grad.dtype, "values")
            mask = builder.op(OneHot, [index, values], depth=self.depth, axis=self.axis)
            total = builder.op(reduce.ReduceSum, [grad * mask], axes=None, keepdims=False)
            sums.append(builder.op(shape.Reshape, [total], shape=(1,)))
        return [None, builder.op(shape.Concat, sums, axis=0)]

    def work(self) -> list[Work]:
        """One EncodeOneHot compute set."""
        index, out = self.inputs[0].spec, self.outputs[0].spec
        return [vertices.one_hot(out.dtype, index.elements, self.depth)] if out.elements else []
