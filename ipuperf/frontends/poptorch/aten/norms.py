"""Normalisation and dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipuperf.functions import make_all, networks
from ipuperf.functions.arranging import reshaped
from ipuperf.ir import FLOAT32, DType, ReplicaGrouping, Tensor
from ipuperf.ops import BatchNormalization

from .lowering import Handler, Lowering, Value
from .random import dropped


def _scale_and_shift(low: Lowering, weight: Value, bias: Value, channels: int, dtype: DType) -> list[Tensor]:
    """Scale and shift as vectors, ones and zeros when absent."""
    scale = low.constant(np.ones(channels), dtype) if weight is None else low.tensor(weight, dtype)
    shift = low.constant(np.zeros(channels), dtype) if bias is None else low.tensor(bias, dtype)
    return [reshaped(scale, (channels,)), reshaped(shift, (channels,))]


def layer_norm(
    low: Lowering,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Value = None,
    bias: Value = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Normalisation of the last axes: a group normalisation with one group over rows (PopTorch NormalizationOps)."""
    channels = math.prod(normalized_shape)
    scale, shift = _scale_and_shift(low, weight, bias, channels, x.dtype)
    y = networks.group_norm(reshaped(x, (-1, channels)), scale, shift, 1, eps, stable=low.norms.stable)
    return reshaped(y, x.shape)


def native_layer_norm(low: Lowering, x: Tensor, *args: Any) -> list[Tensor | None]:
    """Layer normalisation; its statistics are not available."""
    return [layer_norm(low, x, *args), None, None]


def group_norm(
    low: Lowering,
    x: Tensor,
    num_groups: int,
    weight: Value = None,
    bias: Value = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Normalisation of groups of channels of ``(N, C, *)``; which channels are a group, PopART's
    ``groupNormStridedChannelGrouping`` says."""
    scale, shift = _scale_and_shift(low, weight, bias, x.shape[1], x.dtype)
    strided, stable = low.norms.strided_groups, low.norms.stable
    return networks.group_norm(x, scale, shift, num_groups, eps, strided=strided, stable=stable)


def native_group_norm(
    low: Lowering, x: Tensor, weight: Value, bias: Value, n: int, c: int, hxw: int, group: int, eps: float
) -> list[Tensor | None]:
    """Group normalisation; its statistics are not available."""
    return [group_norm(low, x, group, weight, bias, eps), None, None]


def instance_norm(
    low: Lowering,
    x: Tensor,
    weight: Value,
    bias: Value,
    running_mean: Value,
    running_var: Value,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """Every channel of every sample by itself: a group normalisation with as many groups as channels."""
    if running_mean is not None:
        raise low.unsupported("track_running_stats=True is unsupported; allowed: False")
    return group_norm(low, x, x.shape[1], weight, bias, eps)


def _batch_norm(
    low: Lowering, x: Tensor, weight: Value, bias: Value, mean: Value, var: Value, training: bool, eps: float,
    momentum: float,
) -> list[Tensor]:  # fmt: skip
    """(y, new running mean, new running variance); the last two only in training.

    Statistics are float32 also where x is float16, as in PyTorch; what the module's buffers hold is cast on the way in
    and, by PyTorch's own graph, on the way out.
    """
    channels = x.shape[1]
    scale, shift = _scale_and_shift(low, weight, bias, channels, x.dtype)
    running = [
        low.constant(start, FLOAT32) if v is None else low.tensor(v, FLOAT32)
        for v, start in ((mean, np.zeros(channels)), (var, np.ones(channels)))
    ]
    if not training:
        return [networks.batch_norm_inference(x, scale, shift, running[0], running[1], eps)]
    replicas, shared = low.graph.ir.replication_factor, low.norms.replicas
    group = ReplicaGrouping(replicas, 1, shared) if shared > 1 else None
    more = {"epsilon": eps, "momentum": momentum, "group": group, "stable": low.norms.stable}
    return make_all(BatchNormalization, [x, scale, shift, *running], [""] * 5, **more)[:3]


def batch_norm(
    low: Lowering,
    x: Tensor,
    weight: Value,
    bias: Value,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """Batch normalisation whose running statistics do not change."""
    return _batch_norm(low, x, weight, bias, running_mean, running_var, training, eps, momentum)[0]


def batch_norm_with_statistics(
    low: Lowering,
    x: Tensor,
    weight: Value,
    bias: Value,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Tensor | None]:
    """Batch normalisation: result, two values for PyTorch's own gradient (not available), new running statistics."""
    found = _batch_norm(low, x, weight, bias, running_mean, running_var, training, eps, momentum)
    changed = found[1:] if training else [low.tensor(v, FLOAT32) for v in (running_mean, running_var)]
    return [found[0], None, None, *changed]


def batch_norm_of_batch(
    low: Lowering, x: Tensor, weight: Value, bias: Value, training: bool, momentum: float, eps: float
) -> list[Tensor | None]:
    """Batch normalisation without running statistics."""
    return [_batch_norm(low, x, weight, bias, None, None, training, eps, momentum)[0], None, None]


def batch_norm_inference(
    low: Lowering,
    x: Tensor,
    weight: Value,
    bias: Value,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> list[Tensor | None]:
    """Batch normalisation by the running statistics."""
    return [batch_norm(low, x, weight, bias, running_mean, running_var, False, momentum, eps, False), None, None]


def rms_norm(
    low: Lowering, x: Tensor, normalized_shape: Sequence[int], weight: Value = None, eps: float | None = None
) -> Tensor:
    """``x / sqrt(mean(x**2) + eps) * weight`` over the last axes."""
    smallest = (2.0**-10 if x.dtype.size == 2 else 2.0**-23) if eps is None else eps
    y = networks.rms_norm(x, range(len(x.shape) - len(normalized_shape), len(x.shape)), smallest)
    return y if weight is None else y * low.tensor(weight, x.dtype)


# -- dropout -----------------------------------------------------------------------------------------------------------


def dropout(low: Lowering, x: Tensor, p: float, train: bool) -> Tensor:
    """Elements dropped with probability p, the others scaled by 1 / (1 - p); nothing when not training."""
    if not train or p == 0:
        return x
    if p == 1:
        return x * 0
    return dropped(low, x, p)


def native_dropout(low: Lowering, x: Tensor, p: float, train: bool | None) -> list[Tensor | None]:
    """Dropout; its mask is not available."""
    return [dropout(low, x, p, train is not False), None]


#: Handlers by aten name (with overload where it matters).
HANDLERS: Mapping[str, Handler] = {
    "_native_batch_norm_legit.no_stats": batch_norm_of_batch,
    "_native_batch_norm_legit_functional": batch_norm_with_statistics,
    "_native_batch_norm_legit_no_training": batch_norm_inference,
    "batch_norm": batch_norm,
    "dropout": dropout,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "layer_norm": layer_norm,
    "native_dropout": native_dropout,
    "native_group_norm": native_group_norm,
    "native_layer_norm": native_layer_norm,
    "rms_norm": rms_norm,
}
