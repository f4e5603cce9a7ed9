"""Element-wise ops of two (or more) operands with NumPy broadcasting.

Operands have equal dtypes. NumPy computes a single fp16 ufunc in float32 and rounds once, which is the required value,
so fp16 needs no temporaries here. Gradients of broadcast operands are summed over the broadcast axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import BOOL, Constant, DType, DTypeError, GradientBuilder, Tensor, TensorSpec

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import align, one_pass, operands, sequence
from ..reductions.axes_reduced import sum_to
from ..work import Work
from . import unary


def zero(builder: GradientBuilder, dtype: DType) -> Tensor:
    """A scalar zero in the gradient graph."""
    return builder.graph.constant(0, dtype, "zero")


def number(builder: GradientBuilder, value: float, dtype: DType) -> Tensor:
    """A scalar constant in the gradient graph."""
    return builder.graph.constant(value, dtype, "constant")


def meta_shape_of(shape_: tuple[int, ...], tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """The RTS meta shape of an element-wise result: the meta shape of the first operand that has one and has the
    result's shape."""
    return next((t.meta_shape for t in tensors if t.shape == shape_ and t.meta_shape), ())


def elementwise_work(
    name: str, dtype: DType, lhs: Sequence[int], rhs: Sequence[int], out: Sequence[int], *, in_place: bool = False
) -> list[Work]:
    """The vertex of a binary operation: plain, scalar, inner or outer vector, or plain over a broadcast operand."""
    elements = math.prod(out)
    small = tuple(rhs) if math.prod(lhs) == elements else tuple(lhs)
    # Operands of equal sizes need no broadcast.
    if math.prod(small) == elements:
        return [vertices.binary(name, dtype, elements, in_place=in_place)]
    if math.prod(small) == 1 and max(math.prod(lhs), math.prod(rhs)) == elements:
        return [vertices.broadcast_scalar(name, dtype, elements, in_place=in_place)]
    # Only these operations have vertices for broadcast vectors.
    supported = name in vertices.BROADCAST_VECTOR_OPS and dtype.is_floating_point
    if supported and max(math.prod(lhs), math.prod(rhs)) == elements:
        # NumPy broadcasts from the last axis, so missing axes are the first ones.
        padded = (1,) * (len(out) - len(small)) + small
        used = [i for i, n in enumerate(padded) if n != 1]
        span = math.prod(out[used[0] : used[-1] + 1])
        # A vector vertex needs the small operand to be one unbroken stretch of axes.
        if span == math.prod(small):
            elements_before, elements_after = math.prod(out[: used[0]]), math.prod(out[used[-1] + 1 :])
            if elements_after == 1:
                return [vertices.broadcast_inner(name, dtype, elements, span, in_place=in_place)]
            if elements_before == 1:
                return [vertices.broadcast_outer(name, dtype, elements, elements_after, in_place=in_place)]
    return [vertices.binary(name, dtype, elements, in_place=in_place)]


class Binary(Op, abstract=True):
    """Base of ``out = ufunc(lhs, rhs)``.

    Class attributes:
        ufunc: the NumPy function.
        vertex: the PopLibs operation.
        comparison: the result is bool.
        allowed: ``any``, ``number`` (no bool) or ``bool``.
    """

    ufunc: ClassVar[np.ufunc]
    vertex: ClassVar[str]
    comparison: ClassVar[bool] = False
    allowed: ClassVar[str] = "number"

    def infer(self) -> list[TensorSpec]:
        """Broadcast of the shapes; the operands' dtype, or bool for comparisons."""
        if len(self.inputs) != 2:
            self.require(False, f"needs 2 operands, got {len(self.inputs)}")
        dtype = self.same_dtype(*self.inputs)
        # A bool is wrong where numbers are needed, and the other way round.
        wrong = self.allowed != "any" and (dtype == BOOL) != (self.allowed == "bool")
        if wrong or dtype.category == "float8":
            allowed = "bool" if self.allowed == "bool" else "a number type"
            raise DTypeError(f"{self.where()}: operands are {dtype.name}; {allowed} is needed")
        out = self.broadcast(*self.inputs)
        return [TensorSpec(out, BOOL if self.comparison else dtype, meta_shape_of(out, self.inputs))]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One ufunc call."""
        return one_pass(self.ufunc, inputs, outputs[0], env)

    def work(self) -> list[Work]:
        """One compute set; see :func:`elementwise_work`."""
        lhs, rhs = self.inputs
        return elementwise_work(self.vertex, lhs.dtype, lhs.shape, rhs.shape, self.outputs[0].shape)


class Add(Binary):
    """Sum."""

    operator = "add"
    ufunc = np.add
    vertex = "ADD"

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient, summed to each operand's shape."""
        return [sum_to(builder, grad, t.shape) for t in self.inputs]


class Sub(Binary):
    """Difference."""

    operator = "sub"
    ufunc = np.subtract
    vertex = "SUBTRACT"

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g`` and ``-g``, summed to each operand's shape."""
        lhs, rhs = self.inputs
        return [sum_to(builder, grad, lhs.shape), -sum_to(builder, grad, rhs.shape)]


class Mul(Binary):
    """Product."""

    operator = "mul"
    ufunc = np.multiply
    vertex = "MULTIPLY"

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g * other``, summed to each operand's shape."""
        lhs, rhs = self.inputs
        return [
            sum_to(builder, grad * builder.forward(factor), operand.shape)
            for operand, factor in ((lhs, rhs), (rhs, lhs))
        ]


