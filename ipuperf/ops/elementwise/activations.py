"""Activations and their fused gradients (``TanhGrad``, ``ReluGrad``, ``GeluGrad`` ... as upstream names them).

Their values are formulas (:mod:`ipuperf.ops.formula`), evaluated in float32 blocks; fp16 is rounded once at the end.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import BOOL, FLOAT64, DType, Tensor, TensorSpec
from ipuperf.ir.attributes import NUMBER, Attribute

from .. import vertices
from ..base import Arrays, Environment, Kernel, Op
from ..binding import elementwise, operands, scalar, sequence
from ..formula import Term, absolute, compile_formula, copysign, exp, minimum, reciprocal, square, tanh
from ..updates.update_vertices import fused_cycles
from ..work import Vertices, Work
from .unary import Unary, new_tensor

#: Constants of the tanh form of GELU: ``0.5 x (1 + tanh(GELU_SCALE * (x + GELU_CUBE * x**3)))``.
GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715


def fused(name: str, tensor: Tensor, operands: int, constants: int, operations: int) -> Vertices:
    """The codelet that popops generates for an expression (``docs/reference/cycles.md`` 2.7). It has ``operands``
    tensors like ``tensor``, ``constants`` scalars, and ``operations`` operations for each element."""
    cycles = fused_cycles(tensor.dtype, operands, constants, operations)
    vertex = f"popops::map::{name}<{vertices.poplar_type(tensor.dtype)}>"
    return Vertices(vertex, tensor.spec.elements, cycles, operations * tensor.spec.elements)


class ActivationOp(Unary, abstract=True):
    """Base of activations that are more than one ufunc; :meth:`value` is their formula.

    Class attributes:
        flops: operations for each element of the popnn activation ``vertex``; 0: it is a unary operation of popops.
        expression: number of constants and operations, where PopART maps an expression instead.
    """

    flops: ClassVar[int] = 0
    expression: ClassVar[tuple[int, int] | None] = None

    def value(self, x: Term) -> Term:
        """The formula of the result for the operand ``x``."""
        raise NotImplementedError

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Run the formula in blocks; fp16 is computed in float32."""
        chain = compile_formula(self.value, 1, in_place=self.in_place)
        return elementwise(chain, inputs, self.target(inputs, outputs), env)

    def work(self) -> list[Work]:
        """One compute set: a fused expression, a popnn activation or a unary operation."""
        tensor = self.inputs[0]
        if self.expression is not None:
            return [fused(self.type, tensor, 1, *self.expression)]
        if self.flops:
            return [vertices.non_linearity(self.vertex, tensor.dtype, tensor.spec.elements, self.flops)]
        return super().work()


class ActivationGrad(Op, abstract=True):
    """Base of fused activation gradients ``(grad, forward value) -> gradient``; both have the same spec."""

    vertex: ClassVar[str]
    flops: ClassVar[int] = 2
    expression: ClassVar[tuple[int, int] | None] = None

    def infer(self) -> list[TensorSpec]:
        """The spec of the gradient."""
        grad, value = self.inputs
        self.same_dtype(grad, value)
        self.floating(grad)
        self.require(
            grad.shape == value.shape, f"gradient {grad.shape} and forward value {value.shape} differ in shape"
        )
        return [grad.spec]

    def value(self, grad: Term, forward_value: Term) -> Term:
        """The formula of the result for the gradient and the forward value."""
        raise NotImplementedError

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Run the formula in blocks; fp16 is computed in float32."""
        return elementwise(compile_formula(self.value, 2), inputs, outputs[0], env)

    def work(self) -> list[Work]:
        """One compute set: popnn's gradient, or a fused expression (:class:`ActivationOp`)."""
        if self.expression is not None:
            return [fused(self.type, self.outputs[0], 2, *self.expression)]
        spec = self.outputs[0].spec
        return [vertices.non_linearity_grad(self.vertex, spec.dtype, spec.elements, self.flops)]


class Tanh(Unary):
    """Hyperbolic tangent."""

    ufunc = np.tanh
    vertex = "TANH"
    slope_at_result = staticmethod(lambda grad, y: new_tensor(TanhGrad, grad, y))


