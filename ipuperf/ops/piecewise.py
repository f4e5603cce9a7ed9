"""Activations that PopART maps as fused expressions: Elu, LeakyRelu, HardSigmoid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuperf.ir import GradientBuilder, Tensor

from .activations import Activation, ActivationGrad
from .binding import Build, Step, given, scalar
from .sigmoid import fused
from .work import Work


class Elu(Activation):
    """``max(x, 0) + alpha (exp(min(x, 0)) - 1)`` (attribute ``alpha``, default 1; PopART popx/op/elux.cpp)."""

    type = "Elu"
    vertex = "ELU"
    temporaries = 1

    @property
    def alpha(self) -> float:
        """Limit for very negative x, negated."""
        return float(self.attributes.get("alpha", 1.0))

    def build(self) -> Build:
        """Five passes, one temporary."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            (x,) = arrays
            t, nothing = temps[0], scalar(0, out.dtype)
            return [
                partial(np.minimum, x, nothing, out=t),
                partial(np.expm1, t, t),
                partial(np.multiply, t, scalar(self.alpha, t.dtype), t),
                partial(np.maximum, x, nothing, out=out),
                partial(np.add, out, t, out),
            ]

        return steps

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` above 0, ``g alpha exp(x)`` below."""
        return [builder.op(EluGrad, [given(grads), builder.forward(self.inputs[0])], alpha=self.alpha)]

    def work(self) -> list[Work]:
        """One fused expression: exponential, subtract, multiply, minimum, maximum, add."""
        return [fused("Elu", self.inputs[0], 1, 4, 6)]


class EluGrad(ActivationGrad):
    """``g`` where the forward operand x is above 0, ``g alpha exp(x)`` elsewhere."""

    type = "EluGrad"
    temporaries = 1

    def build(self) -> Build:
        """Nine passes, one temporary."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, x = arrays
            above = temps[0]
            return [
                partial(np.minimum, x, scalar(0, out.dtype), out=out),
                partial(np.exp, out, out),
                partial(np.multiply, out, scalar(self.attributes.get("alpha", 1.0), out.dtype), out),
                partial(np.heaviside, x, scalar(0, out.dtype), above),
                *_blend(out, above),
                partial(np.multiply, out, grad, out),
            ]

        return steps

    def work(self) -> list[Work]:
        """One fused expression of 12 operations (PopART popx/op/elux.cpp)."""
        return [fused("EluGrad", self.outputs[0], 2, 6, 12)]


def _blend(low: np.ndarray, above: np.ndarray) -> list[Step]:
    """``low = 1`` where ``above`` is 1, unchanged where it is 0; ``above`` is used up."""
    one = scalar(1, low.dtype)
    return [
        partial(np.subtract, low, one, low),
        partial(np.subtract, one, above, above),
        partial(np.multiply, low, above, low),
        partial(np.add, low, one, low),
    ]


class LeakyRelu(Activation):
    """``x`` above 0, ``alpha x`` below (attribute ``alpha``, default 0.01; PopART popx/op/leakyrelux.cpp)."""

    type = "LeakyRelu"
    vertex = "LEAKY_RELU"
    temporaries = 1

    @property
    def alpha(self) -> float:
        """Slope below 0."""
        return float(self.attributes.get("alpha", 0.01))

    def build(self) -> Build:
        """Four passes, one temporary."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            (x,) = arrays
            t, nothing = temps[0], scalar(0, out.dtype)
            return [
                partial(np.minimum, x, nothing, out=t),
                partial(np.multiply, t, scalar(self.alpha, t.dtype), t),
                partial(np.maximum, x, nothing, out=out),
                partial(np.add, out, t, out),
            ]

        return steps

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` above 0, ``alpha g`` elsewhere."""
        return [builder.op(LeakyReluGrad, [given(grads), builder.forward(self.inputs[0])], alpha=self.alpha)]

    def work(self) -> list[Work]:
        """One fused expression: compare, multiply, select."""
        return [fused("LeakyRelu", self.inputs[0], 1, 2, 3)]


class LeakyReluGrad(ActivationGrad):
    """``g`` where the forward operand is above 0, ``alpha g`` elsewhere."""

    type = "LeakyReluGrad"

    def build(self) -> Build:
        """Four passes."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, x = arrays
            alpha = float(self.attributes.get("alpha", 0.01))
            return [
                partial(np.heaviside, x, scalar(0, out.dtype), out),
                partial(np.multiply, out, scalar(1 - alpha, out.dtype), out),
                partial(np.add, out, scalar(alpha, out.dtype), out),
                partial(np.multiply, out, grad, out),
            ]

        return steps

    def work(self) -> list[Work]:
        """One fused expression: compare, select, multiply."""
        return [fused("LeakyReluGrad", self.outputs[0], 2, 3, 3)]


class HardSigmoid(Activation):
    """``min(max(alpha x + beta, 0), 1)`` (attributes, defaults 0.2 and 0.5)."""

    type = "HardSigmoid"
    vertex = "HARD_SIGMOID"
    temporaries = 0

    @property
    def slope(self) -> tuple[float, float]:
        """alpha and beta."""
        return float(self.attributes.get("alpha", 0.2)), float(self.attributes.get("beta", 0.5))

    def build(self) -> Build:
        """Four passes."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            alpha, beta = self.slope
            return [
                partial(np.multiply, arrays[0], scalar(alpha, out.dtype), out),
                partial(np.add, out, scalar(beta, out.dtype), out),
                partial(np.maximum, out, scalar(0, out.dtype), out=out),
                partial(np.minimum, out, scalar(1, out.dtype), out=out),
            ]

        return steps

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``alpha g`` between the limits."""
        alpha, beta = self.slope
        return [builder.op(HardSigmoidGrad, [given(grads), builder.forward(self.inputs[0])], alpha=alpha, beta=beta)]

    def work(self) -> list[Work]:
        """One fused expression: multiply, add, maximum, minimum."""
        return [fused("HardSigmoid", self.inputs[0], 1, 4, 4)]


class HardSigmoidGrad(ActivationGrad):
    """``alpha g`` where ``0 < alpha x + beta < 1``, else 0."""

    type = "HardSigmoidGrad"
    temporaries = 1

    def build(self) -> Build:
        """Eight passes: the two conditions as steps of 0 and 1."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, x = arrays
            t, nothing = temps[0], scalar(0, out.dtype)
            alpha, beta = (scalar(self.attributes[k], out.dtype) for k in ("alpha", "beta"))
            return [
                partial(np.multiply, x, alpha, t),
                partial(np.add, t, beta, t),
                partial(np.heaviside, t, nothing, out),
                partial(np.subtract, scalar(1, t.dtype), t, t),
                partial(np.heaviside, t, nothing, t),
                partial(np.multiply, out, t, out),
                partial(np.multiply, out, alpha, out),
                partial(np.multiply, out, grad, out),
            ]

        return steps

    def work(self) -> list[Work]:
        """One fused expression: multiply, add, two comparisons, and, select, multiply."""
        return [fused("HardSigmoidGrad", self.outputs[0], 2, 5, 7)]
