"""Remote buffers for collections of variables, and graphs that load and store them.

Both ages of the upstream interface: ``sharded_threshold=`` shards what has at least so many elements (and divides by
the replicas); ``shard_over_dict=`` names the number of replicas per variable. With neither only variables whose factory
is sharded get sharded buffers.
"""

from __future__ import annotations

from collections.abc import Mapping

from ipuperf import popxl
from ipuperf.popxl import ReplicaGrouping, ops

from .dot_tree import DotTree
from .graph import GraphWithNamedArgs
from .named_tensors import NamedTensors
from .rts import shards_of
from .variable_factory import NamedVariableFactories


class NamedRemoteBuffers(DotTree[popxl.RemoteBuffer]):
    """A tree of remote buffers."""


def create_remote_buffer(
    spec: popxl.TensorSpec,
    entries: int = 1,
    replica_group: ReplicaGrouping | None = None,
    shard_over: int | None = None,
    *,
    sharded_threshold: int | None = None,
) -> popxl.RemoteBuffer:
    """A buffer for tensors of ``spec``: of shards when the spec is sharded, ``shard_over`` is above 1 or the size asks
    for it."""
    if spec.meta_shape:
        return popxl.RemoteBuffer(spec.shape, spec.dtype, entries, spec.meta_shape)
    shards = shard_over
    if shards is None:
        shards = 1 if sharded_threshold is None else shards_of(spec.nelms, sharded_threshold, replica_group)
    if shards > 1:
        return popxl.replica_sharded_buffer(spec.shape, spec.dtype, replica_group, shards, entries)
    return popxl.remote_buffer(spec.shape, spec.dtype, entries)


def named_buffers(
    tensors: NamedTensors,
    entries: int = 1,
    sharded_threshold: int | None = None,
    *,
    shard_over_dict: Mapping[str, int] | None = None,
) -> NamedRemoteBuffers:
    """A buffer with ``entries`` entries for each tensor, under its name."""
    over = dict(shard_over_dict or {})
    return NamedRemoteBuffers.from_dict(
        {
            name: create_remote_buffer(t.spec, entries, None, over.get(name), sharded_threshold=sharded_threshold)
            for name, t in tensors.to_dict().items()
        }
    )


def named_variable_buffers(
    factories: NamedVariableFactories,
    entries: int = 1,
    sharded_threshold: int | None = None,
    *,
    shard_over_dict: Mapping[str, int] | None = None,
) -> NamedRemoteBuffers:
    """A buffer with ``entries`` entries for each factory, under its name."""
    over = dict(shard_over_dict or {})
    buffers = {}
    for name, factory in factories.to_dict().items():
        spec = popxl.TensorSpec(factory.shape, factory.dtype, factory.meta_shape)
        buffers[name] = create_remote_buffer(
            spec, entries, factory.replica_grouping, over.get(name), sharded_threshold=sharded_threshold
        )
    return NamedRemoteBuffers.from_dict(buffers)


def _enlarge(buffer: popxl.RemoteBuffer, entries: int) -> None:
    buffer.entries = max(buffer.entries, entries)


def load_remote_graph(
    buffers: NamedRemoteBuffers, entries: int = 1, use_io_tiles: bool = False
) -> tuple[GraphWithNamedArgs, list[str]]:
    """A graph with one input, the entry, that loads from each buffer; and the names of its outputs, sorted.

    Args:
        entries: enlarge the buffers to at least so many entries.

    Usage: ``g, names = load_remote_graph(buffers); tensors = NamedTensors.pack(names, g.call(0))``
    """
    graph = popxl.gir().create_empty_graph("load_remote")
    names = []
    with graph, popxl.in_sequence(False):
        index = popxl.graph_input((), popxl.int32, "load_index")
        for name, buffer in zip(*buffers.unpack(), strict=True):
            _enlarge(buffer, entries)
            names.append(name)
            popxl.graph_output(load_remote_tensor(buffer, index, name, use_io_tiles))
    return GraphWithNamedArgs(graph), names


def load_remote_tensor(
    buffer: popxl.RemoteBuffer, entry: int | popxl.Tensor, name: str, use_io_tiles: bool = False
) -> popxl.Tensor:
    """One load, on the IO tiles when asked for."""
    if not use_io_tiles:
        return ops.remote_load(buffer, entry, name)
    with popxl.io_tiles():
        return ops.remote_load(buffer, entry, name)


def load_remote(buffers: NamedRemoteBuffers, entry: int | popxl.Tensor = 0, use_io_tiles: bool = False) -> NamedTensors:
    """Load from each buffer in the current graph."""
    with popxl.in_sequence(False):
        return NamedTensors.from_dict(
            {n: load_remote_tensor(b, entry, n, use_io_tiles) for n, b in buffers.to_dict().items()}
        )


def store_remote_graph(buffers: NamedRemoteBuffers, entries: int = 1, use_io_tiles: bool = False) -> GraphWithNamedArgs:
    """A graph with the entry as first input and a named input per buffer, sorted by name, that stores into the buffers.

    Usage: ``store_remote_graph(buffers).bind(tensors).call(0)``
    """
    graph = popxl.gir().create_empty_graph("store_remote")
    args: dict[str, popxl.Tensor] = {}
    with graph, popxl.in_sequence(False):
        index = popxl.graph_input((), popxl.int32, "store_index")
        for name, buffer in zip(*buffers.unpack(), strict=True):
            _enlarge(buffer, entries)
            args[name] = popxl.graph_input(buffer.tensor_shape, buffer.tensor_dtype, name, meta_shape=buffer.meta_shape)
            _store(buffer, index, args[name], use_io_tiles)
    return GraphWithNamedArgs(graph, NamedTensors.from_dict(args))


def _store(buffer: popxl.RemoteBuffer, entry: int | popxl.Tensor, t: popxl.Tensor, use_io_tiles: bool) -> None:
    if not use_io_tiles:
        ops.remote_store(buffer, entry, t)
        return
    with popxl.io_tiles():
        ops.remote_store(buffer, entry, t)


def store_remote(
    buffers: NamedRemoteBuffers,
    tensors: NamedTensors,
    entry: int | popxl.Tensor = 0,
    use_io_tiles: bool = False,
) -> None:
    """Store each tensor into the buffer of its name, in the current graph."""
    with popxl.in_sequence(False):
        for buffer, tensor in buffers.to_mapping(tensors).items():
            _store(buffer, entry, tensor, use_io_tiles)
