"""Tensors of the IR: the values on the edges of a graph.

A tensor is defined once (SSA): by an op, as a graph input, or as data of the main graph (variable, constant, stream).
In-place ops return a *new* tensor that shares storage with the one they change; see :meth:`ipuperf.ir.op.Op.aliases`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .dtype import DType
from .operators import Operators
from .replicas import Grouping

if TYPE_CHECKING:
    from .graph import Graph
    from .op import Op


#: The op class of each operator, by the name of its function. Op classes add themselves here (``Op.operator``).
OPERATIONS: dict[str, type[Op]] = {}


@dataclass(frozen=True)
class TensorSpec:
    """Shape and type of a tensor on one replica.

    Attributes:
        shape: elements per axis on one replica.
        dtype: element type.
        meta_shape: for a replicated-tensor-sharded (RTS) tensor the shape before sharding, otherwise ``()``.
    """

    shape: tuple[int, ...]
    dtype: DType
    meta_shape: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements on one replica."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes on one replica."""
        return math.prod(self.shape) * self.dtype.size

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype.name}"


class Tensor(Operators["Tensor"]):
    """One SSA value. Operators make ops where the program is being written (:attr:`BuildContext.builder`).

    Attributes:
        id: name, unique within the Ir, with graph scope and name scopes.
        spec: shape, type and meta shape.
        graph: the graph that owns it.
        producer: the op that defines it, or ``None`` (graph input or main-graph data).
        consumers: ops that read it, in creation order, one entry per use.
        by_ref: for graph inputs: changes made inside the graph are seen by the caller.
        ipu: IPU within the replica (virtual graph id), or ``None`` when not stated.
    """

    def __init__(self, tensor_id: str, spec: TensorSpec, graph: Graph, *, ipu: int | None = None) -> None:
        self.id = tensor_id
        self.spec = spec
        self.graph = graph
        self.producer: Op | None = None
        self.consumers: list[Op] = []
        self.by_ref = False
        self.ipu = ipu

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis on one replica."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.spec.dtype

    @property
    def meta_shape(self) -> tuple[int, ...]:
        """Unsharded shape of an RTS tensor, or ``()``."""
        return self.spec.meta_shape

    @property
    def name(self) -> str:
        """The id without the graph's scope."""
        scope = self.graph.scope
        return self.id[len(scope) :] if scope and self.id.startswith(scope) else self.id

    def operate(self, function: str, *operands: Any) -> Any:
        """A new op of the class registered for the operator (:data:`OPERATIONS`); numbers take the tensors' type."""
        # Arrays are refused, as front ends decide what host data becomes.
        numbers_and_tensors = all(isinstance(value, (Tensor, bool, int, float)) for value in operands)
        if function in OPERATIONS and numbers_and_tensors:
            return self.graph.operate(OPERATIONS[function], operands)
        return NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.spec})"


class Constant(Tensor):
    """Data fixed when the program is built. ``data`` has the tensor's shape and type."""

    def __init__(self, tensor_id: str, spec: TensorSpec, graph: Graph, data: np.ndarray) -> None:
        super().__init__(tensor_id, spec, graph)
        self.data = data


class Variable(Tensor):
    """Data that lives across runs and that the host can read and write.

    Attributes:
        data: the host copy, of shape :attr:`host_shape` (per group of replicas when there is more than one group).
        grouping: which replicas hold the same value.
        retrieval: ``one_per_group`` or ``all_replicas``.
        remote: ``(buffer, entry)`` when the data lives in Streaming Memory; the tensor itself is then not on chip.
        shard_over: number of members of a replica group over which an RTS variable is split (``spec.meta_shape`` is its
            full shape); ``None`` when it is not sharded.
        in_sync: whether ``data`` equals what the device holds. A run makes it False, a copy in either direction True.
    """

    def __init__(
        self,
        tensor_id: str,
        spec: TensorSpec,
        graph: Graph,
        data: np.ndarray,
        grouping: Grouping,
        retrieval: str = "one_per_group",
        remote: tuple[RemoteBuffer, int] | None = None,
        shard_over: int | None = None,
    ) -> None:
        super().__init__(tensor_id, spec, graph)
        self.data = data
        self.grouping = grouping
        self.retrieval = retrieval
        self.remote = remote
        self.shard_over = shard_over
        self.in_sync = True

    @property
    def replica_shape(self) -> tuple[int, ...]:
        """Shape of the whole (unsharded) value on one replica."""
        return self.spec.meta_shape or self.spec.shape

    @property
    def host_shape(self) -> tuple[int, ...]:
        """Shape of the host copy: one leading axis over groups when there is more than one group."""
        groups = self.grouping.num_groups
        return (groups, *self.replica_shape) if groups > 1 else self.replica_shape


class RemoteBuffer:
    """An array of ``entries`` equally shaped tensors in Streaming Memory, one copy per replica.

    For a sharded buffer ``shape`` is the shape of one shard ``(ceil(elements / shards),)`` and ``meta_shape`` the full
    shape.
    """

    def __init__(
        self, buffer_id: int, shape: Sequence[int], dtype: DType, entries: int, meta_shape: Sequence[int] = ()
    ) -> None:
        self.id = buffer_id
        self.shape = tuple(shape)
        self.dtype = dtype
        self.entries = entries
        self.meta_shape = tuple(meta_shape)

    def __repr__(self) -> str:
        return f"RemoteBuffer({self.id}, {self.shape} {self.dtype.name} x {self.entries})"


class Stream(Tensor):
    """A host stream. ``direction`` is ``h2d`` or ``d2h``; each execution of a load or store moves one slice of it.

    ``transfers`` is how many slices a run moves; None: as many as the Ir's ``num_host_transfers``.
    """

    def __init__(self, tensor_id: str, spec: TensorSpec, graph: Graph, direction: str) -> None:
        super().__init__(tensor_id, spec, graph)
        self.transfers: int | None = None
        if direction not in ("h2d", "d2h"):
            raise ValueError(f"stream {tensor_id!r}: direction {direction!r}; allowed: 'h2d', 'd2h'")
        self.direction = direction


def describe(tensors: Sequence[Tensor]) -> str:
    """Operand list for error messages: the first four, and how many more."""
    shown = [f"{tensor.id} [{tensor.spec}]" for tensor in tensors[:4]]
    return ", ".join(shown) + (f" and {len(tensors) - 4} more" if len(tensors) > 4 else "")
