"""Activations that PopART maps as fused expressions: Elu, LeakyRelu, HardSigmoid."""

from __future__ import annotations

from ipuperf.ir.attributes import NUMBER, Attribute

from ..formula import Term, exp, expm1, heaviside, maximum, minimum
from .activations import ActivationGrad, ActivationOp


class Elu(ActivationOp):
    """``max(x, 0) + alpha (exp(min(x, 0)) - 1)`` (attribute ``alpha``, default 1; PopART popx/op/elux.cpp)."""

    vertex = "ELU"
    expression = (4, 6)  # exponential, subtract, multiply, minimum, maximum, add
    slope_op = staticmethod(lambda: EluGrad)

    alpha = Attribute(NUMBER, 1.0)

    def value(self, x: Term) -> Term:
        """Five passes."""
        return maximum(x, 0) + expm1(minimum(x, 0)) * self.alpha


class EluGrad(ActivationGrad):
    """``g`` where the forward operand x is above 0, ``g alpha exp(x)`` elsewhere."""

    expression = (6, 12)  # PopART popx/op/elux.cpp

    alpha = Attribute(NUMBER, 1.0)

    def value(self, grad: Term, x: Term) -> Term:
        """Nine passes: 1 above 0 and the slope elsewhere, times ``grad``."""
        slope = exp(minimum(x, 0)) * self.alpha
        # Steps of 0 and 1 take the place of a selection, because a formula is a chain of ufuncs.
        return ((slope - 1) * (1 - heaviside(x, 0)) + 1) * grad


class LeakyRelu(ActivationOp):
    """``x`` above 0, ``alpha x`` below (attribute ``alpha``, default 0.01; PopART popx/op/leakyrelux.cpp)."""

    vertex = "LEAKY_RELU"
    expression = (2, 3)  # compare, multiply, select
    slope_op = staticmethod(lambda: LeakyReluGrad)

    alpha = Attribute(NUMBER, 0.01)

    def value(self, x: Term) -> Term:
        """Four passes."""
        return maximum(x, 0) + minimum(x, 0) * self.alpha


class LeakyReluGrad(ActivationGrad):
    """``g`` where the forward operand is above 0, ``alpha g`` elsewhere."""

    expression = (3, 3)  # compare, select, multiply

    alpha = Attribute(NUMBER, 0.01)

    def value(self, grad: Term, x: Term) -> Term:
        """Four passes."""
        return (heaviside(x, 0) * (1 - self.alpha) + self.alpha) * grad


class HardSigmoid(ActivationOp):
    """``min(max(alpha x + beta, 0), 1)`` (attributes, defaults 0.2 and 0.5)."""

    vertex = "HARD_SIGMOID"
    expression = (4, 4)  # multiply, add, maximum, minimum
    slope_op = staticmethod(lambda: HardSigmoidGrad)

    alpha = Attribute(NUMBER, 0.2)
    beta = Attribute(NUMBER, 0.5)

    def value(self, x: Term) -> Term:
        """Four passes."""
        return minimum(maximum(x * self.alpha + self.beta, 0), 1)


class HardSigmoidGrad(ActivationGrad):
    """``alpha g`` where ``0 < alpha x + beta < 1``, else 0."""

    expression = (5, 7)  # multiply, add, two comparisons, and, select, multiply

    alpha = Attribute(NUMBER, 0.2)
    beta = Attribute(NUMBER, 0.5)

    def value(self, grad: Term, x: Term) -> Term:
        """Eight passes: the two conditions as steps of 0 and 1."""
        line = x * self.alpha + self.beta
        return heaviside(line, 0) * heaviside(1 - line, 0) * self.alpha * grad
