"""Reductions over axes, Expand (its gradient is a sum, and a sum's gradient is an Expand), and positions of extremes.

Reductions to the extreme itself are in :mod:`.extrema`.

Attributes ``axes`` (tuple, or None for all) and ``keepdims``. fp16 is accumulated in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import BOOL, FLOAT32, INT32, DTypeError, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, INTEGERS, Attribute, one_or_many, optional

from .. import half, shape, vertices
from ..axes import axes_of, axis_of
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import Step, align, contiguous, result_buffer, scalar, sequence, widened, working_dtype
from ..elementwise import unary
from ..work import Work


class Reduce(Op, abstract=True):
    """Base of reductions.

    Class attributes:
        ufunc: the function that accumulates.
        vertex: the PopLibs reduction.
    """

    ufunc: ClassVar[np.ufunc]
    vertex: ClassVar[str]
    needs_float: ClassVar[bool] = False

    axes = Attribute(optional(one_or_many(INTEGER)), None, settle=axes_of)
    keepdims = Attribute(FLAG, False)

    def kept_shape(self) -> tuple[int, ...]:
        """The operand's shape with reduced axes of length 1."""
        axes = self.axes
        return tuple(1 if i in axes else n for i, n in enumerate(self.inputs[0].shape))

    @property
    def count(self) -> int:
        """How many elements go into one result."""
        return math.prod(self.inputs[0].shape[i] for i in self.axes)

    def infer(self) -> list[TensorSpec]:
        """The reduced shape, the operand's dtype."""
        tensor = self.inputs[0]
        if self.needs_float:
            self.floating(tensor)
        elif tensor.dtype == BOOL or tensor.dtype.category == "float8":
            raise DTypeError(f"{self.where()}: {tensor.id!r} is {tensor.dtype.name}; a number type is needed")
        axes = self.axes
        if self.keepdims:
            return [TensorSpec(self.kept_shape(), tensor.dtype)]
        return [TensorSpec(tuple(n for i, n in enumerate(tensor.shape) if i not in axes), tensor.dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Prepare, accumulate in working type, finish, round."""
        source, fill_steps = self.prepare(inputs[0], env)
        out = outputs[0]
        dtype = working_dtype(out.dtype)
        axes = self.axes
        if not axes:
            return sequence(*fill_steps, *self._plain(source, out, env))
        # A reduction of everything goes over one long axis, which NumPy does fastest.
        flat = len(axes) == source.ndim - 1 and source.flags.c_contiguous
        where = 1 if flat else tuple(a + 1 for a in axes)
        if flat:
            source = source.reshape(source.shape[0], -1)
        target, store_steps = result_buffer(out, env, slot=2)
        shaped = target.reshape(-1) if flat else target.reshape(target.shape[0], *self._reduced_shape())
        steps: list[Step] = [
            *fill_steps,
            partial(self.ufunc.reduce, source, where, dtype, shaped),
            *self.finish(target),
        ]
        return sequence(*steps, *store_steps)

    def _plain(self, source: np.ndarray, out: np.ndarray, env: Environment) -> list[Step]:
        """The steps when there is no axis to reduce: every element is its own result."""
        target, store_steps = result_buffer(out, env, slot=2)
        return [partial(np.copyto, target, source.reshape(target.shape)), *self.finish(target), *store_steps]

    def _reduced_shape(self) -> tuple[int, ...]:
        axes = self.axes
        return tuple(n for i, n in enumerate(self.inputs[0].shape) if i not in axes)

    def prepare(self, array: np.ndarray, env: Environment) -> tuple[np.ndarray, list[Step]]:
        """The array that is accumulated, and the steps that compute it."""
        return widened(array, env, slot=0)

    def finish(self, target: np.ndarray) -> list[Step]:
        """Steps on the accumulated values."""
        return []

    def spread(self, builder: GradientBuilder, tensor: Tensor) -> Tensor:
        """Broadcast a reduced tensor of the gradient graph to the operand's shape."""
        reduced_shape = self.kept_shape()
        if tensor.shape != reduced_shape:
            tensor = builder.op(shape.Reshape, [tensor], shape=reduced_shape)
        full = self.inputs[0].shape
        return tensor if reduced_shape == full else builder.op(Expand, [tensor], shape=full)

    def keep(self, builder: GradientBuilder, tensor: Tensor) -> Tensor:
        """Give a reduced tensor of the gradient graph its reduced axes back, with length 1."""
        reduced_shape = self.kept_shape()
        return tensor if tensor.shape == reduced_shape else builder.op(shape.Reshape, [tensor], shape=reduced_shape)

    def work(self) -> list[Work]:
        """One reduction, or a copy when every result is one element."""
        source, out = self.inputs[0].spec, self.outputs[0].spec
        # Nothing is reduced where every reduced axis has length 1.
        if source.elements == out.elements:
            return shape.copy_work(self.outputs[0])
        # Elements that lie side by side and go into one result are read in one stretch.
        run = self.run_length()
        return [vertices.reduction(self.vertex, source.dtype, source.elements, out.elements, run=run)]

    def run_length(self) -> int:
        """Neighbouring elements of the operand that go into one result: the product of the reduced axes at the end."""
        shape_, run, axes = self.inputs[0].shape, 1, self.axes
        for axis in reversed(range(len(shape_))):
            if axis not in axes:
                break
            run *= shape_[axis]
        return run


class ReduceSum(Reduce):
    """Sum."""

    ufunc = np.add
    vertex = "ADD"

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient, broadcast."""
        return [self.spread(builder, grad)]


def sum_to(builder: GradientBuilder, grad: Tensor, target: Sequence[int]) -> Tensor:
    """Sum ``grad`` over the axes along which an operand of shape ``target`` was broadcast."""
    target = tuple(target)
    if grad.shape == target:
        return grad
    # NumPy broadcasts from the last axis, so missing axes are the first ones.
    extra = len(grad.shape) - len(target)
    axes = tuple(i for i, n in enumerate(grad.shape) if i < extra or (target[i - extra] == 1 and n != 1))
    if axes:
        grad = builder.op(ReduceSum, [grad], axes=axes, keepdims=False)
    return grad if grad.shape == target else builder.op(shape.Reshape, [grad], shape=target)


class Expand(shape.ViewRearrangement):
    """Broadcast to ``shape`` (attribute) by NumPy's rules."""

    shape = Attribute(INTEGERS)

    def infer(self) -> list[TensorSpec]:
        """The given shape, to which the operand must broadcast."""
        tensor, target = self.inputs[0], self.shape
        try:
            fits = np.broadcast_shapes(tensor.shape, target) == target
        except ValueError:
            fits = False
        self.require(fits, f"shape {tensor.shape} cannot be broadcast to {target}")
        return [TensorSpec(target, tensor.dtype)]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The broadcast view (read-only)."""
        return np.broadcast_to(align(array, len(self.shape) + 1), (array.shape[0], *self.shape))

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient summed to the operand's shape."""
        return [sum_to(builder, grad, self.inputs[0].shape)]


class ReduceMean(Reduce):
    """Arithmetic mean (floating point). On the device it is a sum whose vertex also scales."""

    ufunc = np.add
    vertex = "ADD"
    needs_float = True

    def finish(self, target: np.ndarray) -> list[Step]:
        """Divide by the count."""
        return [partial(np.divide, target, scalar(self.count, target.dtype), target)]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient divided by the count, broadcast."""
        # Scaling before the broadcast touches the fewest elements.
        scaled = grad * (1 / self.count)
        return [self.spread(builder, scaled)]


class ReduceProd(Reduce):
    """Product."""

    ufunc = np.multiply
    vertex = "MUL"

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g`` times the product of the other elements (exact where elements are 0)."""
        grad = self.keep(builder, grad)
        return [builder.op(ReduceProdGrad, [grad, builder.forward(self.inputs[0])], axes=self.axes)]


class ReduceProdGrad(Op):
    """``(grad with reduced axes of length 1, x) -> grad * product of the other elements`` over ``axes`` (attribute)."""

    axes = Attribute(INTEGERS)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        self.same_dtype(*self.inputs)
        self.floating(*self.inputs)
        return [self.inputs[1].spec]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """For each element the product of those before it times the product of those after it; the reduced axes
        count as one."""
        grad, x = inputs
        reduced = [a + 1 for a in self.axes]
        # The reduced axes come last, so that running products go along one axis.
        order = [i for i in range(x.ndim) if i not in reduced] + reduced
        other_lengths = [x.shape[i] for i in order[: x.ndim - len(reduced)]]
        count = math.prod(x.shape[i] for i in reduced)
        dtype = working_dtype(x.dtype)
        moved = tuple(x.shape[i] for i in order)
        values, left, right = (env.scratch((*other_lengths, count), dtype, slot=i) for i in range(3))
        steps: list[Step] = [
            half.copy(values.reshape(moved), x.transpose(order)),
            partial(left.fill, 1),
            partial(right.fill, 1),
        ]
        # A product over no other elements is 1, as filled
        # above; dividing by the element would fail at 0.
        if count > 1:
            steps += [
                # Products of the elements to the left of
                # each one, then of those to the right.
                partial(np.multiply.accumulate, values[..., :-1], -1, None, left[..., 1:]),
                partial(np.multiply.accumulate, values[..., :0:-1], -1, None, right[..., -2::-1]),
            ]
        result = left.reshape(moved)
        steps += [
            partial(np.multiply, left, right, left),
            partial(np.multiply, result, grad.transpose(order), result),
            half.copy(outputs[0].transpose(order), result),
        ]
        return sequence(*steps)

    def work(self) -> list[Work]:
        """Two running products and two multiplications over the elements."""
        spec = self.outputs[0].spec
        return [vertices.binary("MULTIPLY", spec.dtype, spec.elements, in_place=i > 0) for i in range(4)]


class ReduceSumSquare(Reduce):
    """Sum of squares."""

    ufunc = np.add
    vertex = "SQUARE_ADD"

    def prepare(self, array: np.ndarray, env: Environment) -> tuple[np.ndarray, list[Step]]:
        """Squares in working type."""
        source, steps = contiguous(array, env, slot=0)
        squares = env.scratch(source.shape, source.dtype, slot=1)
        return squares, [*steps, partial(np.square, source, squares)]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``2 g x``."""
        # The reduced gradient has fewer elements than the operand, so it is doubled.
        doubled = grad * 2
        return [builder.forward(self.inputs[0]) * self.keep(builder, doubled)]

    def work(self) -> list[Work]:
        """One reduction that squares, or element-wise squares when there is nothing to add."""
        source, out = self.inputs[0].spec, self.outputs[0].spec
        if source.elements == out.elements:
            return [vertices.unary("SQUARE", source.dtype, source.elements)]
        return super().work()


class ReduceL1(Reduce):
    """Sum of absolute values."""

    ufunc = np.add
    vertex = "ADD"

    def prepare(self, array: np.ndarray, env: Environment) -> tuple[np.ndarray, list[Step]]:
        """Absolute values in working type."""
        source, steps = contiguous(array, env, slot=0)
        values = env.scratch(source.shape, source.dtype, slot=1)
        return values, [*steps, partial(np.absolute, source, values)]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g * sign(x)``."""
        sign = builder.op(unary.Sign, [builder.forward(self.inputs[0])])
        return [sign * self.keep(builder, grad)]

    def work(self) -> list[Work]:
        """Absolute values, then a sum."""
        source, out = self.inputs[0].spec, self.outputs[0].spec
        works: list[Work] = [vertices.unary("ABSOLUTE", source.dtype, source.elements)]
        return works if source.elements == out.elements else [*works, *super().work()]


class LambSquare(Op):
    """Sum of the squares of all elements: a float32 scalar whatever the operand's type, without a gradient (PopART
    ``willow/src/op/lamb.cpp``)."""

    def infer(self) -> list[TensorSpec]:
        """A float32 scalar."""
        self.require(len(self.inputs) == 1, f"needs 1 operand, got {len(self.inputs)}")
        self.floating(self.inputs[0])
        return [TensorSpec((), FLOAT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Squares in working type, then one sum per replica."""
        source, steps = contiguous(inputs[0], env, slot=0)
        squares = env.scratch(source.shape, source.dtype, slot=1)
        # All elements of a replica form one line.
        lines = squares.reshape(len(squares), source.size // len(squares))
        add = partial(np.add.reduce, lines, 1, None, outputs[0])
        return sequence(*steps, partial(np.square, source, squares), add)

    def work(self) -> list[Work]:
        """One reduction that squares (PopART popx/op/lambx.cpp)."""
        source = self.inputs[0].spec
        return [vertices.reduction("SQUARE_ADD", source.dtype, source.elements, 1, run=source.elements)]


# -- positions of extremes ---------------------------------------------------------------------------------------------


class ArgMax(Op):
    """Position of the largest element along ``axis`` (attribute), int32; of equal elements the first. ``keepdim``
    keeps the axis with length 1."""

    flat = True
    largest: ClassVar[bool] = True

    axis = Attribute(INTEGER, 0, settle=axis_of)
    keepdim = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """The shape without the axis (or with length 1)."""
        tensor, axis = self.inputs[0], self.axis
        self.require(tensor.shape[axis] > 0, f"axis {axis} of {tensor.shape} has no elements")
        reduced_axis = (1,) if self.keepdim else ()
        return [TensorSpec((*tensor.shape[:axis], *reduced_axis, *tensor.shape[axis + 1 :]), INT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One search into int64, one narrowing copy."""
        source, axis = inputs[0], self.axis + 1
        # NumPy's searches write positions of its own index type only.
        positions = env.scratch((*source.shape[:axis], *source.shape[axis + 1 :]), np.intp)
        search = np.argmax if self.largest else np.argmin
        return sequence(
            partial(search, source, axis, positions),
            partial(np.copyto, outputs[0], positions.reshape(outputs[0].shape), casting="same_kind"),
        )

    def work(self) -> list[Work]:
        """One reduction that carries positions. PopLibs' arg-reduction codelets have no published estimate, so it
        is priced as a maximum of values followed by a maximum of positions."""
        source, out = self.inputs[0].spec, self.outputs[0].spec
        name = "MAX" if self.largest else "MIN"
        return [
            vertices.reduction(name, source.dtype, source.elements, out.elements),
            # The positions are reduced by a vertex of their own type.
            vertices.reduction(name, INT32, source.elements, out.elements),
        ]


class ArgMin(ArgMax):
    """Position of the smallest element; otherwise as :class:`ArgMax`."""

    largest = False
