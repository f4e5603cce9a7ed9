"""``Embedding``: rows of a table.

Upstream: ``ipu_tensorflow_addons: keras/layers/embedding_lookup.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from .checks import refuse


class Embedding(tf_keras.layers.Embedding):
    """Rows of a trained table: ``[batch, length]`` of integers -> ``[batch, length, output_dim]``.

    Args:
        input_dim: number of rows.
        output_dim: elements of a row.
        embeddings_initializer: of the table.
        serialization_factor: the lookup is done in as many parts.

    Raises:
        NotImplementedError: one of Keras' other arguments. ValueError: the input has another rank than 2.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: int | None = None,
        serialization_factor: int = 1,
        **kwargs: Any,
    ) -> None:
        refuse(
            "Embedding",
            embeddings_regularizer=embeddings_regularizer,
            activity_regularizer=activity_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            input_length=input_length,
        )
        shape_is_known = not {"input_shape", "batch_input_shape"}.isdisjoint(kwargs)
        super().__init__(input_dim, output_dim, embeddings_initializer=embeddings_initializer, **kwargs)
        if not shape_is_known:
            del self._batch_input_shape  # Keras' layer says (None, None), which would fix a model's input
        self.serialization_factor = serialization_factor

    def build(self, input_shape: Any = None) -> None:
        """Make the table."""
        if len(input_shape) != 2:
            raise ValueError(
                f"The input shape should be a tensor of shape [batch, input_length], it is {tuple(input_shape)}"
            )
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """The rows of ``inputs``."""
        from ...facade import embeddings

        ids = inputs if inputs.dtype.is_integer else tf.cast(inputs, tf.int32)
        return embeddings.embedding_lookup(
            self.embeddings, ids=ids, name=self.name, serialization_factor=self.serialization_factor
        )

    def get_config(self) -> dict[str, Any]:
        """Arguments of the layer."""
        own = ("name", "trainable", "dtype", "batch_input_shape", "input_dim", "output_dim", "embeddings_initializer")
        config = {name: value for name, value in super().get_config().items() if name in own}
        return {**config, "serialization_factor": self.serialization_factor}
