"""Remote buffers for collections of variables, and graphs that load and store them.

Both ages of the upstream interface: ``sharded_threshold=`` shards what has at least so many elements (and divides by
the replicas); ``shard_over_dict=`` and ``shard_over=`` say over how many replicas, by default over all that hold the
same value. Source: popxl-addons: popxl_addons/remote.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, ops
from ipuperf.frontends.popxl.arguments import checked_arguments, checked_kinds

from .dot_tree import DotTree
from .graph import GraphWithNamedArgs
from .named_tensors import NamedTensors
from .rts import shards_of
from .variable_factory import NamedVariableFactories


class NamedRemoteBuffers(DotTree[popxl.RemoteBuffer]):
    """A tree of remote buffers."""


@checked_arguments
def create_remote_buffer(
    spec: popxl.TensorSpec,
    entries: int = 1,
    replica_group: ReplicaGrouping | None = None,
    shard_over: int | None = None,
    *,
    sharded_threshold: float | None = None,
) -> popxl.RemoteBuffer:
    """A buffer for tensors of ``spec``, or of their shards.

    Args:
        replica_group: replicas that hold the same value (default: all).
        shard_over: over how many of a group the tensors are sharded; 1: not at all (default: over all of a group).
        sharded_threshold: instead, shard over all of a group where there are at least so many elements and they divide.

    Raises:
        ValueError: the elements do not divide by the shards, or the replicas of a group do not.
    """
    if spec.meta_shape:
        return popxl.RemoteBuffer(spec.shape, spec.dtype, entries, spec.meta_shape)
    group = replica_group or popxl.gir().replica_grouping()
    shards = shard_over or group.group_size
    if sharded_threshold is not None and shard_over is None:
        shards = shards_of(spec.nelms, sharded_threshold, replica_group)
    if shards == 1:
        return popxl.remote_buffer(spec.shape, spec.dtype, entries)
    if spec.nelms % shards:
        raise ValueError(f"create_remote_buffer: {spec.nelms} elements cannot be divided over {shards} replicas")
    shape = (group.num_groups, *spec.shape) if group.num_groups > 1 else spec.shape
    return popxl.replica_sharded_buffer(shape, spec.dtype, replica_group, shards, entries)


@checked_arguments
def named_buffers(
    tensors: NamedTensors,
    entries: int = 1,
    sharded_threshold: float | None = None,
    *,
    shard_over_dict: Mapping[str, int] | None = None,
) -> NamedRemoteBuffers:
    """A buffer with ``entries`` entries for each tensor, under its name.

    Args:
        sharded_threshold: shard over all replicas what has at least so many elements, if they divide.
        shard_over_dict: over how many replicas a tensor is sharded, by name (default: not at all).
    """
    over, buffers = dict(shard_over_dict or {}), {}
    for name, tensor in tensors.to_dict().items():
        shards = over.get(name) or (1 if sharded_threshold is None else None)
        buffers[name] = create_remote_buffer(tensor.spec, entries, None, shards, sharded_threshold=sharded_threshold)
    return NamedRemoteBuffers.from_dict(buffers)


@checked_kinds("shard_over_dict")
def named_variable_buffers(
    factories: NamedVariableFactories,
    entries: int = 1,
    shard_over_dict: Mapping[str, int] | int | bool = True,
    *,
    sharded_threshold: float | None = None,
) -> NamedRemoteBuffers:
    """A buffer with ``entries`` entries for each factory, under its name.

    Args:
        shard_over_dict: over how many replicas of its group a variable is sharded: for all the same number, or by name.
            True, and names that are left out: over all of a group. False or 1: not at all.
        sharded_threshold: instead, shard over all of a group what has at least so many elements, if they divide.

    Raises:
        ValueError: neither a mapping nor a number nor a bool; a number that is not from 1 to the size of a group;
            elements that do not divide.
    """
    buffers = {}
    for name, factory in factories.to_dict().items():
        spec = popxl.TensorSpec(factory.shape, factory.dtype, factory.meta_shape)
        group = factory.replica_grouping or popxl.gir().replica_grouping()
        over = None if sharded_threshold is not None else _shards(shard_over_dict, name, group)
        buffers[name] = create_remote_buffer(spec, entries, group, over, sharded_threshold=sharded_threshold)
    return NamedRemoteBuffers.from_dict(buffers)


def _shards(shard_over: Mapping[str, int] | int | bool, name: str, group: ReplicaGrouping) -> int:
    """Over how many replicas of a group the variable ``name`` is sharded."""
    if isinstance(shard_over, Mapping):
        return shard_over.get(name) or group.group_size
    if isinstance(shard_over, bool):
        return group.group_size if shard_over else 1
    if not isinstance(shard_over, int):
        raise ValueError(f"shard_over_dict is {shard_over!r}; a mapping, a whole number or a bool is needed")
    if not 1 <= shard_over <= group.group_size:
        raise ValueError(f"shard_over_dict is {shard_over}; allowed: 1 to the {group.group_size} replicas of a group")
    return shard_over


def _enlarge(buffer: popxl.RemoteBuffer, entries: int) -> None:
    buffer.entries = max(buffer.entries, entries)


@checked_arguments
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


@checked_arguments
def load_remote(buffers: NamedRemoteBuffers, entry: int | popxl.Tensor = 0, use_io_tiles: bool = False) -> NamedTensors:
    """Load from each buffer in the current graph."""
    with popxl.in_sequence(False):
        return NamedTensors.from_dict(
            {n: load_remote_tensor(b, entry, n, use_io_tiles) for n, b in buffers.to_dict().items()}
        )


@checked_arguments
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


@checked_arguments
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
