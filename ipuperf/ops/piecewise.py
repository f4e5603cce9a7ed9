"""Activations that PopART maps as fused expressions: Elu, LeakyRelu, HardSigmoid."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import GradientBuilder, Tensor
from ipuperf.ir.attributes import NUMBER, Attribute

from .activations import ActivationGrad, ActivationOp
from .binding import given
from .formula import Term, exp, expm1, heaviside, maximum, minimum
from .sigmoid import fused
from .work import Work


class Elu(ActivationOp):
    """``max(x, 0) + alpha (exp(min(x, 0)) - 1)`` (attribute ``alpha``, default 1; PopART popx/op/elux.cpp)."""

    type = "Elu"
    vertex = "ELU"

    alpha = Attribute(NUMBER, 1.0)

    def value(self, x: Term) -> Term:
        """Five passes."""
        return maximum(x, 0) + expm1(minimum(x, 0)) * self.alpha

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` above 0, ``g alpha exp(x)`` below."""
        return [builder.op(EluGrad, [given(grads), builder.forward(self.inputs[0])], alpha=self.alpha)]

    def work(self) -> list[Work]:
        """One fused expression: exponential, subtract, multiply, minimum, maximum, add."""
        return [fused("Elu", self.inputs[0], 1, 4, 6)]


class EluGrad(ActivationGrad):
    """``g`` where the forward operand x is above 0, ``g alpha exp(x)`` elsewhere."""

    type = "EluGrad"

    alpha = Attribute(NUMBER, 1.0)

    def value(self, grad: Term, x: Term) -> Term:
        """Nine passes: 1 above 0 and the slope elsewhere, times ``grad``."""
        slope = exp(minimum(x, 0)) * self.alpha
        return ((slope - 1) * (1 - heaviside(x, 0)) + 1) * grad

    def work(self) -> list[Work]:
        """One fused expression of 12 operations (PopART popx/op/elux.cpp)."""
        return [fused("EluGrad", self.outputs[0], 2, 6, 12)]


class LeakyRelu(ActivationOp):
    """``x`` above 0, ``alpha x`` below (attribute ``alpha``, default 0.01; PopART popx/op/leakyrelux.cpp)."""

    type = "LeakyRelu"
    vertex = "LEAKY_RELU"

    alpha = Attribute(NUMBER, 0.01)

    def value(self, x: Term) -> Term:
        """Four passes."""
        return maximum(x, 0) + minimum(x, 0) * self.alpha

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` above 0, ``alpha g`` elsewhere."""
        return [builder.op(LeakyReluGrad, [given(grads), builder.forward(self.inputs[0])], alpha=self.alpha)]

    def work(self) -> list[Work]:
        """One fused expression: compare, multiply, select."""
        return [fused("LeakyRelu", self.inputs[0], 1, 2, 3)]


class LeakyReluGrad(ActivationGrad):
    """``g`` where the forward operand is above 0, ``alpha g`` elsewhere."""

    type = "LeakyReluGrad"

    alpha = Attribute(NUMBER, 0.01)

    def value(self, grad: Term, x: Term) -> Term:
        """Four passes."""
        return (heaviside(x, 0) * (1 - self.alpha) + self.alpha) * grad

    def work(self) -> list[Work]:
        """One fused expression: compare, select, multiply."""
        return [fused("LeakyReluGrad", self.outputs[0], 2, 3, 3)]


class HardSigmoid(ActivationOp):
    """``min(max(alpha x + beta, 0), 1)`` (attributes, defaults 0.2 and 0.5)."""

    type = "HardSigmoid"
    vertex = "HARD_SIGMOID"

    alpha = Attribute(NUMBER, 0.2)
    beta = Attribute(NUMBER, 0.5)

    def value(self, x: Term) -> Term:
        """Four passes."""
        return minimum(maximum(x * self.alpha + self.beta, 0), 1)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``alpha g`` between the limits."""
        inputs = [given(grads), builder.forward(self.inputs[0])]
        return [builder.op(HardSigmoidGrad, inputs, alpha=self.alpha, beta=self.beta)]

    def work(self) -> list[Work]:
        """One fused expression: multiply, add, maximum, minimum."""
        return [fused("HardSigmoid", self.inputs[0], 1, 4, 4)]


class HardSigmoidGrad(ActivationGrad):
    """``alpha g`` where ``0 < alpha x + beta < 1``, else 0."""

    type = "HardSigmoidGrad"

    alpha = Attribute(NUMBER, 0.2)
    beta = Attribute(NUMBER, 0.5)

    def value(self, grad: Term, x: Term) -> Term:
        """Eight passes: the two conditions as steps of 0 and 1."""
        line = x * self.alpha + self.beta
        return heaviside(line, 0) * heaviside(1 - line, 0) * self.alpha * grad

    def work(self) -> list[Work]:
        """One fused expression: multiply, add, two comparisons, and, select, multiply."""
        return [fused("HardSigmoidGrad", self.outputs[0], 2, 5, 7)]
