"""The minimum and maximum: element-wise, and over axes.

Where several elements are the extreme, libraries differ in which of them gets the gradient. Attribute ``ties``: with
``all`` each gets all of it, as upstream (popart: ``willow/src/op/max.cpp``, ``reducemax.cpp``), with ``shared`` an
equal part, and with ``first`` only the first one gets it.
"""

from __future__ import annotations

from functools import partial, reduce
from operator import add
from typing import ClassVar

import numpy as np

from ipuperf.ir import INT32, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import Attribute, choice

from .. import shape
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, operands, sequence
from ..reductions.axes_reduced import ArgMax, ArgMin, Reduce, ReduceSum, sum_to
from ..work import Work
from .arithmetic import Equal, Where, elementwise_work, meta_shape_of, zero
from .unary import Cast

TIES = choice("all", "shared", "first")


class _Extremum(Op):
    """Base: ``ufunc`` of one or more operands, broadcast together; ``vertex`` is popops' name for it."""

    ufunc: ClassVar[np.ufunc]
    vertex: ClassVar[str]

    ties = Attribute(TIES, "all")

    def infer(self) -> list[TensorSpec]:
        """Broadcast of all shapes."""
        self.require(len(self.inputs) > 0, "needs at least 1 operand")
        dtype = self.same_dtype(*self.inputs)
        out = self.broadcast(*self.inputs)
        return [TensorSpec(out, dtype, meta_shape_of(out, self.inputs))]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One ufunc call for each operand after the first."""
        arrays, out = operands(inputs, outputs[0])
        if len(arrays) == 1:
            return partial(np.copyto, out, arrays[0])
        steps: list[Step] = [partial(self.ufunc, arrays[0], arrays[1], out=out)]
        steps += [partial(self.ufunc, out, a, out=out) for a in arrays[2:]]
        return sequence(*steps)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g`` where an operand equals the result, else 0; ``ties`` decides about operands that tie."""
        out = builder.forward(self.outputs[0])
        nothing = zero(builder, out.dtype)
        chosen = [builder.op(Equal, [builder.forward(tensor), out]) for tensor in self.inputs]
        if self.ties == "shared":
            # Each of the k equal operands gets one k-th.
            grad = grad / reduce(add, [builder.op(Cast, [c], dtype=grad.dtype) for c in chosen])
        result: list[Tensor | None] = []
        for tensor, is_extreme in zip(self.inputs, chosen, strict=True):
            operand_grad = builder.op(Where, [is_extreme, grad, nothing])
            result.append(sum_to(builder, operand_grad, tensor.shape))
            if self.ties == "first":
                # What this operand took is gone for the ones after it.
                grad = builder.op(Where, [is_extreme, nothing, grad])
        return result

    def work(self) -> list[Work]:
        """One binary compute set for each operand after the first, in place from the second set on."""
        out = self.outputs[0]
        first_shape = self.inputs[0].shape
        if len(self.inputs) == 1:
            return list(shape.copy_work(out))
        works: list[Work] = []
        for index, tensor in enumerate(self.inputs[1:]):
            lhs = first_shape if index == 0 else out.shape
            works += elementwise_work(self.vertex, out.dtype, lhs, tensor.shape, out.shape, in_place=index > 0)
        return works


class Minimum(_Extremum):
    """Element-wise minimum (upstream type ``Min``)."""

    type = "Min"
    ufunc = np.minimum
    vertex = "MINIMUM"


class Maximum(_Extremum):
    """Element-wise maximum (upstream type ``Max``)."""

    type = "Max"
    ufunc = np.maximum
    vertex = "MAXIMUM"


# -- over axes ---------------------------------------------------------------------------------------------------------


class _ReducedExtremum(Reduce):
    """Base of ReduceMax and ReduceMin. ``position`` is the op that finds the first extreme, for which one axis is
    reduced."""

    position: ClassVar[type[ArgMax]]

    ties = Attribute(TIES, "all")

    def infer(self) -> list[TensorSpec]:
        """As :class:`Reduce`; there must be at least one element."""
        self.require(self.count > 0, "there is no extreme of no elements")
        # The position op below finds the first extreme along one axis only.
        self.require(self.ties != "first" or len(self.axes) == 1, f"ties='first' needs one axis, not {self.axes}")
        return super().infer()

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g`` at elements equal to the extreme, 0 elsewhere; ``ties`` decides about several."""
        grad = self.keep(builder, grad)
        if self.ties == "first":
            chosen = self._first(builder)
        else:
            out = self.keep(builder, builder.forward(self.outputs[0]))
            chosen = builder.op(Equal, [builder.forward(self.inputs[0]), out])
        if self.ties == "shared":
            # The mask's sum is the number of extremes on each line.
            counted = builder.op(Cast, [chosen], dtype=grad.dtype)
            grad = grad / builder.op(ReduceSum, [counted], axes=self.axes, keepdims=True)
        return [builder.op(Where, [chosen, grad, zero(builder, grad.dtype)])]

    def _first(self, builder: GradientBuilder) -> Tensor:
        """A mask of the first extreme of each line."""
        axis, source = self.axes[0], self.inputs[0]
        position = builder.op(self.position, [builder.forward(source)], axis=axis, keepdim=True)
        length = source.shape[axis]
        # Positions along the axis, shaped to broadcast against the operand.
        places = np.arange(length, dtype=np.int32).reshape(length, *[1] * (len(source.shape) - axis - 1))
        return builder.op(Equal, [position, builder.graph.constant(places, INT32, "places")])


class ReduceMax(_ReducedExtremum):
    """Largest element."""

    position = ArgMax
    ufunc = np.maximum
    vertex = "MAX"


class ReduceMin(_ReducedExtremum):
    """Smallest element."""

    position = ArgMin
    ufunc = np.minimum
    vertex = "MIN"
