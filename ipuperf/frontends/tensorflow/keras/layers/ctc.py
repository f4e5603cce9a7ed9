"""Connectionist temporal classification: its loss, and predictions by a beam search.

Upstream: ``ipu_tensorflow_addons: keras/layers/ctc.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from ...configured import Configured
from ...facade import networks


class CTCLoss(Configured, tf_keras.layers.Layer):
    """The mean loss of a batch, shape ``[1]``.

    Args:
        blank_index: the class that is no label.
        from_logits: the data are logits, else logarithms of probabilities.
    """

    arguments = "blank_index from_logits"

    def __init__(self, blank_index: int = 0, from_logits: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.blank_index, self.from_logits = blank_index, from_logits

    def call(self, labels: Any, data: Any, label_length: Any, data_length: Any) -> Any:
        """``labels [batch, most labels]``, ``data [time, batch, classes]``, two lengths ``[batch]``."""
        losses = networks.ctc_losses(
            "ctc_loss", labels, data, label_length, data_length, self.blank_index, None, self.from_logits
        )
        return tf.reshape(tf.reduce_mean(losses), [1])


class CTCInferenceLayer(Configured, tf_keras.layers.Layer):
    """The likeliest labels of sequences: negative logarithms of the paths' probabilities, their lengths
    ``[batch, top_paths]``, and their labels ``[batch, top_paths, time]``.

    Args:
        blank_index, from_logits: as of :class:`CTCLoss`.
        beam_width: prefixes that are kept from step to step.
        top_paths: how many come back.
    """

    arguments = "blank_index beam_width top_paths from_logits"

    def __init__(
        self,
        blank_index: int = 0,
        beam_width: int = 100,
        top_paths: int = 1,
        from_logits: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.blank_index, self.from_logits = blank_index, from_logits
        self.beam_width, self.top_paths = beam_width, top_paths

    def call(self, data: Any, data_length: Any) -> Any:
        """``data [time, batch, classes]``, lengths ``[batch]``."""
        return networks.ctc_paths(
            "ctc_beam_search",
            data,
            data_length,
            self.beam_width,
            self.top_paths,
            self.blank_index,
            self.from_logits,
        )


class CTCPredictionsLayer(CTCInferenceLayer):
    """The labels of the likeliest path ``[batch, time]``, blanks behind its end. See :class:`CTCInferenceLayer` for the
    arguments."""

    def call(self, data: Any, data_length: Any) -> Any:
        """``data [time, batch, classes]``, lengths ``[batch]``."""
        chances, lengths, labels = super().call(data, data_length)
        best = tf.argmin(chances, axis=1, output_type=tf.int32)
        length = tf.gather(lengths, best, axis=1, batch_dims=1)
        path = tf.gather(labels, best, axis=1, batch_dims=1)
        inside = tf.range(path.shape[1]) < length[:, tf.newaxis]
        return tf.where(inside, path, tf.constant(self.blank_index, path.dtype))
