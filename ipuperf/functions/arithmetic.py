"""Element-wise functions: of one tensor, of two, selections, casts and copies.

Operands broadcast as in NumPy and have equal types; host data takes the other operand's type. Functions whose names end
with an underscore change their first operand in place, and their result shares its storage.
"""

from __future__ import annotations

from typing import Any

from ipuperf import ops as _k
from ipuperf.ir import CONTEXT, FLOAT32, DType, Operand, Tensor

from .making import make
from .naming import named

# -- of one tensor -----------------------------------------------------------------------------------------------------


@named(aten="abs")
def abs(t: Tensor) -> Tensor:
    """Absolute value."""
    return make(_k.Abs, t)


@named(aten="neg")
def negate(t: Tensor) -> Tensor:
    """``-t``."""
    return make(_k.Neg, t)


@named(aten="exp")
def exp(t: Tensor) -> Tensor:
    """``e ** t``."""
    return make(_k.Exp, t)


def exp_(t: Tensor) -> Tensor:
    """``e ** t`` in place."""
    return make(_k.ExpInplace, t)


@named(aten="log")
def log(t: Tensor) -> Tensor:
    """Natural logarithm."""
    return make(_k.Log, t)


@named(aten="log2")
def log2(t: Tensor) -> Tensor:
    """Logarithm to base 2."""
    return make(_k.Log2, t)


def log1p(t: Tensor) -> Tensor:
    """``log(1 + t)``, exact for small ``t`` (TensorFlow's; PyTorch's is :func:`.elementary.log1p`, of other ops)."""
    return make(_k.Log1p, t)


@named(aten="expm1")
def expm1(t: Tensor) -> Tensor:
    """``exp(t) - 1``, exact for small ``t``."""
    return make(_k.Expm1, t)


@named(aten="sqrt")
def sqrt(t: Tensor) -> Tensor:
    """Square root."""
    return make(_k.Sqrt, t)


@named(aten="reciprocal")
def reciprocal(t: Tensor) -> Tensor:
    """``1 / t``."""
    return make(_k.Reciprocal, t)


@named(aten="erf")
def erf(t: Tensor) -> Tensor:
    """The error function."""
    return make(_k.Erf, t)


