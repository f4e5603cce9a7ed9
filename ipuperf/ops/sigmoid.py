"""Sigmoid, Swish (SiLU), Softplus and their fused gradients, named as upstream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor, TensorSpec

from . import vertices
from .activations import Activation, ActivationGrad
from .binding import Build, Step, given, scalar
from .update_vertices import fused_cycles
from .work import Vertices, Work


def fused(name: str, tensor: Tensor, operands: int, constants: int, operations: int) -> Vertices:
    """The codelet that popops generates for an expression (``cost-model.md`` 2.7): ``operands`` tensors like
    ``tensor``, ``constants`` scalars, ``operations`` operations for each element."""
    cycles = fused_cycles(tensor.dtype, operands, constants, operations)
    vertex = f"popops::map::{name}<{vertices.poplar_type(tensor.dtype)}>"
    return Vertices(vertex, tensor.spec.elements, cycles, operations * tensor.spec.elements)


def sigmoid_steps(x: np.ndarray, out: np.ndarray) -> list[Step]:
    """``out = 1 / (1 + exp(-x))`` in place of anything in ``out`` (which may be ``x``)."""
    one = scalar(1, out.dtype)
    return [
        partial(np.negative, x, out),
        partial(np.exp, out, out),
        partial(np.add, out, one, out),
        partial(np.reciprocal, out, out),
    ]


class Sigmoid(Activation):
    """``1 / (1 + exp(-x))``."""

    type = "Sigmoid"
    vertex = "SIGMOID"
    temporaries = 0

    def build(self) -> Build:
        """Four passes."""
        return lambda arrays, out, temps: sigmoid_steps(arrays[0], out)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g y (1 - y)`` of the output y."""
        return [builder.op(SigmoidGrad, [given(grads), builder.forward(self.outputs[0])])]


class SigmoidGrad(ActivationGrad):
    """``g y (1 - y)`` of the forward output y."""

    type = "SigmoidGrad"
    vertex = "SIGMOID"
    flops = 3

    def build(self) -> Build:
        """Three passes."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, value = arrays
            return [
                partial(np.subtract, scalar(1, out.dtype), value, out),
                partial(np.multiply, out, value, out),
                partial(np.multiply, out, grad, out),
            ]

        return steps


class Swish(Activation):
    """``x sigmoid(x)``, also called SiLU (popnn SWISH)."""

    type = "Swish"
    vertex = "SWISH"
    temporaries = 1

    def build(self) -> Build:
        """Five passes."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            (x,) = arrays
            return [*sigmoid_steps(x, temps[0]), partial(np.multiply, temps[0], x, out)]

        return steps

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The fused gradient of the forward operand."""
        return [builder.op(SwishGrad, [given(grads), builder.forward(self.inputs[0])])]

    def work(self) -> list[Work]:
        """One popnn activation compute set."""
        spec = self.inputs[0].spec
        return [vertices.non_linearity("SWISH", spec.dtype, spec.elements, 5)]


class SwishGrad(ActivationGrad):
    """``g s (1 + x (1 - s))`` with s the sigmoid of the forward operand x."""

    type = "SwishGrad"
    vertex = "SWISH"
    flops = 8
    temporaries = 1

    def build(self) -> Build:
        """Nine passes."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, x = arrays
            s, one = temps[0], scalar(1, out.dtype)
            return [
                *sigmoid_steps(x, s),
                partial(np.subtract, one, s, out),
                partial(np.multiply, out, x, out),
                partial(np.add, out, one, out),
                partial(np.multiply, out, s, out),
                partial(np.multiply, out, grad, out),
            ]

        return steps


class Softplus(Activation):
    """``log(1 + exp(beta x)) / beta`` (attribute ``beta``, default 1), computed as
    ``max(x, 0) + log(1 + exp(-|beta x|)) / beta`` (PopART popx/op/softplusx.cpp)."""

    type = "Softplus"
    vertex = "SOFTPLUS"
    temporaries = 1

    @property
    def beta(self) -> float:
        """Steepness."""
        return float(self.attributes.get("beta", 1.0))

    def infer(self) -> list[TensorSpec]:
        """The operand's spec; ``beta`` must be positive."""
        self.require(self.beta > 0, f"beta={self.beta}; a positive number is needed")
        return super().infer()

    def build(self) -> Build:
        """Seven passes, one temporary."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            (x,) = arrays
            t = temps[0]
            return [
                partial(np.absolute, x, t),
                partial(np.multiply, t, scalar(-self.beta, t.dtype), t),
                partial(np.exp, t, t),
                partial(np.log1p, t, t),
                partial(np.multiply, t, scalar(1 / self.beta, t.dtype), t),
                partial(np.maximum, x, scalar(0, out.dtype), out=out),
                partial(np.add, out, t, out),
            ]

        return steps

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
    temporaries = 0

    def build(self) -> Build:
        """Six passes."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, x = arrays
            beta = scalar(self.attributes.get("beta", 1.0), out.dtype)
            return [
                partial(np.multiply, x, beta, out),
                *sigmoid_steps(out, out),
                partial(np.multiply, out, grad, out),
            ]

        return steps

    def work(self) -> list[Work]:
        """A sigmoid (of the scaled operand), then a product."""
        spec = self.outputs[0].spec
        works: list[Work] = []
        if self.attributes.get("beta", 1.0) != 1.0:
            works.append(vertices.broadcast_scalar("MULTIPLY", spec.dtype, spec.elements))
        return [
            *works,
            vertices.unary("SIGMOID", spec.dtype, spec.elements, in_place=bool(works)),
            vertices.binary("MULTIPLY", spec.dtype, spec.elements, in_place=True),
        ]
