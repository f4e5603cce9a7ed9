"""Lookups in tables on the IPU, and in tables of the host's memory.

Upstream: ``tensorflow: python/ipu/ops/embedding_ops.py`` and
``compiler/plugin/poplar/driver/poplar_executor.cc`` (host embeddings are callbacks of streams). A lookup in the host's
memory sends its indices to the host and gets rows; the gradient of a trained table sends indices and rows of gradients.
Each replica makes lookups and updates of its own, in the order of the replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from ipuperf.base.kinds import told
from ipuperf.functions import make_all
from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import ANYTHING, REQUIRED, Attribute
from ipuperf.ops.transfers.host_call import HostCall
from ipuperf.ops.work import Work

from ..effects import EFFECTS, checked_kinds
from ..importer import Importer, MadeBy, Value, marker, tensor_of
from ..importer.collectives import in_program
from ..importer.tracing import device_dtype


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
        rows = tf.convert_to_tensor(indices)
        if clip_indices:
            rows = tf.clip_by_value(rows, 0, int(self._variable.shape[0]) - 1)
        return look_up(self._table, self._variable, self._dummy, rows)


class HostEmbeddingScope:
    """See :meth:`HostEmbedding.register`."""

    @checked_kinds()
    def __init__(self, embedding: HostEmbedding, session: Any) -> None:
        self._embedding = embedding
        self._active = registered(embedding._table, embedding._variable, session)

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


class HostTable:
    """A table while it is registered.

    Args:
        name: of the embedding.
        rate: of the update ``row -= rate * gradient``.
        count: updates whose gradients are added up before they are applied.
    """

    def __init__(self, name: str, rate: float, count: int) -> None:
        self.name = name
        self.rows: np.ndarray | None = None
        self._rate, self._count = rate, count
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def look_up(self, indices: np.ndarray) -> Sequence[np.ndarray]:
        """Rows of the table."""
        return [self._registered()[indices]]

    def update(self, indices: np.ndarray, grads: np.ndarray) -> Sequence[np.ndarray]:
        """Change rows by their gradients; the gradient of the dummy, 0."""
        table = self._registered()
        self._waiting.append((indices.copy(), grads.copy()))
        if len(self._waiting) >= self._count:
            for where, row_grads in self._waiting:
                np.subtract.at(table, where, (self._rate * row_grads).astype(table.dtype))
            self._waiting = []
        return [np.zeros((), np.float32)]

    def _registered(self) -> np.ndarray:
        if self.rows is None:
            raise RuntimeError(
                f"host embedding {self.name!r} is not registered: run the program in `with embedding.register(session)`"
            )
        return self.rows


class HostUpdate(HostCall):
    """``(indices, gradients) -> 0``, the gradient of the dummy, which the IPU knows: nothing comes back."""

    type: ClassVar[str] = "HostUpdate"

    def work(self) -> Sequence[Work]:
        """To the host."""
        return super().work()[: len(self.inputs)]


class HostLookup(HostCall):
    """``(dummy, indices) -> rows`` of a :class:`HostTable` (attribute ``table``), whose gradient is a call of the host
    that updates the table; that of the dummy is 0."""

    type: ClassVar[str] = "HostLookup"

    table: Attribute[HostTable] = Attribute(ANYTHING, REQUIRED)

    def value(self, *operands: np.ndarray) -> Sequence[np.ndarray]:
        """What the function gives for the indices."""
        return self.function(operands[1])

    def work(self) -> Sequence[Work]:
        """Indices to the host, and rows back."""
        return super().work()[1:]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Sequence[Tensor | None]:
        """The update."""
        dummy, indices = self.inputs
        operands = [builder.forward(indices), grad]
        return [builder.op(HostUpdate, operands, **_update_of(self.table, dummy.spec)), None]


def _update_of(table: HostTable, spec: TensorSpec) -> dict[str, Any]:
    return {"title": f"update of {table.name}", "function": table.update, "specs": (spec,)}


def look_up(table: HostTable, variable: Any, dummy: Any, indices: Any) -> tf.Tensor:
    """Rows ``[*indices.shape, size]`` of a table.

    Args:
        variable: the table's, for its shape and type.
        dummy: the variable whose gradient is the table's update; None: the table is not trained.

    Raises:
        RuntimeError: outside of a program.
    """
    if not in_program():
        raise RuntimeError(f"host embedding {table.name!r} is looked up in programs of the IPU only")
    spec = tf.TensorSpec([*indices.shape, variable.shape[1]], variable.dtype)

    def build(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The lookup; the inputs are the dummy and the indices."""
        operands = [tensor_of(value, importer.place) for value in inputs]
        row_spec = TensorSpec(tuple(spec.shape), device_dtype(spec.dtype))
        how = {"title": f"lookup in {table.name}", "function": table.look_up, "specs": (row_spec,), "table": table}
        return make_all(HostLookup, operands, ["rows"], **how)

    def update(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The update; the inputs are indices and gradients, the output is the dummy's gradient."""
        operands = [tensor_of(value, importer.place) for value in inputs]
        how = _update_of(table, TensorSpec((), device_dtype(variable.dtype)))
        return make_all(HostUpdate, operands, ["updated"], **how)

    def gradient(op: tf.Operation, grad: tf.Tensor) -> list[Any]:
        kind = tf.TensorSpec((), variable.dtype)
        return [marker(f"{table.name}_update", MadeBy(update), [indices, grad], [kind])[0], None]

    start = tf.zeros((), variable.dtype) if dummy is None else tf.convert_to_tensor(dummy)
    trained = None if dummy is None else gradient
    return marker(f"{table.name}_lookup", MadeBy(build), [start, indices], [spec], gradient=trained)[0]


@contextmanager
def registered(table: HostTable, variable: Any, session: Any) -> Iterator[None]:
    """The table has the variable's value in the block, and the variable the table's after it."""
    table.rows = np.array(variable.numpy() if session is None else session.run(variable))
    try:
        yield
    finally:
        rows, table.rows = table.rows, None
        if session is None:
            variable.assign(rows)
        else:
            variable.load(rows, session)
