"""Remainder and quotient of Python's division of floating-point numbers.

Upstream composes them of a quotient, its floor, a product and a difference
(``poptorch:poptorch/source/popart_canonicalization/BinaryOps.cpp``), and they are charged as such. Their values are
PyTorch's, also where the quotient overflows or a divisor is infinite.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor

from .. import vertices
from ..base import Gradients
from ..reductions.axes_reduced import sum_to
from ..work import Work
from .arithmetic import Binary, elementwise_work


class FloorQuotient(Binary):
    """``lhs / rhs`` rounded down."""

    ufunc: ClassVar[np.ufunc] = np.floor_divide
    vertex = "DIVIDE"
    flat = True

    def work(self) -> list[Work]:
        """A quotient, rounded in place."""
        out = self.outputs[0].spec
        return [*super().work(), vertices.unary("FLOOR", out.dtype, out.elements, in_place=True)]


class Remainder(FloorQuotient):
    """``lhs - floor(lhs / rhs) * rhs``: the remainder with the sign of ``rhs``."""

    ufunc = np.remainder
    flat = False

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g`` and ``-g`` times the quotient rounded down."""
        lhs, rhs = self.inputs
        whole = builder.op(FloorQuotient, [builder.forward(lhs), builder.forward(rhs)])
        return [sum_to(builder, grad, lhs.shape), -sum_to(builder, grad * whole, rhs.shape)]

    def work(self) -> list[Work]:
        """The quotient, its product with the divisor, the difference."""
        lhs, rhs = self.inputs
        dtype, out = lhs.dtype, self.outputs[0].shape
        return [
            *super().work(),
            *elementwise_work("MULTIPLY", dtype, out, rhs.shape, out),
            *elementwise_work("SUBTRACT", dtype, lhs.shape, out, out),
        ]
