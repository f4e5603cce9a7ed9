"""Sigmoid, Swish (SiLU), Softplus and their fused gradients, named as upstream."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import NUMBER, Attribute

from . import vertices
from .activations import ActivationGrad, ActivationOp
from .binding import given
from .formula import Term, absolute, exp, log1p, maximum, reciprocal
from .unary import made
from .update_vertices import fused_cycles
from .work import Vertices, Work


def fused(name: str, tensor: Tensor, operands: int, constants: int, operations: int) -> Vertices:
    """The codelet that popops generates for an expression (``docs/reference/cycles.md`` 2.7): ``operands`` tensors like
    ``tensor``, ``constants`` scalars, ``operations`` operations for each element."""
    cycles = fused_cycles(tensor.dtype, operands, constants, operations)
    vertex = f"popops::map::{name}<{vertices.poplar_type(tensor.dtype)}>"
    return Vertices(vertex, tensor.spec.elements, cycles, operations * tensor.spec.elements)


def sigmoid(x: Term) -> Term:
    """``1 / (1 + exp(-x))``."""
    return reciprocal(exp(-x) + 1)


class Sigmoid(ActivationOp):
    """``1 / (1 + exp(-x))``."""

    type = "Sigmoid"
    vertex = "SIGMOID"
    slope_at_result = staticmethod(lambda grad, y: made(SigmoidGrad, grad, y))

    def value(self, x: Term) -> Term:
        """Four passes."""
        return sigmoid(x)


class SigmoidGrad(ActivationGrad):
    """``g y (1 - y)`` of the forward output y."""

    type = "SigmoidGrad"
    vertex = "SIGMOID"
    flops = 3

    def value(self, grad: Term, y: Term) -> Term:
        """Three passes."""
        return (1 - y) * y * grad


class Swish(ActivationOp):
    """``x sigmoid(x)``, also called SiLU (popnn SWISH)."""

    type = "Swish"
    vertex = "SWISH"
    slope = staticmethod(lambda grad, x: made(SwishGrad, grad, x))

    def value(self, x: Term) -> Term:
        """Five passes."""
        return sigmoid(x) * x

    def work(self) -> list[Work]:
        """One popnn activation compute set."""
        spec = self.inputs[0].spec
        return [vertices.non_linearity("SWISH", spec.dtype, spec.elements, 5)]


class SwishInplace(Swish):
    """Swish in place."""

    type = "SwishInplace"
    in_place = True


class SwishGrad(ActivationGrad):
    """``g s (1 + x (1 - s))`` with s the sigmoid of the forward operand x."""

    type = "SwishGrad"
    vertex = "SWISH"
    flops = 8

    def value(self, grad: Term, x: Term) -> Term:
        """Nine passes."""
        s = sigmoid(x)
        return ((1 - s) * x + 1) * s * grad


class Softplus(ActivationOp):
    """``log(1 + exp(beta x)) / beta`` (attribute ``beta``, default 1), computed as
    ``max(x, 0) + log(1 + exp(-|beta x|)) / beta`` (PopART popx/op/softplusx.cpp)."""

    type = "Softplus"
    vertex = "SOFTPLUS"

    beta = Attribute(NUMBER, 1.0)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec; ``beta`` must be positive."""
        self.require(self.beta > 0, f"beta={self.beta}; a positive number is needed")
        return super().infer()

    def value(self, x: Term) -> Term:
        """Seven passes."""
        return maximum(x, 0) + log1p(exp(absolute(x) * -self.beta)) * (1 / self.beta)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g sigmoid(beta x)``."""
        inputs = [given(grads), builder.forward(self.inputs[0])]
        return [builder.op(SoftplusGrad, inputs, beta=self.beta)]

    def work(self) -> list[Work]:
        """One fused expression."""
        return [fused("Softplus", self.inputs[0], 1, 3, 7)]


class SoftplusGrad(ActivationGrad):
    """``g sigmoid(beta x)`` of the forward operand x."""

    type = "SoftplusGrad"

    beta = Attribute(NUMBER, 1.0)

    def value(self, grad: Term, x: Term) -> Term:
        """Six passes."""
        return sigmoid(x * self.beta) * grad

    def work(self) -> list[Work]:
        """A sigmoid (of the scaled operand), then a product."""
        spec = self.outputs[0].spec
        works: list[Work] = []
        if self.beta != 1.0:
            works.append(vertices.broadcast_scalar("MULTIPLY", spec.dtype, spec.elements))
        return [
            *works,
            vertices.unary("SIGMOID", spec.dtype, spec.elements, in_place=bool(works)),
            vertices.binary("MULTIPLY", spec.dtype, spec.elements, in_place=True),
        ]
