"""Activations and their fused gradients (``TanhGrad``, ``ReluGrad``, ``GeluGrad`` ... as upstream names them).

They are chains of passes over float32 blocks; fp16 is widened and rounded once at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import BOOL, GradientBuilder, Tensor, TensorSpec

from . import vertices
from .base import Environment, Kernel, Op
from .binding import Build, Step, elementwise, given, operands, scalar, sequence
from .unary import Unary
from .work import Work

#: Constants of the tanh form of GELU: ``0.5 x (1 + tanh(GELU_SCALE * (x + GELU_CUBE * x**3)))``.
GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715


class Activation(Unary):
    """Base of activations that are a chain of passes; :meth:`build` writes it."""

    temporaries: ClassVar[int] = 1

    def build(self) -> Build:
        """The chain of passes; the result is written last."""
        raise NotImplementedError

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """The chain, in blocks, in float32 for fp16."""
        return elementwise(self.build(), inputs, self.target(inputs, outputs), env, self.temporaries)


class ActivationGrad(Op):
    """Base of fused activation gradients ``(grad, forward value) -> gradient``; both have the same spec."""

    vertex: ClassVar[str]
    flops: ClassVar[int] = 2
    temporaries: ClassVar[int] = 0

    def infer(self) -> list[TensorSpec]:
        """The spec of the gradient."""
        grad, value = self.inputs
        self.same_dtype(grad, value)
        self.floating(grad)
        self.require(
            grad.shape == value.shape, f"gradient {grad.shape} and forward value {value.shape} differ in shape"
        )
        return [grad.spec]

    def build(self) -> Build:
        """The chain of passes."""
        raise NotImplementedError

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """The chain, in blocks, in float32 for fp16."""
        return elementwise(self.build(), inputs, outputs[0], env, self.temporaries)

    def work(self) -> list[Work]:
        """One popnn gradient compute set."""
        spec = self.outputs[0].spec
        return [vertices.non_linearity_grad(self.vertex, spec.dtype, spec.elements, self.flops)]


class Tanh(Unary):
    """Hyperbolic tangent."""

    type = "Tanh"
    ufunc = np.tanh
    vertex = "TANH"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g * (1 - out**2)``."""
        return [builder.op(TanhGrad, [given(grads), builder.forward(self.outputs[0])])]


