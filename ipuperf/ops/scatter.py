"""Scatter, with and without a reduction, and its gradient.

Upstream: PopART ``willow/src/op/scatterreduce.cpp``; popops ``multiUpdateAdd``. Indices and sums are as in
:mod:`~ipuperf.ops.gather`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import BOOL, DTypeError, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, INTEGERS, Attribute, choice

from . import shape, vertices
from .axes import axis_of
from .base import Environment, Kernel
from .binding import Step, contiguous, given, result_buffer, sequence
from .elementwise import Equal, Where, zero
from .gather import Indexed, bind_indices, check_indices, multi_update_add, raw_contiguous
from .work import Lookup, TableUpdate, Work

#: By reduction: how updates are combined, what stands in the table before the first one, and popops' name of it.
COMBINED: dict[str, tuple[np.ufunc, float, str]] = {
    "sum": (np.add, 0, "ADD"),
    "max": (np.maximum, -np.inf, "MAX"),
    "min": (np.minimum, np.inf, "MIN"),
    "mul": (np.multiply, 1, "MUL"),
}
REDUCTIONS = ("none", *COMBINED)


class ScatterReduce(Indexed):
    """Elements of ``data`` combined into a result whose ``axis`` has ``axis_size`` elements, at ``indices``.

    Inputs ``data``, ``indices`` (the data's shape, or one that broadcasts to it, or 1-D along ``axis``) and optionally
    the ``initial values`` (the result's shape). Attributes ``axis`` (default -1), ``axis_size``, ``reduction``:
    ``sum``, ``max``, ``min``, ``mul``, or ``none`` (written; of several the last counts); ``index_broadcast``: when
    false, indices may be smaller than the data, of which only that part is used (as ``torch.scatter_reduce``).
    Without initial values, elements that no index names are 0 (1 for ``mul``).
    """

    type = "ScatterReduce"

    axis = Attribute(INTEGER, -1, settle=axis_of)
    axis_size = Attribute(INTEGER)
    reduction = Attribute(choice(*REDUCTIONS), "sum")
    index_broadcast = Attribute(FLAG, True)

    def infer(self) -> list[TensorSpec]:
        """The used part of the data, with ``axis_size`` on the axis."""
        self.require(len(self.inputs) in (2, 3), f"needs 2 or 3 operands, got {len(self.inputs)}")
        data, indices = self.inputs[:2]
        check_indices(self, indices)
        if data.dtype == BOOL:
            raise DTypeError(f"{self.where()}: {data.id!r} is bool; a number type is needed")
        axis, size = self.axis, self.axis_size
        allowed = f"its shape, one that broadcasts to it, or ({data.shape[axis]},)"
        if not self.index_broadcast:
            allowed = "a shape that is nowhere longer"
        self.require(
            self.index_shape() is not None, f"indices {indices.shape} do not fit data {data.shape}: {allowed} is needed"
        )
        self.require(size >= 1, f"axis_size {size}; at least 1 is needed")
        used = self.used_shape()
        out = (*used[:axis], size, *used[axis + 1 :])
        if len(self.inputs) == 3:
            self.same_dtype(data, self.inputs[2])
            self.require(self.inputs[2].shape == out, f"initial values {self.inputs[2].shape}; {out} is needed")
        return [TensorSpec(out, data.dtype)]

    def index_shape(self) -> tuple[int, ...] | None:
        """The indices' shape with the data's rank; None when it does not fit."""
        fit = broadcast_index if self.index_broadcast else smaller_index
        return fit(self.inputs[0].shape, self.inputs[1].shape, self.axis)

    def used_shape(self) -> tuple[int, ...]:
        """Shape of the part of the data that is used."""
        return self.inputs[0].shape if self.index_broadcast else self.index_shape() or ()

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Start values, then one update through flat positions; in float32 for fp16."""
        part = (slice(None), *(slice(n) for n in self.used_shape()))
        data, steps = contiguous(inputs[0][part], env, slot=0)
        out, after = result_buffer(outputs[0], env, slot=1)
        positions, fetch = _positions(self, inputs[1], self.index_shape(), data.shape, out.shape, env)
        target, flat, updates = out.reshape(-1), positions.reshape(-1), data.reshape(-1)
        initial = len(inputs) == 3
        start = inputs[2] if initial else _start(self.reduction, out.dtype)
        steps += [*fetch, partial(np.copyto, out, start)]
        if self.reduction == "none":
            steps.append(partial(target.put, flat, updates, "clip"))
        else:
            steps.append(partial(COMBINED[self.reduction][0].at, target, flat, updates))
        if not initial and self.reduction in ("max", "min"):
            steps += _clear_others(target, flat, env)
        return sequence([*steps, *after])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient at the indices, and for the initial values where they count. Of ``max`` and ``min`` all elements
        that equal the result have it, as upstream."""
        if self.used_shape() != self.inputs[0].shape:
            raise IrError(f"{self.where()}: a gradient needs indices of the data's shape, {self.inputs[0].shape}")
        rule = {"sum": self._of_sum, "none": self._of_none, "mul": self._of_product}
        data, start = rule.get(self.reduction, self._of_extremum)(builder, given(grads))
        return [data, None, start] if len(self.inputs) == 3 else [data, None]

    def _found(self, builder: GradientBuilder, table: Tensor) -> Tensor:
        """The elements of ``table`` at the indices."""
        inputs = [table, builder.forward(self.inputs[1])]
        return builder.op(ScatterReduceGrad, inputs, axis=self.axis, shape=self.inputs[0].shape)

    def _of_sum(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor]:
        return self._found(builder, grad), grad

    def _of_none(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor]:
        nothing = builder.op(shape.Init, [], shape=self.inputs[0].shape, dtype=grad.dtype)
        inputs = [nothing, builder.forward(self.inputs[1]), grad]
        return self._found(builder, grad), builder.op(ScatterReduce, inputs, **self.attributes)

    def _of_product(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        whole = grad * builder.forward(self.outputs[0])
        start = whole / builder.forward(self.inputs[2]) if len(self.inputs) == 3 else None
        return self._found(builder, whole) / builder.forward(self.inputs[0]), start

    def _of_extremum(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        out, none = builder.forward(self.outputs[0]), zero(builder, grad.dtype)
        chosen = builder.op(Equal, [builder.forward(self.inputs[0]), self._found(builder, out)])
        data = builder.op(Where, [chosen, self._found(builder, grad), none])
        if len(self.inputs) == 2:
            return data, None
        kept = builder.op(Equal, [builder.forward(self.inputs[2]), out])
        return data, builder.op(Where, [kept, grad, none])

    def work(self) -> list[Work]:
        """Start values, then updates: of whole slices for indices along the axis only, else of single elements; for the
        extremes without initial values a second table of what was updated, and a selection by it
        (PopART popx/op/scatterreducex.cpp)."""
        out, count = self.outputs[0].spec, math.prod(self.used_shape())
        start: list[Work] = [vertices.fill(out.dtype, out.elements)]
        if len(self.inputs) == 3:
            start = shape.copy_work(self.outputs[0])
        if not count or not out.elements:
            return start
        operation = COMBINED.get(self.reduction, COMBINED["sum"])[2]
        sizes = _update_sizes(self.index_shape() or (), out, self.axis, count)
        if self.reduction == "sum":
            given_start = start if len(self.inputs) == 3 else []
            indices, rows, width = sizes
            return [*given_start, TableUpdate(rows, width, indices, out.dtype, cleared=not given_start)]
        works: list[Work] = [*start, multi_update_add(out.dtype, *sizes, operation)]
        if len(self.inputs) == 3 or self.reduction not in ("max", "min"):
            return works
        mask = [vertices.fill(out.dtype, out.elements), multi_update_add(out.dtype, *sizes, "MAX")]
        return [*works, *mask, vertices.select(out.dtype, out.elements)]


def _start(reduction: str, dtype: np.dtype) -> np.ndarray:
    """What stands in a table of ``dtype`` before the first update: the least number for ``max``, and so on."""
    value = COMBINED[reduction][1] if reduction in COMBINED else 0
    if dtype.kind != "f" and np.isinf(value):
        limits = np.iinfo(dtype)
        value = limits.min if value < 0 else limits.max
    return np.asarray(value, dtype)


def _clear_others(table: np.ndarray, positions: np.ndarray, env: Environment) -> list[Step]:
    """Steps that write 0 where no position points to."""
    others = env.scratch(table.shape, np.bool_, slot=4)
    return [
        partial(others.fill, True),
        partial(others.put, positions, False, "clip"),
        partial(np.copyto, table, 0, where=others),
    ]


class Scatter(Indexed):
    """``data`` with ``values`` written along ``axis`` (attribute, default 0) at ``indices`` (ONNX ``ScatterElements``;
    PopART ``willow/src/op/scatter.cpp``).

    Inputs ``data``, ``indices``, ``values``: of one rank, the values not longer than the data on other axes; indices
    have the values' shape, or one that broadcasts to it. Of several values for one element the last counts.
    """

    type = "Scatter"

    def infer(self) -> list[TensorSpec]:
        """The data's spec."""
        self.require(len(self.inputs) == 3, f"needs data, indices and values, got {len(self.inputs)} operands")
        data, indices, values = self.inputs
        check_indices(self, indices)
        self.same_dtype(data, values)
        fits = len(values.shape) == len(data.shape) and all(
            i == self.axis or n <= m for i, (n, m) in enumerate(zip(values.shape, data.shape, strict=True))
        )
        self.require(fits, f"values {values.shape} do not fit into data {data.shape} beside axis {self.axis}")
        self.require(
            self.index_shape() is not None, f"indices {indices.shape} do not broadcast to values {values.shape}"
        )
        return [data.spec]

    def index_shape(self) -> tuple[int, ...] | None:
        """The indices' shape with the values' rank; None when it does not fit."""
        return broadcast_index(self.inputs[2].shape, self.inputs[1].shape, self.axis)

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """A copy, then one update through flat positions."""
        values, steps = raw_contiguous(inputs[2], env, slot=0)
        out = outputs[0]
        target = out if out.flags.c_contiguous else env.scratch(out.shape, out.dtype, slot=1)
        positions, fetch = _positions(self, inputs[1], self.index_shape(), values.shape, out.shape, env)
        steps += [*fetch, partial(np.copyto, target, inputs[0])]
        if values.size:
            steps.append(partial(target.reshape(-1).put, positions.reshape(-1), values.reshape(-1), "clip"))
        if target is not out:
            steps.append(partial(np.copyto, out, target))
        return sequence(steps)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """For the data the gradient with zeros at the indices, for the values the gradient there."""
        grad, index, shape_ = given(grads), builder.forward(self.inputs[1]), self.inputs[2].shape
        nothing = builder.op(shape.Init, [], shape=shape_, dtype=grad.dtype)
        data = builder.op(Scatter, [grad, index, nothing], axis=self.axis)
        return [data, None, builder.op(ScatterReduceGrad, [grad, index], axis=self.axis, shape=shape_)]

    def work(self) -> list[Work]:
        """A copy of the data, then updates (PopART popx/op/scatterx.cpp), of whole slices where indices lie along the
        axis only and values are as wide as the data."""
        values, out = self.inputs[2].spec, self.outputs[0].spec
        start = shape.copy_work(self.outputs[0])
        if not values.elements or not out.elements:
            return start
        whole = values.elements * out.shape[self.axis] == out.elements * values.shape[self.axis]
        index = self.index_shape() or () if whole else values.shape
        return [*start, multi_update_add(out.dtype, *_update_sizes(index, out, self.axis, values.elements))]


def broadcast_index(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> tuple[int, ...] | None:
    """The shape in which indices broadcast to the data (rank as the data, 1 where they repeat); None when they do not
    fit. 1-D indices lie along ``axis``."""
    if len(index) == 1 and len(data) > 1:
        index = (*([1] * axis), index[0], *([1] * (len(data) - axis - 1)))
    fits = len(index) == len(data) and index[axis] == data[axis]
    return index if fits and all(i in (1, d) for i, d in zip(index, data, strict=True)) else None


def smaller_index(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> tuple[int, ...] | None:
    """The indices' shape with axes of length 1 up to the data's rank; None where it is longer than the data. 1-D
    indices lie along ``axis``."""
    before = axis if len(index) == 1 else 0
    full = (*([1] * before), *index, *([1] * (len(data) - len(index) - before)))
    fits = len(full) == len(data) and all(i <= d for i, d in zip(full, data, strict=True))
    return full if fits else None


def _update_sizes(index: Sequence[int], table: TensorSpec, axis: int, updates: int) -> tuple[int, int, int]:
    """Updates, rows of the table and elements of a row: whole slices when the indices lie along the axis only."""
    if math.prod(index) == index[axis]:
        return index[axis], table.shape[axis], table.elements // table.shape[axis]
    return updates, table.elements, 1


def _positions(
    op: Indexed,
    indices: np.ndarray,
    shaped: tuple[int, ...] | None,
    updates: Sequence[int],
    table: Sequence[int],
    env: Environment,
) -> tuple[np.ndarray, list[Step]]:
    """Flat positions in an array of shape ``table`` (``(R, ...)``) of all elements of one of shape ``updates``, and the
    steps that compute them; ``shaped`` is the indices' shape with the table's rank."""
    assert shaped is not None  # checked by infer
    axis = op.axis + 1
    rows, steps = bind_indices(op, indices, table[axis], env, 2, check=True)
    strides = [math.prod(table[i + 1 :]) for i in range(len(table))]
    fixed = np.zeros((1,) * len(table), np.int64)
    for i, count in enumerate(updates):
        if i != axis:
            fixed = fixed + (np.arange(count) * strides[i]).reshape([-1 if j == i else 1 for j in range(len(table))])
    positions = env.scratch(tuple(updates), np.int64, slot=3)
    view = rows.reshape(len(rows), *shaped)
    return positions, [
        *steps,
        partial(np.multiply, view, np.int64(strides[axis]), view),
        partial(np.add, view, fixed, positions),
    ]


class ScatterReduceGrad(Indexed):
    """``(gradient, indices) -> the gradient's elements at the indices``; attributes ``axis``, ``shape``
    (of the data)."""

    type = "ScatterReduceGrad"

    shape = Attribute(INTEGERS)

    def infer(self) -> list[TensorSpec]:
        """The data's shape."""
        grad, indices = self.inputs
        check_indices(self, indices)
        self.require(
            broadcast_index(self.shape, indices.shape, self.axis) is not None,
            f"indices {indices.shape} do not fit data of shape {self.shape}",
        )
        return [TensorSpec(self.shape, grad.dtype)]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One ``take`` through flat positions."""
        out = outputs[0]
        grad, steps = raw_contiguous(inputs[0], env, slot=0)
        shaped = broadcast_index(self.shape, self.inputs[1].shape, self.axis)
        positions, fetch = _positions(self, inputs[1], shaped, out.shape, grad.shape, env)
        target = out if out.flags.c_contiguous else env.scratch(out.shape, out.dtype, slot=1)
        steps += [*fetch, partial(grad.reshape(-1).take, positions, None, target, "clip")]
        if target is not out:
            steps.append(partial(np.copyto, out, target))
        return sequence(steps)

    def work(self) -> list[Work]:
        """A planned lookup."""
        out, axis = self.outputs[0].spec, self.axis
        index = broadcast_index(out.shape, self.inputs[1].shape, axis) or ()
        if not out.elements:
            return []
        count, rows, width = _update_sizes(index, self.inputs[0].spec, axis, out.elements)
        return [Lookup(rows, width, count, out.dtype)]
