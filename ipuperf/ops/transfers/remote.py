"""Loads from and stores to remote buffers in Streaming Memory.

Semantics: ``docs/reference/popxl.md`` 5. Every replica has its own copy of a buffer. A scalar integer tensor, whose
replicas may differ, chooses the entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from ipuperf.ir import (
    AmbiguityError,
    Constant,
    DTypeError,
    Graph,
    Ir,
    IrError,
    Precedence,
    RemoteBuffer,
    Tensor,
    TensorSpec,
)
from ipuperf.ir import Op as IrOp
from ipuperf.ir.attributes import Attribute, instance

from ..base import Arrays, Environment, Kernel, Op
from ..work import RemoteAccess, Work


class RemoteEntryError(IrError, IndexError):
    """An entry outside of a remote buffer."""


def _check_entry(where: str, buffer: RemoteBuffer, entry: int) -> None:
    """Raise :class:`RemoteEntryError` unless ``buffer`` has ``entry``."""
    if not 0 <= entry < buffer.entries:
        raise RemoteEntryError(
            f"{where}: entry {entry} of {buffer}; allowed are 0 to {buffer.entries - 1} ({buffer.entries} entries)"
        )


def check_entries(program: Ir) -> None:
    """Raise :class:`RemoteEntryError` where a constant entry, passed on through calls, is not in its buffer."""
    _check_graph(program.main_graph, {})


def _check_graph(graph: Graph, known: dict[Tensor, int]) -> None:
    """``known`` holds the inputs of ``graph`` that are constants at this call."""

    def constant(tensor: Tensor) -> int | None:
        if isinstance(tensor, Constant) and tensor.dtype.is_integer and tensor.spec.elements == 1:
            return int(tensor.data.reshape(()))
        return known.get(tensor)

    for op in graph.ops:
        if isinstance(op, _RemoteOp):
            entry = constant(op.inputs[1])
            if entry is not None:
                _check_entry(op.where(), op.buffer, entry)
        for callee, operands in op.calls():
            entries = (
                (parameter, constant(operand)) for parameter, operand in zip(callee.inputs, operands, strict=False)
            )
            _check_graph(callee, {parameter: entry for parameter, entry in entries if entry is not None})


class Access(NamedTuple):
    """What an op, or a call and everything below it, does to a remote buffer.

    Attributes:
        entry: a number, an input of the graph that the op is in, or None where it is not known while the program is
            built.
    """

    buffer: RemoteBuffer
    entry: int | Tensor | None
    stores: bool

    def meets(self, access: Access) -> bool:
        """Whether the order of the two matters: one stores, and nothing shows that the entries differ."""
        # Only two numbers show that the entries differ: an input may hold any entry.
        apart = isinstance(self.entry, int) and isinstance(access.entry, int) and self.entry != access.entry
        return self.buffer is access.buffer and (self.stores or access.stores) and not apart


def check_remote_order(program: Ir) -> None:
    """Raise :class:`AmbiguityError` where nothing says in which order an entry is stored and loaded (or stored twice).

    Upstream leaves such a program to its scheduler and tells users to write ``in_sequence``; the values would depend
    on the scheduler's choice.
    """
    accesses_of_graph: dict[Graph, set[Access]] = {}
    # Callees come first, so the accesses of a called
    # graph are known when its call is looked at.
    for graph in program.callees_first():
        touched = {op: accesses for op in graph.ops if (accesses := _accesses(op, accesses_of_graph))}
        accesses_of_graph[graph] = {access for accesses in touched.values() for access in accesses}
        _check_order(graph, touched)


def _accesses(op: IrOp, accesses_of_graph: dict[Graph, set[Access]]) -> set[Access]:
    """The accesses of ``op``, with entries as its own graph sees them; ``accesses_of_graph`` has the graphs that it
    calls."""
    if isinstance(op, _RemoteOp):
        return {Access(op.buffer, _entry(op.inputs[1]), isinstance(op, RemoteStore))}
    operand_of = {
        parameter: operand for g, operands in op.calls() for parameter, operand in zip(g.inputs, operands, strict=False)
    }
    callee_accesses = [access for graph in op.called_graphs() for access in accesses_of_graph[graph]]
    return {
        a._replace(entry=_entry(operand_of[a.entry])) if isinstance(a.entry, Tensor) else a for a in callee_accesses
    }


def _entry(offset: Tensor) -> int | Tensor | None:
    """The entry that an offset names."""
    if isinstance(offset, Constant):
        return int(offset.data.reshape(-1)[0])
    return offset if offset in offset.graph.inputs else None


def _check_order(graph: Graph, touched: dict[IrOp, set[Access]]) -> None:
    by_buffer: dict[RemoteBuffer, list[tuple[IrOp, Access]]] = {}
    for op, accesses in touched.items():
        for access in accesses:
            by_buffer.setdefault(access.buffer, []).append((op, access))
    # Only accesses to the same buffer can meet.
    pairs = itertools.chain(*(itertools.combinations(users, 2) for users in by_buffer.values()))
    meeting = [(a, b, access_a) for (a, access_a), (b, access_b) in pairs if a is not b and access_a.meets(access_b)]
    # Only accesses that meet need the order of the ops.
    precedence = Precedence(graph) if meeting else None
    for a, b, access in meeting:
        if precedence is not None and not precedence.ordered(a, b):
            raise AmbiguityError(
                f"{a.where()} and {b.where()} may use the same entry of {access.buffer}, one of them stores, and "
                "nothing says which comes first; create both inside `popxl.in_sequence(True)`"
            )


class _RemoteOp(Op):
    """Base: inputs ``tensor, offset``; attribute ``buffer``."""

    waited_for = True
    own_phase = "io"
    buffer = Attribute(instance(RemoteBuffer))

    def check(self, tensor: Tensor, offset: Tensor) -> None:
        """Raise unless tensor and offset fit the buffer; a constant offset is checked against its entries."""
        buffer = self.buffer
        self.require(
            tensor.shape == buffer.shape, f"{tensor.id!r} has shape {tensor.shape}, {buffer} has {buffer.shape}"
        )
        if tensor.dtype != buffer.dtype:
            raise DTypeError(f"{self.where()}: {tensor.id!r} is {tensor.dtype.name}, {buffer} is {buffer.dtype.name}")
        if not offset.dtype.is_integer:
            raise DTypeError(f"{self.where()}: the entry {offset.id!r} is {offset.dtype.name}; an integer is needed")
        self.require(
            offset.spec.elements == 1, f"the entry {offset.id!r} has shape {offset.shape}; one element is needed"
        )
        if isinstance(offset, Constant):
            _check_entry(self.where(), buffer, int(offset.data.reshape(-1)[0]))

    def entry_reader(self, offset: np.ndarray) -> Callable[[], int | list[int]]:
        """A function that returns the entry when it is called: one number, or one per replica when they differ."""
        where, buffer = self.where(), self.buffer
        # A constant entry is checked once, when the program is compiled.
        if isinstance(self.inputs[1], Constant):
            entry = int(self.inputs[1].data.reshape(-1)[0])
            _check_entry(where, buffer, entry)
            return lambda: entry
        values = offset.reshape(offset.shape[0], -1)[:, 0] if offset.ndim > 1 else offset

        def read() -> int | list[int]:
            entries: list[int] = values.tolist()
            for entry in entries:
                _check_entry(where, buffer, entry)
            # One number for all replicas allows one copy of all of them.
            return entries[0] if len(set(entries)) == 1 else entries

        return read


class RemoteLoad(_RemoteOp):
    """Fill the Init'ed tensor (input 0, shared with the output) from an entry of ``buffer``.

    The output keeps the buffer's ``meta_shape``, so a load from a sharded buffer gives an RTS tensor.
    """

    overwrites: ClassVar[bool] = True

    def infer(self) -> list[TensorSpec]:
        """The operand's shape and type with the meta shape of the buffer; raises unless it fits an entry."""
        tensor, offset = self.inputs
        self.check(tensor, offset)
        # A shard of a buffer remembers the whole shape.
        return [TensorSpec(tensor.shape, tensor.dtype, self.buffer.meta_shape or tensor.meta_shape)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copy the entry that the offset names when the op runs; replicas may name different ones."""
        stored, out, read = env.remote(self.buffer), outputs[0], self.entry_reader(inputs[1])

        def run() -> None:
            entry = read()
            if isinstance(entry, int):
                np.copyto(out, stored[:, entry])
            else:
                for replica, replica_entry in enumerate(entry):
                    out[replica] = stored[replica, replica_entry]

        return run

    def work(self) -> Sequence[Work]:
        """A load of the bytes of one replica."""
        return [RemoteAccess(self.buffer, "load", self.outputs[0].spec.bytes)]


class RemoteLoadInplace(RemoteLoad):
    """As :class:`RemoteLoad`, into a tensor that is in use: the operand counts as changed."""

    in_place = True


class RemoteStore(_RemoteOp):
    """Store the tensor (input 0) to an entry of ``buffer``. No outputs."""

    def infer(self) -> list[TensorSpec]:
        """No output; raises unless the tensor fits an entry."""
        self.check(*self.inputs)
        return []

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Copy to the entry that the offset names when the op runs; replicas may name different ones."""
        stored, tensor, read = env.remote(self.buffer), inputs[0], self.entry_reader(inputs[1])

        def run() -> None:
            entry = read()
            if isinstance(entry, int):
                np.copyto(stored[:, entry], tensor)
            else:
                for replica, replica_entry in enumerate(entry):
                    stored[replica, replica_entry] = tensor[replica]

        return run

    def work(self) -> Sequence[Work]:
        """A store of the bytes of one replica."""
        return [RemoteAccess(self.buffer, "store", self.inputs[0].spec.bytes)]
