"""``SerialDense``: a dense layer whose product is done in parts.

Upstream: ``ipu_tensorflow_addons: keras/layers/dense.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from ...configured import Configured

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
