"""Element-wise functions composed of others: powers and roots, roundings and remainders, mixes of tensors."""

from __future__ import annotations

import math

import numpy as np

from ipuperf import ops as _k
from ipuperf.ir import Operand, Tensor

from .arithmetic import (
    cast,
    cos,
    equal,
    exp,
    floor,
    fmod,
    isnan,
    log,
    not_equal,
    reciprocal,
    rsqrt,
    sign,
    sin,
    sqrt,
    where,
)
from .making import make


def scaled(t: Tensor, factor: float) -> Tensor:
    """``t * factor``; ``t`` itself where the factor is 1."""
    return t if factor == 1 else t * factor


def number_power(t: Tensor, exponent: float) -> Tensor:
    """``t ** exponent``.

    The exponents -1, -0.5, 0.5, 1, 2 and 3 become products, roots and inverses, as in popops' expression optimiser (for
    integers 1, 2 and 3 only).
    """
    if exponent == 1:
        return t
    if exponent in (2, 3):
        return t * t if exponent == 2 else t * t * t
    special = {0.5: sqrt, -0.5: rsqrt, -1: reciprocal}.get(exponent)
    return special(t) if special is not None and t.dtype.is_floating_point else t**exponent


def log10(t: Tensor) -> Tensor:
    """Logarithm to base 10."""
    return log(t) * (1 / math.log(10))


def log1p(t: Tensor) -> Tensor:
    """The logarithm of ``t + 1``, which is not exact for small ``t``.

    This is PyTorch's, as PopTorch builds it (poptorch: ``popart_canonicalization``, ``log1pHandler``). TensorFlow's is
    :func:`.arithmetic.log1p`, of another op.
    """
    return log(t + 1.0)


def exp2(t: Tensor) -> Tensor:
    """``2 ** t``."""
    return exp(t * math.log(2))


def tan(t: Tensor) -> Tensor:
    """Tangent."""
    return sin(t) / cos(t)


def frac(t: Tensor) -> Tensor:
    """The fractional part of ``t``: the difference to the integer towards zero."""
    return t - trunc(t)


def trunc(t: Tensor) -> Tensor:
    """``t`` rounded towards zero; whole numbers stay as they are."""
    return sign(t) * floor(abs(t)) if t.dtype.is_floating_point else t


def floor_div(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Quotient rounded down, also of integers.

    For integers it is the truncated quotient, less one where the remainder's sign is not the divisor's. This is
    PyTorch's; TensorFlow's is :func:`.arithmetic.floor_div`, of other ops.
    """
    if lhs.dtype.is_floating_point:
        return make(_k.FloorQuotient, lhs, rhs)
    quotient = lhs / rhs
    return quotient - cast(_crosses(lhs, rhs), quotient.dtype)


def remainder(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Remainder with the sign of ``rhs``.

    Floats use the quotient; the remainder of integers is corrected where signs differ. This is PyTorch's; TensorFlow's
    is :func:`.arithmetic.mod`, of other ops.
    """
    if lhs.dtype.is_floating_point:
        return make(_k.Remainder, lhs, rhs)
    correction: Tensor = cast(_crosses(lhs, rhs), lhs.dtype) * rhs
    return fmod(lhs, rhs) + correction


def _crosses(lhs: Tensor, rhs: Tensor) -> Tensor:
    """Whether an integer division leaves a remainder with a sign other than the divisor's."""
    remainder = fmod(lhs, rhs)
    signs = not_equal(remainder < 0, rhs < 0)
    return not_equal(remainder, 0) & signs


def lerp(start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """``start + weight (end - start)``."""
    change: Tensor = weight * (end - start)
    return start + change


def nan_to_num(t: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN and infinities replaced, by default by 0 and the largest and smallest numbers of the type.

    Whole numbers stay as they are.
    """
    if not t.dtype.is_floating_point:
        return t
    limits = np.finfo(t.dtype.numpy)
    high, low = (float(limits.max) if posinf is None else posinf), (float(limits.min) if neginf is None else neginf)
    for number, filling in ((math.inf, high), (-math.inf, low)):
        t = where(equal(t, number), filling, t)
    return where(isnan(t), nan or 0.0, t)
