"""The activation functions of recurrent layers: values, gradients computed from the value, vertices.

Upstream: PopLibs ``lib/popnn/NonLinearity.cpp`` and ``NonLinearityInternal.hpp``. Arrays are ``(R, batch, units)``; a
softmax goes over the units of a sequence. The rows of a softmax lie on several tiles; the step that adds up the tiles'
parts is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ipuperf.ir import DType

from .. import vertices
from ..elementwise.activations import ActivationGrad, ReluGrad, TanhGrad
from ..elementwise.sigmoid import SigmoidGrad
from ..updates.update_vertices import fused_cycles
from ..work import Vertices

Values = NDArray[np.floating[Any]]


class RecurrentActivation:
    """Base of the activations.

    Class attributes:
        shares: its vertices share a compute set with those of other such activations; otherwise it is a program of its
            own.
    """

    shares: ClassVar[bool] = False

    def value(self, x: Values) -> Values:
        """Apply the function."""
        raise NotImplementedError

    def gradient(self, y: Values, grad: Values) -> Values:
        """The gradient of the operand, computed from the result ``y``."""
        raise NotImplementedError

    def work(self, dtype: DType, units: int, row: int, *, in_place: bool = True) -> list[Vertices]:
        """Compute sets of :meth:`value` for ``units`` in rows of ``row``. With ``in_place`` the result replaces the
        operand, if the vertex has such a variant."""
        raise NotImplementedError

    def gradient_work(self, dtype: DType, units: int, row: int) -> list[Vertices]:
        """Compute sets of :meth:`gradient`."""
        raise NotImplementedError


class _OneVertex(RecurrentActivation):
    """An activation for which popnn has a vertex.

    Args:
        function, slope: the value, and its slope as a function of the value.
        op: the gradient as an op, which names the vertex.
    """

    shares = True

    def __init__(
        self,
        function: Callable[[Values], Values],
        slope: Callable[[Values], Values],
        op: type[ActivationGrad],
    ) -> None:
        self._function = function
        self._slope = slope
        self._op = op

    def value(self, x: Values) -> Values:
        """Apply the function."""
        return self._function(x)

    def gradient(self, y: Values, grad: Values) -> Values:
        """Multiply by the slope."""
        # The slope follows from the result, so the operand need not be saved.
        return grad * self._slope(y)

    def work(self, dtype: DType, units: int, row: int, *, in_place: bool = True) -> list[Vertices]:
        """One compute set."""
        return [vertices.unary(self._op.vertex, dtype, units, in_place=in_place)]

    def gradient_work(self, dtype: DType, units: int, row: int) -> list[Vertices]:
        """One compute set."""
        return [vertices.non_linearity_grad(self._op.vertex, dtype, units, self._op.flops)]


class _HardSigmoid(RecurrentActivation):
    """``min(max(0.2 x + 0.5, 0), 1)``, expressions of popops (``lib/popnn/HardSigmoid.cpp``)."""

    def value(self, x: Values) -> Values:
        """The line between 0 and 1."""
        line: Values = np.clip(0.2 * x + 0.5, 0, 1)
        return line

    def gradient(self, y: Values, grad: Values) -> Values:
        """A fifth, where the line is not cut off."""
        return np.where((y > 0) & (y < 1), 0.2 * grad, np.zeros_like(grad))

    def work(self, dtype: DType, units: int, row: int, *, in_place: bool = True) -> list[Vertices]:
        """Multiply, add, maximum, minimum, with a constant each."""
        return [expression("HardSigmoid", dtype, units, 1, 4, 4)]

    def gradient_work(self, dtype: DType, units: int, row: int) -> list[Vertices]:
        """Two comparisons, and, select, multiply."""
        return [expression("HardSigmoidGrad", dtype, units, 2, 3, 5)]


class _Softmax(RecurrentActivation):
    """Exponentials of a row, divided by their sum."""

    def value(self, x: Values) -> Values:
        """Exponentials of ``x`` less its maximum, divided by their sum."""
        shares: Values = np.exp(x - x.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return shares

    def gradient(self, y: Values, grad: Values) -> Values:
        """``y (g - sum(g y))``."""
        result: Values = y * (grad - (grad * y).sum(axis=-1, keepdims=True))
        return result

    def work(self, dtype: DType, units: int, row: int, *, in_place: bool = True) -> list[Vertices]:
        """Maximum, subtract, exponential, sum, inverse, multiply."""
        return [
            row_reduction("MAX", dtype, units),
            vertices.broadcast_outer("SUBTRACT", dtype, units, row, in_place=True),
            vertices.unary("EXPONENT", dtype, units, in_place=True),
            row_reduction("ADD", dtype, units),
            # One inverse per row serves all of its elements.
            vertices.unary("INVERSE", dtype, units // row, in_place=True),
            vertices.broadcast_outer("MULTIPLY", dtype, units, row, in_place=True),
        ]

    def gradient_work(self, dtype: DType, units: int, row: int) -> list[Vertices]:
        """Multiply, sum, multiply by the sum, subtract."""
        return [
            vertices.binary("MULTIPLY", dtype, units),
            row_reduction("ADD", dtype, units),
            vertices.broadcast_outer("MULTIPLY", dtype, units, row),
            vertices.binary("SUBTRACT", dtype, units, in_place=True),
        ]


def row_reduction(name: str, dtype: DType, units: int) -> Vertices:
    """The vertices that reduce the parts of rows on each tile."""
    partial_reduction = vertices.reduction(name, dtype, units, 1)
    return Vertices(partial_reduction.vertex, units, partial_reduction.cycles, units)


def expression(name: str, dtype: DType, units: int, tensors: int, constants: int, operations: int) -> Vertices:
    """The codelet that popops generates for an expression."""
    vertex = f"popops::map::{name}<{vertices.poplar_type(dtype)}>"
    return Vertices(vertex, units, fused_cycles(dtype, tensors, constants, operations), operations * units)


def _sigmoid(x: Values) -> Values:
    # The tangent cannot overflow, as an exponential could.
    result: Values = 0.5 * (np.tanh(0.5 * x) + 1)
    return result


def _sigmoid_slope(y: Values) -> Values:
    return y * (1 - y)


def _tanh_slope(y: Values) -> Values:
    return 1 - y * y


def _relu(x: Values) -> Values:
    return np.maximum(x, 0)


def _relu_slope(y: Values) -> Values:
    return (y > 0).astype(y.dtype)


ACTIVATIONS: Mapping[str, RecurrentActivation] = MappingProxyType(
    {
        "tanh": _OneVertex(np.tanh, _tanh_slope, TanhGrad),
        "sigmoid": _OneVertex(_sigmoid, _sigmoid_slope, SigmoidGrad),
        "relu": _OneVertex(_relu, _relu_slope, ReluGrad),
        "hard_sigmoid": _HardSigmoid(),
        "softmax": _Softmax(),
    }
)
"""The activations by name."""
