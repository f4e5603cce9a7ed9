"""Further element-wise functions: Reciprocal, Log1p, Expm1, Round, Erf, Erfc."""

from __future__ import annotations

import math

import numpy as np

from .. import vertices
from ..formula import Term, exp, square
from ..work import Work
from .activations import ActivationGrad, ActivationOp, normal_cdf
from .unary import Unary, new_tensor


class Reciprocal(Unary):
    """``1 / x``."""

    ufunc = np.reciprocal
    vertex = "INVERSE"
    slope_at_result = staticmethod(lambda grad, y: -(grad * (y * y)))  # PopART: the square of the operand, inverted


class Log1p(Unary):
    """``log(1 + x)``, exact for small x."""

    ufunc = np.log1p
    vertex = "LOGARITHM_ONE_PLUS"
    slope = staticmethod(lambda grad, x: grad / (x + 1))


class Expm1(Unary):
    """``exp(x) - 1``, exact for small x."""

    ufunc = np.expm1
    vertex = "EXPONENT_MINUS_ONE"
    slope_at_result = staticmethod(lambda grad, y: grad * (y + 1))


class Round(Unary):
    """Nearest whole number, halves to even."""

    flat = True
    ufunc = np.rint
    vertex = "ROUND"


class Erf(ActivationOp):
    """The error function."""

    vertex = "ERF"
    slope = staticmethod(lambda grad, x: new_tensor(ErfGrad, grad, x))

    def value(self, x: Term) -> Term:
        """``2 Phi(sqrt(2) x) - 1``."""
        # The normal distribution function is the error function, shifted and scaled.
        return normal_cdf(x * math.sqrt(2), self.inputs[0].dtype) * 2 - 1

    def work(self) -> list[Work]:
        """PopART popx/op/erfx.cpp: sign, magnitude, a polynomial of degree 5 in ``1 / (1 + c |x|)`` by Horner's rule,
        times ``exp(-x**2)``."""
        dtype, count = self.inputs[0].dtype, self.inputs[0].spec.elements
        scaled = [
            vertices.broadcast_scalar("MULTIPLY", dtype, count, in_place=True),
            vertices.broadcast_scalar("ADD", dtype, count, in_place=True),
        ]
        horner = [
            vertices.broadcast_scalar("ADD", dtype, count, in_place=True),
            vertices.binary("MULTIPLY", dtype, count, in_place=True),
        ]
        return [
            vertices.unary("SIGNUM", dtype, count),
            vertices.unary("ABSOLUTE", dtype, count),
            *scaled,
            vertices.unary("INVERSE", dtype, count, in_place=True),
            vertices.broadcast_scalar("MULTIPLY", dtype, count),
            # A polynomial of degree 5: the first
            # coefficient stands above, four rounds follow.
            *(horner * 4),
            vertices.unary("SQUARE", dtype, count),
            vertices.unary("NEGATE", dtype, count, in_place=True),
            vertices.unary("EXPONENT", dtype, count, in_place=True),
            vertices.binary("MULTIPLY", dtype, count, in_place=True),
            vertices.unary("NEGATE", dtype, count, in_place=True),
            vertices.broadcast_scalar("ADD", dtype, count, in_place=True),
            vertices.binary("MULTIPLY", dtype, count, in_place=True),
        ]


class Erfc(Erf):
    """1 minus the error function, exact also where that is below the resolution of 1 (XLA's ``Erfc``, which PopART
    lacks)."""

    slope = staticmethod(lambda grad, x: -new_tensor(ErfGrad, grad, x))

    def value(self, x: Term) -> Term:
        """``2 Phi(-sqrt(2) x)``."""
        return normal_cdf(x * -math.sqrt(2), self.inputs[0].dtype) * 2

    def work(self) -> list[Work]:
        """The error function's, with its sign turned and 1 added."""
        dtype, count = self.inputs[0].dtype, self.inputs[0].spec.elements
        return [
            *super().work(),
            vertices.unary("NEGATE", dtype, count, in_place=True),
            vertices.broadcast_scalar("ADD", dtype, count, in_place=True),
        ]


class ErfGrad(ActivationGrad):
    """``g 2 / sqrt(pi) exp(-x**2)`` of the forward operand x."""

    def value(self, grad: Term, x: Term) -> Term:
        """Five passes."""
        return exp(-square(x)) * (2 / math.sqrt(math.pi)) * grad

    def work(self) -> list[Work]:
        """PopART popx/op/erfx.cpp: square, negate, exponential, scale, multiply."""
        dtype, count = self.outputs[0].dtype, self.outputs[0].spec.elements
        return [
            vertices.unary("SQUARE", dtype, count),
            vertices.unary("NEGATE", dtype, count, in_place=True),
            vertices.unary("EXPONENT", dtype, count, in_place=True),
            vertices.broadcast_scalar("MULTIPLY", dtype, count, in_place=True),
            vertices.binary("MULTIPLY", dtype, count),
        ]
