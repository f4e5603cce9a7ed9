"""The logarithm of the gamma function and its derivatives.

They are formulas of element-wise ops, as XLA makes them for any device without an op for them (TensorFlow:
``tensorflow/compiler/xla/client/lib/math.cc``).
"""

from __future__ import annotations

import math

from ipuperf.ir import FLOAT16, FLOAT32, Tensor

from .arithmetic import cast, cos, equal, floor, isfinite, isinf, log, log1p, sin, where

#: Lanczos' approximation with g = 7 and nine terms (the coefficients of XLA).
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
#: Terms of the recurrence before the asymptotic series of the trigamma function, and the series' coefficients
#: (Abramowitz and Stegun, 6.4.12): of 1 / y**3, 1 / y**5 and so on.
_STEPS = 6
_SERIES = (1 / 6, -1 / 30, 1 / 42, -1 / 30)


def _in_float32(t: Tensor) -> Tensor:
    """``t`` as float32 where it is float16, as the terms exceed float16's range."""
    return cast(t, FLOAT32) if t.dtype == FLOAT16 else t


def _logarithm(z: Tensor) -> Tensor:
    """``log(z + g + 1/2)``, exact also for a small ``z``."""
    return log1p(z * (1 / (_G + 0.5))) + math.log(_G + 0.5)


def _distance(t: Tensor) -> Tensor:
    """The distance from ``t`` to the nearest whole number."""
    fraction = abs(t) - floor(abs(t))
    return where(fraction > 0.5, 1.0 - fraction, fraction)


def lgamma(t: Tensor) -> Tensor:
    """The logarithm of the absolute value of the gamma function; infinite at 0, -1, -2 and so on.

    Below 1/2 the reflection ``log(pi) - log(sin(pi t)) - lgamma(1 - t)`` is used.
    """
    x = _in_float32(t)
    below = x < 0.5
    # Both branches are computed for all elements, so their operands must stay in range.
    z = where(below, -x, x - 1.0)
    series = sum((coefficient / (z + (index + 1.0)) for index, coefficient in enumerate(_TERMS)), start=z * 0.0 + _BASE)
    logarithm = _logarithm(z)
    above = (z + 0.5 - (z + (_G + 0.5)) / logarithm) * logarithm + log(series) + math.log(2 * math.pi) / 2
    sine = log(sin(_distance(where(below, x, 0.25)) * math.pi))  # 0.25, as the unused branch needs a finite gradient
    reflected = where(isfinite(sine), math.log(math.pi) - sine - above, -sine)
    log_gamma = where(isinf(x), math.inf, where(below, reflected, above))
    return cast(log_gamma, t.dtype) if log_gamma.dtype != t.dtype else log_gamma


def digamma(t: Tensor) -> Tensor:
    """The derivative of :func:`lgamma`; NaN at -1, -2 and so on.

    Below 1/2 the reflection ``digamma(1 - t) - pi / tan(pi t)`` is used.
    """
    x = _in_float32(t)
    below = x < 0.5
    z = where(below, -x, x - 1.0)
    # Each division is needed twice, for the sum and for its derivative.
    inverses = [1.0 / (z + (index + 1.0)) for index in range(len(_TERMS))]
    parts = [coefficient * inverse for coefficient, inverse in zip(_TERMS, inverses)]
    slopes = [part * inverse for part, inverse in zip(parts, inverses)]
    numerator, denominator = -sum(slopes[1:], start=slopes[0]), sum(parts[1:], start=parts[0] + _BASE)
    above = _logarithm(z) + numerator / denominator - _G / (z + (_G + 0.5))
    safe = where(below, x, 0.25)
    angle = (safe + abs(floor(safe + 0.5))) * math.pi
    pole = (x <= 0.0) & equal(x, floor(x))
    reflected = where(pole, math.nan, above - cos(angle) * math.pi / sin(angle))
    derivative = where(below, reflected, above)
    return cast(derivative, t.dtype) if derivative.dtype != t.dtype else derivative


def trigamma(t: Tensor) -> Tensor:
    """The derivative of :func:`digamma`; infinite at 0, -1, -2 and so on.

    It is the sum of six terms of its series and the asymptotic series for the remaining ones. Below 1/2 the reflection
    ``(pi / sin(pi t))**2 - trigamma(1 - t)`` is used.
    """
    x = _in_float32(t)
    below = x < 0.5
    z = where(below, 1.0 - x, x)
    inverse_squares = [1.0 / ((z + float(index)) * (z + float(index))) for index in range(_STEPS)]
    y = 1.0 / (z + float(_STEPS))
    tail, power = y + y * y * 0.5, y
    for coefficient in _SERIES:
        power = power * y * y
        tail = tail + power * coefficient
    above = sum(inverse_squares[1:], start=inverse_squares[0]) + tail
    slope = math.pi / sin(_distance(where(below, x, 0.25)) * math.pi)
    derivative = where(below, slope * slope - above, above)
    return cast(derivative, t.dtype) if derivative.dtype != t.dtype else derivative
