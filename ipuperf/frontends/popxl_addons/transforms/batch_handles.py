"""What a batch-serialised graph loads before each step of its loop and stores after it, and where.

A remote buffer counts as a matrix: ``steps`` columns, one for each step of the loop, and rows, one for each phase that
shares the buffer. Row ``r`` of step ``s`` is entry ``r * steps + s``.

Source: popxl-addons: popxl_addons/transforms/batch_serialisation.py (RemoteHandle, _apply_load_offsets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, ops
from ipuperf.frontends.popxl.arguments import checked_arguments, whole

from ..graph import GraphWithNamedArgs
from ..rts import gather_replica_sharded_tensor

RowOffset = int | Callable[[popxl.Tensor], Any] | None


@dataclass
class RemoteHandle:
    """Where in a remote buffer a tensor of a batch-serialised graph is.

    Args:
        buffer: the buffer, a matrix of rows and steps.
        row_offset: added to the row with which the graph is called; None: always the first row; a function: the row (a
            tensor, or a number) for the row with which the graph is called (a scalar int32 tensor).
        shard_group: the replicas over which the entries are sharded; they are gathered after loading and cut before
            storing. None: whole tensors.
    """

    buffer: popxl.RemoteBuffer
    row_offset: RowOffset = 0
    shard_group: ReplicaGrouping | None = None

    @property
    def sharded(self) -> bool:
        """Whether entries are gathered after loading and cut before storing."""
        return bool(self.buffer.meta_shape) and self.shard_group is not None and self.shard_group.group_size > 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensors that are loaded or stored."""
        return self.buffer.meta_shape if self.sharded else self.buffer.tensor_shape

    @checked_arguments
    def enlarge(self, steps: int, rows: int) -> None:
        """Give the buffer an entry for each step of each row that is used; a function says nothing about its rows."""
        offset = self.row_offset
        if not callable(offset):
            last_row = 1 if offset is None else offset + rows
            self.buffer.entries = max(self.buffer.entries, steps * last_row)

    @checked_arguments
    def entry(self, index: popxl.Tensor, steps: int) -> popxl.Tensor:
        """The entry, made by ops of the current graph, for ``index``: row of the call times ``steps`` plus the step."""
        offset = self.row_offset
        # The index is row times steps plus step, so the remainder is the step.
        if offset is None:
            return index % steps
        if callable(offset):
            row: popxl.Tensor = offset(index / steps)
            return index % steps + row * steps
        return index + offset * steps if offset else index


LoadHandle = popxl.HostToDeviceStream | RemoteHandle
Given = Any  #: a stream, a RemoteHandle, or its arguments as a tuple


def remote_handle(value: Given, role: str) -> RemoteHandle:
    """``value`` as a handle; tuples ``(buffer, row_offset[, shard_group])`` are the older way to write one.

    Raises:
        TypeError: neither; ValueError: a row below 0.
    """
    if isinstance(value, tuple) and 1 <= len(value) <= 3 and isinstance(value[0], popxl.RemoteBuffer):
        value = RemoteHandle(*value)
    if not isinstance(value, RemoteHandle) or not isinstance(value.buffer, popxl.RemoteBuffer):
        raise TypeError(
            f"{role}: {value!r} is no handle; allowed: RemoteHandle(buffer, row_offset, shard_group) or "
            "(buffer, row_offset)"
        )
    if value.row_offset is not None and not callable(value.row_offset):
        whole(value.row_offset, f"{role}: row_offset", 0)
    return value


def load_handle(value: Given, role: str) -> LoadHandle:
    """``value`` as something to load from: a host stream, or a handle as :func:`remote_handle` has it."""
    if isinstance(value, popxl.HostToDeviceStream):
        return value
    try:
        return remote_handle(value, role)
    except TypeError:
        raise TypeError(
            f"{role}: incompatible handle {value!r}; allowed: a HostToDeviceStream, RemoteHandle(buffer, row_offset, "
            "shard_group) or (buffer, row_offset)"
        ) from None


def _check(t: popxl.Tensor, shape: tuple[int, ...], dtype: popxl.dtype, role: str, where: str) -> None:
    if (shape, dtype) != (t.shape, t.dtype):
        raise ValueError(f"{role}: the tensor is {t.shape} {t.dtype.name}, {where} holds {shape} {dtype.name}")


def _check_handle(t: popxl.Tensor, handle: Any, role: str) -> None:
    """ValueError unless what a stream or handle moves is of the shape and type of ``t``."""
    if isinstance(handle, RemoteHandle):
        buffer = handle.buffer
        _check(t, handle.shape, buffer.tensor_dtype, role, f"remote buffer {buffer.remote_buffer_id}")
    else:
        _check(t, handle.shape, handle.dtype, role, f"stream {handle.tensor_id!r}")


class Stored(NamedTuple):
    """A tensor as it is stored to a stream, and as it is stored to a remote buffer: the same, or a shard of it."""

    whole: popxl.Tensor
    part: popxl.Tensor


