"""Ops that move or rename elements: Reshape, Transpose, Slice, Concat, Expand, Init.

Out of place they are copies for the cost model (upstream makes new tensors; ``lowering`` may elide a Transpose that
only a MatMul reads) but cost nothing in NumPy: their value is a view wherever nothing can tell
(``binding.shares_safely``).
The ``Inplace`` variants are views on the device too and ask for no work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ipuperf.ir import DType, DTypeError, GradientBuilder, IrError, Tensor, TensorSpec

from . import elementwise as ew
from . import vertices
from .base import Environment, Kernel, Op
from .binding import align, changers, given, sequence, shares_safely, storage_of
from .work import Copy, Work


def copy_work(tensor: Tensor) -> list[Work]:
    """The bytes of ``tensor``, moved; nothing for an empty tensor."""
    return [Copy(tensor.spec.bytes)] if tensor.spec.bytes else []


class _Rearrangement(Op):
    """Base of ops whose value is a view of their operand; :meth:`arrange` makes it."""

    #: The output shares the operand's storage on the device as well.
    shared = False

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The result for an operand array: a view where the strides allow it."""
        raise NotImplementedError

    def aliases(self) -> dict[int, int]:
        """The operand, for the in-place variants."""
        return {0: 0} if self.shared else {}

    def view(self, inputs: Sequence[np.ndarray], env: Environment) -> list[np.ndarray] | None:
        """The view; None (a copy) when sharing could be seen or the strides do not allow it."""
        if not self.shared and not shares_safely(self):
            return None
        result = self.arrange(inputs[0])
        if result.size == 0 or np.may_share_memory(result, inputs[0]):
            return [result]
        if self.shared and changers(storage_of(self.inputs[0]) | storage_of(self.outputs[0])):
            raise IrError(
                f"{self.where()}: the elements are not evenly spaced, so this in-place view cannot be changed in place "
                f"later; use the out-of-place op"
            )
        return None

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """A copy of the rearranged operand."""
        source, out = inputs[0], outputs[0]
        result = self.arrange(source)
        if result.size == 0 or np.may_share_memory(result, source):
            return partial(np.copyto, out, result)
        # only a Reshape of an operand that is not evenly spaced comes here; the output then has even strides
        return partial(np.copyto, out.reshape(source.shape), source)

    def work(self) -> list[Work]:
        """A copy of the result; nothing for the in-place variants."""
        return [] if self.shared else copy_work(self.outputs[0])


