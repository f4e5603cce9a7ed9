"""Dense layers in parts, dropout, embeddings, connectionist temporal classification, and layers that mark their inputs.

Upstream: ``ipu_tensorflow_addons: keras/layers``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from ...facade import networks
from ..arguments import Configured, refuse

_DIMENSIONS = {
    "input_columns": "a_columns",
    "input_rows_kernel_columns": "a_rows_b_columns",
    "kernel_rows": "b_rows",
}


class SerialDense(Configured, tf_keras.layers.Dense):
    """``activation(inputs @ kernel + bias)`` with the product in ``serialization_factor`` parts.

    Args:
        units: elements of a result.
        serialization_factor: number of parts; it divides the dimension.
        serialization_dimension: ``input_columns`` (m of [m, k] @ [k, n]), ``input_rows_kernel_columns`` (k) or
            ``kernel_rows`` (n).
        kwargs: of ``tf.keras.layers.Dense``.

    Raises:
        ValueError: a dimension or factor that is not allowed.
    """

    arguments = "serialization_factor serialization_dimension"

    def __init__(self, units: int, serialization_factor: int, serialization_dimension: str, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        if int(serialization_factor) < 1:
            raise ValueError(f"serialization_factor has to be at least 1, but was {serialization_factor}.")
        if serialization_dimension not in _DIMENSIONS:
            raise ValueError(
                f"Invalid serialization_dimension={serialization_dimension}, expected one of: 'input_columns', "
                "'input_rows_kernel_columns', 'kernel_rows'."
            )
        self.serialization_factor = int(serialization_factor)
        self.serialization_dimension = serialization_dimension

    def call(self, inputs: Any) -> Any:
        """The layer's result."""
        from ...facade import networks

        result = networks.serialized_matmul(
            tf.cast(inputs, self._compute_dtype_object),
            tf.convert_to_tensor(self.kernel),
            self.serialization_factor,
            _DIMENSIONS[self.serialization_dimension],
        )
        if self.use_bias:
            result = tf.nn.bias_add(result, self.bias)
        return result if self.activation is None else self.activation(result)


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
        names = ("name", "trainable", "dtype", "batch_input_shape", "input_dim", "output_dim", "embeddings_initializer")
        config = {name: value for name, value in super().get_config().items() if name in names}
        return {**config, "serialization_factor": self.serialization_factor}


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


class RecomputationCheckpoint(tf_keras.layers.Layer):
    """Tensors that are kept for the backward pass where a pipeline stage computes the others again."""

    def call(self, inputs: Any) -> Any:
        """``inputs``."""
        from ...facade import pipelines

        return pipelines.recomputation_checkpoint(inputs, name=self.name)


class AssumeEqualAcrossReplicas(Configured, tf_keras.layers.Layer):
    """Values that are the same on all replicas.

    Args:
        inplace: whether the tensors are marked without a copy.
    """

    arguments = "inplace"

    def __init__(self, inplace: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inplace = inplace

    def call(self, inputs: Any) -> Any:
        """``inputs``."""
        from ...facade import replicas

        return replicas.assume_equal_across_replicas(inputs, self.inplace)
