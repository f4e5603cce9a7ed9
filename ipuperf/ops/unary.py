"""Element-wise ops of one operand: functions, activations, casts and copies, with the fused gradients upstream names.

Functions that are a single ufunc run as such (NumPy computes fp16 in float32 and rounds once). Activations are chains
of passes over float32 blocks. ``Sign``, ``Floor``, ``Ceil`` and the predicates have a zero gradient almost everywhere:
they pass none (``None``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import BOOL, DType, DTypeError, GradientBuilder, Tensor, TensorSpec

from . import elementwise as ew
from . import vertices
from .base import Environment, Kernel, Op
from .binding import Build, Step, elementwise, given, operands, scalar, sequence
from .work import Copy, Work

#: Constants of the tanh form of GELU: ``0.5 x (1 + tanh(GELU_SCALE * (x + GELU_CUBE * x**3)))``.
GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715


class Unary(Op):
    """Base of ops with one operand whose result has its shape.

    Class attributes:
        ufunc: the NumPy function, when one ufunc is enough.
        vertex: PopLibs operation.
        predicate: the result is bool.
        allowed: ``floating``, ``signed`` (floating or signed integer), ``bool`` or ``any``.
        in_place: the op changes its operand and its output is that operand.
    """

    ufunc: ClassVar[np.ufunc]
    vertex: ClassVar[str]
    predicate: ClassVar[bool] = False
    allowed: ClassVar[str] = "floating"
    in_place: ClassVar[bool] = False

    def infer(self) -> list[TensorSpec]:
        """The operand's shape; its dtype, or bool for predicates."""
        self.require(len(self.inputs) == 1, f"needs 1 operand, got {len(self.inputs)}")
        tensor = self.inputs[0]
        if not _is_allowed(tensor.dtype, self.allowed):
            raise DTypeError(f"{self.where()}: {tensor.id!r} is {tensor.dtype.name}; allowed: {self.allowed}")
        return [TensorSpec(tensor.shape, BOOL if self.predicate else tensor.dtype, tensor.meta_shape)]

    def modified_inputs(self) -> tuple[int, ...]:
        """The operand, for in-place ops."""
        return (0,) if self.in_place else ()

    def aliases(self) -> dict[int, int]:
        """The output is the operand, for in-place ops."""
        return {0: 0} if self.in_place else {}

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One ufunc call."""
        (array,), out = operands(inputs, self.target(inputs, outputs))
        return partial(self.ufunc, array, out)

    def target(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> np.ndarray:
        """The array that receives the result."""
        return inputs[0] if self.in_place else outputs[0]

    def work(self) -> list[Work]:
        """One unary compute set."""
        tensor = self.inputs[0]
        return [vertices.unary(self.vertex, tensor.dtype, tensor.spec.elements, in_place=self.in_place)]


def _is_allowed(dtype: DType, allowed: str) -> bool:
    if allowed == "any":
        return True
    if allowed == "bool":
        return dtype == BOOL
    return dtype.is_floating_point or (allowed == "signed" and dtype.category == "int")


class Abs(Unary):
    """Absolute value."""

    type = "Abs"
    ufunc = np.absolute
    vertex = "ABSOLUTE"
    allowed = "signed"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g * sign(x)``."""
        sign = builder.op(Sign, [builder.forward(self.inputs[0])])
        return [builder.op(ew.Mul, [given(grads), sign])]


class Neg(Unary):
    """Negation."""

    type = "Neg"
    ufunc = np.negative
    vertex = "NEGATE"
    allowed = "signed"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``-g``."""
        return [builder.op(Neg, [given(grads)])]


class Exp(Unary):
    """Exponential."""

    type = "Exp"
    ufunc = np.exp
    vertex = "EXPONENT"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g * out``."""
        return [builder.op(ew.Mul, [given(grads), builder.forward(self.outputs[0])])]


class ExpInplace(Exp):
    """Exponential in place."""

    type = "ExpInplace"
    in_place = True


class Log(Unary):
    """Natural logarithm."""

    type = "Log"
    ufunc = np.log
    vertex = "LOGARITHM"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g / x``."""
        return [builder.op(ew.Div, [given(grads), builder.forward(self.inputs[0])])]


class Log2(Unary):
    """Logarithm to base 2."""

    type = "Log2"
    ufunc = np.log2
    vertex = "LOGARITHM"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g / (x ln 2)``."""
        grad = given(grads)
        scaled = builder.op(ew.Mul, [grad, ew.number(builder, 1 / math.log(2), grad.dtype)])
        return [builder.op(ew.Div, [scaled, builder.forward(self.inputs[0])])]

    def work(self) -> list[Work]:
        """Natural logarithm, then times ``1 / ln 2`` in place."""
        tensor = self.inputs[0]
        count = tensor.spec.elements
        return [*super().work(), vertices.broadcast_scalar("MULTIPLY", tensor.dtype, count, in_place=True)]


