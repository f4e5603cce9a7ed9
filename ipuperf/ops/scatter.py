"""Scatter with a reduction, and its gradient.

Upstream: PopART ``willow/src/op/scatterreduce.cpp``; popops ``multiUpdateAdd``. Indices and sums are as in
:mod:`~ipuperf.ops.gather`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, IrError, Tensor, TensorSpec

from . import shape, vertices
from .base import Environment, Kernel, Op
from .binding import Step, contiguous, given, result_buffer, sequence
from .gather import axis_of, bind_indices, check_indices, multi_slice, multi_update_add, raw_contiguous
from .work import Work

REDUCTIONS = ("sum", "none")


class ScatterReduce(Op):
    """Elements of ``data`` combined into a result whose ``axis`` has ``axis_size`` elements, at ``indices``.

    Inputs ``data``, ``indices`` (the data's shape, or one that broadcasts to it, or 1-D along ``axis``) and optionally
    the ``initial values`` (the result's shape; zeros without them). Attributes ``axis`` (default -1), ``axis_size``,
    ``reduction``: ``sum``, or ``none`` (written; of several the last counts). Upstream has ``max``, ``min`` and ``mul``
    too, which are refused.
    """

    type = "ScatterReduce"

    def infer(self) -> list[TensorSpec]:
        """The data's shape with ``axis_size`` on the axis."""
        self.require(len(self.inputs) in (2, 3), f"needs 2 or 3 operands, got {len(self.inputs)}")
        data, indices = self.inputs[:2]
        self.floating(data)
        check_indices(self, indices)
        self.attributes.setdefault("axis", -1)
        axis = axis_of(self, len(data.shape))
        if self.reduction not in REDUCTIONS:
            raise IrError(f"{self.where()}: reduction={self.reduction!r}; allowed: {', '.join(REDUCTIONS)}")
        self.require(
            self.index_shape() is not None,
            f"indices {indices.shape} do not fit data {data.shape}: its shape, one that broadcasts to it, or "
            f"({data.shape[axis]},) is needed",
        )
        size = int(self.attributes["axis_size"])
        self.require(size >= 1, f"axis_size {size}; at least 1 is needed")
        out = (*data.shape[:axis], size, *data.shape[axis + 1 :])
        if len(self.inputs) == 3:
            self.same_dtype(data, self.inputs[2])
            self.require(self.inputs[2].shape == out, f"initial values {self.inputs[2].shape}; {out} is needed")
        return [TensorSpec(out, data.dtype)]

    @property
    def reduction(self) -> str:
        """``sum`` or ``none``."""
        return self.attributes.setdefault("reduction", "sum")

    def index_shape(self) -> tuple[int, ...] | None:
        """The indices' shape with the data's rank; None when it does not fit."""
        return broadcast_index(self.inputs[0].shape, self.inputs[1].shape, self.attributes["axis"])

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Start values, then one update through flat positions; in float32 for fp16."""
        data, steps = contiguous(inputs[0], env, slot=0)
        out, after = result_buffer(outputs[0], env, slot=1)
        positions, fetch = _positions(self, inputs[1], data.shape, self.attributes["axis_size"], env)
        steps += fetch
        start = inputs[2] if len(inputs) == 3 else np.zeros((), out.dtype)
        steps.append(partial(np.copyto, out, start))
        target, flat = out.reshape(-1), positions.reshape(-1)
        if self.reduction == "sum":
            steps.append(partial(np.add.at, target, flat, data.reshape(-1)))
        else:
            steps.append(partial(target.put, flat, data.reshape(-1), "clip"))
        return sequence([*steps, *after])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """For a sum: the gradient at the indices; the gradient itself for the initial values."""
        if self.reduction != "sum":
            raise IrError(f"{self.where()}: reduction={self.reduction!r} has no gradient; use 'sum'")
        grad, index = given(grads), builder.forward(self.inputs[1])
        shape_, axis = self.inputs[0].shape, self.attributes["axis"]
        found: list[Tensor | None] = [builder.op(ScatterReduceGrad, [grad, index], axis=axis, shape=shape_), None]
        return [*found, grad] if len(self.inputs) == 3 else found

    def work(self) -> list[Work]:
        """Start values, then updates: of whole slices for indices along the axis only, else of single elements
        (PopART popx/op/scatterreducex.cpp)."""
        data, out = self.inputs[0].spec, self.outputs[0].spec
        start: list[Work] = [vertices.fill(out.dtype, out.elements)]
        if len(self.inputs) == 3:
            start = shape.copy_work(self.outputs[0])
        if not data.elements:
            return start
        count, rows, width = _update_sizes(self.index_shape() or (), out, self.attributes["axis"], data.elements)
        return [*start, multi_update_add(out.dtype, count, rows, width)]


def broadcast_index(data: tuple[int, ...], index: tuple[int, ...], axis: int) -> tuple[int, ...] | None:
    """The shape in which indices broadcast to the data (rank as the data, 1 where they repeat); None when they do not
    fit. 1-D indices lie along ``axis``."""
    if len(index) == 1 and len(data) > 1:
        index = (*([1] * axis), index[0], *([1] * (len(data) - axis - 1)))
    fits = len(index) == len(data) and index[axis] == data[axis]
    return index if fits and all(i in (1, d) for i, d in zip(index, data, strict=True)) else None


def _update_sizes(index: Sequence[int], table: TensorSpec, axis: int, updates: int) -> tuple[int, int, int]:
    """Updates, rows of the table and elements of a row: whole slices when the indices lie along the axis only."""
    if math.prod(index) == index[axis]:
        return index[axis], table.shape[axis], table.elements // table.shape[axis]
    return updates, table.elements, 1


def _positions(
    op: Op, indices: np.ndarray, data: Sequence[int], size: int, env: Environment
) -> tuple[np.ndarray, list[Step]]:
    """Flat positions, in a table with ``size`` elements on the axis, of all elements of ``data`` (``(R, ...)``), and
    the steps that compute them."""
    axis = op.attributes["axis"] + 1
    rows, steps = bind_indices(op, indices, size, env, 2, check=True)
    shaped = broadcast_index(tuple(data[1:]), tuple(indices.shape[1:]), axis - 1)
    assert shaped is not None  # checked by infer
    width = math.prod(data[axis + 1 :])
    fixed = np.zeros((1,) * len(data), np.int64)
    stride = 1
    for i in range(len(data) - 1, -1, -1):
        if i != axis:
            fixed = fixed + (np.arange(data[i]) * stride).reshape([-1 if j == i else 1 for j in range(len(data))])
        stride *= size if i == axis else data[i]
    positions = env.scratch(tuple(data), np.int64, slot=3)
    view = rows.reshape(len(rows), *shaped)
    return positions, [
        *steps,
        partial(np.multiply, view, np.int64(width), view),
        partial(np.add, view, fixed, positions),
    ]


class ScatterReduceGrad(Op):
    """``(gradient, indices) -> the gradient's elements at the indices``; attributes ``axis``, ``shape``
    (of the data)."""

    type = "ScatterReduceGrad"

    def infer(self) -> list[TensorSpec]:
        """The data's shape."""
        grad, indices = self.inputs
        check_indices(self, indices)
        axis = axis_of(self, len(grad.shape))
        wanted = tuple(self.attributes["shape"])
        self.require(
            broadcast_index(wanted, indices.shape, axis) is not None,
            f"indices {indices.shape} do not fit data of shape {wanted}",
        )
        return [TensorSpec(wanted, grad.dtype)]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One ``take`` through flat positions."""
        out, size = outputs[0], self.inputs[0].shape[self.attributes["axis"]]
        grad, steps = raw_contiguous(inputs[0], env, slot=0)
        positions, fetch = _positions(self, inputs[1], out.shape, size, env)
        target = out if out.flags.c_contiguous else env.scratch(out.shape, out.dtype, slot=1)
        steps += [*fetch, partial(grad.reshape(-1).take, positions, None, target, "clip")]
        if target is not out:
            steps.append(partial(np.copyto, out, target))
        return sequence(steps)

    def work(self) -> list[Work]:
        """One MultiSlice compute set."""
        out, axis = self.outputs[0].spec, self.attributes["axis"]
        index = broadcast_index(out.shape, self.inputs[1].shape, axis) or ()
        if not out.elements:
            return []
        count, _, width = _update_sizes(index, self.inputs[0].spec, axis, out.elements)
        return [multi_slice(out.dtype, count, width)]
