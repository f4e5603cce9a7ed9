"""``Dropout`` with a seed of two numbers.

Upstream: ``ipu_tensorflow_addons: keras/layers/dropout.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from ...configured import Configured


class Dropout(Configured, tf_keras.layers.Layer):
    """Sets elements to 0 with probability ``rate`` in training, and divides the others by ``1 - rate``.

    Args:
        rate: from 0 to 1.
        noise_shape: shape of the mask, which is broadcast.
        seed: two numbers of 32 bits; None: other masks in every step.
        ref: the backward pass uses the mask of the forward pass.
    """

    arguments = "rate noise_shape seed ref"

    def __init__(self, rate: float, noise_shape: Any = None, seed: Any = None, ref: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate, self.noise_shape, self.seed, self.ref = rate, noise_shape, seed, ref

    def call(self, inputs: Any, training: Any = None) -> Any:
        """``inputs``, in training with elements dropped."""
        from ...facade import networks

        if not training:
            return tf.identity(inputs)
        return networks.dropout(
            inputs, seed=self.seed, rate=self.rate, noise_shape=self.noise_shape, ref=self.ref, name=self.name
        )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """That of the input."""
        return input_shape
