"""Lookups in tables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds
from ipuperf.kinds import told

from ....effects import EFFECTS
from ....functions import host_embedding
from ....functions.host_embedding import HostTable


@checked_kinds()
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
    if not hasattr(params, "shape"):
        raise TypeError(f"embedding_lookup: params is {told(params)}; a variable or a tensor is needed")
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


class HostEmbeddingOptimizerSpec:
    """How a host embedding is trained: gradient descent.

    Args:
        learning_rate: of the update; 0: the table is not trained.
        optimizer_name: ``SGD``.

    Raises:
        ValueError: another optimizer.
    """

    @checked_kinds()
    def __init__(self, learning_rate: float, optimizer_name: str | None = None) -> None:
        if optimizer_name not in (None, "SGD", "SGD+GA"):
            raise ValueError(f"HostEmbeddingOptimizerSpec: optimizer_name={optimizer_name!r}; allowed: SGD")
        self._learning_rate = learning_rate

    def get_learning_rate(self) -> float:
        """The learning rate."""
        return self._learning_rate

    def get_accumulation_factor(self) -> int:
        """Updates whose gradients are added up before they are applied."""
        return 1


class HostEmbeddingSGDGAOptimizerSpec(HostEmbeddingOptimizerSpec):
    """Gradient descent with gradients added up over ``accumulation_factor`` updates."""

    @checked_kinds()
    def __init__(self, learning_rate: float, accumulation_factor: int) -> None:
        super().__init__(learning_rate)
        self._accumulation_factor = accumulation_factor

    def get_accumulation_factor(self) -> int:
        """Updates whose gradients are added up before they are applied."""
        return self._accumulation_factor


class HostEmbedding:
    """A table of embeddings in the host's memory.

    Args:
        name: of the embedding.
        embedding_tensor: a variable ``[tokens, size]``.
        partition_strategy: ``TOKEN`` or ``ENCODING``; no difference, as the table is in one place.
        optimizer_spec: how it is trained; None: it is not.

    Raises:
        ValueError: arguments of other kinds.
    """

    @checked_kinds()
    def __init__(
        self, name: str, embedding_tensor: Any, partition_strategy: str = "TOKEN", optimizer_spec: Any = None
    ) -> None:
        if not tf.is_tensor(embedding_tensor) and not isinstance(embedding_tensor, tf.Variable):
            raise ValueError("HostEmbedding embedding_tensor is not a tensorflow tensor")
        if optimizer_spec is not None and not isinstance(optimizer_spec, HostEmbeddingOptimizerSpec):
            raise ValueError("HostEmbedding optimizer_spec is not a HostEmbeddingOptimizerSpec or None")
        if partition_strategy not in ("TOKEN", "ENCODING"):
            raise ValueError(f"Unknown partition strategy {partition_strategy}")
        EFFECTS.given("ipu.embedding_ops.HostEmbedding(partition_strategy)", partition_strategy)
        spec = optimizer_spec or HostEmbeddingOptimizerSpec(0)
        rate = float(spec.get_learning_rate())
        self._variable = embedding_tensor
        self._table = HostTable(name, rate, spec.get_accumulation_factor())
        self._dummy = None
        if rate:
            with tf.compat.v1.variable_scope(name, reuse=tf.compat.v1.AUTO_REUSE):
                self._dummy = tf.compat.v1.get_variable(
                    "__dummy", shape=[], dtype=embedding_tensor.dtype, trainable=True, use_resource=True
                )

    def get_embedding_tensor(self) -> Any:
        """The variable."""
        return self._variable

    def register(self, session: Any = None) -> Any:
        """A context manager: programs that run in it use the table, and the variable has its values afterwards.

        Raises:
            ValueError: no session outside of eager mode.
        """
        if session is None and not tf.executing_eagerly():
            raise ValueError("HostEmbedding.register requires a session when eager execution is disabled.")
        return HostEmbeddingScope(self, session)

    def lookup(self, indices: Any, clip_indices: bool = True) -> tf.Tensor:
        """Rows of the table: shape ``indices.shape + [size]``.

        Args:
            clip_indices: indices are limited to the table's rows; without it others are an error when the program runs.

        Raises:
            RuntimeError: outside of a program.
        """
        found = tf.convert_to_tensor(indices)
        if clip_indices:
            found = tf.clip_by_value(found, 0, int(self._variable.shape[0]) - 1)
        return host_embedding.look_up(self._table, self._variable, self._dummy, found)


class HostEmbeddingScope:
    """See :meth:`HostEmbedding.register`."""

    @checked_kinds()
    def __init__(self, embedding: HostEmbedding, session: Any) -> None:
        self._embedding = embedding
        self._active = host_embedding.registered(embedding._table, embedding._variable, session)

    def __enter__(self) -> HostEmbedding:
        self._active.__enter__()
        return self._embedding

    def __exit__(self, *error: Any) -> None:
        self._active.__exit__(*error)


@checked_kinds()
def create_host_embedding(
    name: str,
    shape: Any,
    dtype: Any,
    partition_strategy: str = "TOKEN",
    optimizer_spec: HostEmbeddingOptimizerSpec | None = None,
    initializer: Any = None,
) -> HostEmbedding:
    """A :class:`HostEmbedding` with a new variable ``name`` on the host."""
    with tf.device("cpu"):
        variable = tf.compat.v1.get_variable(name, shape=shape, dtype=dtype, initializer=initializer, use_resource=True)
    return HostEmbedding(name, variable, partition_strategy, optimizer_spec)


__all__ = [
    "HostEmbedding",
    "HostEmbeddingOptimizerSpec",
    "HostEmbeddingSGDGAOptimizerSpec",
    "HostEmbeddingScope",
    "create_host_embedding",
    "embedding_lookup",
]