@named(aten="tanh")
def tanh(t: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return make(_k.Tanh, t)


@named(aten="sigmoid")
def sigmoid(t: Tensor) -> Tensor:
    """``1 / (1 + exp(-t))``."""
    return make(_k.Sigmoid, t)


@named(aten="sin")
def sin(t: Tensor) -> Tensor:
    """Sine."""
    return make(_k.Sin, t)


@named(aten="cos")
def cos(t: Tensor) -> Tensor:
    """Cosine."""
    return make(_k.Cos, t)


@named(aten="asin")
def asin(t: Tensor) -> Tensor:
    """Arc sine."""
    return make(_k.Asin, t)


@named(aten="acos")
def acos(t: Tensor) -> Tensor:
    """Arc cosine."""
    return make(_k.Acos, t)


@named(aten="atan")
def atan(t: Tensor) -> Tensor:
    """Arc tangent."""
    return make(_k.Atan, t)


@named(aten="sinh")
def sinh(t: Tensor) -> Tensor:
    """Hyperbolic sine."""
    return make(_k.Sinh, t)


@named(aten="cosh")
def cosh(t: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    return make(_k.Cosh, t)


@named(aten="asinh")
def asinh(t: Tensor) -> Tensor:
    """Inverse hyperbolic sine."""
    return make(_k.Asinh, t)


@named(aten="acosh")
def acosh(t: Tensor) -> Tensor:
    """Inverse hyperbolic cosine."""
    return make(_k.Acosh, t)


@named(aten="atanh")
def atanh(t: Tensor) -> Tensor:
    """Inverse hyperbolic tangent."""
    return make(_k.Atanh, t)


@named(aten="sign")
def sign(t: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return make(_k.Sign, t)


def floor(t: Tensor) -> Tensor:
    """Largest integer that is not larger."""
    return make(_k.Floor, t)


def ceil(t: Tensor) -> Tensor:
    """Smallest integer that is not smaller."""
    return make(_k.Ceil, t)


def round(t: Tensor) -> Tensor:
    """Nearest integer, halves to even."""
    return make(_k.Round, t)


def logical_not(t: Tensor) -> Tensor:
    """``not t`` of bools."""
    return make(_k.Not, t, name="not_out")


def isnan(t: Tensor) -> Tensor:
    """Where ``t`` is not a number."""
    return make(_k.IsNaN, t)


def isinf(t: Tensor) -> Tensor:
    """Where ``t`` is infinite."""
    return make(_k.IsInf, t)


def isfinite(t: Tensor) -> Tensor:
    """Where ``t`` is neither infinite nor NaN."""
    return make(_k.IsFinite, t)


@named(aten="relu")
def relu(t: Tensor) -> Tensor:
    """``max(t, 0)``."""
    return make(_k.Relu, t)


def relu_(t: Tensor) -> Tensor:
    """``max(t, 0)`` in place."""
    return make(_k.ReluInplace, t)


def gelu(t: Tensor) -> Tensor:
    """GELU, tanh form."""
    return make(_k.Gelu, t)


def gelu_(t: Tensor) -> Tensor:
    """GELU (tanh form) in place."""
    return make(_k.GeluInplace, t)


def geluerf(t: Tensor) -> Tensor:
    """GELU with the error function."""
    return make(_k.GeluErf, t)


def geluerf_(t: Tensor) -> Tensor:
    """GELU with the error function in place."""
    return make(_k.GeluErfInplace, t)


@named(aten="silu")
def swish(t: Tensor) -> Tensor:
    """``t * sigmoid(t)``, also called SiLU."""
    return make(_k.Swish, t)


def swish_(t: Tensor) -> Tensor:
    """``t * sigmoid(t)`` in place."""
    return make(_k.SwishInplace, t)


@named(aten="leaky_relu")
def leaky_relu(t: Tensor, alpha: float = 0.01) -> Tensor:
    """``t`` above 0, ``alpha t`` below."""
    return make(_k.LeakyRelu, t, alpha=alpha)


def softplus(t: Tensor) -> Tensor:
    """``log(1 + exp(t))``."""
    return make(_k.Softplus, t)


@named(aten="square")
def square(t: Tensor) -> Tensor:
    """``t * t``."""
    return mul(t, t)


@named(aten="rsqrt")
def rsqrt(t: Tensor) -> Tensor:
    """``1 / sqrt(t)``."""
    return reciprocal(sqrt(t))


def detach(t: Tensor) -> Tensor:
    """``t``, through which no gradient flows."""
    return make(_k.Detach, t)


def detach_(t: Tensor) -> Tensor:
    """As :func:`detach`, sharing storage."""
    return make(_k.DetachInplace, t)


def print_tensor(
    t: Tensor,
    title: str | None = None,
    print_self: bool = True,
    print_gradient: bool = False,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 75,
    digits: int = 8,
    float_format: str = "auto",
    separator: str = " ",
    open_bracket: str = "[",
    close_bracket: str = "]",
) -> Tensor:
    """``t``, printed to the standard error stream whenever the program comes by.

    Args:
        title: stands before the numbers; default ``print`` and the tensor's name.
        print_self, print_gradient: whether the tensor, and its gradient, is printed.
        summarise_threshold: above this many elements only ``edge_items`` at each end of an axis are shown.
        max_line_width: characters; 0 for no limit.
        digits: after the point.
        float_format: ``auto``, ``fixed``, ``scientific`` or ``none``.
        separator, open_bracket, close_bracket: between and around elements.
    """
    return make(
        _k.PrintTensor,
        t,
        name="print_out",
        title=f"print{t.name}" if title is None else title,
        print_self=print_self,
        print_gradient=print_gradient,
        summarise_threshold=summarise_threshold,
        edge_items=edge_items,
        max_line_width=max_line_width,
        digits=digits,
        float_format=float_format,
        separator=separator,
        open_bracket=open_bracket,
        close_bracket=close_bracket,
    )


def cast(t: Tensor, data_type: DType) -> Tensor:
    """``t`` converted to ``data_type``."""
    return make(_k.Cast, t, name=f"{t.name}_{data_type.name}", dtype=data_type)


def clip(t: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """``t`` limited to ``[min, max]``; ``None`` leaves a side open."""
    low = float("-inf") if min is None else float(min)
    high = float("inf") if max is None else float(max)
    return make(_k.Clip, t, min=low, max=high)


clamp = clip


def inner_clip(t: Tensor, min: float, max: float) -> Tensor:
    """As :func:`clip`; without a gradient on the limits."""
    return make(_k.Clip, t, min=float(min), max=float(max), inner=True)


def identity(t: Tensor, output_name: str | None = None) -> Tensor:
    """A copy of ``t``, under the name ``output_name``."""
    return make(_k.Identity, t, name=output_name or f"{t.name}_identity")


rename = identity


# -- of two tensors ----------------------------------------------------------------------------------------------------


def add(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs + rhs``."""
    return make(_k.Add, lhs, rhs)


def add_(lhs: Tensor, rhs: Operand) -> Tensor:
    """``lhs += rhs`` in place: the result shares the storage of ``lhs``, and ``lhs`` reads as changed."""
    return make(_k.AddLhsInplace, lhs, rhs)


def sub(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs - rhs``."""
    return make(_k.Sub, lhs, rhs)


def mul(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs * rhs``."""
    return make(_k.Mul, lhs, rhs)


def div(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs / rhs``; integers truncate towards zero."""
    return make(_k.Div, lhs, rhs)


def pow(t: Operand, e: Operand) -> Tensor:
    """``t ** e``."""
    return make(_k.Pow, t, e)


def true_div(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs / rhs`` as Python's: integers are converted to float32 first."""
    left, right = CONTEXT.builder.operands(lhs, rhs)
    if left.dtype.is_integer:
        left, right = cast(left, FLOAT32), cast(right, FLOAT32)
    return make(_k.Div, left, right)


def floor_div(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs / rhs`` rounded towards minus infinity, as Python's ``//``: that of TensorFlow and of operators, which take
    numbers too. PyTorch's is :func:`.elementary.floor_div`: other ops, so other cycles.
    """
    left, right = CONTEXT.builder.operands(lhs, rhs)
    if left.dtype.is_integer:
        return make(_k.Div, sub(left, mod(left, right)), right)
    return floor(div(left, right))


def mod(lhs: Operand, rhs: Operand) -> Tensor:
    """Remainder with the sign of ``rhs``, as Python's ``%``: that of TensorFlow and operators, which take numbers;
    a sum of remainder and divisor is in between. PyTorch's is :func:`.elementary.remainder`: other ops and cycles.
    """
    left, right = CONTEXT.builder.operands(lhs, rhs)
    return fmod(add(fmod(left, right), right), right)


@named(aten="fmod")
def fmod(lhs: Operand, rhs: Operand) -> Tensor:
    """Remainder with the sign of ``lhs``."""
    return make(_k.Fmod, lhs, rhs)


def equal(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs == rhs`` as bool."""
    return make(_k.Equal, lhs, rhs)


def not_equal(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs != rhs`` as bool."""
    return make(_k.NotEqual, lhs, rhs)


def greater(input: Operand, other: Operand) -> Tensor:
    """``input > other`` as bool."""
    return make(_k.Greater, input, other)


def greater_equal(input: Operand, other: Operand) -> Tensor:
    """``input >= other`` as bool."""
    return make(_k.GreaterEqual, input, other)


def less(input: Operand, other: Operand) -> Tensor:
    """``input < other`` as bool."""
    return make(_k.Less, input, other)


def less_equal(input: Operand, other: Operand) -> Tensor:
    """``input <= other`` as bool."""
    return make(_k.LessEqual, input, other)


def logical_and(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs and rhs`` of bools."""
    return make(_k.And, lhs, rhs, name="and_out")


def logical_or(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs or rhs`` of bools."""
    return make(_k.Or, lhs, rhs, name="or_out")


def bitwise_and(lhs: Operand, rhs: Operand) -> Tensor:
    """Bits of whole numbers that both have."""
    return make(_k.BitwiseAnd, lhs, rhs)


def bitwise_or(lhs: Operand, rhs: Operand) -> Tensor:
    """Bits of whole numbers that one of them has."""
    return make(_k.BitwiseOr, lhs, rhs)


def bitwise_xor(lhs: Operand, rhs: Operand) -> Tensor:
    """Bits of whole numbers that only one of them has."""
    return make(_k.BitwiseXor, lhs, rhs)


def shift_left(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs << rhs`` of whole numbers."""
    return make(_k.ShiftLeft, lhs, rhs)


def shift_right(lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs >> rhs`` of whole numbers; the sign stays."""
    return make(_k.ShiftRight, lhs, rhs)


def bitwise_not(t: Tensor) -> Tensor:
    """Every bit of whole numbers the other one."""
    return make(_k.BitwiseNot, t)


def maximum(*ts: Operand) -> Tensor:
    """Element-wise maximum of any number of tensors."""
    return make(_k.Maximum, *ts, name="max_out")


def minimum(*ts: Operand) -> Tensor:
    """Element-wise minimum of any number of tensors."""
    return make(_k.Minimum, *ts, name="min_out")


@named(aten="max.other; maximum")
def shared_maximum(*ts: Operand) -> Tensor:
    """Element-wise maximum; equal operands get equal parts of the gradient."""
    return make(_k.Maximum, *ts, name="max_out", ties="shared")


@named(aten="min.other; minimum")
def shared_minimum(*ts: Operand) -> Tensor:
    """Element-wise minimum; equal operands get equal parts of the gradient."""
    return make(_k.Minimum, *ts, name="min_out", ties="shared")


def first_maximum(*ts: Operand) -> Tensor:
    """Element-wise maximum; of equal operands the first gets the gradient."""
    return make(_k.Maximum, *ts, name="max_out", ties="first")


def first_minimum(*ts: Operand) -> Tensor:
    """Element-wise minimum; of equal operands the first gets the gradient."""
    return make(_k.Minimum, *ts, name="min_out", ties="first")


def where(condition: Tensor, lhs: Operand, rhs: Operand) -> Tensor:
    """``lhs`` where ``condition`` (bool) holds, else ``rhs``."""
    return make(_k.Where, condition, *CONTEXT.builder.operands(lhs, rhs))


def scaled_add(X: Tensor, Y: Tensor, a: float | Tensor = 1.0, b: float | Tensor = 1.0) -> Tensor:
    """``a * X + b * Y`` in the type of ``X``; ``a`` and ``b`` are floats or scalar tensors. Integers of one type are
    added by :func:`add`, without factors."""
    if X.spec.dtype.is_integer and _plain_sum(X, Y, a, b):
        return add(X, Y)
    return _scaled(_k.ScaledAdd, X, Y, a, b)


def scaled_add_(X: Tensor, Y: Tensor, a: float | Tensor = 1.0, b: float | Tensor = 1.0) -> Tensor:
    """``X = a * X + b * Y`` in place; integers as in :func:`scaled_add`."""
    if X.spec.dtype.is_integer and _plain_sum(X, Y, a, b):
        return add_(X, Y)
    return _scaled(_k.ScaledAddLhsInplace, X, Y, a, b)


def _plain_sum(x: Tensor, y: Tensor, a: float | Tensor, b: float | Tensor) -> bool:
    """Whether a scaled sum of integers, which the op of scaled sums does not take, is their sum."""
    unit = not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == 1 and b == 1
    return unit and x.dtype == y.dtype and x.shape == y.shape


def _scaled(op_class: type[_k.ScaledAdd], x: Tensor, y: Tensor, a: float | Tensor, b: float | Tensor) -> Tensor:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return make(op_class, x, y, a=float(a), b=float(b))
    inputs: list[Tensor] = [x, y]
    attributes: dict[str, Any] = {}
    for name, factor in (("a", a), ("b", b)):
        if isinstance(factor, Tensor):
            attributes[f"{name}_input"] = len(inputs)
            inputs.append(factor)
        else:
            attributes[name] = float(factor)
    return make(op_class, *inputs, **attributes)
