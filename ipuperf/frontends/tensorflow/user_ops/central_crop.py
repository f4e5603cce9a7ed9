"""``libcustom_op`` of ``vision/unet_medical/tensorflow2``: the middle of images, ``[batch, height, width, channels]``.

The attributes are the share of both sizes that stays, read as a float32. Its gradient is TensorFlow's of a slice: zeros
around the gradient of the middle, as in ``crop.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def Build(inputs: Sequence[tf.Tensor], attributes: str) -> list[tf.Tensor]:
    """Cut half of the rest off each side, rounded down to whole elements."""
    (image,) = inputs
    share = np.float32(attributes)
    rows, columns = (int((size - np.float32(size) * share) / 2) for size in image.shape[1:3])
    return [image[:, rows : image.shape[1] - rows, columns : image.shape[2] - columns]]