class Sqrt(Unary):
    """Square root."""

    type = "Sqrt"
    ufunc = np.sqrt
    vertex = "SQRT"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``0.5 g / out``."""
        grad = given(grads)
        half = builder.op(ew.Mul, [grad, ew.number(builder, 0.5, grad.dtype)])
        return [builder.op(ew.Div, [half, builder.forward(self.outputs[0])])]


class Sin(Unary):
    """Sine."""

    type = "Sin"
    ufunc = np.sin
    vertex = "SIN"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``g * cos(x)``."""
        cosine = builder.op(Cos, [builder.forward(self.inputs[0])])
        return [builder.op(ew.Mul, [given(grads), cosine])]


class Cos(Unary):
    """Cosine."""

    type = "Cos"
    ufunc = np.cos
    vertex = "COS"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """``-g * sin(x)``."""
        sine = builder.op(Sin, [builder.forward(self.inputs[0])])
        return [builder.op(Neg, [builder.op(ew.Mul, [given(grads), sine])])]


class _Flat(Unary):
    """Base of functions whose gradient is zero almost everywhere."""

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """None flows back."""
        return [None]


class Sign(_Flat):
    """-1, 0 or 1."""

    type = "Sign"
    ufunc = np.sign
    vertex = "SIGNUM"
    allowed = "signed"


class Floor(_Flat):
    """Largest whole number that is not above the operand."""

    type = "Floor"
    ufunc = np.floor
    vertex = "FLOOR"


class Ceil(_Flat):
    """Smallest whole number that is not below the operand."""

    type = "Ceil"
    ufunc = np.ceil
    vertex = "CEIL"


class Not(_Flat):
    """Logical not of a bool tensor."""

    type = "Not"
    ufunc = np.logical_not
    vertex = "LOGICAL_NOT"
    allowed = "bool"


class IsNaN(_Flat):
    """True where the operand is NaN."""

    type = "IsNaN"
    ufunc = np.isnan
    vertex = "IS_NAN"
    predicate = True


class IsInf(_Flat):
    """True where the operand is infinite."""

    type = "IsInf"
    ufunc = np.isinf
    vertex = "IS_INF"
    predicate = True


class IsFinite(_Flat):
    """True where the operand is neither NaN nor infinite."""

    type = "IsFinite"
    ufunc = np.isfinite
    vertex = "IS_FINITE"
    predicate = True


# -- activations -------------------------------------------------------------------------------------------------------


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
        self.require(grad.shape == value.shape, f"gradient {grad.shape} and forward value {value.shape} differ in shape")
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
        return partial(np.maximum, array, scalar(0, out.dtype), out)

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
        return sequence([partial(np.maximum, array, low, out), partial(np.minimum, out, high, out)])

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


@lru_cache(maxsize=None)
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

    series = np.polynomial.chebyshev.chebinterpolate(target, degree)
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
        partial(np.minimum, z, constant(ERFC_LIMIT), z),
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


# -- copies ------------------------------------------------------------------------------------------------------------


class Cast(Op):
    """Conversion to ``dtype`` (attribute): floats are rounded to nearest even, floats to integers truncated."""

    type = "Cast"

    def infer(self) -> list[TensorSpec]:
        """The operand's shape with the new dtype."""
        dtype = self.attributes["dtype"]
        if not isinstance(dtype, DType):
            raise DTypeError(f"{self.where()}: dtype={dtype!r} is not a DType")
        tensor = self.inputs[0]
        return [TensorSpec(tensor.shape, dtype, tensor.meta_shape)]

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One converting copy."""
        (array,), out = operands(inputs, outputs[0])
        return partial(np.copyto, out, array, casting="unsafe")

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient, cast back; none into a non-floating operand."""
        source = self.inputs[0].dtype
        if not source.is_floating_point:
            return [None]
        return [builder.op(Cast, [given(grads)], dtype=source)]

    def work(self) -> list[Work]:
        """One Cast compute set; a copy when the type stays."""
        source, result = self.inputs[0], self.outputs[0]
        if source.dtype == result.dtype:
            return [Copy(result.spec.bytes)]
        return [vertices.cast(source.dtype, result.dtype, result.spec.elements)]


class Identity(Unary):
    """A copy of the operand."""

    type = "Identity"
    allowed = "any"

    def kernel(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], env: Environment) -> Kernel:
        """One copy."""
        (array,), out = operands(inputs, outputs[0])
        return partial(np.copyto, out, array)

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradient itself."""
        return [given(grads)]

    def work(self) -> list[Work]:
        """The bytes copied."""
        return [Copy(self.outputs[0].spec.bytes)]


class Detach(Identity):
    """A copy of the operand through which no gradient flows."""

    type = "Detach"

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """None flows back."""
        return [None]
