"""Lookups in tables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ....effects import EFFECTS
from ....refusals import refused


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    one_hot_threshold: int = 0,
    min_encoding_size: int = 0,
    partition_strategy: str | None = None,
    indices_are_sorted: bool = False,
) -> tf.Tensor:
    """Rows ``ids`` of a table: shape ``ids.shape + params.shape[1:]``.

    Args:
        serialization_factor: divides the rows; the lookup is made at once anyway.
        one_hot_threshold, min_encoding_size, partition_strategy: older releases had them; no effect.

    Raises:
        ValueError: a factor that does not divide the rows.
    """
    EFFECTS.given("ipu.embedding_ops.embedding_lookup(serialization_factor)", serialization_factor)
    EFFECTS.given("ipu.embedding_ops.embedding_lookup(one_hot_threshold)", one_hot_threshold)
    EFFECTS.given("ipu.embedding_ops.embedding_lookup(min_encoding_size)", min_encoding_size)
    EFFECTS.given("ipu.embedding_ops.embedding_lookup(partition_strategy)", partition_strategy)
    EFFECTS.given("ipu.embedding_ops.embedding_lookup(indices_are_sorted)", indices_are_sorted)
    rows = int(params.shape[0])
    if serialization_factor < 1 or rows % serialization_factor:
        raise ValueError(
            f"The serialization_factor ({serialization_factor}) must divide the size of the 0th dimension of params "
            f"({rows})."
        )
    return tf.gather(params, ids, name=name)


_HOST = (
    "tables that stay on the host would make the program wait for it in the middle of a run; use embedding_lookup of a "
    "variable, which may be larger than the IPU's memory if it is offloaded"
)
HostEmbedding = refused("embedding_ops.HostEmbedding", _HOST)
HostEmbeddingScope = refused("embedding_ops.HostEmbeddingScope", _HOST)
HostEmbeddingSGDGAOptimizerSpec = refused("embedding_ops.HostEmbeddingSGDGAOptimizerSpec", _HOST)
HostEmbeddingOptimizerSpec = refused("embedding_ops.HostEmbeddingOptimizerSpec", _HOST)
create_host_embedding = refused("embedding_ops.create_host_embedding", _HOST)

__all__ = [
    "HostEmbedding",
    "HostEmbeddingOptimizerSpec",
    "HostEmbeddingSGDGAOptimizerSpec",
    "HostEmbeddingScope",
    "create_host_embedding",
    "embedding_lookup",
]
