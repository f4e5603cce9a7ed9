"""Element-wise aten ops: arithmetic, functions, comparisons, selection, activations.

Operands take the type that PyTorch computes in; what is computed then is in :mod:`ipuperf.functions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ipuperf.functions import arithmetic as f
from ipuperf.functions import elementary as e
from ipuperf.functions.arranging import broadcast
from ipuperf.functions.gamma import digamma, trigamma
from ipuperf.ir import BOOL, UINT8, Tensor

from .lowering import Handler, Lowering, Value, each
from .rules import truth

Binary = Callable[[Tensor, Tensor], Tensor]
Unary = Callable[[Tensor], Tensor]


# -- arithmetic --------------------------------------------------------------------------------------------------------


def add(low: Lowering, lhs: Value, rhs: Value, alpha: float = 1) -> Tensor:
    """``lhs + alpha rhs``; the sum of bool tensors is their or."""
    x, y = low.tensors([lhs, rhs], low.dtype)
    return x | y if low.dtype == BOOL else x + e.scaled(y, alpha)


def sub(low: Lowering, lhs: Value, rhs: Value, alpha: float = 1) -> Tensor:
    """``lhs - alpha rhs``."""
    x, y = low.tensors([lhs, rhs], low.dtype)
    return x - e.scaled(y, alpha)


def rsub(low: Lowering, lhs: Value, rhs: Value, alpha: float = 1) -> Tensor:
    """``rhs - alpha lhs``."""
    return sub(low, rhs, lhs, alpha)


def mul(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """Product; of bool tensors their and."""
    x, y = low.tensors([lhs, rhs], low.dtype)
    return x & y if low.dtype == BOOL else x * y


def div(low: Lowering, lhs: Value, rhs: Value, *, rounding_mode: str | None = None) -> Tensor:
    """Quotient; ``rounding_mode`` None, ``trunc`` or ``floor``."""
    x, y = low.tensors([lhs, rhs], low.dtype)
    if rounding_mode == "floor":
        return e.floor_div(x, y)
    return e.trunc(x / y) if rounding_mode == "trunc" else x / y


def power(low: Lowering, base: Value, exponent: Value) -> Tensor:
    """Power, by a number (:func:`ipuperf.functions.elementary.number_power`) or by a tensor."""
    if isinstance(exponent, (int, float)) and not isinstance(base, (int, float)):
        return e.number_power(low.tensor(base, low.dtype), exponent)
    return f.pow(*low.tensors([base, exponent], low.dtype))


def addcmul(low: Lowering, base: Value, lhs: Value, rhs: Value, *, value: float = 1) -> Tensor:
    """``base + value * lhs * rhs``."""
    return add(low, base, f.mul(*low.tensors([lhs, rhs], low.dtype)), value)


def addcdiv(low: Lowering, base: Value, lhs: Value, rhs: Value, *, value: float = 1) -> Tensor:
    """``base + value * lhs / rhs``."""
    return add(low, base, f.div(*low.tensors([lhs, rhs], low.dtype)), value)


# -- functions ---------------------------------------------------------------------------------------------------------


def _predicate(function: Unary, otherwise: bool) -> Handler:
    """A predicate that is ``otherwise`` for every whole number."""

    def handler(low: Lowering, x: Tensor) -> Tensor:
        return function(x) if x.dtype.is_floating_point else broadcast(low.constant(otherwise, BOOL), x.shape)

    return handler


def clamp(low: Lowering, value: Value, min: Value = None, max: Value = None) -> Tensor:
    """Limits as numbers (Clip) or tensors (Max, Min)."""
    x = low.tensor(value, low.dtype)
    if all(isinstance(v, (int, float, type(None))) for v in (min, max)) and x.dtype.is_floating_point:
        lowest, highest = (-math.inf if min is None else min), (math.inf if max is None else max)
        return f.clip(x, lowest if lowest <= highest else highest, highest)
    if min is not None:
        x = f.shared_maximum(x, low.tensor(min, low.dtype))
    return x if max is None else f.shared_minimum(x, low.tensor(max, low.dtype))


def clamp_max(low: Lowering, value: Value, max: Value) -> Tensor:
    """An upper limit."""
    return clamp(low, value, None, max)


def relu(low: Lowering, value: Value) -> Tensor:
    """At least 0, of whole numbers too."""
    x = low.tensor(value, low.dtype)
    return f.relu(x) if x.dtype.is_floating_point else clamp(low, x, 0)


def hardtanh(low: Lowering, value: Value, min_val: float = -1, max_val: float = 1) -> Tensor:
    """Limited to a range."""
    return clamp(low, value, min_val, max_val)


def atan2(low: Lowering, value: Value, other: Value) -> Tensor:
    """The angle of the points ``(other, value)``, from the smaller quotient of both, so that its gradient is finite on
    the axes; 0 at the origin; where both are infinite, that of their signs. A zero counts as positive, also -0.0, which
    PyTorch tells apart."""
    y, x = low.tensors([value, other], low.dtype)
    far = f.logical_and(f.isinf(x), f.isinf(y))
    y, x = f.where(far, f.sign(y), y), f.where(far, f.sign(x), x)
    steep, zero = f.greater(f.abs(y), f.abs(x)), f.logical_and(f.equal(x, 0), f.equal(y, 0))
    divisor = f.where(steep, y, f.where(zero, low.constant(1, low.dtype), x))
    angle = f.atan(f.where(steep, x, y) / divisor)
    half = f.where(f.less(y, 0), low.constant(-math.pi / 2, low.dtype), low.constant(math.pi / 2, low.dtype))
    flat = f.where(f.less(x, 0), angle + 2 * half, angle)
    return f.where(zero, low.constant(0, low.dtype), f.where(steep, half - angle, flat))


# -- comparisons and logic ---------------------------------------------------------------------------------------------


def logical_not(low: Lowering, value: Value) -> Tensor:
    """Not."""
    return ~truth(low, value)


def _bitwise(of_truths: Binary, of_numbers: Binary) -> Handler:
    """Bitwise ops: logic of bool tensors, bits of whole numbers."""

    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        return (of_truths if low.dtype == BOOL else of_numbers)(*low.tensors([lhs, rhs], low.dtype))

    return handler


def bitwise_not(low: Lowering, value: Value) -> Tensor:
    """Not of a bool tensor, the other bits of whole numbers."""
    x = low.tensor(value, low.dtype)
    return ~x if low.dtype == BOOL else f.bitwise_not(x)


def signbit(low: Lowering, x: Tensor) -> Tensor:
    """Whether numbers are below 0 (that of -0.0, which PyTorch says is negative, is not)."""
    return broadcast(low.constant(False, BOOL), x.shape) if x.dtype in (BOOL, UINT8) else f.less(x, 0)


def copysign(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """The magnitude of ``lhs`` with the sign of ``rhs`` (that of -0.0 counts as positive)."""
    x = f.abs(low.tensor(lhs, low.dtype))
    return f.where(f.less(low.tensor(rhs, low.dtype), 0), -x, x)


def _greater(largest: bool) -> Handler:
    """The larger or smaller of two numbers, or the one that is a number; of equal ones the first."""

    def handler(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
        x, y = low.tensors([lhs, rhs], low.dtype)
        first = f.greater_equal(x, y) if largest else f.less_equal(x, y)
        return f.where(f.logical_or(first, f.isnan(y)) if low.dtype.is_floating_point else first, x, y)

    return handler


def angle(low: Lowering, value: Value) -> Tensor:
    """Pi for numbers below 0, else 0."""
    x = low.tensor(value, low.dtype)
    return f.where(f.isnan(x), x, f.where(f.less(x, 0), low.constant(math.pi, low.dtype), low.constant(0, low.dtype)))


def polygamma(low: Lowering, n: int, value: Value) -> Tensor:
    """The first two derivatives of the logarithm of the gamma function."""
    if n > 1:
        raise low.unsupported(f"n={n} is unsupported; allowed: 0, 1")
    return (trigamma if n else digamma)(low.tensor(value, low.dtype))


def xlogy(low: Lowering, lhs: Value, rhs: Value) -> Tensor:
    """``lhs log(rhs)``, 0 where ``lhs`` is."""
    x, y = low.tensors([lhs, rhs], low.dtype)
    nothing = f.logical_and(f.equal(x, 0), f.less_equal(y, 0))  # NaN stays
    return x * f.log(f.where(nothing, 1, y))


def round_to_decimals(low: Lowering, value: Value, *, decimals: int) -> Tensor:
    """Rounded to so many decimal places; a negative number counts those before the point."""
    x, factor = low.tensor(value, low.dtype), 10.0 ** abs(decimals)
    return f.round(x * factor) / factor if decimals >= 0 else f.round(x / factor) * factor


def where(low: Lowering, condition: Value, lhs: Value, rhs: Value) -> Tensor:
    """``lhs`` where the condition holds, else ``rhs``."""
    return f.where(truth(low, condition), *low.tensors([lhs, rhs], low.dtype))


def masked_fill(low: Lowering, value: Value, mask: Value, fill: Value) -> Tensor:
    """``fill`` where the mask holds."""
    return where(low, mask, fill, value)


def gelu(low: Lowering, value: Value, *, approximate: str = "none") -> Tensor:
    """GELU in its tanh form, also where PyTorch's own form is asked for: upstream's handler of ``aten::gelu`` creates
    PopART's Gelu for both (``poptorch:poptorch/source/popart_canonicalization/ActivationOps.cpp``), whose value is the
    approximation with tanh. The two differ by 5e-4 at most."""
    if approximate not in ("none", "tanh"):
        raise low.unsupported(f"approximate {approximate!r} is unsupported; allowed: none, tanh")
    return f.gelu(low.tensor(value))


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    **each("arctan2 atan2", atan2),
    **each("clamp clamp_min clip", clamp),
    **each("div divide", div),
    **each("mul multiply", mul),
    **each("sub subtract", sub),
    "add": add,
    "addcdiv": addcdiv,
    "addcmul": addcmul,
    "angle": angle,
    "bitwise_and": _bitwise(f.logical_and, f.bitwise_and),
    "bitwise_not": bitwise_not,
    "bitwise_or": _bitwise(f.logical_or, f.bitwise_or),
    "bitwise_xor": _bitwise(f.not_equal, f.bitwise_xor),
    "clamp_max": clamp_max,
    "copysign": copysign,
    "fmax": _greater(largest=True),
    "fmin": _greater(largest=False),
    "gelu": gelu,
    "hardtanh": hardtanh,
    "isfinite": _predicate(f.isfinite, True),
    "isinf": _predicate(f.isinf, False),
    "isnan": _predicate(f.isnan, False),
    "logical_not": logical_not,
    "masked_fill": masked_fill,
    "polygamma": polygamma,
    "pow": power,
    "relu": relu,
    "round.decimals": round_to_decimals,
    "rsub": rsub,
    "signbit": signbit,
    "xlogy": xlogy,
    "where": where,
}
