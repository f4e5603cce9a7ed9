"""Element-wise aten ops: arithmetic, functions, comparisons, selection, activations.

Operands take the type that PyTorch computes in. Compositions are those of PopTorch's canonicalisation (or of PopART's
patterns) where it composes too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ipuperf.ir import BOOL, FLOAT32, Tensor
from ipuperf.ops import (
    Abs,
    Add,
    And,
    Ceil,
    Clip,
    Cos,
    Div,
    Elu,
    Equal,
    Erf,
    Exp,
    Expm1,
    Floor,
    Fmod,
    Gelu,
    Greater,
    GreaterEqual,
    HardSigmoid,
    IsFinite,
    IsInf,
    IsNaN,
    LeakyRelu,
    Less,
    LessEqual,
    Log,
    Log1p,
    Log2,
    Maximum,
    Minimum,
    Mul,
    Neg,
    Not,
    NotEqual,
    Op,
    Or,
    Pow,
    Reciprocal,
    Relu,
    Round,
    Sigmoid,
    Sign,
    Sin,
    Softplus,
    Sqrt,
    Sub,
    Swish,
    Tanh,
    Where,
)

from .aten_lowering import Lowering, Value, axis_of

Handler = Callable[..., Any]


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _binary(op_class: type[Op]) -> Handler:
    """A handler for ``op_class`` in the result's type."""

    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        return low.op(op_class, low.tensors([lhs, rhs], low.dtype))

    return handler


def _scaled(low: Lowering, value: Value, alpha: float) -> Tensor:
    tensor = low.tensor(value, low.dtype)
    return tensor if alpha == 1 else low.op(Mul, [tensor, low.constant(alpha, low.dtype)])


def add(low: Lowering, lhs: Value, rhs: Value, alpha: float = 1) -> Tensor:
    """``lhs + alpha rhs``; the sum of bool tensors is their or."""
    if low.dtype == BOOL:
        return low.op(Or, low.tensors([lhs, rhs], BOOL))
    return low.op(Add, [low.tensor(lhs, low.dtype), _scaled(low, rhs, alpha)])


def sub(low: Lowering, lhs: Value, rhs: Value, alpha: float = 1) -> Tensor:
    """``lhs - alpha rhs``."""
    return low.op(Sub, [low.tensor(lhs, low.dtype), _scaled(low, rhs, alpha)])


def rsub(low: Lowering, lhs: Value, rhs: Value, alpha: float = 1) -> Tensor:
    """``rhs - alpha lhs``."""
    return sub(low, rhs, lhs, alpha)