class TanhGrad(ActivationGrad):
    """``g * (1 - y**2)`` of the forward output y."""

    vertex = "TANH"
    flops = 3

    def value(self, grad: Term, y: Term) -> Term:
        """Three passes."""
        return (1 - square(y)) * grad


class Relu(Unary):
    """``max(x, 0)``."""

    vertex = "RELU"
    slope_at_result = staticmethod(lambda grad, y: new_tensor(ReluGrad, grad, y))

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One pass."""
        (array,), out = operands(inputs, self.target(inputs, outputs))
        return partial(np.maximum, array, scalar(0, out.dtype), out=out)


class ReluInplace(Relu):
    """``max(x, 0)`` in place."""

    in_place = True


class ReluGrad(ActivationGrad):
    """``g`` where the forward output is positive, else 0."""

    vertex = "RELU"
    flops = 1

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compare, then keep the bits of the gradient where the comparison holds. This is exact in every type and
        blocks infinite gradients; a masked copy would branch at each value."""
        (grad, value), out = operands(inputs, outputs[0])
        mask = env.scratch(out.shape, np.bool_)
        integer = np.dtype(f"i{out.itemsize}")
        bits = env.scratch(out.shape, integer, slot=1)
        return sequence(
            partial(np.greater, value, scalar(0, value.dtype), mask),
            # True becomes 1, then -1: all bits set.
            partial(np.copyto, bits, mask.view(np.int8)),
            partial(np.negative, bits, bits),
            partial(np.bitwise_and, grad.view(integer), bits, out.view(integer)),
        )


class Clip(Unary):
    """``x`` limited to ``[min, max]`` (attributes)."""

    slope_op = staticmethod(lambda: ClipGrad)

    min = Attribute(NUMBER)
    max = Attribute(NUMBER)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec; ``min`` must not exceed ``max``."""
        self.require(self.min <= self.max, f"min={self.min} exceeds max={self.max}")
        return super().infer()

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Two passes."""
        (array,), out = operands(inputs, outputs[0])
        low, high = scalar(self.min, out.dtype), scalar(self.max, out.dtype)
        return sequence(partial(np.maximum, array, low, out=out), partial(np.minimum, out, high, out=out))

    def work(self) -> list[Work]:
        """One Clamp compute set."""
        tensor = self.inputs[0]
        return [vertices.clamp(tensor.dtype, tensor.spec.elements)]


class ClipGrad(ActivationGrad):
    """``g`` where the forward operand lies within ``(min, max)``, else 0 (PopART popx/op/clipx.cpp)."""

    min = Attribute(NUMBER)
    max = Attribute(NUMBER)

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Two comparisons, clear, masked copy."""
        (grad, value), out = operands(inputs, outputs[0])
        inside, below = env.scratch(out.shape, np.bool_), env.scratch(out.shape, np.bool_, slot=1)
        low, high = scalar(self.min, out.dtype), scalar(self.max, out.dtype)
        return sequence(
            partial(np.greater, value, low, inside),
            partial(np.less, value, high, below),
            partial(np.logical_and, inside, below, inside),
            partial(out.fill, 0),
            partial(np.copyto, out, grad, where=inside),
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


def gelu_tanh(x: Term) -> Term:
    """The hyperbolic tangent in GELU's tanh form."""
    return tanh((square(x) * (GELU_SCALE * GELU_CUBE) + GELU_SCALE) * x)


class Gelu(ActivationOp):
    """GELU, tanh form: ``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3)))``."""

    vertex = "GELU"
    flops = 8
    slope = staticmethod(lambda grad, x: new_tensor(GeluGrad, grad, x))

    def value(self, x: Term) -> Term:
        """Eight passes."""
        return (gelu_tanh(x) + 1) * 0.5 * x


class GeluInplace(Gelu):
    """GELU (tanh form) in place."""

    in_place = True


class GeluGrad(ActivationGrad):
    """``g * gelu'(x)`` of the tanh form; tanh is computed again from x."""

    vertex = "GELU"
    flops = 14

    def value(self, grad: Term, x: Term) -> Term:
        """With T the tanh: ``g (1 + T) (0.5 + (1 - T) x (c/2 + 3/2 c k x**2))``."""
        t = gelu_tanh(x)
        slope = (square(x) * (1.5 * GELU_SCALE * GELU_CUBE) + 0.5 * GELU_SCALE) * x
        # g (1 + T) is a factor of both terms, so it is multiplied last.
        return ((1 - t) * slope + 0.5) * (t + 1) * grad