class TanhGrad(ActivationGrad):
    """``g * (1 - y**2)`` of the forward output y."""

    type = "TanhGrad"
    vertex = "TANH"
    flops = 3

    def build(self) -> Build:
        """Three passes."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, value = arrays
            one = scalar(1, out.dtype)
            return [
                partial(np.square, value, out),
                partial(np.subtract, one, out, out),
                partial(np.multiply, out, grad, out),
            ]

        return steps


class Relu(Unary):
    """``max(x, 0)``."""

    type = "Relu"
    vertex = "RELU"

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One pass."""
        (array,), out = operands(inputs, self.target(inputs, outputs))
        return partial(np.maximum, array, scalar(0, out.dtype), out=out)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` where the output is positive."""
        return [builder.op(ReluGrad, [given(grads), builder.forward(self.outputs[0])])]


class ReluInplace(Relu):
    """``max(x, 0)`` in place."""

    type = "ReluInplace"
    in_place = True


class ReluGrad(ActivationGrad):
    """``g`` where the forward output is positive, else 0."""

    type = "ReluGrad"
    vertex = "RELU"
    flops = 1

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Compare, clear, masked copy (exact in every type, and infinite gradients are blocked)."""
        (grad, value), out = operands(inputs, outputs[0])
        mask = env.scratch(out.shape, np.bool_)
        return sequence(
            [
                partial(np.greater, value, scalar(0, value.dtype), mask),
                partial(out.fill, 0),
                partial(np.copyto, out, grad, where=mask),
            ]
        )


class Clip(Unary):
    """``x`` limited to ``[min, max]`` (attributes)."""

    type = "Clip"

    def infer(self) -> list[TensorSpec]:
        """The operand's spec; ``min`` must not exceed ``max``."""
        low, high = self.attributes["min"], self.attributes["max"]
        self.require(low <= high, f"min={low} exceeds max={high}")
        return super().infer()

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Two passes."""
        (array,), out = operands(inputs, outputs[0])
        low, high = scalar(self.attributes["min"], out.dtype), scalar(self.attributes["max"], out.dtype)
        return sequence([partial(np.maximum, array, low, out=out), partial(np.minimum, out, high, out=out)])

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g`` inside the limits (bounds included)."""
        inputs = [given(grads), builder.forward(self.inputs[0])]
        return [builder.op(ClipGrad, inputs, min=self.attributes["min"], max=self.attributes["max"])]

    def work(self) -> list[Work]:
        """One Clamp compute set."""
        tensor = self.inputs[0]
        return [vertices.clamp(tensor.dtype, tensor.spec.elements)]


class ClipGrad(ActivationGrad):
    """``g`` where the forward operand lies within ``[min, max]``, else 0."""

    type = "ClipGrad"

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """Two comparisons, clear, masked copy."""
        (grad, value), out = operands(inputs, outputs[0])
        inside, below = env.scratch(out.shape, np.bool_), env.scratch(out.shape, np.bool_, slot=1)
        low, high = scalar(self.attributes["min"], out.dtype), scalar(self.attributes["max"], out.dtype)
        return sequence(
            [
                partial(np.greater_equal, value, low, inside),
                partial(np.less_equal, value, high, below),
                partial(np.logical_and, inside, below, inside),
                partial(out.fill, 0),
                partial(np.copyto, out, grad, where=inside),
            ]
        )

    def work(self) -> list[Work]:
        """Compare with the clamped value, cast the mask, multiply."""
        spec = self.outputs[0].spec
        return [
            vertices.clamp(spec.dtype, spec.elements),
            vertices.binary("EQUAL", spec.dtype, spec.elements),
            vertices.cast(BOOL, spec.dtype, spec.elements),
            vertices.binary("MULTIPLY", spec.dtype, spec.elements, in_place=True),
        ]


class Gelu(Activation):
    """GELU, tanh form: ``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))``."""

    type = "Gelu"
    vertex = "GELU"

    def build(self) -> Build:
        """Eight passes, one temporary."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            (x,) = arrays
            t = temps[0]
            cube, scale = scalar(GELU_SCALE * GELU_CUBE, t.dtype), scalar(GELU_SCALE, t.dtype)
            one, half = scalar(1, t.dtype), scalar(0.5, t.dtype)
            return [
                partial(np.square, x, t),
                partial(np.multiply, t, cube, t),
                partial(np.add, t, scale, t),
                partial(np.multiply, t, x, t),
                partial(np.tanh, t, t),
                partial(np.add, t, one, t),
                partial(np.multiply, t, half, t),
                partial(np.multiply, t, x, out),
            ]

        return steps

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The fused gradient of the forward operand."""
        return [builder.op(GeluGrad, [given(grads), builder.forward(self.inputs[0])])]

    def work(self) -> list[Work]:
        """One popnn activation compute set."""
        spec = self.inputs[0].spec
        return [vertices.non_linearity("GELU", spec.dtype, spec.elements, 8)]


class GeluInplace(Gelu):
    """GELU (tanh form) in place."""

    type = "GeluInplace"
    in_place = True


class GeluGrad(ActivationGrad):
    """``g * gelu'(x)`` of the tanh form; tanh is computed again from x."""

    type = "GeluGrad"
    vertex = "GELU"
    flops = 14
    temporaries = 2

    def build(self) -> Build:
        """With T the tanh: ``g (1 + T) (0.5 + (1 - T) x (c/2 + 3/2 c k x**2))``, fourteen passes, two temporaries."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, x = arrays
            t, q = temps
            cube, scale = scalar(GELU_SCALE * GELU_CUBE, t.dtype), scalar(GELU_SCALE, t.dtype)
            slope, start = scalar(1.5 * GELU_SCALE * GELU_CUBE, t.dtype), scalar(0.5 * GELU_SCALE, t.dtype)
            one, half = scalar(1, t.dtype), scalar(0.5, t.dtype)
            return [
                partial(np.square, x, q),
                partial(np.multiply, q, cube, t),
                partial(np.add, t, scale, t),
                partial(np.multiply, t, x, t),
                partial(np.tanh, t, t),
                partial(np.multiply, q, slope, q),
                partial(np.add, q, start, q),
                partial(np.multiply, q, x, q),
                partial(np.subtract, one, t, out),
                partial(np.multiply, out, q, out),
                partial(np.add, out, half, out),
                partial(np.add, t, one, t),
                partial(np.multiply, out, t, out),
                partial(np.multiply, out, grad, out),
            ]

        return steps


# -- GELU with the error function --------------------------------------------------------------------------------------

#: Beyond this argument erfc is below the resolution of float64 and its argument is clamped.
ERFC_LIMIT = 6.0


@cache
def erfc_polynomial(degree: int) -> tuple[tuple[float, ...], float, float]:
    """Coefficients (highest power first) of p with ``erfc(z) = t exp(p(a t + b) - z**2)``, ``t = 1 / (1 + z / 2)``.

    For z in ``[0, ERFC_LIMIT]``: interpolation of ``log(erfc(z) / t) + z**2`` at Chebyshev points of t, from
    ``math.erfc``. Degree 10 gives errors below 1e-8, degree 22 below 1e-14. Returns (coefficients, a, b).
    """
    low, high = 1 / (1 + ERFC_LIMIT / 2), 1.0

    def target(s: np.ndarray) -> np.ndarray:
        t = 0.5 * ((high - low) * s + high + low)
        z = 2 / t - 2
        return np.array([math.log(math.erfc(v) / w) + v * v for v, w in zip(z, t, strict=True)])

    points = np.polynomial.chebyshev.chebpts1(degree + 1)
    series = np.polynomial.chebyshev.chebfit(points, target(points), degree)
    powers = np.polynomial.chebyshev.cheb2poly(series)
    return tuple(float(c) for c in powers[::-1]), 2 / (high - low), -(high + low) / (high - low)


def normal_cdf_steps(x: np.ndarray, out: np.ndarray, t: np.ndarray, z: np.ndarray) -> list[Step]:
    """Steps for ``out = Phi(x)``, the standard normal distribution function; ``t`` and ``z`` are temporaries.

    ``Phi(x) = erfc(-x / sqrt 2) / 2``, from ``erfc(|x| / sqrt 2)`` and the symmetry ``Phi(x) = 1 - Phi(-x)``.
    """
    dtype = out.dtype
    powers, a, b = erfc_polynomial(22 if dtype == np.float64 else 10)
    constant = partial(scalar, dtype=dtype)
    one, half = constant(1), constant(0.5)
    steps: list[Step] = [
        partial(np.absolute, x, z),
        partial(np.multiply, z, constant(math.sqrt(0.5)), z),
        partial(np.minimum, z, constant(ERFC_LIMIT), out=z),
        partial(np.multiply, z, half, t),
        partial(np.add, t, one, t),
        partial(np.reciprocal, t, t),
        partial(np.square, z, z),
        # z now holds z**2; out becomes p(s) by Horner's rule with s = a t + b formed in place of t, undone afterwards
        partial(np.multiply, t, constant(a), t),
        partial(np.add, t, constant(b), t),
        partial(np.multiply, t, constant(powers[0]), out),
    ]
    for power in powers[1:-1]:
        steps += [partial(np.add, out, constant(power), out), partial(np.multiply, out, t, out)]
    steps += [
        partial(np.add, out, constant(powers[-1]), out),
        partial(np.subtract, out, z, out),
        partial(np.exp, out, out),
        partial(np.subtract, t, constant(b), t),
        partial(np.multiply, t, constant(0.5 / a), t),
        partial(np.multiply, out, t, out),
        # out = erfc / 2 = Phi(-|x|); Phi(x) = 1/2 + sign(x) (1/2 - out)
        partial(np.subtract, half, out, out),
        partial(np.copysign, out, x, out),
        partial(np.add, out, half, out),
    ]
    return steps


class GeluErf(Activation):
    """GELU with the error function: ``x Phi(x)``."""

    type = "GeluErf"
    vertex = "GELU_ERF"
    temporaries = 3

    def build(self) -> Build:
        """``Phi(x)``, then times x."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            (x,) = arrays
            phi, t, z = temps
            return [*normal_cdf_steps(x, phi, t, z), partial(np.multiply, phi, x, out)]

        return steps

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The fused gradient of the forward operand."""
        return [builder.op(GeluErfGrad, [given(grads), builder.forward(self.inputs[0])])]


class GeluErfInplace(GeluErf):
    """GELU (error function) in place."""

    type = "GeluErfInplace"
    in_place = True


class GeluErfGrad(ActivationGrad):
    """``g * (Phi(x) + x phi(x))``."""

    type = "GeluErfGrad"
    vertex = "GELU_ERF"
    flops = 30
    temporaries = 2

    def build(self) -> Build:
        """``Phi(x)``, then the density term."""

        def steps(arrays: Sequence[np.ndarray], out: np.ndarray, temps: Sequence[np.ndarray]) -> list[Step]:
            grad, x = arrays
            t, z = temps
            return [
                *normal_cdf_steps(x, out, t, z),
                partial(np.square, x, t),
                partial(np.multiply, t, scalar(-0.5, t.dtype), t),
                partial(np.exp, t, t),
                partial(np.multiply, t, scalar(1 / math.sqrt(2 * math.pi), t.dtype), t),
                partial(np.multiply, t, x, t),
                partial(np.add, out, t, out),
                partial(np.multiply, out, grad, out),
            ]

        return steps
