"""Group, instance and layer normalisation.

Upstream: ``ipu_tensorflow_addons: keras/layers/normalization.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras import initializers

from ...facade.norms import group_normalised
from ..arguments import Configured, refuse

_ARGUMENTS = "channels_axis center scale epsilon beta_initializer gamma_initializer"


class GroupNormalization(Configured, tf_keras.layers.Layer):
    """Each group of channels of a sample is brought to mean 0 and variance 1, then scaled and shifted by channel.

    Args:
        groups: number of groups, which divides the channels.
        channels_axis: 1 or the last one.
        center, scale: whether ``beta`` is added and ``gamma`` multiplied.
        epsilon: added to the variance.
        beta_initializer, gamma_initializer: None is Keras' default for weights.
        strided_channel_grouping: channel ``c`` belongs to group ``c % groups``, otherwise groups are successive
        channels. trainable: whether ``beta`` and ``gamma`` are.

    Raises:
        ValueError: an axis that is not allowed, or groups that do not divide the channels.
    """

    arguments = f"{_ARGUMENTS} groups strided_channel_grouping"

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        strided_channel_grouping: bool = True,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.groups, self.channels_axis = groups, channels_axis
        self.center, self.scale, self.epsilon = center, scale, epsilon
        self.beta_initializer = initializers.get(beta_initializer)
        self.gamma_initializer = initializers.get(gamma_initializer)
        self.strided_channel_grouping = strided_channel_grouping

    def build(self, input_shape: Any) -> None:
        """Make ``beta`` and ``gamma``, one element for each channel."""
        rank = len(input_shape)
        if not -rank <= self.channels_axis < rank:
            raise ValueError(
                f"Axis is out of bounds: channels_axis is {self.channels_axis}, the input has {rank} axes."
            )
        axis = self.channels_axis % rank
        if axis not in (1, rank - 1):
            raise ValueError(
                "Unsupported data format, group norm only supports NCHW (channel axis 1) and NHWC (channel axis -1), "
                f"not axis {axis} of {rank}."
            )
        channels = self._channels(input_shape[axis])
        for present, name, initializer in (
            (self.scale, "gamma", self.gamma_initializer),
            (self.center, "beta", self.beta_initializer),
        ):
            weight = self.add_weight(name, shape=[channels], initializer=initializer) if present else None
            setattr(self, name, weight)
        super().build(input_shape)

    def _channels(self, channels: int) -> int:
        if not 1 <= self.groups <= channels:
            raise ValueError(f"Invalid groups {self.groups} for {channels} channels.")
        if channels % self.groups:
            raise ValueError(f"{channels} channels is not commensurate with {self.groups} groups.")
        return channels

    def call(self, inputs: Any) -> Any:
        """``inputs``, normalised; statistics in float32."""
        axis = self.channels_axis % inputs.shape.rank
        channels = inputs.shape[axis]
        gamma = self.gamma if self.scale else tf.ones([channels], inputs.dtype)
        beta = self.beta if self.center else tf.zeros([channels], inputs.dtype)
        strided = self.strided_channel_grouping
        return group_normalised(self.name, inputs, gamma, beta, self.groups, axis, self.epsilon, strided)


class InstanceNormalization(GroupNormalization):
    """:class:`GroupNormalization` with a group for each channel."""

    arguments = _ARGUMENTS

    def __init__(
        self,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            0, channels_axis, center, scale, epsilon, beta_initializer, gamma_initializer, True, trainable, **kwargs
        )

    def _channels(self, channels: int) -> int:
        self.groups = channels
        return channels


class LayerNormalization(tf_keras.layers.LayerNormalization):
    """Brings ``axis`` (one or several) of each sample to mean 0 and variance 1, then scales and shifts.

    Raises:
        NotImplementedError: regularizers and constraints.
    """

    def __init__(
        self,
        axis: Any = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        refuse(
            "LayerNormalization",
            beta_regularizer=beta_regularizer,
            gamma_regularizer=gamma_regularizer,
            beta_constraint=beta_constraint,
            gamma_constraint=gamma_constraint,
        )
        super().__init__(
            axis=axis,
            epsilon=epsilon,
            center=center,
            scale=scale,
            beta_initializer=beta_initializer,
            gamma_initializer=gamma_initializer,
            trainable=trainable,
            **kwargs,
        )


GroupNorm, InstanceNorm, LayerNorm = GroupNormalization, InstanceNormalization, LayerNormalization
