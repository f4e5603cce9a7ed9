"""The gamma function's logarithm and the derivatives of that: formulas of element-wise ops, as XLA makes them for any
device that has no op for them (TensorFlow: ``tensorflow/compiler/xla/client/lib/math.cc``)."""

from __future__ import annotations

import math

from ipuperf.ir import FLOAT16, FLOAT32, Tensor

from .arithmetic import cast, cos, equal, floor, isfinite, isinf, log, log1p, sin, where

#: Lanczos' approximation with g = 7 and nine terms (the coefficients that XLA has, too).
_G = 7.0
_BASE = 0.99999999999980993227684700473478
_TERMS = (
    676.520368121885098567009190444019,
    -1259.13921672240287047156078755283,
    771.3234287776530788486528258894,
    -176.61502916214059906584551354,
    12.507343278686904814458936853,
    -0.13857109526572011689554707,
    9.984369578019570859563e-6,
    1.50563273514931155834e-7,
)
#: Terms of the recurrence before the asymptotic series of the trigamma function, and the coefficients of that
#: (Abramowitz and Stegun, 6.4.12): of 1 / y**3, 1 / y**5 and so on.
_STEPS = 6
_SERIES = (1 / 6, -1 / 30, 1 / 42, -1 / 30)


def _in_float32(t: Tensor) -> Tensor:
    """``t``, of float16 as float32: the terms reach further than float16."""
    return cast(t, FLOAT32) if t.dtype == FLOAT16 else t


def _logarithm(z: Tensor) -> Tensor:
    """``log(z + g + 1/2)``, exact also for a small ``z``."""
    return log1p(z * (1 / (_G + 0.5))) + math.log(_G + 0.5)


def _distance(t: Tensor) -> Tensor:
    """How far the nearest whole number is from ``t``."""
    rest = abs(t) - floor(abs(t))
    return where(rest > 0.5, 1.0 - rest, rest)


def lgamma(t: Tensor) -> Tensor:
    """The logarithm of the gamma function's absolute value; infinite at 0, -1, -2 and so on.

    Below 1/2 by the reflection ``log(pi) - log(sin(pi t)) - lgamma(1 - t)``.
    """
    x = _in_float32(t)
    below = x < 0.5
    z = where(below, -x, x - 1.0)
    total = sum((coefficient / (z + (i + 1.0)) for i, coefficient in enumerate(_TERMS)), start=z * 0.0 + _BASE)
    logarithm = _logarithm(z)
    above = (z + 0.5 - (z + (_G + 0.5)) / logarithm) * logarithm + log(total) + math.log(2 * math.pi) / 2
    sine = log(sin(_distance(where(below, x, 0.25)) * math.pi))  # the other branch's gradient is 0 times a number
    reflected = where(isfinite(sine), math.log(math.pi) - sine - above, -sine)
    found = where(isinf(x), math.inf, where(below, reflected, above))
    return cast(found, t.dtype) if found.dtype != t.dtype else found


def digamma(t: Tensor) -> Tensor:
    """The derivative of :func:`lgamma`; NaN at -1, -2 and so on.

    Below 1/2 by the reflection ``digamma(1 - t) - pi / tan(pi t)``.
    """
    x = _in_float32(t)
    below = x < 0.5
    z = where(below, -x, x - 1.0)
    inverses = [1.0 / (z + (i + 1.0)) for i in range(len(_TERMS))]
    parts = [c * inverse for c, inverse in zip(_TERMS, inverses)]
    slopes = [part * inverse for part, inverse in zip(parts, inverses)]
    numerator, denominator = -sum(slopes[1:], start=slopes[0]), sum(parts[1:], start=parts[0] + _BASE)
    above = _logarithm(z) + numerator / denominator - _G / (z + (_G + 0.5))
    inner = where(below, x, 0.25)
    angle = (inner + abs(floor(inner + 0.5))) * math.pi
    pole = (x <= 0.0) & equal(x, floor(x))
    reflected = where(pole, math.nan, above - cos(angle) * math.pi / sin(angle))
    found = where(below, reflected, above)
    return cast(found, t.dtype) if found.dtype != t.dtype else found


def trigamma(t: Tensor) -> Tensor:
    """The derivative of :func:`digamma`: six terms of its series and the asymptotic one for the rest; infinite at 0,
    -1, -2 and so on. Below 1/2 by the reflection ``(pi / sin(pi t))**2 - trigamma(1 - t)``."""
    x = _in_float32(t)
    below = x < 0.5
    z = where(below, 1.0 - x, x)
    squares = [1.0 / ((z + float(k)) * (z + float(k))) for k in range(_STEPS)]
    y = 1.0 / (z + float(_STEPS))
    rest, power = y + y * y * 0.5, y
    for coefficient in _SERIES:
        power = power * y * y
        rest = rest + power * coefficient
    above = sum(squares[1:], start=squares[0]) + rest
    slope = math.pi / sin(_distance(where(below, x, 0.25)) * math.pi)
    found = where(below, slope * slope - above, above)
    return cast(found, t.dtype) if found.dtype != t.dtype else found