class Reshape(_Rearrangement):
    """New ``shape`` (attribute; one entry may be -1) for the same elements in row-major order."""

    type = "Reshape"

    def infer(self) -> list[TensorSpec]:
        """The new shape, which must hold as many elements."""
        tensor = self.inputs[0]
        wanted = tuple(int(n) for n in self.attributes["shape"])
        free = [i for i, n in enumerate(wanted) if n == -1]
        self.require(
            len(free) <= 1 and all(n >= -1 for n in wanted), f"shape {wanted} is not a shape with at most one -1"
        )
        known = math.prod(n for n in wanted if n != -1)
        if free and known:
            wanted = tuple(tensor.spec.elements // known if n == -1 else n for n in wanted)
        self.require(
            -1 not in wanted and math.prod(wanted) == tensor.spec.elements,
            f"shape {wanted} does not hold the {tensor.spec.elements} elements of {tensor.shape}",
        )
        self.attributes["shape"] = wanted
        return [TensorSpec(wanted, tensor.dtype)]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The reshaped array."""
        return array.reshape(array.shape[0], *self.attributes["shape"])

    def work(self) -> list[Work]:
        """Nothing where the sharing cannot be seen: PopART's in-placing then turns the op into its in-place variant."""
        return [] if self.circumstances() else super().work()

    def circumstances(self) -> bool:
        """Whether the sharing cannot be seen."""
        return shares_safely(self)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient in the operand's shape."""
        return [builder.op(Reshape, [given(grads)], shape=self.inputs[0].shape)]


class ReshapeInplace(Reshape):
    """Reshape that shares the operand's storage."""

    type = "ReshapeInplace"
    shared = True


class Transpose(_Rearrangement):
    """Axes in the order ``permutation`` (attribute; None reverses them)."""

    type = "Transpose"

    def infer(self) -> list[TensorSpec]:
        """The permuted shape."""
        tensor = self.inputs[0]
        rank = len(tensor.shape)
        given_order = self.attributes.get("permutation")
        order = tuple(range(rank))[::-1] if given_order is None else tuple(int(p) for p in given_order)
        order = tuple(p + rank if p < 0 else p for p in order)
        self.require(
            sorted(order) == list(range(rank)),
            f"permutation {given_order} does not order the {rank} axes of {tensor.shape}",
        )
        self.attributes["permutation"] = order
        return [TensorSpec(tuple(tensor.shape[p] for p in order), tensor.dtype)]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The transposed view."""
        return array.transpose(0, *(p + 1 for p in self.attributes["permutation"]))

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient with the inverse permutation."""
        order = self.attributes["permutation"]
        inverse = tuple(order.index(i) for i in range(len(order)))
        return [builder.op(Transpose, [given(grads)], permutation=inverse)]


class TransposeInplace(Transpose):
    """Transpose that shares the operand's storage."""

    type = "TransposeInplace"
    shared = True


def _many(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


class Slice(_Rearrangement):
    """Elements ``start:stop:step`` along ``axis``; each attribute is one value or a list with one per sliced axis.

    As in Python, ``start`` and ``stop`` may be negative or None and beyond the ends, and ``step`` may be negative.
    """

    type = "Slice"

    def infer(self) -> list[TensorSpec]:
        """The sliced shape."""
        tensor = self.inputs[0]
        shape = list(tensor.shape)
        for axis, part in self._parts().items():
            shape[axis] = len(range(*part.indices(tensor.shape[axis])))
        return [TensorSpec(tuple(shape), tensor.dtype)]

    def _parts(self) -> dict[int, slice]:
        """Python slices by axis."""
        rank = len(self.inputs[0].shape)
        axes, starts, stops = (_many(self.attributes.get(k)) for k in ("axis", "start", "stop"))
        steps = _many(self.attributes.get("step", 1))
        if len(steps) == 1:
            steps *= len(axes)
        self.require(
            len(axes) == len(starts) == len(stops) == len(steps),
            f"axis {axes}, start {starts}, stop {stops} and step {steps} have different lengths",
        )
        parts: dict[int, slice] = {}
        for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
            self.require(-rank <= axis < rank, f"axis {axis} is out of range for rank {rank}")
            self.require(axis % rank not in parts, f"axis {axis} is sliced twice")
            self.require(step != 0, "step 0; a slice needs a step other than 0")
            parts[axis % rank] = slice(start, stop, step)
        return parts

    def index(self) -> tuple[slice, ...]:
        """NumPy index for an array with replica axis."""
        parts = self._parts()
        return (slice(None), *(parts.get(i, slice(None)) for i in range(len(self.inputs[0].shape))))

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The sliced view."""
        return array[self.index()]

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Zeros with the gradient at the sliced elements."""
        attributes: dict[str, Any] = {k: self.attributes.get(k) for k in ("axis", "start", "stop")}
        step = self.attributes.get("step", 1)
        shape = self.inputs[0].shape
        return [builder.op(SliceGrad, [given(grads)], shape=shape, step=step, **attributes)]


class SliceInplace(Slice):
    """Slice that shares the operand's storage."""

    type = "SliceInplace"
    shared = True


class SliceGrad(Op):
    """Zeros of ``shape`` with the operand at the elements that the slice (attributes as :class:`Slice`) names."""

    type = "SliceGrad"

    def infer(self) -> list[TensorSpec]:
        """The given shape."""
        return [TensorSpec(tuple(self.attributes["shape"]), self.inputs[0].dtype)]

    def _index(self) -> tuple[slice, ...]:
        attributes = self.attributes
        rank = len(attributes["shape"])
        axes, starts, stops = (_many(attributes[k]) for k in ("axis", "start", "stop"))
        steps = _many(attributes["step"])
        steps = steps * len(axes) if len(steps) == 1 else steps
        parts = {a % rank: slice(*rest) for a, *rest in zip(axes, starts, stops, steps, strict=True)}
        return (slice(None), *(parts.get(i, slice(None)) for i in range(rank)))

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Clear, then copy into the view."""
        out = outputs[0]
        return sequence([partial(out.fill, 0), partial(np.copyto, out[self._index()], inputs[0])])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The slice of the gradient."""
        keys = ("axis", "start", "stop", "step")
        return [builder.op(Slice, [given(grads)], **{k: self.attributes[k] for k in keys})]

    def work(self) -> list[Work]:
        """Zeros everywhere, then a copy of the operand."""
        out = self.outputs[0].spec
        return [vertices.fill(out.dtype, out.elements), *copy_work(self.inputs[0])]


class Concat(Op):
    """The operands joined along ``axis`` (attribute)."""

    type = "Concat"

    def infer(self) -> list[TensorSpec]:
        """Shapes must agree except along the axis."""
        self.require(len(self.inputs) > 0, "needs at least 1 operand")
        dtype = self.same_dtype(*self.inputs)
        first = self.inputs[0].shape
        axis = self.attributes.get("axis", 0)
        self.require(-len(first) <= axis < len(first), f"axis {axis} is out of range for rank {len(first)}")
        axis %= len(first)
        self.attributes["axis"] = axis
        for tensor in self.inputs:
            self.require(
                len(tensor.shape) == len(first)
                and all(i == axis or n == m for i, (n, m) in enumerate(zip(tensor.shape, first, strict=True))),
                f"shape {tensor.shape} does not fit {first} outside axis {axis}",
            )
        total = sum(t.shape[axis] for t in self.inputs)
        return [TensorSpec((*first[:axis], total, *first[axis + 1 :]), dtype)]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One concatenation into the output."""
        return sequence([partial(np.concatenate, tuple(inputs), axis=self.attributes["axis"] + 1, out=outputs[0])])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The operand's part of the gradient."""
        grad, axis = given(grads), self.attributes["axis"]
        result, at = [], 0
        for tensor in self.inputs:
            stop = at + tensor.shape[axis]
            result.append(builder.op(Slice, [grad], axis=axis, start=at, stop=stop, step=1))
            at = stop
        return result

    def work(self) -> list[Work]:
        """A copy of the result."""
        return copy_work(self.outputs[0])


class ConcatInplace(Concat):
    """Concat that is a view of all operands on the device: no work. NumPy arrays cannot share several sources, so the
    value is a copy and the result must not be changed in place; it counts as memory of its own."""

    type = "ConcatInplace"

    def view(self, inputs: Sequence[np.ndarray], env: Environment) -> list[np.ndarray] | None:
        """Always a copy; an in-place change of operands or result later on is refused."""
        changed = changers(storage_of(self.outputs[0]))
        for tensor in self.inputs:
            changed |= {op for op in changers(storage_of(tensor)) if op.id > self.id}
        if changed:
            names = ", ".join(sorted(op.label for op in changed))
            raise IrError(f"{self.where()}: {names} changes a tensor shared by an in-place concat; use concat")
        return None

    def work(self) -> list[Work]:
        """Nothing."""
        return []


class Expand(_Rearrangement):
    """Broadcast to ``shape`` (attribute) by NumPy's rules."""

    type = "Expand"

    def infer(self) -> list[TensorSpec]:
        """The given shape, to which the operand must broadcast."""
        tensor = self.inputs[0]
        wanted = tuple(self.attributes["shape"])
        try:
            fits = np.broadcast_shapes(tensor.shape, wanted) == wanted
        except ValueError:
            fits = False
        self.require(fits, f"shape {tensor.shape} cannot be broadcast to {wanted}")
        return [TensorSpec(wanted, tensor.dtype)]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """The broadcast view (read-only)."""
        wanted = self.attributes["shape"]
        return np.broadcast_to(align(array, len(wanted) + 1), (array.shape[0], *wanted))

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient summed to the operand's shape."""
        return [ew.sum_to(builder, given(grads), self.inputs[0].shape)]


class Init(Op):
    """A new tensor of ``shape`` and ``dtype``, with ``init="zero"`` or ``"undefined"``; ``meta_shape`` for RTS."""

    type = "Init"

    def infer(self) -> list[TensorSpec]:
        """The given spec."""
        init, dtype = self.attributes.get("init", "zero"), self.attributes["dtype"]
        if init not in ("zero", "undefined"):
            raise IrError(f"{self.where()}: init={init!r}; allowed: 'zero', 'undefined'")
        if not isinstance(dtype, DType):
            raise DTypeError(f"{self.where()}: dtype={dtype!r} is not a DType")
        return [TensorSpec(tuple(self.attributes["shape"]), dtype, tuple(self.attributes.get("meta_shape", ())))]

    @property
    def zero(self) -> bool:
        """Whether the tensor starts as zeros."""
        return self.attributes.get("init", "zero") == "zero"

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Zeros, or nothing at all."""
        return partial(outputs[0].fill, 0) if self.zero else sequence([])

    def work(self) -> list[Work]:
        """A Fill compute set for zeros, otherwise nothing."""
        spec = self.outputs[0].spec
        return [vertices.fill(spec.dtype, spec.elements)] if self.zero else []
