"""Group, layer and instance normalisation with variables of their own (``beta``, ``gamma``).

They are the IR's fused ops (:mod:`ipuperf.ops.norms.group`). Groups of channels are strided, as PopLibs' are by
default: channel ``c`` is in group ``c % groups``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_nn_ops

from ipuperf.ops import GroupNormalization, GroupNormalizationGrad

from ..effects import EFFECTS, checked_kinds
from .device_function import device_function, ir_op


@checked_kinds()
def group_norm(
    inputs: Any,
    groups: int = 2,
    channels_axis: int = -1,
    reduction_axes: Any = None,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: Any = None,
) -> tf.Tensor:
    """Normalise each group of channels of each sample.

    Args:
        groups: number of groups; divides the channels.
        channels_axis: 1 or the last.
        center, scale: whether there is a ``beta``, a ``gamma``.
        reduction_axes, training: no effect.

    Raises:
        ValueError: another axis, an unknown number of channels, or one that the groups do not divide.
    """
    # locals() are the arguments as long as nothing is assigned before this line.
    return _normalised("GroupNorm", **locals())


@checked_kinds()
def layer_norm(
    inputs: Any,
    channels_axis: int = -1,
    reduction_axes: Any = None,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: Any = None,
) -> tf.Tensor:
    """:func:`group_norm` with one group."""
    return _normalised("LayerNorm", groups=1, **locals())


@checked_kinds()
def instance_norm(
    inputs: Any,
    channels_axis: int = -1,
    reduction_axes: Any = None,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: Any = None,
) -> tf.Tensor:
    """:func:`group_norm` with a group for each channel."""
    return _normalised("InstanceNorm", groups=None, **locals())


def _normalised(
    kind: str,
    inputs: Any,
    groups: int | None,
    channels_axis: int,
    epsilon: float,
    reuse: Any,
    scope: Any,
    **arguments: Any,
) -> tf.Tensor:
    """The functions above, whose arguments these are; ``groups``: None for one of each channel."""
    function = {"GroupNorm": "group_norm", "LayerNorm": "layer_norm", "InstanceNorm": "instance_norm"}[kind]
    for name in ("reduction_axes", "training"):
        EFFECTS.given(f"ipu.normalization_ops.{function}({name})", arguments[name])
    x = tf.convert_to_tensor(inputs)
    if x.shape.rank is None:
        raise ValueError(f"Inputs {x.name} has undefined rank.")
    if not -x.shape.rank <= channels_axis < x.shape.rank:
        raise ValueError("Axis is out of bounds.")
    axis = channels_axis % x.shape.rank
    channels = x.shape.as_list()[axis]
    if axis not in (1, x.shape.rank - 1):
        raise ValueError(
            "Unsupported data format, group norm only supports NCHW (channel axis 1) and NHWC (channel axis -1)."
        )
    if channels is None:
        raise ValueError(f"Inputs {x.name} has undefined channel dimension: {axis}.")
    groups = channels if groups is None else groups
    if not 1 <= groups <= channels:
        raise ValueError(f"Invalid groups {groups} for {channels} channels.")
    if channels % groups:
        raise ValueError(f"{channels} channels is not commensurate with {groups} groups.")
    with tf.compat.v1.variable_scope(scope, kind, [x], reuse=reuse):
        beta = _parameter("beta", arguments["center"], channels, x.dtype, arguments)
        gamma = _parameter("gamma", arguments["scale"], channels, x.dtype, arguments)
        return group_normalised(kind, x, gamma, beta, groups, axis, epsilon, True)


def _parameter(name: str, trained: bool, channels: int, dtype: tf.DType, arguments: Mapping[str, Any]) -> Any:
    """``beta`` or ``gamma``: a variable, or its neutral value."""
    plain = tf.compat.v1.zeros_initializer() if name == "beta" else tf.compat.v1.ones_initializer()
    if not trained:
        return plain((channels,), dtype)
    collections = arguments["variables_collections"]
    return tf.compat.v1.get_variable(
        name,
        shape=(channels,),
        dtype=dtype,
        initializer=(arguments["param_initializers"] or {}).get(name, plain),
        collections=collections.get(name) if isinstance(collections, dict) else collections,
        trainable=arguments["trainable"],
    )


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


def let_batch_norms_have_half_parameters() -> None:
    """Let TensorFlow's batch norm take scales, offsets and statistics in float16, as its port for the IPU does.

    They are converted to float32 for the op, and its statistics back.
    """
    plain = gen_nn_ops.fused_batch_norm_v3
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def fused_batch_norm_v3(x: Any, scale: Any, offset: Any, mean: Any, variance: Any, **named: Any) -> Any:
        if tf.convert_to_tensor(scale).dtype != tf.float16:
            return plain(x, scale, offset, mean, variance, **named)
        found = plain(x, *(tf.cast(value, tf.float32) for value in (scale, offset, mean, variance)), **named)
        mean, variance = (tf.cast(value, tf.float16) for value in (found.batch_mean, found.batch_variance))
        return found._replace(batch_mean=mean, batch_variance=variance)

    gen_nn_ops.fused_batch_norm_v3 = fused_batch_norm_v3
