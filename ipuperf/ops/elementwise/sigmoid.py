"""Sigmoid, Swish (SiLU), Softplus and their fused gradients, named as upstream."""

from __future__ import annotations

from ipuperf.ir import TensorSpec
from ipuperf.ir.attributes import NUMBER, Attribute

from .. import vertices
from ..formula import Term, absolute, exp, log1p, maximum, reciprocal
from ..work import Work
from .activations import ActivationGrad, ActivationOp
from .unary import new_tensor


def sigmoid(x: Term) -> Term:
    """``1 / (1 + exp(-x))``."""
    return reciprocal(exp(-x) + 1)


class Sigmoid(ActivationOp):
    """``1 / (1 + exp(-x))``."""

    vertex = "SIGMOID"
    slope_at_result = staticmethod(lambda grad, y: new_tensor(SigmoidGrad, grad, y))

    def value(self, x: Term) -> Term:
        """Four passes."""
        return sigmoid(x)


class SigmoidGrad(ActivationGrad):
    """``g y (1 - y)`` of the forward output y."""

    vertex = "SIGMOID"
    flops = 3

    def value(self, grad: Term, y: Term) -> Term:
        """Three passes."""
        return (1 - y) * y * grad


class Swish(ActivationOp):
    """``x sigmoid(x)``, also called SiLU (popnn SWISH)."""

    vertex = "SWISH"
    flops = 5
    slope = staticmethod(lambda grad, x: new_tensor(SwishGrad, grad, x))

    def value(self, x: Term) -> Term:
        """Five passes."""
        return sigmoid(x) * x


class SwishInplace(Swish):
    """Swish in place."""

    in_place = True


class SwishGrad(ActivationGrad):
    """``g s (1 + x (1 - s))`` with s the sigmoid of the forward operand x."""

    vertex = "SWISH"
    flops = 8

    def value(self, grad: Term, x: Term) -> Term:
        """Nine passes."""
        s = sigmoid(x)
        return ((1 - s) * x + 1) * s * grad


class Softplus(ActivationOp):
    """``log(1 + exp(beta x)) / beta`` (attribute ``beta``, default 1), computed as
    ``max(x, 0) + log(1 + exp(-|beta x|)) / beta`` (PopART popx/op/softplusx.cpp)."""

    vertex = "SOFTPLUS"
    expression = (3, 7)
    slope_op = staticmethod(lambda: SoftplusGrad)

    beta = Attribute(NUMBER, 1.0)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec; ``beta`` must be positive."""
        self.require(self.beta > 0, f"beta={self.beta}; a positive number is needed")
        return super().infer()

    def value(self, x: Term) -> Term:
        """Seven passes."""
        # The exponential of a negative number cannot overflow.
        return maximum(x, 0) + log1p(exp(absolute(x) * -self.beta)) * (1 / self.beta)


class SoftplusGrad(ActivationGrad):
    """``g sigmoid(beta x)`` of the forward operand x."""

    beta = Attribute(NUMBER, 1.0)

    def value(self, grad: Term, x: Term) -> Term:
        """Six passes."""
        return sigmoid(x * self.beta) * grad

    def work(self) -> list[Work]:
        """A sigmoid (of the scaled operand), then a product."""
        spec = self.outputs[0].spec
        works: list[Work] = []
        # A factor of 1 needs no product.
        if self.beta != 1.0:
            works.append(vertices.broadcast_scalar("MULTIPLY", spec.dtype, spec.elements))
        return [
            *works,
            vertices.unary("SIGMOID", spec.dtype, spec.elements, in_place=bool(works)),
            vertices.binary("MULTIPLY", spec.dtype, spec.elements, in_place=True),
        ]
