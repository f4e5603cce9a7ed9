"""Comparisons beside Equal and Greater, and the element-wise minimum.

Their cycle tables stand here: PopLibs ``lib/popops/popopsCycleEstimators.hpp``, ``binaryOpPerfInfo`` and
``broadcastOpPerfInfo`` (cycles per 4 elements and worker; ``MINIMUM`` is in :mod:`ipuperf.ops.vertices`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec

from . import shape, vertices
from .base import Environment, Kernel, Op
from .binding import Step, operands, sequence
from .elementwise import Binary, Equal, Where, elementwise_work, meta_shape_of, sum_to, zero
from .work import Vertices, Work

#: Cycles per 4 elements of BinaryOp1D, by operation and kind of type.
COMPARISON: Mapping[str, Mapping[str, int]] = {
    "LESS_THAN": {"float": 14, "half": 9, "int": 22, "bool": 28},
    "LESS_THAN_EQUAL": {"float": 14, "half": 9, "int": 26, "bool": 28},
    "GREATER_THAN_EQUAL": {"float": 14, "half": 9, "int": 26, "bool": 28},
    "NOT_EQUAL": {"float": 20, "half": 11, "int": 22, "bool": 5},
}

#: The same of BroadcastScalar1D.
COMPARISON_WITH_SCALAR: Mapping[str, Mapping[str, int]] = {
    "LESS_THAN": {"float": 12, "half": 8, "int": 16, "bool": 16},
    "LESS_THAN_EQUAL": {"float": 12, "half": 8, "int": 20, "bool": 16},
    "GREATER_THAN_EQUAL": {"float": 12, "half": 8, "int": 20, "bool": 12},
    "NOT_EQUAL": {"float": 18, "half": 10, "int": 16, "bool": 4},
}


def comparison(name: str, operand: Tensor, elements: int, *, scalar: bool) -> Vertices:
    """BinaryOp1D ``W * (29 + loop) + 11`` (26 for half), or BroadcastScalar1D ``W * (20 + loop) + 11``."""
    kind = vertices.kind(operand.dtype)
    rate = (COMPARISON_WITH_SCALAR if scalar else COMPARISON)[name][kind]
    fixed = 20 if scalar else (26 if kind == "half" else 29)
    vertex = f"popops::{'BroadcastScalar1D' if scalar else 'BinaryOp1D'}<{name},{vertices.poplar_type(operand.dtype)}>"
    cycles = vertices.tile_cycles(lambda m, chip: fixed + rate * vertices.ceil_div(m, 4), 11)
    return Vertices(vertex, elements, cycles, elements)


class _Comparison(Binary):
    """Base: a bool result, from two operands of any one type."""

    comparison = True
    allowed = "any"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """None flows back."""
        return [None, None]

    def work(self) -> list[Work]:
        """One compute set; an operand that is broadcast otherwise than from one element runs the plain vertex."""
        lhs, rhs = self.inputs
        elements = self.outputs[0].spec.elements
        counts = sorted((math.prod(lhs.shape), math.prod(rhs.shape)))
        scalar = counts[0] == 1 and counts[1] == elements and elements > 1
        return [comparison(self.vertex, lhs, elements, scalar=scalar)]


class Less(_Comparison):
    """``lhs < rhs``."""

    type = "Less"
    ufunc = np.less
    vertex = "LESS_THAN"


class LessEqual(_Comparison):
    """``lhs <= rhs``."""

    type = "LessOrEqual"
    ufunc = np.less_equal
    vertex = "LESS_THAN_EQUAL"


class GreaterEqual(_Comparison):
    """``lhs >= rhs``."""

    type = "GreaterOrEqual"
    ufunc = np.greater_equal
    vertex = "GREATER_THAN_EQUAL"


class NotEqual(_Comparison):
    """``lhs != rhs`` (for bool operands the exclusive or)."""

    type = "NotEqual"
    ufunc = np.not_equal
    vertex = "NOT_EQUAL"


class Minimum(Op):
    """Element-wise minimum of one or more operands, broadcast together (upstream type ``Min``)."""

    type = "Min"

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
        steps: list[Step] = [partial(np.minimum, arrays[0], arrays[1], out=out)]
        steps += [partial(np.minimum, out, a, out=out) for a in arrays[2:]]
        return sequence(steps)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` where an operand equals the minimum, else 0; operands that tie all receive it, as upstream."""
        grad = grads[0]
        assert grad is not None
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
            works += elementwise_work("MINIMUM", out.dtype, lhs, tensor.shape, out.shape, in_place=index > 0)
        return works
