"""Activation functions. ReLU, leaky ReLU, GELU, Swish, softplus, sigmoid and tanh are in :mod:`.arithmetic`.

Compositions are those of PopTorch's canonicalisation (``poptorch: popart_canonicalization/ActivationOps.cpp``) where
PopTorch composes the function too.
"""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.ir import Tensor

from .arithmetic import clip, expm1, relu, sigmoid, softplus, tanh, where
from .arranging import cut, reshaped
from .elementary import scaled
from .making import make


def hard_sigmoid(t: Tensor) -> Tensor:
    """``clip(t / 6 + 1 / 2, 0, 1)``."""
    return make(_k.HardSigmoid, t, alpha=1 / 6, beta=0.5)


def hard_swish(t: Tensor) -> Tensor:
    """``where(|t| >= 3, max(t, 0), t (t + 3) / 6)``."""
    outside = abs(t) >= 3
    middle = t * (t + 3) / 6
    return where(outside, relu(t), middle)


def relu6(t: Tensor) -> Tensor:
    """``t`` limited to 0 to 6; outside there is no gradient."""
    return clip(t, 0, 6)


def elu(t: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """``scale * t`` above 0, ``scale * alpha (exp(input_scale t) - 1)`` elsewhere."""
    # ELU itself is one op; only CELU scales its input.
    if input_scale == 1:
        return scaled(make(_k.Elu, t, alpha=float(alpha)), scale)
    below = expm1(t * input_scale) * alpha
    return scaled(where(t > 0, t, below), scale)


def selu(t: Tensor) -> Tensor:
    """ELU with the fixed alpha and scale of self-normalising networks."""
    return elu(t, 1.6732632423543772, 1.0507009873554805)


def celu(t: Tensor, alpha: float = 1.0) -> Tensor:
    """ELU of ``t / alpha``."""
    return elu(t, alpha, 1, 1 / alpha)


def prelu(t: Tensor, weight: Tensor) -> Tensor:
    """``t`` above 0, ``weight t`` elsewhere; one weight, or one per channel (axis 1)."""
    if weight.spec.elements > 1:
        # One weight per channel has to stand on axis 1 to broadcast.
        weight = reshaped(weight, [-1] + [1] * (len(t.shape) - 2))
    elif not t.shape:
        weight = reshaped(weight, ())
    return where(t > 0, t, weight * t)


def steep_softplus(t: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """``log(1 + exp(beta t)) / beta``, and ``t`` itself where ``beta t`` is above ``threshold``.

    From a threshold of 20 on (the default) the two agree to the type's resolution.
    """
    smooth = make(_k.Softplus, t, beta=float(beta))
    return smooth if threshold >= 20 else where(t * beta > threshold, t, smooth)


def log_sigmoid(t: Tensor) -> Tensor:
    """Logarithm of the sigmoid, ``-softplus(-t)``."""
    return -softplus(-t)


def mish(t: Tensor) -> Tensor:
    """``t tanh(softplus(t))``."""
    return t * tanh(softplus(t))


def glu(t: Tensor, dim: int = -1) -> Tensor:
    """The first half along ``dim`` times the sigmoid of the second."""
    half = t.shape[dim] // 2
    gate = sigmoid(cut(t, dim, half, 2 * half))
    return cut(t, dim, 0, half) * gate


def softsign(t: Tensor) -> Tensor:
    """``t / (1 + |t|)``."""
    return t / (abs(t) + 1)


def threshold(t: Tensor, limit: float, fill: float) -> Tensor:
    """``t`` above ``limit``, else ``fill``."""
    return where(t > limit, t, fill)
