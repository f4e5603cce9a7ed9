"""Group normalisation in TensorFlow's graph, by the IR's fused ops (:mod:`ipuperf.ops.norms.group`)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.ops import GroupNormalization, GroupNormalizationGrad

from .device_function import device_function, ir_op


def group_normalised(
    name: str, x: tf.Tensor, gamma: Any, beta: Any, groups: int, axis: int, epsilon: float, strided: bool
) -> tf.Tensor:
    """``x`` with each group of channels of a sample brought to mean 0 and variance 1, times ``gamma``, plus ``beta``.

    Args:
        x: ``[N, ...]``, with the channels on axis ``axis``.
        gamma, beta: one element for each channel.
        groups: number of groups, which divides the channels.
        strided: channel ``c`` belongs to group ``c % groups``, otherwise groups are successive channels.
    """
    rank = x.shape.rank
    order = (0, axis, *(i for i in range(1, rank) if i != axis))
    attributes: dict[str, Any] = {"num_groups": groups, "strided": strided}
    statistics = tf.TensorSpec([None if x.shape[0] is None else x.shape[0] * groups], tf.float32)
    scale, offset = (tf.cast(value, x.dtype) for value in (gamma, beta))
    whole, channels = tf.TensorSpec(x.shape, x.dtype), tf.TensorSpec(scale.shape, x.dtype)

    def gradient(inputs: Any, outputs: Any, grads: Any) -> list[tf.Tensor]:
        operands = [*inputs[:2], *outputs[1:], grads[0]]
        function = ir_op(GroupNormalizationGrad, 3, **attributes)
        return device_function(f"{name}_grad", function, operands, [whole, channels, channels], order=order)

    function = ir_op(GroupNormalization, 3, epsilon=epsilon, **attributes)
    specs = [whole, statistics, statistics]
    return device_function(name, function, [x, scale, offset], specs, gradient, order)[0]
