"""``custom_grouped_gather_scatter`` of ``gnn/message_passing/tensorflow2``: rows of one table for each group.

The attributes say the operation, its type and sizes: ``v0 gather|scatter float|half groups rows columns lookups``.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def Build(inputs: Sequence[tf.Tensor], attributes: str) -> list[tf.Tensor]:
    """Look rows up, or sum rows at their places in tables of zeros.

    Raises:
        ValueError: for other attributes.
    """
    operand, indices = inputs
    version, operation, _, groups, rows, columns, *rest = [*attributes.split(), *[""] * 7][:7]
    if version != "v0" or operation not in ("gather", "scatter") or not all(rest):
        raise ValueError(f"{attributes!r} is not `v0 gather|scatter float|half groups rows columns lookups`")
    if operation == "gather":
        return [tf.gather(operand, indices, batch_dims=1, axis=1)]
    places = indices + int(rows) * tf.range(int(groups), dtype=indices.dtype)[:, tf.newaxis]
    summed = tf.math.unsorted_segment_sum(operand, places, int(groups) * int(rows))
    return [tf.reshape(summed, (int(groups), int(rows), int(columns)))]