def mul(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """Product; of bool tensors their and."""
    return low.op(And if low.dtype == BOOL else Mul, low.tensors([lhs, rhs], low.dtype))


def div(low: Lowering, lhs: Value, rhs: Value, *, rounding_mode: str | None = None) -> Tensor:
    """Quotient; ``rounding_mode`` None, ``trunc`` or ``floor``."""
    a, b = low.tensors([lhs, rhs], low.dtype)
    quotient = low.op(Div, [a, b])
    if rounding_mode is None:
        return quotient
    if rounding_mode == "trunc":
        return quotient if low.dtype.is_integer else trunc(low, quotient)
    if low.dtype.is_floating_point:
        return low.op(Floor, [quotient])
    return low.op(Sub, [quotient, low.tensor(_crosses(low, a, b), low.dtype)])


def _crosses(low: Lowering, a: Tensor, b: Tensor) -> Tensor:
    """Whether an integer division leaves a remainder with a sign other than the divisor's."""
    zero = low.constant(0, a.dtype)
    rest = low.op(Fmod, [a, b])
    signs = low.op(NotEqual, [low.op(Less, [rest, zero]), low.op(Less, [b, zero])])
    return low.op(And, [low.op(NotEqual, [rest, zero]), signs])


def floor_divide(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """Quotient rounded down."""
    return div(low, lhs, rhs, rounding_mode="floor")


def remainder(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """Remainder with the divisor's sign."""
    a, b = low.tensors([lhs, rhs], low.dtype)
    if low.dtype.is_floating_point:
        return low.op(Sub, [a, low.op(Mul, [low.op(Floor, [low.op(Div, [a, b])]), b])])
    correction = low.op(Mul, [low.tensor(_crosses(low, a, b), low.dtype), b])
    return low.op(Add, [low.op(Fmod, [a, b]), correction])


def fmod(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """Remainder with the dividend's sign."""
    return low.op(Fmod, low.tensors([lhs, rhs], low.dtype))


def trunc(low: Lowering, value: Value) -> Tensor:
    """Rounded towards zero: ``sign(x) floor(|x|)``."""
    x = low.tensor(value)
    return low.op(Mul, [low.op(Sign, [x]), low.op(Floor, [low.op(Abs, [x])])])


def power(low: Lowering, base: Value, exponent: Value) -> Tensor:
    """Power. Constant exponents -1, -0.5, 0, 0.5, 1, 2, 3 become products, roots and inverses, as popops' expression
    optimiser makes them."""
    if isinstance(exponent, (int, float)) and not isinstance(base, (int, float)):
        x = low.tensor(base, low.dtype)
        special = _special_power(low, x, float(exponent))
        if special is not None:
            return special
    return low.op(Pow, low.tensors([base, exponent], low.dtype))


def _special_power(low: Lowering, x: Tensor, exponent: float) -> Tensor | None:
    if exponent == 1:
        return x
    if exponent in (2.0, 3.0):
        square = low.op(Mul, [x, x])
        return square if exponent == 2 else low.op(Mul, [square, x])
    if not x.dtype.is_floating_point:
        return None
    if exponent == 0.5:
        return low.op(Sqrt, [x])
    if exponent == -0.5:
        return low.op(Reciprocal, [low.op(Sqrt, [x])])
    if exponent == -1:
        return low.op(Reciprocal, [x])
    return None


def square(low: Lowering, value: Value) -> Tensor:
    """``x * x``."""
    x = low.tensor(value, low.dtype)
    return low.op(Mul, [x, x])


def addcmul(low: Lowering, base: Value, lhs: Value, rhs: Value, *, value: float = 1) -> Tensor:
    """``base + value * lhs * rhs``."""
    return add(low, base, low.op(Mul, low.tensors([lhs, rhs], low.dtype)), value)


def addcdiv(low: Lowering, base: Value, lhs: Value, rhs: Value, *, value: float = 1) -> Tensor:
    """``base + value * lhs / rhs``."""
    return add(low, base, low.op(Div, low.tensors([lhs, rhs], low.dtype)), value)


def lerp(low: Lowering, start: Value, end: Value, weight: Value) -> Tensor:
    """``start + weight (end - start)``."""
    a, b, w = low.tensors([start, end, weight], low.dtype)
    return low.op(Add, [a, low.op(Mul, [w, low.op(Sub, [b, a])])])


# -- functions ---------------------------------------------------------------------------------------------------------


def _unary(op_class: type[Op], **attributes: Any) -> Handler:
    """A handler for ``op_class`` in the result's type."""

    def handler(low: Lowering, value: Value) -> Tensor:
        return low.op(op_class, [low.tensor(value, low.dtype)], **attributes)

    return handler


def _whole(op_class: type[Op]) -> Handler:
    """A handler for a rounding: whole numbers stay as they are."""

    def handler(low: Lowering, value: Value) -> Tensor:
        x = low.tensor(value, low.dtype)
        return low.op(op_class, [x]) if x.dtype.is_floating_point else x

    return handler


def _predicate(op_class: type[Op], otherwise: bool) -> Handler:
    """A handler for a predicate that is ``otherwise`` for every whole number."""

    def handler(low: Lowering, value: Value) -> Tensor:
        x = low.tensor(value)
        if x.dtype.is_floating_point:
            return low.op(op_class, [x])
        return low.expand(low.constant(otherwise, BOOL), x.shape)

    return handler


def rsqrt(low: Lowering, value: Value) -> Tensor:
    """Square root, inverted (as PopTorch lowers it)."""
    return low.op(Reciprocal, [low.op(Sqrt, [low.tensor(value, low.dtype)])])


def log10(low: Lowering, value: Value) -> Tensor:
    """``log(x) / log(10)``."""
    return low.op(Mul, [low.op(Log, [low.tensor(value, low.dtype)]), low.constant(1 / math.log(10), low.dtype)])


def exp2(low: Lowering, value: Value) -> Tensor:
    """``exp(x log(2))``."""
    scaled = low.op(Mul, [low.tensor(value, low.dtype), low.constant(math.log(2), low.dtype)])
    return low.op(Exp, [scaled])


def tan(low: Lowering, value: Value) -> Tensor:
    """``sin(x) / cos(x)``."""
    x = low.tensor(value, low.dtype)
    return low.op(Div, [low.op(Sin, [x]), low.op(Cos, [x])])


def clamp(low: Lowering, value: Value, min: Value = None, max: Value = None) -> Tensor:
    """Limits as numbers (Clip) or tensors (Max, Min)."""
    x = low.tensor(value, low.dtype)
    numbers = all(isinstance(v, (int, float, type(None))) for v in (min, max))
    if numbers and x.dtype.is_floating_point:
        lowest = -math.inf if min is None else float(min)
        highest = math.inf if max is None else float(max)
        return low.op(Clip, [x], min=lowest if lowest <= highest else highest, max=highest)
    if min is not None:
        x = low.op(Maximum, [x, low.tensor(min, low.dtype)])
    return x if max is None else low.op(Minimum, [x, low.tensor(max, low.dtype)])


def clamp_max(low: Lowering, value: Value, max: Value) -> Tensor:
    """An upper limit."""
    return clamp(low, value, None, max)


# -- comparisons and logic ---------------------------------------------------------------------------------------------


def _compare(op_class: type[Op]) -> Handler:
    """A comparison in the type that PyTorch compares in."""

    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        return low.op(op_class, low.tensors([lhs, rhs], low.promoted(lhs, rhs)))

    return handler


def truth(low: Lowering, value: Value) -> Tensor:
    """Whether elements differ from zero."""
    x = low.tensor(value)
    return x if x.dtype == BOOL else low.op(NotEqual, [x, low.constant(0, x.dtype)])


def _logical(op_class: type[Op]) -> Handler:
    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        return low.op(op_class, [truth(low, lhs), truth(low, rhs)])

    return handler


def logical_not(low: Lowering, value: Value) -> Tensor:
    """Not."""
    return low.op(Not, [truth(low, value)])


def _bitwise(op_class: type[Op]) -> Handler:
    """Bitwise ops, for bool tensors only."""

    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        _only_bool(low)
        return low.op(op_class, low.tensors([lhs, rhs], BOOL))

    return handler


def bitwise_not(low: Lowering, value: Value) -> Tensor:
    """Not, for bool tensors only."""
    _only_bool(low)
    return low.op(Not, [low.tensor(value, BOOL)])


def _only_bool(low: Lowering) -> None:
    if low.dtype != BOOL:
        raise low.unsupported(f"operands of type {low.dtype.name} are unsupported; allowed: bool")


def where(low: Lowering, condition: Value, lhs: Value, rhs: Value) -> Tensor:
    """``lhs`` where the condition holds, else ``rhs``."""
    return low.op(Where, [truth(low, condition), *low.tensors([lhs, rhs], low.dtype)])


def masked_fill(low: Lowering, value: Value, mask: Value, fill: Value) -> Tensor:
    """``fill`` where the mask holds."""
    return where(low, mask, fill, value)


# -- activations -------------------------------------------------------------------------------------------------------


def gelu(low: Lowering, value: Value, *, approximate: str = "none") -> Tensor:
    """GELU in its tanh form, also where PyTorch's own form is asked for: upstream's handler of ``aten::gelu`` creates
    PopART's Gelu for both (``poptorch:poptorch/source/popart_canonicalization/ActivationOps.cpp``), whose value is the
    approximation with tanh. The two differ by 5e-4 at most."""
    if approximate not in ("none", "tanh"):
        raise low.unsupported(f"approximate {approximate!r} is unsupported; allowed: none, tanh")
    return low.op(Gelu, [low.tensor(value)])


def hardtanh(low: Lowering, value: Value, min_val: float = -1, max_val: float = 1) -> Tensor:
    """Limited to a range."""
    return clamp(low, value, min_val, max_val)


def relu6(low: Lowering, value: Value) -> Tensor:
    """Limited to 0 to 6."""
    return clamp(low, value, 0, 6)


def hardswish(low: Lowering, value: Value) -> Tensor:
    """``where(|x| > 3, max(x, 0), x (x + 3) / 6)`` (PopTorch ActivationOps)."""
    x = low.tensor(value)
    three, six = low.constant(3, x.dtype), low.constant(6, x.dtype)
    outside = low.op(Greater, [low.op(Abs, [x]), three])
    middle = low.op(Div, [low.op(Mul, [x, low.op(Add, [x, three])]), six])
    return low.op(Where, [outside, low.op(Relu, [x]), middle])


def elu(low: Lowering, value: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """ELU and its scaled forms."""
    x = low.tensor(value)
    if input_scale != 1:
        negative = low.op(Mul, [x, low.constant(input_scale, x.dtype)])
        below = low.op(Mul, [low.op(Expm1, [negative]), low.constant(alpha, x.dtype)])
        y = low.op(Where, [low.op(Greater, [x, low.constant(0, x.dtype)]), x, below])
    else:
        y = low.op(Elu, [x], alpha=float(alpha))
    return y if scale == 1 else low.op(Mul, [y, low.constant(scale, x.dtype)])


def selu(low: Lowering, value: Value) -> Tensor:
    """ELU with PyTorch's fixed alpha and scale."""
    return elu(low, value, 1.6732632423543772, 1.0507009873554805)


def celu(low: Lowering, value: Value, alpha: float = 1.0) -> Tensor:
    """ELU of ``x / alpha``."""
    return elu(low, value, alpha, 1, 1 / alpha)


def leaky_relu(low: Lowering, value: Value, negative_slope: float = 0.01) -> Tensor:
    """Leaky ReLU."""
    return low.op(LeakyRelu, [low.tensor(value)], alpha=float(negative_slope))


def prelu(low: Lowering, value: Value, weight: Value) -> Tensor:
    """``x`` above 0, ``weight x`` elsewhere; one weight, or one per channel (axis 1)."""
    x, w = low.tensor(value), low.tensor(weight, low.dtype)
    if w.spec.elements > 1:
        w = low.reshape(w, [-1] + [1] * (len(x.shape) - 2))
    return low.op(Where, [low.op(Greater, [x, low.constant(0, x.dtype)]), x, low.op(Mul, [w, x])])


def softplus(low: Lowering, value: Value, beta: float = 1, threshold: float = 20) -> Tensor:
    """Softplus, and x itself where ``beta x`` is above ``threshold``; from 20 on (the default) the two agree to the
    type's resolution."""
    x = low.tensor(value)
    smooth = low.op(Softplus, [x], beta=float(beta))
    if threshold >= 20:
        return smooth
    scaled = low.op(Mul, [x, low.constant(beta, x.dtype)])
    straight = low.op(Greater, [scaled, low.constant(threshold, x.dtype)])
    return low.op(Where, [straight, x, smooth])


def log_sigmoid(low: Lowering, value: Value) -> Tensor:
    """``-softplus(-x)``."""
    return low.op(Neg, [low.op(Softplus, [low.op(Neg, [low.tensor(value)])])])


def mish(low: Lowering, value: Value) -> Tensor:
    """``x tanh(softplus(x))``."""
    x = low.tensor(value)
    return low.op(Mul, [x, low.op(Tanh, [low.op(Softplus, [x])])])


def glu(low: Lowering, value: Value, dim: int = -1) -> Tensor:
    """The first half times the sigmoid of the second (PopTorch ActivationOps)."""
    x = low.tensor(value)
    axis = axis_of(dim, len(x.shape))
    half = x.shape[axis] // 2
    gate = low.op(Sigmoid, [low.slice(x, axis, half, 2 * half)])
    return low.op(Mul, [low.slice(x, axis, 0, half), gate])


def softsign(low: Lowering, value: Value) -> Tensor:
    """``x / (1 + |x|)``."""
    x = low.tensor(value)
    return low.op(Div, [x, low.op(Add, [low.op(Abs, [x]), low.constant(1, x.dtype)])])


def threshold(low: Lowering, value: Value, limit: float, fill: float) -> Tensor:
    """``x`` above the limit, else ``fill``."""
    x = low.tensor(value)
    return low.op(Where, [low.op(Greater, [x, low.constant(limit, x.dtype)]), x, low.constant(fill, x.dtype)])


def nan_to_num(
    low: Lowering, value: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and infinities replaced."""
    x = low.tensor(value)
    info = torch.finfo(torch.float32 if x.dtype == FLOAT32 else torch.float16)
    high, lowest = (info.max if posinf is None else posinf), (info.min if neginf is None else neginf)
    for number, filling in ((math.inf, high), (-math.inf, lowest)):
        hit = low.op(Equal, [x, low.constant(number, x.dtype)])
        x = low.op(Where, [hit, low.constant(filling, x.dtype), x])
    return low.op(Where, [low.op(IsNaN, [x]), low.constant(nan or 0.0, x.dtype), x])


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    "abs": _unary(Abs),
    "add": add,
    "addcdiv": addcdiv,
    "addcmul": addcmul,
    "bitwise_and": _bitwise(And),
    "bitwise_not": bitwise_not,
    "bitwise_or": _bitwise(Or),
    "bitwise_xor": _bitwise(NotEqual),
    "ceil": _whole(Ceil),
    "celu": celu,
    "clamp": clamp,
    "clamp_max": clamp_max,
    "clamp_min": clamp,
    "clip": clamp,
    "cos": _unary(Cos),
    "div": div,
    "divide": div,
    "elu": elu,
    "eq": _compare(Equal),
    "erf": _unary(Erf),
    "exp": _unary(Exp),
    "exp2": exp2,
    "expm1": _unary(Expm1),
    "floor": _whole(Floor),
    "floor_divide": floor_divide,
    "fmod": fmod,
    "ge": _compare(GreaterEqual),
    "gelu": gelu,
    "glu": glu,
    "gt": _compare(Greater),
    "hardsigmoid": _unary(HardSigmoid, alpha=1 / 6, beta=0.5),
    "hardswish": hardswish,
    "hardtanh": hardtanh,
    "isfinite": _predicate(IsFinite, True),
    "isinf": _predicate(IsInf, False),
    "isnan": _predicate(IsNaN, False),
    "le": _compare(LessEqual),
    "leaky_relu": leaky_relu,
    "lerp": lerp,
    "log": _unary(Log),
    "log10": log10,
    "log1p": _unary(Log1p),
    "log2": _unary(Log2),
    "log_sigmoid": log_sigmoid,
    "logical_and": _logical(And),
    "logical_not": logical_not,
    "logical_or": _logical(Or),
    "logical_xor": _logical(NotEqual),
    "lt": _compare(Less),
    "masked_fill": masked_fill,
    "max.other": _binary(Maximum),
    "maximum": _binary(Maximum),
    "min.other": _binary(Minimum),
    "minimum": _binary(Minimum),
    "mish": mish,
    "mul": mul,
    "multiply": mul,
    "nan_to_num": nan_to_num,
    "ne": _compare(NotEqual),
    "neg": _unary(Neg),
    "pow": power,
    "prelu": prelu,
    "reciprocal": _unary(Reciprocal),
    "relu": _unary(Relu),
    "relu6": relu6,
    "remainder": remainder,
    "round": _whole(Round),
    "rsqrt": rsqrt,
    "rsub": rsub,
    "selu": selu,
    "sigmoid": _unary(Sigmoid),
    "sign": _unary(Sign),
    "silu": _unary(Swish),
    "sin": _unary(Sin),
    "softplus": softplus,
    "softsign": softsign,
    "sqrt": _unary(Sqrt),
    "square": square,
    "sub": sub,
    "subtract": sub,
    "tan": tan,
    "tanh": _unary(Tanh),
    "threshold": threshold,
    "trunc": trunc,
    "where": where,
}
