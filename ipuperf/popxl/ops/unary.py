"""Unary elementwise ops, casts and copies."""

from __future__ import annotations

from ipuperf import ops as _k

from ..dtypes import dtype as _dtype
from ..handle import Tensor
from .operands import emit


def abs(t: Tensor) -> Tensor:
    """Absolute value."""
    return emit(_k.Abs, [t], "abs_out")


def negate(t: Tensor) -> Tensor:
    """``-t``."""
    return emit(_k.Neg, [t], "negate_out")


def exp(t: Tensor) -> Tensor:
    """``e ** t``."""
    return emit(_k.Exp, [t], "exp_out")


def exp_(t: Tensor) -> Tensor:
    """``e ** t`` in place."""
    return emit(_k.ExpInplace, [t], "exp_out")


def log(t: Tensor) -> Tensor:
    """Natural logarithm."""
    return emit(_k.Log, [t], "log_out")


def log2(t: Tensor) -> Tensor:
    """Logarithm to base 2."""
    return emit(_k.Log2, [t], "log2_out")


def sqrt(t: Tensor) -> Tensor:
    """Square root."""
    return emit(_k.Sqrt, [t], "sqrt_out")


def tanh(t: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return emit(_k.Tanh, [t], "tanh_out")


def sin(t: Tensor) -> Tensor:
    """Sine."""
    return emit(_k.Sin, [t], "sin_out")


def cos(t: Tensor) -> Tensor:
    """Cosine."""
    return emit(_k.Cos, [t], "cos_out")


def sign(t: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return emit(_k.Sign, [t], "sign_out")


def floor(t: Tensor) -> Tensor:
    """Largest integer that is not larger."""
    return emit(_k.Floor, [t], "floor_out")


def ceil(t: Tensor) -> Tensor:
    """Smallest integer that is not smaller."""
    return emit(_k.Ceil, [t], "ceil_out")


def logical_not(t: Tensor) -> Tensor:
    """``not t`` of bools."""
    return emit(_k.Not, [t], "not_out")


def isnan(t: Tensor) -> Tensor:
    """Where ``t`` is not a number."""
    return emit(_k.IsNaN, [t], "isnan_out")


def isinf(t: Tensor) -> Tensor:
    """Where ``t`` is infinite."""
    return emit(_k.IsInf, [t], "isinf_out")


def isfinite(t: Tensor) -> Tensor:
    """Where ``t`` is neither infinite nor NaN."""
    return emit(_k.IsFinite, [t], "isfinite_out")


def relu(t: Tensor) -> Tensor:
    """``max(t, 0)``."""
    return emit(_k.Relu, [t], "relu_out")


def relu_(t: Tensor) -> Tensor:
    """``max(t, 0)`` in place."""
    return emit(_k.ReluInplace, [t], "relu_out")


def gelu(t: Tensor) -> Tensor:
    """GELU, tanh form."""
    return emit(_k.Gelu, [t], "gelu_out")


def gelu_(t: Tensor) -> Tensor:
    """GELU (tanh form) in place."""
    return emit(_k.GeluInplace, [t], "gelu_out")


def geluerf(t: Tensor) -> Tensor:
    """GELU with the error function."""
    return emit(_k.GeluErf, [t], "geluerf_out")


def geluerf_(t: Tensor) -> Tensor:
    """GELU with the error function in place."""
    return emit(_k.GeluErfInplace, [t], "geluerf_out")


def detach(t: Tensor) -> Tensor:
    """``t``, through which no gradient flows."""
    return emit(_k.Detach, [t], "detach_out")


def cast(t: Tensor, data_type: _dtype) -> Tensor:
    """``t`` converted to ``data_type``."""
    return emit(_k.Cast, [t], f"{t.name}_{_dtype.as_dtype(data_type).name}", dtype=_dtype.as_dtype(data_type)._ir)


def clip(t: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """``t`` limited to ``[min, max]``; ``None`` leaves a side open."""
    low = float("-inf") if min is None else float(min)
    high = float("inf") if max is None else float(max)
    return emit(_k.Clip, [t], "clip_out", min=low, max=high)


clamp = clip


def identity(t: Tensor, output_name: str | None = None) -> Tensor:
    """A copy of ``t``, under the name ``output_name``."""
    return emit(_k.Identity, [t], output_name or f"{t.name}_identity")


rename = identity
