"""Tables of embeddings in the host's memory: lookups and updates are calls of the host in the midst of a program.

Upstream: ``tensorflow: python/ipu/ops/embedding_ops.py`` and
``compiler/plugin/poplar/driver/poplar_executor.cc`` (host embeddings are callbacks of streams). A lookup sends its
indices to the host and gets rows; the gradient of a trained table sends indices and rows of gradients. Each replica
makes lookups and updates of its own, in the order of the replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from ipuperf.functions import make_all
from ipuperf.ir import GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import ANYTHING, REQUIRED, Attribute
from ipuperf.ops.transfers.host_call import HostCall
from ipuperf.ops.work import Work

from ..importer import Importer, Value, marker, tensor_of
from ..importer.tracing import device_dtype
from .collectives import in_program


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
            for where, what in self._waiting:
                np.subtract.at(table, where, (self._rate * what).astype(table.dtype))
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


class _Lookup:
    """A lookup where the op stands; its inputs are the dummy and the indices."""

    def __init__(self, table: HostTable, shape: Sequence[int], dtype: tf.DType) -> None:
        self._table = table
        self._spec = TensorSpec(tuple(shape), device_dtype(dtype))

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The call of the host."""
        table = self._table
        operands = [tensor_of(value, importer.place) for value in inputs]
        how = {"title": f"lookup in {table.name}", "function": table.look_up, "specs": (self._spec,), "table": table}
        return make_all(HostLookup, operands, ["rows"], **how)


class _Update:
    """An update where the op stands; its inputs are indices and gradients, its output the dummy's gradient."""

    def __init__(self, table: HostTable, dtype: tf.DType) -> None:
        self._table = table
        self._dtype = dtype

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The call of the host."""
        operands = [tensor_of(value, importer.place) for value in inputs]
        spec = TensorSpec((), device_dtype(self._dtype))
        return make_all(HostUpdate, operands, ["updated"], **_update_of(self._table, spec))


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

    def gradient(op: tf.Operation, grad: tf.Tensor) -> list[Any]:
        kind = tf.TensorSpec((), variable.dtype)
        return [marker(f"{table.name}_update", _Update(table, variable.dtype), [indices, grad], [kind])[0], None]

    start = tf.zeros((), variable.dtype) if dummy is None else tf.convert_to_tensor(dummy)
    meaning = _Lookup(table, spec.shape, variable.dtype)
    trained = None if dummy is None else gradient
    return marker(f"{table.name}_lookup", meaning, [start, indices], [spec], gradient=trained)[0]


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