class Div(Binary):
    """Quotient; integers are truncated towards zero as on the device."""

    operator = "div"
    ufunc = np.divide
    vertex = "DIVIDE"

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One ufunc call; for integers ``(a - fmod(a, b)) // b``, which is exact."""
        if self.inputs[0].dtype.is_floating_point:
            return super().kernel(inputs, outputs, env)
        (lhs, rhs), out = operands(inputs, outputs[0])
        return sequence(
            # Taking the remainder away first makes the
            # quotient whole, so rounding down is truncation.
            partial(np.fmod, lhs, rhs, out),
            partial(np.subtract, lhs, out, out),
            partial(np.floor_divide, out, rhs, out),
        )

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g / rhs`` and ``-g * out / rhs``."""
        lhs, rhs = self.inputs
        scaled = grad / builder.forward(rhs)
        # out / rhs is lhs / rhs^2, so the forward result saves a product.
        d_rhs = scaled * builder.forward(self.outputs[0])
        return [sum_to(builder, scaled, lhs.shape), -sum_to(builder, d_rhs, rhs.shape)]


class Pow(Binary):
    """Power ``lhs ** rhs``. Integer powers of integers must not be negative (NumPy raises ValueError)."""

    operator = "pow"
    ufunc = np.power
    vertex = "POWER"

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g * e * x ** (e - 1)`` (0 where e is 0) and ``g * out * log(x)`` (0 where x is 0; NaN for negative x, as
        upstream)."""
        base, exponent = (builder.forward(t) for t in self.inputs)
        nothing = zero(builder, base.dtype)
        slope = exponent * base ** (exponent - 1)
        if not (isinstance(self.inputs[1], Constant) and self.inputs[1].data.all()):  # 0 ** -1 is infinite
            slope = builder.op(Where, [builder.op(Equal, [exponent, nothing]), nothing, slope], name="pow_slope")
        d_base = grad * slope
        log = builder.op(
            Where, [builder.op(Equal, [base, nothing]), nothing, builder.op(unary.Log, [base])], name="pow_log"
        )
        d_exponent = grad * (builder.forward(self.outputs[0]) * log)
        return [sum_to(builder, d_base, base.shape), sum_to(builder, d_exponent, exponent.shape)]


class Fmod(Binary):
    """Remainder with the sign of the dividend (C ``fmod``)."""

    operator = "fmod"
    ufunc = np.fmod
    vertex = "REMAINDER"

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g`` and ``-g * trunc(lhs / rhs)`` (the quotient recovered as ``(lhs - out) / rhs``)."""
        lhs, rhs = (builder.forward(t) for t in self.inputs)
        # The sign is turned here, so that the gradient needs no negation of its own.
        whole = (builder.forward(self.outputs[0]) - lhs) / rhs
        d_rhs = grad * whole
        return [sum_to(builder, grad, lhs.shape), sum_to(builder, d_rhs, rhs.shape)]


class Equal(Binary):
    """``lhs == rhs``."""

    ufunc = np.equal
    vertex = "EQUAL"
    comparison = True
    allowed = "any"


class Greater(Binary):
    """``lhs > rhs``."""

    operator = "greater"
    ufunc = np.greater
    vertex = "GREATER_THAN"
    comparison = True
    allowed = "any"


class And(Binary):
    """Logical and of bool tensors."""

    operator = "logical_and"
    ufunc = np.logical_and
    vertex = "LOGICAL_AND"
    allowed = "bool"


class Or(Binary):
    """Logical or of bool tensors."""

    operator = "logical_or"
    ufunc = np.logical_or
    vertex = "LOGICAL_OR"
    allowed = "bool"


class AddLhsInplace(Op):
    """``lhs += rhs``: the output shares the storage of ``lhs``; ``rhs`` may broadcast."""

    in_place = True

    def infer(self) -> list[TensorSpec]:
        """The spec of ``lhs``; ``rhs`` must broadcast to it."""
        lhs, rhs = self.inputs
        self.same_dtype(lhs, rhs)
        self.require(
            self.broadcast(lhs, rhs) == lhs.shape,
            f"rhs of shape {rhs.shape} cannot be added in place to lhs of shape {lhs.shape}; rhs must broadcast to lhs",
        )
        return [lhs.spec]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One ufunc call with ``lhs`` as output."""
        return one_pass(np.add, inputs, inputs[0], env)

    def work(self) -> list[Work]:
        """One in-place compute set."""
        lhs, rhs = self.inputs
        return elementwise_work("ADD", lhs.dtype, lhs.shape, rhs.shape, lhs.shape, in_place=True)


class Where(Op):
    """``lhs`` where ``cond`` holds, ``rhs`` elsewhere; all three broadcast together."""

    def infer(self) -> list[TensorSpec]:
        """Broadcast of the three shapes; ``cond`` is bool, the others have equal dtypes."""
        cond, lhs, rhs = self.inputs
        if cond.dtype != BOOL:
            raise DTypeError(f"{self.where()}: condition {cond.id!r} is {cond.dtype.name}; bool is needed")
        return [TensorSpec(self.broadcast(cond, lhs, rhs), self.same_dtype(lhs, rhs))]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Two copies, the second masked."""
        out = outputs[0]
        cond, lhs, rhs = (align(a, out.ndim) for a in inputs)
        return sequence(partial(np.copyto, out, rhs), partial(np.copyto, out, lhs, where=cond))

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """``g`` on the chosen side, 0 on the other."""
        cond, lhs, rhs = self.inputs
        # The condition itself has no gradient.
        mask, nothing = builder.forward(cond), zero(builder, grad.dtype)
        d_lhs = builder.op(Where, [mask, grad, nothing])
        d_rhs = builder.op(Where, [mask, nothing, grad])
        return [None, sum_to(builder, d_lhs, lhs.shape), sum_to(builder, d_rhs, rhs.shape)]

    def work(self) -> list[Work]:
        """One Select compute set."""
        out = self.outputs[0]
        return [vertices.select(out.dtype, out.spec.elements)]
