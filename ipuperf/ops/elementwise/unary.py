"""Element-wise ops of one operand: functions, casts and copies.

Functions that are a single ufunc run as such (NumPy computes fp16 in float32 and rounds once). The gradient of
``Sign``, ``Floor``, ``Ceil`` and the predicates is zero almost everywhere, so they pass none (``None``).
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import numpy as np

from ipuperf.ir import BOOL, DType, DTypeError, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import DTYPE, Attribute

from .. import half, vertices
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..binding import one_pass, operands, sequence
from ..work import Copy, Work


class Unary(Op, abstract=True):
    """Base of ops with one operand whose result has its shape.

    Class attributes:
        ufunc: the NumPy function, when one ufunc is enough.
        vertex: the PopLibs operation.
        predicate: the result is bool.
        allowed: ``floating``, ``signed`` (floating or signed integer), ``bool`` or ``any``.
        slope: computes the operand's gradient from the result's gradient and the operand.
        slope_at_result: computes it from the result's gradient and the result.
        slope_op: gives the op class that computes it from the result's gradient and the operand, with the attributes
            of this op.
    """

    ufunc: ClassVar[np.ufunc]
    vertex: ClassVar[str]
    predicate: ClassVar[bool] = False
    allowed: ClassVar[str] = "floating"
    slope: ClassVar[staticmethod[[Tensor, Tensor], Tensor] | None] = None
    slope_at_result: ClassVar[staticmethod[[Tensor, Tensor], Tensor] | None] = None
    slope_op: ClassVar[staticmethod[[], type[Op]] | None] = None

    def infer(self) -> list[TensorSpec]:
        """The operand's shape; its dtype, or bool for predicates."""
        if len(self.inputs) != 1:
            self.require(False, f"needs 1 operand, got {len(self.inputs)}")
        tensor = self.inputs[0]
        if not _is_allowed(tensor.dtype, self.allowed):
            raise DTypeError(f"{self.where()}: {tensor.id!r} is {tensor.dtype.name}; allowed: {self.allowed}")
        return [TensorSpec(tensor.shape, BOOL if self.predicate else tensor.dtype, tensor.meta_shape)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One ufunc call."""
        return one_pass(self.ufunc, inputs, self.target(inputs, outputs), env)

    def target(self, inputs: Arrays, outputs: Arrays) -> np.ndarray:
        """The array that receives the result."""
        return inputs[0] if self.in_place else outputs[0]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """Use :attr:`slope`, :attr:`slope_at_result` or :attr:`slope_op`, unless a class has a rule of its own."""
        # A class sets at most one of the three.
        if self.slope is not None:
            return [self.slope(grad, builder.forward(self.inputs[0]))]
        if self.slope_at_result is not None:
            return [self.slope_at_result(grad, builder.forward(self.outputs[0]))]
        if self.slope_op is not None:
            return [builder.op(self.slope_op(), [grad, builder.forward(self.inputs[0])], **self.attributes)]
        return super().gradient_from(builder, grad)

    def work(self) -> list[Work]:
        """One unary compute set."""
        tensor = self.inputs[0]
        return [vertices.unary(self.vertex, tensor.dtype, tensor.spec.elements, in_place=self.in_place)]


def new_tensor(op_class: type[Op], *operands: Tensor) -> Tensor:
    """The output of a new op in the graph of its operands."""
    return operands[0].graph.operate(op_class, operands)


def _is_allowed(dtype: DType, allowed: str) -> bool:
    if allowed == "any":
        return True
    if allowed == "bool":
        return dtype == BOOL
    return dtype.is_floating_point or (allowed == "signed" and dtype.category == "int")


class Abs(Unary):
    """Absolute value."""

    operator = "abs"
    ufunc = np.absolute
    vertex = "ABSOLUTE"
    allowed = "signed"
    slope = staticmethod(lambda grad, x: grad * new_tensor(Sign, x))


class Neg(Unary):
    """Negation."""

    operator = "negate"
    ufunc = np.negative
    vertex = "NEGATE"
    allowed = "signed"
    slope = staticmethod(lambda grad, x: -grad)


class Exp(Unary):
    """Exponential."""

    ufunc = np.exp
    vertex = "EXPONENT"
    slope_at_result = staticmethod(lambda grad, y: grad * y)


class ExpInplace(Exp):
    """Exponential in place."""

    in_place = True


class Log(Unary):
    """Natural logarithm."""

    ufunc = np.log
    vertex = "LOGARITHM"
    slope = staticmethod(lambda grad, x: grad / x)


class Log2(Unary):
    """Logarithm to base 2."""

    ufunc = np.log2
    vertex = "LOGARITHM"
    slope = staticmethod(lambda grad, x: grad * (1 / math.log(2)) / x)

    def work(self) -> list[Work]:
        """Natural logarithm, then times ``1 / ln 2`` in place."""
        tensor = self.inputs[0]
        # PopLibs has a vertex for the natural logarithm only.
        count = tensor.spec.elements
        return [*super().work(), vertices.broadcast_scalar("MULTIPLY", tensor.dtype, count, in_place=True)]


class Sqrt(Unary):
    """Square root."""

    ufunc = np.sqrt
    vertex = "SQRT"
    slope_at_result = staticmethod(lambda grad, y: grad * 0.5 / y)


class Sin(Unary):
    """Sine."""

    ufunc = np.sin
    vertex = "SIN"
    slope = staticmethod(lambda grad, x: grad * new_tensor(Cos, x))


class Cos(Unary):
    """Cosine."""

    ufunc = np.cos
    vertex = "COS"
    slope = staticmethod(lambda grad, x: -(grad * new_tensor(Sin, x)))


class Sign(Unary):
    """-1, 0 or 1. It is 0 for NaN, which is neither above nor below 0 (PopLibs lib/popops/codelets, ``SIGNUM``)."""

    flat = True
    ufunc = np.sign
    vertex = "SIGNUM"
    allowed = "signed"

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """NumPy's sign, then 0 where an element is NaN."""
        (x,), (out,) = inputs, outputs
        # NumPy's sign of NaN is NaN.
        nan = env.scratch(x.shape, np.bool_, slot=2)
        return sequence(
            super().kernel(inputs, outputs, env),
            # NaN alone differs from itself.
            partial(np.not_equal, x, x, nan),
            partial(np.copyto, out, 0, where=nan),
        )


class Floor(Unary):
    """Largest whole number that is not above the operand."""

    flat = True
    ufunc = np.floor
    vertex = "FLOOR"


class Ceil(Unary):
    """Smallest whole number that is not below the operand."""

    flat = True
    ufunc = np.ceil
    vertex = "CEIL"


class Not(Unary):
    """Logical not of a bool tensor."""

    flat = True
    operator = "logical_not"
    ufunc = np.logical_not
    vertex = "LOGICAL_NOT"
    allowed = "bool"


class IsNaN(Unary):
    """True where the operand is NaN."""

    flat = True
    ufunc = np.isnan
    vertex = "IS_NAN"
    predicate = True


class IsInf(Unary):
    """True where the operand is infinite."""

    flat = True
    ufunc = np.isinf
    vertex = "IS_INF"
    predicate = True


class IsFinite(Unary):
    """True where the operand is neither NaN nor infinite."""

    flat = True
    ufunc = np.isfinite
    vertex = "IS_FINITE"
    predicate = True


# -- copies ------------------------------------------------------------------------------------------------------------


class Cast(Op):
    """Conversion to ``dtype`` (attribute): floats are rounded to nearest even, floats to integers truncated."""

    dtype = Attribute(DTYPE)

    def infer(self) -> list[TensorSpec]:
        """The operand's shape with the new dtype."""
        tensor = self.inputs[0]
        # 8-bit floats carry a scale, which a plain cast would have to guess.
        if "float8" in (tensor.dtype.category, self.dtype.category) and tensor.dtype != self.dtype:
            raise DTypeError(
                f"{self.where()}: cast of {tensor.dtype.name} to {self.dtype.name}; 8-bit floats are cast by "
                "pow2scale_cast_to_fp8 and pow2scale_cast_from_fp8"
            )
        return [TensorSpec(tensor.shape, self.dtype, tensor.meta_shape)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One converting copy."""
        (array,), out = operands(inputs, outputs[0])
        # Casts between float types round; all others truncate as NumPy does.
        if self.inputs[0].dtype.is_floating_point and self.outputs[0].dtype.is_floating_point:
            return half.copy(out, array)
        return partial(np.copyto, out, array, casting="unsafe")

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient, cast back; none for an operand that is not floating point."""
        source = self.inputs[0].dtype
        # Whole numbers have no gradient.
        if not source.is_floating_point:
            return [None]
        return [builder.op(Cast, [grad], dtype=source)]

    def work(self) -> list[Work]:
        """One Cast compute set, or a copy when the type stays the same."""
        source, result = self.inputs[0], self.outputs[0]
        # Without a conversion there is no Cast vertex,
        # but the result is still a tensor of its own.
        if source.dtype == result.dtype:
            return [Copy(result.spec.bytes)]
        return [vertices.cast(source.dtype, result.dtype, result.spec.elements)]


class Identity(Unary):
    """A copy of the operand."""

    allowed = "any"

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """One copy."""
        (array,), out = operands(inputs, outputs[0])
        return partial(np.copyto, out, array)

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """The gradient itself."""
        return [grad]

    def work(self) -> list[Work]:
        """The bytes copied."""
        return [Copy(self.outputs[0].spec.bytes)]


class Detach(Identity):
    """A copy of the operand through which no gradient flows."""

    flat = True


class DetachInplace(Detach):
    """The operand itself (its storage), through which no gradient flows."""

    renames = True

    def work(self) -> list[Work]:
        """Nothing."""
        return []
