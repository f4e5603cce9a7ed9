"""Element-wise functions: of one tensor, of two, selections, casts and copies.

Operands broadcast as in NumPy and have equal types; host data takes the other operand's type. A function whose name
ends with an underscore changes its first operand in place, and its result shares the operand's storage.
"""

from __future__ import annotations

from typing import Any

from ipuperf import ops as _k
from ipuperf.ir import CONTEXT, FLOAT32, DType, Operand, Tensor

from .families import binary, comparison, unary
from .making import make

# -- of one tensor -----------------------------------------------------------------------------------------------------

abs = unary("abs", _k.Abs, "Absolute value.")
negate = unary("negate", _k.Neg, "``-t``.")
exp = unary("exp", _k.Exp, "``e ** t``.")
exp_ = unary("exp_", _k.ExpInplace, "``e ** t`` in place.")
log = unary("log", _k.Log, "Natural logarithm.")
log2 = unary("log2", _k.Log2, "Logarithm to base 2.")
log1p = unary(
    "log1p",
    _k.Log1p,
    "``log(1 + t)``, exact for small ``t`` (TensorFlow's; PyTorch's is :func:`.elementary.log1p`, of other ops).",
)
expm1 = unary("expm1", _k.Expm1, "``exp(t) - 1``, exact for small ``t``.")
sqrt = unary("sqrt", _k.Sqrt, "Square root.")
reciprocal = unary("reciprocal", _k.Reciprocal, "``1 / t``.")
erf = unary("erf", _k.Erf, "The error function.")
erfc = unary("erfc", _k.Erfc, "``1 - erf(t)``, exact where that is small.")
tanh = unary("tanh", _k.Tanh, "Hyperbolic tangent.")
sigmoid = unary("sigmoid", _k.Sigmoid, "``1 / (1 + exp(-t))``.")
sin = unary("sin", _k.Sin, "Sine.")
cos = unary("cos", _k.Cos, "Cosine.")
asin = unary("asin", _k.Asin, "Arc sine.")
acos = unary("acos", _k.Acos, "Arc cosine.")
atan = unary("atan", _k.Atan, "Arc tangent.")
sinh = unary("sinh", _k.Sinh, "Hyperbolic sine.")
cosh = unary("cosh", _k.Cosh, "Hyperbolic cosine.")
asinh = unary("asinh", _k.Asinh, "Inverse hyperbolic sine.")
acosh = unary("acosh", _k.Acosh, "Inverse hyperbolic cosine.")
atanh = unary("atanh", _k.Atanh, "Inverse hyperbolic tangent.")
sign = unary("sign", _k.Sign, "-1, 0 or 1.")
floor = unary("floor", _k.Floor, "Largest integer that is not larger.")
ceil = unary("ceil", _k.Ceil, "Smallest integer that is not smaller.")
round = unary("round", _k.Round, "Nearest integer, halves to even.")
logical_not = unary("logical_not", _k.Not, "``not t`` of bools.", output="not_out")
isnan = unary("isnan", _k.IsNaN, "Where ``t`` is not a number.")
isinf = unary("isinf", _k.IsInf, "Where ``t`` is infinite.")
isfinite = unary("isfinite", _k.IsFinite, "Where ``t`` is neither infinite nor NaN.")
relu = unary("relu", _k.Relu, "``max(t, 0)``.")
relu_ = unary("relu_", _k.ReluInplace, "``max(t, 0)`` in place.")
gelu = unary("gelu", _k.Gelu, "GELU, tanh form.")
gelu_ = unary("gelu_", _k.GeluInplace, "GELU (tanh form) in place.")
geluerf = unary("geluerf", _k.GeluErf, "GELU with the error function.")
geluerf_ = unary("geluerf_", _k.GeluErfInplace, "GELU with the error function in place.")
swish = unary("swish", _k.Swish, "``t * sigmoid(t)``, also called SiLU.")
swish_ = unary("swish_", _k.SwishInplace, "``t * sigmoid(t)`` in place.")
softplus = unary("softplus", _k.Softplus, "``log(1 + exp(t))``.")
bitwise_not = unary("bitwise_not", _k.BitwiseNot, "Every bit of whole numbers the other one.")
detach = unary("detach", _k.Detach, "``t``, through which no gradient flows.")
detach_ = unary("detach_", _k.DetachInplace, "As :func:`detach`, sharing storage.")


def leaky_relu(t: Tensor, alpha: float = 0.01) -> Tensor:
    """``t`` above 0, ``alpha t`` below."""
    return make(_k.LeakyRelu, t, alpha=alpha)


def square(t: Tensor) -> Tensor:
    """``t * t``."""
    return mul(t, t)


