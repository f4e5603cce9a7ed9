"""The minimum and maximum: element-wise, and over axes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec

from . import shape
from .base import Environment, Kernel, Op
from .binding import Step, given, operands, sequence
from .elementwise import Equal, Where, elementwise_work, meta_shape_of, zero
from .reduce import Reduce, sum_to
from .work import Work


class _Extremum(Op):
    """Base: ``ufunc`` of one or more operands, broadcast together; ``vertex`` is popops' name of it."""

    ufunc: ClassVar[np.ufunc]
    vertex: ClassVar[str]

    def infer(self) -> list[TensorSpec]:
        """Broadcast of all shapes."""
        self.require(len(self.inputs) > 0, "needs at least 1 operand")
        dtype = self.same_dtype(*self.inputs)
        out = self.broadcast(*self.inputs)
        return [TensorSpec(out, dtype, meta_shape_of(out, self.inputs))]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One ufunc call per further operand."""
        arrays, out = operands(inputs, outputs[0])
        if len(arrays) == 1:
            return partial(np.copyto, out, arrays[0])
        steps: list[Step] = [partial(self.ufunc, arrays[0], arrays[1], out=out)]
        steps += [partial(self.ufunc, out, a, out=out) for a in arrays[2:]]
        return sequence(steps)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` where an operand equals the result, else 0; operands that tie all receive it, as upstream."""
        grad = given(grads)
        out = builder.forward(self.outputs[0])
        nothing = zero(builder, out.dtype)
        result: list[Tensor | None] = []
        for tensor in self.inputs:
            chosen = builder.op(Equal, [builder.forward(tensor), out])
            result.append(sum_to(builder, builder.op(Where, [chosen, grad, nothing]), tensor.shape))
        return result

    def work(self) -> list[Work]:
        """One binary compute set per further operand, in place after the first."""
        out = self.outputs[0]
        first = self.inputs[0].shape
        if len(self.inputs) == 1:
            return list(shape.copy_work(out))
        works: list[Work] = []
        for index, tensor in enumerate(self.inputs[1:]):
            lhs = first if index == 0 else out.shape
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
    """Base of ReduceMax and ReduceMin."""

    def infer(self) -> list[TensorSpec]:
        """As :class:`Reduce`; there must be something to choose from."""
        self.require(self.count > 0, "there is no extreme of no elements")
        return super().infer()

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` at elements equal to the extreme, 0 elsewhere; ties all receive it, as upstream."""
        grad = given(grads)
        out = self.keep(builder, builder.forward(self.outputs[0]))
        chosen = builder.op(Equal, [builder.forward(self.inputs[0]), out])
        return [builder.op(Where, [chosen, self.keep(builder, grad), zero(builder, grad.dtype)])]


class ReduceMax(_ReducedExtremum):
    """Largest element."""

    type = "ReduceMax"
    ufunc = np.maximum
    vertex = "MAX"


class ReduceMin(_ReducedExtremum):
    """Smallest element."""

    type = "ReduceMin"
    ufunc = np.minimum
    vertex = "MIN"
