"""Ops that move or rename elements: Reshape, Transpose, Slice, Concat, Init. (Expand is in :mod:`.reduce`.)

In NumPy their value is a view wherever no program can tell (``binding.shares_safely``). On the device the ``Inplace``
variants are views and ask for no work, and so do reshaped and expanded tensors (:class:`ViewRearrangement`), because
PopART's in-placing turns such an op into its ``Inplace`` variant (``inplacePriorityDefault`` in ``willow/src/op``).

PopART does the same with transposed, sliced, split and joined tensors. They are copies here, which is a
simplification: products here do not know the order of an operand that comes through a view. The copy stands for
the rearrangement that they would need (``docs/accuracy/simplifications.md``). A Transpose whose readers all rearrange
what they read is a view.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ipuperf.ir import GradientBuilder, IrError, MixedTypesError, Tensor, TensorSpec
from ipuperf.ir.attributes import DTYPE, INTEGER, INTEGERS, Attribute, choice, one_or_many, optional

from . import vertices
from .axes import axis_of, wrapped
from .base import Arrays, Environment, Gradients, Kernel, Op
from .binding import changers, sequence, shares_safely, shares_unseen, storage_of
from .work import Copy, Work


def copy_work(tensor: Tensor) -> list[Work]:
    """The bytes of ``tensor``, moved; nothing for an empty tensor."""
    return [Copy(tensor.spec.bytes)] if tensor.spec.bytes else []


class Rearrangement(Op, abstract=True):
    """Base of ops whose value is a view of their operand, which :meth:`arrange` makes."""

    rearranges = True
    #: The output shares the operand's storage on the device as well.
    shared = False

    def aliases(self) -> dict[int, int]:
        """The operand, for the in-place variants."""
        return {0: 0} if self.shared else {}

    def view(self, inputs: Arrays, env: Environment) -> list[np.ndarray] | None:
        """The view; None (a copy) when a program could see the sharing or the strides do not allow it."""
        if not self.shared and not shares_safely(self):
            return None
        result = self.arrange(inputs[0])
        if result.size == 0 or np.may_share_memory(result, inputs[0]):
            return [result]
        # A copy in place of an in-place view would be
        # wrong only where either side is changed later.
        if self.shared and changers(storage_of(self.inputs[0]) | storage_of(self.outputs[0])):
            raise IrError(
                f"{self.where()}: the elements are not evenly spaced, so this in-place view cannot be changed in place "
                f"later; use the out-of-place op"
            )
        return None

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """A copy of the rearranged operand."""
        source, out = inputs[0], outputs[0]
        result = self.arrange(source)
        if result.size == 0 or np.may_share_memory(result, source):
            return partial(np.copyto, out, result)
        # only a Reshape of an operand that is not evenly spaced comes here; the output then has even strides
        return partial(np.copyto, out.reshape(source.shape), source)

    def work(self) -> list[Work]:
        """A copy of the result; nothing for a view."""
        return [] if self.shared or self.circumstances() else copy_work(self.outputs[0])

    def circumstances(self) -> bool:
        """Whether the result is a view, which asks for no work."""
        return False


class ViewRearrangement(Rearrangement, abstract=True):
    """A rearrangement that is a view of its operand wherever the sharing cannot be seen."""

    def circumstances(self) -> bool:
        """Whether the result is a view on the device. A reshaped Expand is a copy."""
        # An expanded tensor has fewer elements in memory than its shape says.
        maker = self.inputs[0].producer
        return (maker is None or maker.type != "Expand") and shares_unseen(self)

    def views(self) -> dict[int, int]:
        """The operand."""
        return {0: 0}


def _whole_shape(op: Op, target: tuple[int, ...]) -> tuple[int, ...]:
    """``target`` with its -1 replaced by the length that the operand's elements leave."""
    tensor = op.inputs[0]
    least = min(target, default=0)
    if least < -1 or target.count(-1) > 1:
        op.require(False, f"shape {target} is not a shape with at most one -1")
    if least == -1:
        # The product contains the -1 once, so its sign is turned.
        known = -math.prod(target)
        target = tuple(tensor.spec.elements // known if n == -1 and known else n for n in target)
    if -1 in target or math.prod(target) != tensor.spec.elements:
        op.require(False, f"shape {target} does not hold the {tensor.spec.elements} elements of {tensor.shape}")
    return target


class Reshape(ViewRearrangement):
    """New ``shape`` (attribute; one entry may be -1) for the same elements in row-major order."""

    shape = Attribute(INTEGERS, settle=_whole_shape)

    def infer(self) -> list[TensorSpec]:
        """The new shape."""
        return [TensorSpec(self.shape, self.inputs[0].dtype)]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The reshaped array."""
        return array.reshape(array.shape[0], *self.shape)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient in the operand's shape."""
        return [builder.op(Reshape, [grad], shape=self.inputs[0].shape)]


class ReshapeInplace(Reshape):
    """Reshape that shares the operand's storage."""

    shared = True


def _order(op: Op, permutation: tuple[int, ...] | None) -> tuple[int, ...]:
    """A permutation of the operand's axes, none negative; None reverses them."""
    rank = len(op.inputs[0].shape)
    if permutation is None:
        return tuple(range(rank)[::-1])
    order = tuple([p + rank if p < 0 else p for p in permutation])
    if sorted(order) != list(range(rank)):
        op.require(False, f"permutation {permutation} does not order the {rank} axes of {op.inputs[0].shape}")
    return order


class Transpose(Rearrangement):
    """Axes in the order ``permutation`` (attribute; None reverses them)."""

    permutation = Attribute(optional(INTEGERS), None, settle=_order)

    def circumstances(self) -> bool:
        """Whether the result is a view on the device: every reader brings it into an order of its own."""
        result = self.outputs[0]
        if not result.consumers or result in self.graph.outputs:
            return False
        uses = ((op, index) for op in result.consumers for index, tensor in enumerate(op.inputs) if tensor is result)
        return all(op.arranges(index) for op, index in uses) and shares_unseen(self)

    def views(self) -> dict[int, int]:
        """The operand."""
        return {0: 0}

    def infer(self) -> list[TensorSpec]:
        """The permuted shape."""
        tensor = self.inputs[0]
        return [TensorSpec(tuple(tensor.shape[p] for p in self.permutation), tensor.dtype)]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The transposed view."""
        view: np.ndarray = array.transpose([0, *(p + 1 for p in self.permutation)])
        return view

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient with the inverse permutation."""
        order = self.permutation
        # Axis i of the gradient's result is where the permutation put it.
        inverse = tuple(order.index(i) for i in range(len(order)))
        return [builder.op(Transpose, [grad], permutation=inverse)]


class TransposeInplace(Transpose):
    """Transpose that shares the operand's storage."""

    shared = True


class _Sliced(Op):
    """Base of ops that select elements ``start:stop:step`` along ``axis``; each attribute is one value or a list with
    one value per sliced axis.

    As in Python, ``start`` and ``stop`` may be negative, None or beyond the ends, and ``step`` may be negative.
    """

    axis = Attribute(one_or_many(INTEGER))
    start = Attribute(one_or_many(optional(INTEGER)), None)
    stop = Attribute(one_or_many(optional(INTEGER)), None)
    step = Attribute(one_or_many(INTEGER), 1)

    @property
    def sliced_shape(self) -> tuple[int, ...]:
        """Shape of the tensor that is sliced."""
        return self.inputs[0].shape

    @property
    def slices(self) -> dict[str, Any]:
        """The attributes that select the elements."""
        return {"axis": self.axis, "start": self.start, "stop": self.stop, "step": self.step}

    def parts(self) -> dict[int, slice]:
        """Python slices by axis."""
        rank = len(self.sliced_shape)
        axes, starts, stops, steps = self.axis, self.start, self.stop, self.step
        # One step stands for all sliced axes.
        if len(steps) == 1:
            steps *= len(axes)
        if not len(axes) == len(starts) == len(stops) == len(steps):
            self.refuse(f"axis {axes}, start {starts}, stop {stops} and step {steps} have different lengths")
        parts: dict[int, slice] = {}
        # Python's slices are kept as they are: they know
        # negative positions and ends beyond the axis.
        for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
            position = wrapped(self, axis, rank)
            if position in parts:
                self.refuse(f"axis {axis} is sliced twice")
            self.require(step != 0, "step 0; a slice needs a step other than 0")
            parts[position] = slice(start, stop, step)
        return parts

    def index(self) -> tuple[slice, ...]:
        """NumPy index for an array with replica axis."""
        parts = self.parts()
        return (slice(None), *(parts.get(i, slice(None)) for i in range(len(self.sliced_shape))))


class Slice(_Sliced, Rearrangement):
    """The elements ``start:stop:step`` along ``axis``."""

    def infer(self) -> list[TensorSpec]:
        """The sliced shape."""
        tensor = self.inputs[0]
        shape = list(tensor.shape)
        for axis, part in self.parts().items():
            shape[axis] = len(range(*part.indices(tensor.shape[axis])))
        return [TensorSpec(tuple(shape), tensor.dtype)]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The sliced view."""
        return array[self.index()]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Zeros with the gradient at the sliced elements."""
        return [builder.op(SliceGrad, [grad], shape=self.inputs[0].shape, **self.slices)]


class SliceInplace(Slice):
    """Slice that shares the operand's storage."""

    shared = True


class SliceGrad(_Sliced):
    """Zeros of ``shape`` with the operand at the elements that the slice (attributes as in :class:`Slice`) selects."""

    shape = Attribute(INTEGERS)

    @property
    def sliced_shape(self) -> tuple[int, ...]:
        """The given shape."""
        return self.shape

    def infer(self) -> list[TensorSpec]:
        """The given shape."""
        return [TensorSpec(self.shape, self.inputs[0].dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Clear, then copy into the view."""
        out = outputs[0]
        return sequence(partial(out.fill, 0), partial(np.copyto, out[self.index()], inputs[0]))

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The slice of the gradient."""
        return [builder.op(Slice, [grad], **self.slices)]

    def work(self) -> list[Work]:
        """Zeros everywhere, then a copy of the operand."""
        out = self.outputs[0].spec
        return [vertices.fill(out.dtype, out.elements), *copy_work(self.inputs[0])]


def _strides(op: Op, strides: tuple[int, ...]) -> tuple[int, ...]:
    """One stride per axis; it is 1 for the last axes where none is given."""
    rank = len(op.inputs[0].shape)
    op.require(
        len(strides) <= rank and min(strides, default=1) >= 1,
        f"strides {strides}; allowed are at most {rank}, one per axis, from 1 on",
    )
    return (*strides, *[1] * (rank - len(strides)))


class Subsample(Rearrangement):
    """Every ``strides[i]``-th element along axis ``i``, beginning with the first; axes without a stride stay whole
    (PopART ``willow/src/op/subsample.cpp``)."""

    strides = Attribute(one_or_many(INTEGER), settle=_strides)

    def infer(self) -> list[TensorSpec]:
        """Lengths over strides, rounded up."""
        tensor = self.inputs[0]
        pairs = zip(tensor.shape, self.strides, strict=True)
        return [TensorSpec(tuple(-(-n // stride) for n, stride in pairs), tensor.dtype)]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The strided view."""
        index = (slice(None), *(slice(None, None, stride) for stride in self.strides))
        return array[index]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Zeros with the gradient at the chosen elements."""
        shape, axes = self.inputs[0].shape, tuple(range(len(self.strides)))
        # Whole axes with a stride are slices without ends.
        none = (None,) * len(axes)
        named: dict[str, Any] = {"axis": axes, "start": none, "stop": none, "step": self.strides}
        return [builder.op(SubsampleGrad, [grad], shape=shape, **named)]


class SubsampleGrad(SliceGrad):
    """Zeros with the gradient at the elements that a :class:`Subsample` chose."""


class Split(Op):
    """The operand cut along ``axis`` into parts of ``sizes`` elements, one result for each (PopART
    ``willow/src/op/split.cpp``)."""

    axis = Attribute(INTEGER, 0, settle=axis_of)
    sizes = Attribute(INTEGERS)

    def infer(self) -> list[TensorSpec]:
        """The operand's shape with each size on the axis."""
        tensor, axis, sizes = self.inputs[0], self.axis, self.sizes
        self.require(
            len(sizes) > 0 and min(sizes) >= 0 and sum(sizes) == tensor.shape[axis],
            f"sizes {sizes} do not add up to the {tensor.shape[axis]} elements of axis {axis} of {tensor.shape}",
        )
        return [TensorSpec((*tensor.shape[:axis], n, *tensor.shape[axis + 1 :]), tensor.dtype) for n in sizes]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One copy per part."""
        # NumPy splits at positions, and its parts are views.
        parts = np.split(inputs[0], np.cumsum(self.sizes)[:-1], axis=self.axis + 1)
        return sequence(*(partial(np.copyto, out, part) for out, part in zip(outputs, parts, strict=True)))

    def gradient(self, builder: GradientBuilder, grads: Gradients) -> Gradients:
        """The gradients joined, with zeros for parts that have none."""
        parts = [
            builder.op(Init, [], shape=part.shape, dtype=part.dtype) if grad is None else grad
            for grad, part in zip(grads, self.outputs, strict=True)
        ]
        return [builder.op(Concat, parts, axis=self.axis)]

    def work(self) -> list[Work]:
        """A copy of the operand."""
        return copy_work(self.inputs[0])


def _joined_axis(op: Op, axis: int) -> int:
    """The axis of a Concat, not negative."""
    op.require(len(op.inputs) > 0, "needs at least 1 operand")
    return axis_of(op, axis)


class Concat(Op):
    """The operands joined along ``axis`` (attribute)."""

    axis = Attribute(INTEGER, 0, settle=_joined_axis)

    def infer(self) -> list[TensorSpec]:
        """Shapes must agree except along the axis."""
        dtype = self.inputs[0].dtype
        if any(t.dtype != dtype for t in self.inputs):
            listed = ", ".join(f"{t.id!r} {t.dtype.name}" for t in self.inputs)
            raise MixedTypesError(
                f"{self.where()}: All inputs to a concat operation must have the same type: {listed}; cast them first"
            )
        reference = self.inputs[0].shape
        axis = self.axis
        for tensor in self.inputs:
            shape = tensor.shape
            if shape != reference and (
                len(shape) != len(reference)
                or shape[:axis] != reference[:axis]
                or shape[axis + 1 :] != reference[axis + 1 :]
            ):
                self.refuse(f"shape {shape} does not fit {reference} outside axis {axis}")
        total = sum([t.shape[axis] for t in self.inputs])
        return [TensorSpec((*reference[:axis], total, *reference[axis + 1 :]), dtype)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One concatenation into the output."""
        # The first axis is that of replicas.
        return sequence(partial(np.concatenate, tuple(inputs), axis=self.axis + 1, out=outputs[0]))

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The operand's part of the gradient."""
        axis = self.axis
        result, start = [], 0
        for tensor in self.inputs:
            stop = start + tensor.shape[axis]
            result.append(builder.op(Slice, [grad], axis=axis, start=start, stop=stop, step=1))
            start = stop
        return result

    def work(self) -> list[Work]:
        """A copy of the result."""
        return copy_work(self.outputs[0])


class ConcatInplace(Concat):
    """Concat that is a view of all operands on the device: no work. NumPy arrays cannot share several sources, so
    the value is a copy and counts as memory of its own. Where a program would see the difference, it is refused
    (``numerics/plan.py``)."""

    def work(self) -> list[Work]:
        """Nothing."""
        return []


class Init(Op):
    """A new tensor of ``shape`` and ``dtype``, with ``init="zero"`` or ``"undefined"``; ``meta_shape`` for RTS."""

    shape = Attribute(INTEGERS)
    dtype = Attribute(DTYPE)
    init = Attribute(choice("zero", "undefined"), "zero")
    meta_shape = Attribute(INTEGERS, ())

    def infer(self) -> list[TensorSpec]:
        """The given spec."""
        return [TensorSpec(self.shape, self.dtype, self.meta_shape)]

    @property
    def zero(self) -> bool:
        """Whether the tensor starts as zeros."""
        return self.init == "zero"

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Zeros, or nothing at all."""
        # An undefined tensor keeps whatever its memory holds.
        return partial(outputs[0].fill, 0) if self.zero else sequence()

    def work(self) -> list[Work]:
        """A Fill compute set for zeros, otherwise nothing."""
        spec = self.outputs[0].spec
        return [vertices.fill(spec.dtype, spec.elements)] if self.zero else []