def rsqrt(t: Tensor) -> Tensor:
    """``1 / sqrt(t)``."""
    return reciprocal(sqrt(t))


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
    """``t``, printed to the standard error stream whenever the program reaches this op.

    Args:
        title: stands before the numbers; default ``print`` and the tensor's name.
        print_self, print_gradient: whether the tensor, and its gradient, is printed.
        summarise_threshold: above this many elements only ``edge_items`` at each end of an axis are shown; 0: all are.
        max_line_width: characters; 0 for no limit.
        digits: after the point; 0 with ``auto``: as many as there are.
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
    """``t`` limited to ``[min, max]``; ``None`` leaves a side open. The limits have no gradient."""
    low = float("-inf") if min is None else float(min)
    high = float("inf") if max is None else float(max)
    return make(_k.Clip, t, min=low, max=high)


clamp = clip


def identity(t: Tensor, output_name: str | None = None) -> Tensor:
    """A copy of ``t``, under the name ``output_name``."""
    return make(_k.Identity, t, name=output_name or f"{t.name}_identity")


rename = identity


# -- of two tensors ----------------------------------------------------------------------------------------------------


add = binary("add", _k.Add, "``lhs + rhs``.")


def add_(lhs: Tensor, rhs: Operand) -> Tensor:
    """``lhs += rhs`` in place: the result shares the storage of ``lhs``, and ``lhs`` reads as changed."""
    return make(_k.AddLhsInplace, lhs, rhs)


sub = binary("sub", _k.Sub, "``lhs - rhs``.")
mul = binary("mul", _k.Mul, "``lhs * rhs``.")
div = binary("div", _k.Div, "``lhs / rhs``; integers truncate towards zero.")


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
    """``lhs / rhs`` rounded towards minus infinity, as Python's ``//``.

    TensorFlow and operators use it, which take numbers too. PyTorch's is :func:`.elementary.floor_div`, of other ops
    and so with other cycles.
    """
    left, right = CONTEXT.builder.operands(lhs, rhs)
    if left.dtype.is_integer:
        # Div truncates towards zero, so a negative quotient with a remainder is 1 too large.
        remainder = fmod(left, right)
        below = logical_and(not_equal(remainder, 0), not_equal(less(remainder, 0), less(right, 0)))
        return make(_k.Div, left, right) - cast(below, left.dtype)
    return floor(div(left, right))


def mod(lhs: Operand, rhs: Operand) -> Tensor:
    """Remainder with the sign of ``rhs``, as Python's ``%``.

    TensorFlow and operators use it, which take numbers too. A sum of remainder and divisor is only formed where signs
    differ (XLA ``tf2xla/kernels/binary_ops.cc`` FloorModImpl). PyTorch's is :func:`.elementary.remainder`, of other ops
    and so with other cycles.
    """
    left, right = CONTEXT.builder.operands(lhs, rhs)
    remainder = fmod(left, right)
    return where(equal(less(left, 0), less(right, 0)), remainder, fmod(add(remainder, right), right))


fmod = binary("fmod", _k.Fmod, "Remainder with the sign of ``lhs``.")
hypot = binary("hypot", _k.Hypotenuse, "``sqrt(lhs^2 + rhs^2)`` without overflow.")
equal = binary("equal", _k.Equal, "``lhs == rhs`` as bool.")
not_equal = binary("not_equal", _k.NotEqual, "``lhs != rhs`` as bool.")
greater = comparison("greater", _k.Greater, "``input > other`` as bool.")
greater_equal = comparison("greater_equal", _k.GreaterEqual, "``input >= other`` as bool.")
less = comparison("less", _k.Less, "``input < other`` as bool.")
less_equal = comparison("less_equal", _k.LessEqual, "``input <= other`` as bool.")
logical_and = binary("logical_and", _k.And, "``lhs and rhs`` of bools.", output="and_out")
logical_or = binary("logical_or", _k.Or, "``lhs or rhs`` of bools.", output="or_out")
bitwise_and = binary("bitwise_and", _k.BitwiseAnd, "Bits of whole numbers that both have.")
bitwise_or = binary("bitwise_or", _k.BitwiseOr, "Bits of whole numbers that one of them has.")
bitwise_xor = binary("bitwise_xor", _k.BitwiseXor, "Bits of whole numbers that only one of them has.")
shift_left = binary("shift_left", _k.ShiftLeft, "``lhs << rhs`` of whole numbers.")
shift_right = binary("shift_right", _k.ShiftRight, "``lhs >> rhs`` of whole numbers; the sign stays.")


def maximum(*ts: Operand) -> Tensor:
    """Element-wise maximum of any number of tensors."""
    return make(_k.Maximum, *ts, name="max_out")


def minimum(*ts: Operand) -> Tensor:
    """Element-wise minimum of any number of tensors."""
    return make(_k.Minimum, *ts, name="min_out")


def shared_maximum(*ts: Operand) -> Tensor:
    """Element-wise maximum; equal operands get equal parts of the gradient."""
    return make(_k.Maximum, *ts, name="max_out", ties="shared")


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
    """``a * X + b * Y`` in the type of ``X``; ``a`` and ``b`` are floats or scalar tensors.

    Integers of one type are added by :func:`add`, without factors.
    """
    if X.spec.dtype.is_integer and _plain_sum(X, Y, a, b):
        return add(X, Y)
    return _scaled(_k.ScaledAdd, X, Y, a, b)


def scaled_add_(X: Tensor, Y: Tensor, a: float | Tensor = 1.0, b: float | Tensor = 1.0) -> Tensor:
    """``X = a * X + b * Y`` in place; integers as in :func:`scaled_add`."""
    if X.spec.dtype.is_integer and _plain_sum(X, Y, a, b):
        return add_(X, Y)
    return _scaled(_k.ScaledAddLhsInplace, X, Y, a, b)


def _plain_sum(x: Tensor, y: Tensor, a: float | Tensor, b: float | Tensor) -> bool:
    """Whether a scaled sum of integers is a plain sum, as the op of scaled sums takes no integers."""
    unit = not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == 1 and b == 1
    return unit and x.dtype == y.dtype and x.shape == y.shape


def _scaled(op_class: type[_k.ScaledAdd], x: Tensor, y: Tensor, a: float | Tensor, b: float | Tensor) -> Tensor:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return make(op_class, x, y, a=float(a), b=float(b))
    # Factors that are tensors become inputs; attributes say which.
    inputs: list[Tensor] = [x, y]
    attributes: dict[str, Any] = {}
    for name, factor in (("a", a), ("b", b)):
        if isinstance(factor, Tensor):
            attributes[f"{name}_input"] = len(inputs)
            inputs.append(factor)
        else:
            attributes[name] = float(factor)
    return make(op_class, *inputs, **attributes)