@dataclass
class Transfers:
    """The tensors of a graph that is batch-serialised, by what happens to them in each step.

    Args:
        graph: the graph that one step calls.
        steps, rows: extent of the remote buffers.
        load_handles: where inputs come from.
        store_streams, store_buffers: where inputs and outputs go.
        seed_input: the input that gets another random seed in each step.

    Attributes:
        loaded: inputs that are loaded, in the order of the graph's inputs.
        stored: tensors that are stored. What is loaded from a remote buffer is there already.
        passed: the other inputs: they are inputs of the batch-serialised graph too.

    Raises:
        TypeError: something else than a handle.
        ValueError: a tensor that is no input (output) of the graph, a handle of another shape or type, a number of
            steps or rows below 1.
    """

    graph: GraphWithNamedArgs
    steps: int
    rows: int
    load_handles: Mapping[popxl.Tensor, Given]
    store_streams: Mapping[popxl.Tensor, popxl.DeviceToHostStream]
    store_buffers: Mapping[popxl.Tensor, Given]
    seed_input: popxl.Tensor | None = None
    loaded: list[popxl.Tensor] = field(init=False)
    stored: list[popxl.Tensor] = field(init=False)
    passed: list[popxl.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.steps, self.rows = (
            whole(self.steps, "batch_serialise: steps", 1),
            whole(self.rows, "batch_serialise: rows", 1),
        )
        inputs, outputs = self.graph.graph.inputs, self.graph.graph.outputs
        self.load_handles = {t: load_handle(h, f"load_handles of {t.id!r}") for t, h in self.load_handles.items()}
        self.store_buffers = {t: remote_handle(h, f"store_buffers of {t.id!r}") for t, h in self.store_buffers.items()}
        self._check_tensors("load_handles", self.load_handles, inputs, "input")
        self._check_tensors("store_streams", self.store_streams, (*inputs, *outputs), "input or output")
        self._check_tensors("store_buffers", self.store_buffers, (*inputs, *outputs), "input or output")
        if self.seed_input is not None and self.seed_input not in inputs:
            raise ValueError(f"seed_input {self.seed_input.id!r} is no input of graph {self.graph.name!r}")
        self.loaded = [t for t in inputs if t in self.load_handles]
        self.passed = [t for t in inputs if t not in self.load_handles and t != self.seed_input]
        to_store = {**self.store_streams, **self.store_buffers}
        self.stored = [t for t in dict.fromkeys((*inputs, *outputs)) if t in to_store and not self._is_remote(t)]
        for t in self.loaded:
            self._enlarge(self.load_handles[t])
        for t in self.stored:
            self._enlarge(self.store_buffers.get(t))

    def _check_tensors(
        self, role: str, handles: Mapping[popxl.Tensor, Any], known: Iterable[popxl.Tensor], kind: str
    ) -> None:
        known = set(known)
        for t, handle in handles.items():
            if t not in known:
                raise ValueError(f"{role}: {t.id!r} is no {kind} of graph {self.graph.name!r}")
            _check_handle(t, handle, f"{role} of {t.id!r}")

    def _is_remote(self, t: popxl.Tensor) -> bool:
        return isinstance(self.load_handles.get(t), RemoteHandle)

    def _enlarge(self, handle: object) -> None:
        if isinstance(handle, RemoteHandle):
            handle.enlarge(self.steps, self.rows)

    @property
    def stored_buffers(self) -> dict[popxl.Tensor, RemoteHandle]:
        """Where the tensors of ``store_buffers`` can be found after the loop."""
        return {t: self.load_handles[t] if self._is_remote(t) else h for t, h in self.store_buffers.items()}

    # -- ops -------------------------------------------------------------------------------------------------------

    def _loads(self) -> list[LoadHandle]:
        return [self.load_handles[t] for t in self.loaded]

    def load_entries(self, index: popxl.Tensor) -> list[popxl.Tensor]:
        """The entries that are loaded, arithmetic that stands before the exchange."""
        return [h.entry(index, self.steps) for h in self._loads() if isinstance(h, RemoteHandle)]

    def store_entries(self, index: popxl.Tensor) -> list[popxl.Tensor]:
        """The entries that are stored to."""
        return [self.store_buffers[t].entry(index, self.steps) for t in self.stored if t in self.store_buffers]

    def load(self, entries: Iterable[popxl.Tensor]) -> list[popxl.Tensor]:
        """Load what a step reads; shards are loaded as shards."""
        entry = iter(entries)
        return [
            ops.remote_load(h.buffer, next(entry), t.name) if isinstance(h, RemoteHandle) else ops.host_load(h, t.name)
            for t, h in zip(self.loaded, self._loads(), strict=True)
        ]

    def gather(self, loaded: Iterable[popxl.Tensor]) -> list[popxl.Tensor]:
        """Whole tensors of what was loaded as shards."""
        return [
            gather_replica_sharded_tensor(t, replica_group=h.shard_group)
            if isinstance(h, RemoteHandle) and h.sharded
            else t
            for t, h in zip(loaded, self._loads(), strict=True)
        ]

    def cut(self, stored: Iterable[popxl.Tensor]) -> list[Stored]:
        """Each tensor to be stored, as it goes to a stream and as it goes to its buffer."""
        return [self._cut(self.store_buffers.get(t), value) for t, value in zip(self.stored, stored, strict=True)]

    @staticmethod
    def _cut(handle: RemoteHandle | None, value: popxl.Tensor) -> Stored:
        if handle is None or not handle.sharded:
            return Stored(value, value)
        return Stored(value, ops.collectives.replica_sharded_slice(value, group=handle.shard_group))

    def store(self, entries: Iterable[popxl.Tensor], stored: Iterable[Stored]) -> None:
        """Store what a step left, as :meth:`cut` gave it."""
        entry = iter(entries)
        for t, value in zip(self.stored, stored, strict=True):
            if t in self.store_streams:
                ops.host_store(self.store_streams[t], value.whole)
            if t in self.store_buffers:
                ops.remote_store(self.store_buffers[t].buffer, next(entry), value.part)
