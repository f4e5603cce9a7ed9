"""Scatter, with and without a reduction, and its gradient.

Upstream: PopART ``willow/src/op/scatterreduce.cpp``; popops ``multiUpdateAdd``. Indices and sums are as in
:mod:`~ipuperf.ops.selection.gather`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import BOOL, INT32, DTypeError, GradientBuilder, IrError, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, INTEGERS, Attribute, choice

from .. import shape, vertices
from ..axes import axis_of
from ..base import Arrays, Environment, Gradients, Kernel
from ..binding import Step, contiguous, result_buffer, sequence
from ..elementwise.arithmetic import Equal, Where, number, zero
from ..elementwise.unary import Cast
from ..work import Copy, Lookup, TableUpdate, Work
from .gather import GroupIndexed, Indexed, bind_indices, check_indices, group_count, raw_contiguous

#: By reduction: the ufunc that combines updates, the value in the table before the first one, and popops' name for it.
#: (PopART computes the least of some numbers as the negated greatest of the negated numbers.)
COMBINED: dict[str, tuple[np.ufunc, float, str]] = {
    "sum": (np.add, 0, "ADD"),
    "max": (np.maximum, -np.inf, "MAX"),
    "min": (np.minimum, np.inf, "MAX"),
    "mul": (np.multiply, 1, "MUL"),
}
REDUCTIONS = ("none", *COMBINED)


class ScatterReduce(GroupIndexed):
    """Elements of ``data`` combined into a result whose ``axis`` has ``axis_size`` elements, at ``indices``.

    Inputs: ``data``, ``indices`` (the data's shape, or one that broadcasts to it, or 1-D along ``axis``) and
    optionally the ``initial values`` (the result's shape). Without initial values, elements that no index names are 0
    (1 for ``mul``).

    Attributes:
        axis: the axis of the indices (default -1).
        axis_size: length of the result's axis.
        reduction: ``sum``, ``max``, ``min``, ``mul``, or ``none`` (elements are written; of several the last counts).
        index_broadcast: when false, indices may be smaller than the data; only that part of the data is used (as in
            ``torch.scatter_reduce``).
        group_size: with more than one group, the first axis of all operands goes over them, and each has indices of
            its own.
        share_ties: equal extremes get equal parts of the gradient.
        skip_negative: elements at negative indices are ignored (assumed to cost nothing more); otherwise such indices
            are refused.
    """

    axis = Attribute(INTEGER, -1, settle=axis_of)
    axis_size = Attribute(INTEGER)
    reduction = Attribute(choice(*REDUCTIONS), "sum")
    index_broadcast = Attribute(FLAG, True)
    group_size = Attribute(INTEGER, 1, settle=group_count)
    share_ties = Attribute(FLAG, False)
    skip_negative = Attribute(FLAG, False)

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
        # A skipped element needs a start value that changes nothing.
        neutral = self.reduction in ("sum", "mul") or (self.reduction != "none" and len(self.inputs) == 3)
        self.require(neutral or not self.skip_negative, "skip_negative needs a sum, a product or initial values")
        used = self.used_shape()
        out = (*used[:axis], size, *used[axis + 1 :])
        if len(self.inputs) == 3:
            self.same_dtype(data, self.inputs[2])
            self.require(self.inputs[2].shape == out, f"initial values {self.inputs[2].shape}; {out} is needed")
        return [TensorSpec(out, data.dtype)]

    def index_shape(self) -> tuple[int, ...] | None:
        """The indices' shape with the data's rank; None when it does not fit."""
        fit, grouped = broadcast_index if self.index_broadcast else smaller_index, self.grouped
        data, index = self.inputs[0].shape, self.inputs[1].shape
        fitted = fit(data[grouped:], index[grouped:], self.axis - grouped)
        return None if fitted is None else (*index[:grouped], *fitted)

    def used_shape(self) -> tuple[int, ...]:
        """Shape of the part of the data that is used."""
        return self.inputs[0].shape if self.index_broadcast else self.index_shape() or ()

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Write start values, then update through flat positions; fp16 is combined in float32."""
        part = (slice(None), *(slice(n) for n in self.used_shape()))
        data, steps = contiguous(inputs[0][part], env, slot=0)
        out, store_steps = result_buffer(outputs[0], env, slot=1)
        negative = _skipped(self, inputs[1], env)
        positions, fetch = _positions(self, inputs[1], self.index_shape(), data.shape, out.shape, env, negative)
        if negative is not None:
            # The operand itself must stay as it is, so a copy
            # gets the neutral value at negative indices.
            data, unmasked = env.scratch(data.shape, data.dtype, slot=6), data
            nothing, where = _start(self.reduction, data.dtype), negative.reshape(-1, *(self.index_shape() or ()))
            fetch = [*fetch, partial(np.copyto, data, unmasked), partial(np.copyto, data, nothing, where=where)]
        target, flat, updates = out.reshape(-1), positions.reshape(-1), data.reshape(-1)
        initial = len(inputs) == 3
        # Initial values take part in the reduction like one more update.
        start = inputs[2] if initial else _start(self.reduction, out.dtype)
        steps += [*fetch, partial(np.copyto, out, start)]
        if self.reduction == "none":
            # `put` writes in order, so of several values the last counts.
            steps.append(partial(target.put, flat, updates, "clip"))
        else:
            # `at` counts every repetition of a position, unlike indexing with an operator.
            steps.append(partial(COMBINED[self.reduction][0].at, target, flat, updates))
        # The start value of an extreme is the limit of
        # its type; untouched elements must be 0 instead.
        if not initial and self.reduction in ("max", "min"):
            steps += _clear_others(target, flat, env)
        return sequence(*steps, *store_steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient at the indices, and for the initial values where they count. For ``max`` and ``min`` every
        element that equals the result gets the gradient, as upstream, or with ``share_ties`` an equal part of
        it."""
        # The lookup below gives an element for every index, so it must fill the data's shape.
        if self.used_shape() != self.inputs[0].shape:
            raise IrError(f"{self.where()}: a gradient needs indices of the data's shape, {self.inputs[0].shape}")
        rule = {"sum": self._of_sum, "none": self._of_none, "mul": self._of_product}
        data, start = rule.get(self.reduction, self._of_extremum)(builder, grad)
        return [data, None, start] if len(self.inputs) == 3 else [data, None]

    def _at_indices(self, builder: GradientBuilder, table: Tensor) -> Tensor:
        """The elements of ``table`` at the indices."""
        inputs = [table, builder.forward(self.inputs[1])]
        shared_attributes = {
            name: value for name, value in self.attributes.items() if name in ScatterReduceGrad.declared
        }
        return builder.op(ScatterReduceGrad, inputs, **{**shared_attributes, "shape": self.inputs[0].shape})

    def _of_sum(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor]:
        return self._at_indices(builder, grad), grad

    def _of_none(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor]:
        nothing = builder.op(shape.Init, [], shape=self.inputs[0].shape, dtype=grad.dtype)
        inputs = [nothing, builder.forward(self.inputs[1]), grad]
        return self._at_indices(builder, grad), builder.op(ScatterReduceInitialGrad, inputs, **self.attributes)

    def _of_product(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradient times the product of the other factors. Factors that are 0 are counted apart, so that
        nothing is divided by 0."""
        nothing, unit = zero(builder, grad.dtype), number(builder, 1, grad.dtype)
        factors, index = (
            [builder.forward(t) for t in (self.inputs[0], *self.inputs[2:])],
            builder.forward(self.inputs[1]),
        )
        empty = [builder.op(Equal, [t, nothing]) for t in factors]
        solid = [builder.op(Where, [e, unit, t]) for e, t in zip(empty, factors, strict=True)]
        zeros = [builder.op(Cast, [e], dtype=grad.dtype) for e in empty]
        product = builder.op(ScatterReduce, [solid[0], index, *solid[1:]], **self.attributes)
        count = builder.op(ScatterReduce, [zeros[0], index, *zeros[1:]], **{**self.attributes, "reduction": "sum"})
        # A factor's gradient counts only where all other factors
        # are not 0: the zeros there (`c`) are its own (`z`).
        whole = grad * product
        seen_by = [(self._at_indices(builder, whole), self._at_indices(builder, count)), (whole, count)]
        gradients = [
            builder.op(Where, [builder.op(Equal, [c - z, nothing]), w / s, nothing])
            for (w, c), s, z in zip(seen_by, solid, zeros, strict=False)
        ]
        return gradients[0], gradients[1] if len(gradients) == 2 else None

    def _of_extremum(self, builder: GradientBuilder, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        out, nothing = builder.forward(self.outputs[0]), zero(builder, grad.dtype)
        chosen = builder.op(Equal, [builder.forward(self.inputs[0]), self._at_indices(builder, out)])
        start_chosen = [builder.op(Equal, [builder.forward(t), out]) for t in self.inputs[2:]]
        if self.share_ties:
            ones, *start = (builder.op(Cast, [t], dtype=grad.dtype) for t in (chosen, *start_chosen))
            attributes = {**self.attributes, "reduction": "sum", "share_ties": False}
            grad = grad / builder.op(ScatterReduce, [ones, builder.forward(self.inputs[1]), *start], **attributes)
        data = builder.op(Where, [chosen, self._at_indices(builder, grad), nothing])
        return data, builder.op(Where, [start_chosen[0], grad, nothing]) if start_chosen else None

    def work(self) -> list[Work]:
        """Start values, then planned updates (PopART popx/op/scatterreducex.cpp).

        Indices along the axis only update whole slices; others update single elements at indices of the flattened
        table. Initial values are copied into the table as its plan has it. The extremes without them also need a second
        table that says what was updated, and a selection by it. For the least, all operands are negated.
        """
        out, data, count = self.outputs[0].spec, self.inputs[0].spec, math.prod(self.used_shape())
        initial = len(self.inputs) == 3
        if not count or not out.elements:
            start = shape.copy_work(self.outputs[0]) if initial else []
            return start or [vertices.fill(out.dtype, out.elements)]
        works: list[Work] = [*_linear(self.inputs[1].spec, self.index_shape() or (), self.axis, self.grouped)]
        if self.reduction == "min":
            negated = [data, out] if initial else [data]
            works += [vertices.unary("NEGATE", data.dtype, spec.elements) for spec in negated]
        name = COMBINED[self.reduction][2] if self.reduction in COMBINED else "NONE"
        works.append(self._update(name, copied=initial))
        if self.reduction in ("max", "min") and not initial:
            ones = vertices.fill(out.dtype, data.elements)
            works += [ones, self._update("MAX"), vertices.select(out.dtype, out.elements)]
        return [*works, vertices.unary("NEGATE", out.dtype, out.elements)] if self.reduction == "min" else works

    def _update(self, operation: str, *, copied: bool = False) -> TableUpdate:
        out, used, grouped, groups = self.outputs[0].spec, self.used_shape(), self.grouped, self.group_size
        sizes = (self.index_shape() or ())[grouped:], out.shape[grouped:], self.axis - grouped
        indices, rows, width = update_sizes(*sizes, math.prod(used) // groups)
        return TableUpdate(rows, width, indices, out.dtype, groups, self.memory, operation, not copied, copied)


def _start(reduction: str, dtype: np.dtype) -> np.ndarray:
    """The value in a table of ``dtype`` before the first update: the least number for ``max``, and so on."""
    value = COMBINED[reduction][1] if reduction in COMBINED else 0
    if dtype.kind != "f" and np.isinf(value):
        # Integers have no infinity: the end of their range stands for it.
        limits = np.iinfo(dtype)
        value = limits.min if value < 0 else limits.max
    return np.asarray(value, dtype)


def _clear_others(table: np.ndarray, positions: np.ndarray, env: Environment) -> list[Step]:
    """Steps that write 0 to the elements to which no position points."""
    others = env.scratch(table.shape, np.bool_, slot=4)
    return [
        partial(others.fill, True),
        partial(others.put, positions, False, "clip"),
        partial(np.copyto, table, 0, where=others),
    ]


class ScatterReduceInitialGrad(ScatterReduce):
    """``(zeros, indices, grad) -> d initial``: the gradient of the initial values of a :class:`ScatterReduce` that
    overwrites. It is zero at the indices (a result of PopART's ScatterReduceGrad)."""


class Scatter(Indexed):
    """``data`` with ``values`` written along ``axis`` (attribute, default 0) at ``indices`` (ONNX ``ScatterElements``;
    PopART ``willow/src/op/scatter.cpp``).

    Inputs ``data``, ``indices``, ``values``, all of one rank. The values are not longer than the data on other axes.
    Indices have the values' shape, or one that broadcasts to it. Of several values for one element the last counts.
    """

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

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
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
        return sequence(*steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """For the data the gradient with zeros at the indices, for the values the gradient there."""
        index, shape_ = builder.forward(self.inputs[1]), self.inputs[2].shape
        nothing = builder.op(shape.Init, [], shape=shape_, dtype=grad.dtype)
        data = builder.op(Scatter, [grad, index, nothing], axis=self.axis)
        return [data, None, builder.op(ScatterReduceGrad, [grad, index], axis=self.axis, shape=shape_)]

    def work(self) -> list[Work]:
        """A copy of the data, then planned updates (PopART popx/op/scatterx.cpp): of whole slices where indices lie
        along the axis only and values are as wide as the data."""
        values, out = self.inputs[2].spec, self.outputs[0].spec
        if not values.elements or not out.elements:
            return shape.copy_work(self.outputs[0])
        # Slices are whole where all axes but the indexed one have the data's length.
        whole = values.elements * out.shape[self.axis] == out.elements * values.shape[self.axis]
        index = self.index_shape() or () if whole else values.shape
        indices, rows, width = update_sizes(index, out.shape, self.axis, values.elements)
        linear = _linear(self.inputs[1].spec, index, self.axis, 0)
        return [*linear, TableUpdate(rows, width, indices, out.dtype, 1, self.memory, "NONE", copied=True)]


def broadcast_index(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> tuple[int, ...] | None:
    """The shape in which indices broadcast to the data (rank as the data, 1 where they repeat); None when they do not
    fit. 1-D indices lie along ``axis``."""
    if len(index) == 1 and len(data) > 1:
        # 1-D indices repeat along all other axes.
        index = (*([1] * axis), index[0], *([1] * (len(data) - axis - 1)))
    fits = len(index) == len(data) and index[axis] == data[axis]
    return index if fits and all(i in (1, d) for i, d in zip(index, data, strict=True)) else None


def smaller_index(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> tuple[int, ...] | None:
    """The indices' shape with axes of length 1 up to the data's rank; None where it is longer than the data. 1-D
    indices lie along ``axis``."""
    leading_axes = axis if len(index) == 1 else 0
    full = (*([1] * leading_axes), *index, *([1] * (len(data) - len(index) - leading_axes)))
    fits = len(full) == len(data) and all(i <= d for i, d in zip(full, data, strict=True))
    return full if fits else None


def update_sizes(index: Sequence[int], table: Sequence[int], axis: int, updates: int) -> tuple[int, int, int]:
    """Updates, rows of the table and elements of a row: whole slices when the indices lie along the axis only."""
    elements = math.prod(table)
    if math.prod(index) == index[axis]:
        return index[axis], table[axis], elements // table[axis]
    return updates, elements, 1


def _linear(indices: TensorSpec, index: Sequence[int], axis: int, grouped: int) -> list[Work]:
    """Work on indices that do not lie along the axis only: a copy, and a product and a sum that make them positions
    in the flattened table (PopART popx/op/scatterutilx.cpp: linearizeIndices)."""
    count = math.prod(index)
    if count == math.prod(index[:grouped]) * index[axis]:
        return []
    steps = [vertices.broadcast_scalar("MULTIPLY", INT32, count, in_place=True)]
    steps += [vertices.binary("ADD", INT32, count, in_place=True)]
    return [Copy(count * indices.dtype.size), *steps]


def _skipped(op: ScatterReduce | ScatterReduceGrad, indices: np.ndarray, env: Environment) -> np.ndarray | None:
    """An array that marks negative indices; None where they are refused."""
    return env.scratch(indices.shape, np.bool_, slot=5) if op.skip_negative else None


def _positions(
    op: Indexed,
    indices: np.ndarray,
    shaped: tuple[int, ...] | None,
    updates: Sequence[int],
    table: Sequence[int],
    env: Environment,
    negative: np.ndarray | None = None,
) -> tuple[np.ndarray, list[Step]]:
    """Flat positions, and the steps that compute them.

    There is a position for each element of an array of shape ``updates``, in an array of shape ``table`` (``(R,
    ...)``). ``shaped`` is the indices' shape with the table's rank. ``negative``: see :func:`bind_indices`.
    """
    assert shaped is not None  # checked by infer
    axis = op.axis + 1
    rows, steps = bind_indices(op, indices, table[axis], env, 2, check=True, negative=negative)
    strides = [math.prod(table[i + 1 :]) for i in range(len(table))]
    fixed = np.zeros((1,) * len(table), np.int64)
    for i, count in enumerate(updates):
        if i != axis:
            # Everything but the index is known now, so a run adds only the indices' part.
            fixed = fixed + (np.arange(count) * strides[i]).reshape([-1 if j == i else 1 for j in range(len(table))])
    positions = env.scratch(tuple(updates), np.int64, slot=3)
    view = rows.reshape(len(rows), *shaped)
    return positions, [
        *steps,
        partial(np.multiply, view, np.int64(strides[axis]), view),
        partial(np.add, view, fixed, positions),
    ]


class ScatterReduceGrad(GroupIndexed):
    """``(gradient, indices) -> the gradient's elements at the indices``; attributes ``axis``, ``shape``
    (of the data), ``skip_negative`` (0 at negative indices)."""

    shape = Attribute(INTEGERS)
    skip_negative = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """The data's shape."""
        grad, indices = self.inputs
        check_indices(self, indices)
        self.require(self.index_shape() is not None, f"indices {indices.shape} do not fit data of shape {self.shape}")
        return [TensorSpec(self.shape, grad.dtype)]

    def index_shape(self) -> tuple[int, ...] | None:
        """The indices' shape with the data's rank; None when it does not fit."""
        index, grouped = self.inputs[1].shape, self.grouped
        fitted = broadcast_index(tuple(self.shape[grouped:]), index[grouped:], self.axis - grouped)
        return None if fitted is None else (*index[:grouped], *fitted)

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One ``take`` through flat positions."""
        out = outputs[0]
        grad, steps = raw_contiguous(inputs[0], env, slot=0)
        negative = _skipped(self, inputs[1], env)
        positions, fetch = _positions(self, inputs[1], self.index_shape(), out.shape, grad.shape, env, negative)
        target = out if out.flags.c_contiguous else env.scratch(out.shape, out.dtype, slot=1)
        steps += [*fetch, partial(grad.reshape(-1).take, positions, None, target, "clip")]
        if negative is not None:
            steps.append(partial(np.copyto, target, 0, where=negative.reshape(-1, *(self.index_shape() or ()))))
        if target is not out:
            steps.append(partial(np.copyto, out, target))
        return sequence(*steps)

    def work(self) -> list[Work]:
        """A planned lookup."""
        out, index, axis, grouped = self.outputs[0].spec, self.index_shape() or (), self.axis, self.grouped
        if not out.elements:
            return []
        groups, table = self.group_size, self.inputs[0].shape[grouped:]
        count, rows, width = update_sizes(index[grouped:], table, axis - grouped, out.elements // groups)
        linear = _linear(self.inputs[1].spec, index, axis, grouped)
        return [*linear, Lookup(rows, width, count, out.dtype, groups, self.memory)]
