"""Inverse trigonometric, hyperbolic and inverse hyperbolic functions.

PopLibs has a vertex for the arc sine only. The others are compositions (PopART ``willow/src/op/{atan,sinh,cosh}.cpp``
and PopTorch ``popart_canonicalization/MathOps.cpp``) and are charged as such. Their values are exact to the type,
where a composition loses digits by cancellation.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .. import vertices
from ..work import Work
from .unary import Sqrt, Unary, new_tensor


class _Composed(Unary):
    """Base of functions that are compositions of others.

    Class attributes:
        unary_steps: vertices of one operand, in order.
        binary_steps: vertices of two operands.
        scalar_steps: vertices of an operand and a number.
    """

    unary_steps: ClassVar[tuple[str, ...]] = ()
    binary_steps: ClassVar[tuple[str, ...]] = ()
    scalar_steps: ClassVar[tuple[str, ...]] = ()

    def work(self) -> list[Work]:
        """One compute set for each step."""
        spec = self.inputs[0].spec
        return [
            # The order of the steps does not matter to the cost, so they are listed by kind.
            *(vertices.unary(name, spec.dtype, spec.elements) for name in self.unary_steps),
            *(vertices.binary(name, spec.dtype, spec.elements) for name in self.binary_steps),
            *(vertices.broadcast_scalar(name, spec.dtype, spec.elements) for name in self.scalar_steps),
        ]


class Asin(_Composed):
    """Arc sine."""

    ufunc = np.arcsin
    unary_steps = ("ASIN",)
    slope = staticmethod(lambda grad, x: grad / new_tensor(Sqrt, -(x * x) + 1))


class Acos(_Composed):
    """Arc cosine: ``pi / 2`` minus the arc sine."""

    ufunc = np.arccos
    unary_steps = ("ASIN", "NEGATE")
    scalar_steps = ("ADD",)
    slope = staticmethod(lambda grad, x: -(grad / new_tensor(Sqrt, -(x * x) + 1)))


class Atan(_Composed):
    """Arc tangent: the arc sine of ``x / sqrt(1 + x^2)``."""

    ufunc = np.arctan
    unary_steps = ("SQUARE", "SQRT", "ASIN")
    binary_steps = ("DIVIDE",)
    scalar_steps = ("ADD",)
    slope = staticmethod(lambda grad, x: grad / (x * x + 1))


class Sinh(_Composed):
    """Hyperbolic sine: ``(e^x - e^-x) / 2``."""

    ufunc = np.sinh
    unary_steps = ("EXPONENT", "NEGATE", "EXPONENT")
    binary_steps = ("SUBTRACT",)
    scalar_steps = ("MULTIPLY",)
    slope = staticmethod(lambda grad, x: grad * new_tensor(Cosh, x))


class Cosh(_Composed):
    """Hyperbolic cosine: ``(e^x + e^-x) / 2``."""

    ufunc = np.cosh
    unary_steps = ("EXPONENT", "NEGATE", "EXPONENT")
    binary_steps = ("ADD",)
    scalar_steps = ("MULTIPLY",)
    slope = staticmethod(lambda grad, x: grad * new_tensor(Sinh, x))


class Asinh(_Composed):
    """Inverse hyperbolic sine: ``log(x + sqrt(x^2 + 1))``."""

    ufunc = np.arcsinh
    unary_steps = ("SQUARE", "SQRT", "LOGARITHM")
    binary_steps = ("ADD",)
    scalar_steps = ("ADD",)
    slope = staticmethod(lambda grad, x: grad / new_tensor(Sqrt, x * x + 1))


class Acosh(_Composed):
    """Inverse hyperbolic cosine: ``log(x + sqrt(x^2 - 1))``."""

    ufunc = np.arccosh
    unary_steps = ("SQUARE", "SQRT", "LOGARITHM")
    binary_steps = ("ADD",)
    scalar_steps = ("SUBTRACT",)
    slope = staticmethod(lambda grad, x: grad / new_tensor(Sqrt, x * x - 1))


class Atanh(_Composed):
    """Inverse hyperbolic tangent: ``log((1 + x) / (1 - x)) / 2``."""

    ufunc = np.arctanh
    unary_steps = ("NEGATE", "LOGARITHM")
    binary_steps = ("DIVIDE",)
    scalar_steps = ("ADD", "ADD", "MULTIPLY")
    slope = staticmethod(lambda grad, x: grad / (-(x * x) + 1))
