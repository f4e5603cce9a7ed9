"""Sums of segments, and products that are made in parts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds


@checked_kinds()
def segment_sum(data: Any, segment_ids: Any, num_segments: int, name: str | None = None) -> tf.Tensor:
    """Sums of the rows of ``data`` with equal numbers in ``segment_ids`` (sorted): ``(num_segments, ...)``."""
    return tf.math.unsorted_segment_sum(data, segment_ids, num_segments, name=name)


@checked_kinds()
def serialized_matmul(
    a: Any,
    b: Any,
    serialization_factor: int,
    serialization_dimension: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """``a @ b``, made of ``serialization_factor`` products one after the other.

    Args:
        serialization_dimension: ``a_columns`` (the rows of the product), ``b_rows`` (its columns), ``a_rows_b_columns``
            (the axis that is summed over).

    Raises:
        ValueError: another axis, or a factor that does not divide it.
    """
    a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
    a = tf.linalg.matrix_transpose(a) if transpose_a else a
    b = tf.linalg.matrix_transpose(b) if transpose_b else b
    axes = {"a_columns": -2, "a_rows_b_columns": -1, "b_rows": -1}
    if serialization_dimension not in axes:
        raise ValueError(f"serialization_dimension is {serialization_dimension!r}; allowed: {', '.join(axes)}")
    axis = axes[serialization_dimension]
    for name, shape in (("a", a.shape), ("b", b.shape)):
        if len(shape) < 2:
            raise ValueError(f"serialized_matmul: {name} has shape {shape}; at least two axes are needed")
    size = int((b if serialization_dimension == "b_rows" else a).shape[axis])
    if serialization_factor < 1 or size % serialization_factor:
        raise ValueError(
            f"serialization_factor {serialization_factor} does not divide {serialization_dimension} ({size})"
        )
    if serialization_dimension == "a_columns":
        parts = [tf.matmul(part, b) for part in tf.split(a, serialization_factor, axis=-2)]
        return tf.concat(parts, axis=-2, name=name)
    if serialization_dimension == "b_rows":
        parts = [tf.matmul(a, part) for part in tf.split(b, serialization_factor, axis=-1)]
        return tf.concat(parts, axis=-1, name=name)
    pairs = zip(tf.split(a, serialization_factor, axis=-1), tf.split(b, serialization_factor, axis=-2))
    return tf.add_n([tf.matmul(left, right) for left, right in pairs], name=name)


__all__ = ["segment_sum", "serialized_matmul"]
