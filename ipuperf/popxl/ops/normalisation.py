"""Group, layer and batch normalisation."""

from __future__ import annotations

from ipuperf import ops as _k

from ..arguments import whole_arguments
from ..effects import EFFECTS
from ..handle import Tensor
from .operands import emit, emit_all


@whole_arguments
def group_norm(t: Tensor, weight: Tensor, bias: Tensor, num_groups: int, eps: float = 1e-5) -> Tensor:
    """``t`` (N, C, ...) normalised over groups of channels, times ``weight`` (C,), plus ``bias`` (C,).

    Raises:
        IrError (``popart_exception``): shapes or dtypes do not fit, or the groups do not divide the channels.
    """
    names = ["group_norm_out", "group_norm_mean", "group_norm_inv_std_dev"]
    return emit_all(_k.GroupNormalization, [t, weight, bias], names, num_groups=num_groups, epsilon=eps)[0]


def layer_norm(t: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """:func:`group_norm` with one group."""
    return group_norm(t, weight, bias, 1, eps)


def batch_norm_inference(
    t: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
) -> Tensor:
    """``(t - mean) / sqrt(var + epsilon) * scale + bias`` per channel; ``momentum`` has no effect in inference."""
    EFFECTS.given("ops.batch_norm_inference(momentum)", momentum)
    return emit(_k.BatchNormalizationInference, [t, scale, bias, mean, var], "batch_norm_out", epsilon=epsilon)