# -- GELU with the error function --------------------------------------------------------------------------------------

ERFC_DEGREE = 10
ERFC_LIMIT = 10.5
"""Beyond this argument ``erfc`` is 0 in float32."""
FLOAT64_ERFC_DEGREE = 22
FLOAT64_ERFC_LIMIT = 6.0
"""Beyond this argument ``1 - erfc`` is 1 in float64; ``erfc`` is held at its value here."""


@cache
def erfc_polynomial(degree: int, limit: float) -> tuple[tuple[float, ...], float, float]:
    """Coefficients (highest power first) of p with ``erfc(z) = t exp(p(a t + b) - z**2)``, ``t = 1 / (1 + z / 2)``.

    For z in ``[0, limit]``: interpolation of ``log(erfc(z) / t) + z**2`` at Chebyshev points of t, from
    ``math.erfc``. Degree 10 up to 10.5 gives errors of 1e-8, degree 22 up to 6 of 1e-14. Returns (coefficients, a, b).
    """
    # The interval of t that belongs to z from 0 to the limit.
    low, high = 1 / (1 + limit / 2), 1.0

    def target(s: np.ndarray) -> np.ndarray:
        t = 0.5 * ((high - low) * s + high + low)
        # Solved for z: t = 1 / (1 + z / 2).
        z = 2 / t - 2
        return np.array([math.log(math.erfc(v) / w) + v * v for v, w in zip(z, t, strict=True)])

    points = np.polynomial.chebyshev.chebpts1(degree + 1)
    series = np.polynomial.chebyshev.chebfit(points, target(points), degree)
    powers = np.polynomial.chebyshev.cheb2poly(series)
    return tuple(float(c) for c in powers[::-1]), 2 / (high - low), -(high + low) / (high - low)


def normal_cdf(x: Term, dtype: DType) -> Term:
    """``Phi(x)``, the standard normal distribution function, to the precision of ``dtype``.

    ``Phi(x) = erfc(-x / sqrt 2) / 2`` is computed from ``erfc(|x| / sqrt 2)`` and the symmetry ``Phi(x) = 1 -
    Phi(-x)``. The symmetry is not used where digits would cancel, so small values are as exact as large ones.
    """
    degree, limit = (FLOAT64_ERFC_DEGREE, FLOAT64_ERFC_LIMIT) if dtype == FLOAT64 else (ERFC_DEGREE, ERFC_LIMIT)
    powers, a, b = erfc_polynomial(degree, limit)
    # Beyond the limit the polynomial was not fitted.
    z = minimum(absolute(x) * math.sqrt(0.5), limit)
    t = reciprocal(z * 0.5 + 1)
    s = t * a + b
    # Horner's rule, so that no power is computed on its own.
    exponent = s * powers[0]
    for power in powers[1:-1]:
        exponent = (exponent + power) * s
    tail = exp(exponent + powers[-1] - square(z)) * (t * 0.5)
    # The first term is 1 for positive x and 0 for
    # negative x, so only positive x uses the symmetry.
    return (copysign(0.5, x) + 0.5) * (1 - tail * 2) + tail


class GeluErf(ActivationOp):
    """GELU with the error function: ``x Phi(x)``."""

    vertex = "GELU_ERF"
    slope = staticmethod(lambda grad, x: new_tensor(GeluErfGrad, grad, x))

    def value(self, x: Term) -> Term:
        """``Phi(x)``, then times x."""
        return normal_cdf(x, self.inputs[0].dtype) * x


class GeluErfInplace(GeluErf):
    """GELU (error function) in place."""

    in_place = True


class GeluErfGrad(ActivationGrad):
    """``g * (Phi(x) + x phi(x))``."""

    vertex = "GELU_ERF"
    flops = 30

    def value(self, grad: Term, x: Term) -> Term:
        """``Phi(x)``, then the density term."""
        density = exp(square(x) * -0.5) * (1 / math.sqrt(2 * math.pi))
        return (normal_cdf(x, self.inputs[1].dtype) + density * x) * grad
