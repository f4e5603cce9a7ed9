"""Images."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds


@checked_kinds()
def normalise_image(
    image: Any, channel_offsets: Any, channel_scales: Any, scale: float = 1, name: str | None = None
) -> tf.Tensor:
    """``(image * scale - channel_offsets) * channel_scales`` with a fourth channel of zeros.

    Args:
        image: ``(..., 3)``, uint8, float16 or float32.

    Returns:
        ``(..., 4)`` of the image's type, float16 for uint8.

    Raises:
        TypeError: another type. ValueError: another number of channels.
    """
    image = tf.convert_to_tensor(image)
    if image.dtype not in (tf.float16, tf.float32, tf.uint8):
        raise TypeError("The input `image` to `normalise_image` must be either float16, float32 or uint8.")
    if image.shape[-1] != 3:
        raise ValueError(f"normalise_image: the image has shape {image.shape}; three channels are needed")
    dtype = tf.float16 if image.dtype == tf.uint8 else image.dtype
    offsets, scales = tf.cast(channel_offsets, dtype), tf.cast(channel_scales, dtype)
    found = (tf.cast(image, dtype) * tf.cast(scale, dtype) - offsets) * scales
    return tf.pad(found, [*[[0, 0]] * (image.shape.rank - 1), [0, 1]], name=name)


__all__ = ["normalise_image"]
