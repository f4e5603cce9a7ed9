"""Replicated tensor sharding (RTS): specs of shards, graphs that reduce gradients to shards and gather shards.

Both ages of the upstream interface: sharding by size (``threshold=``: tensors of at least so many elements) and by
group (``shard_over=``, ``shard_groups=``).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from ipuperf.base.kinds import told
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, ops
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.ops.collectives.collectives import CollectiveOps

from .graph import GraphWithNamedArgs
from .named_replica_grouping import (
    NamedReplicaGrouping,
    get_ild_replica_grouping,
    get_ild_size_from_popdist,
    is_cross_ild,
)
from .named_tensors import NamedTensors
from .variable_factory import NamedVariableFactories

DEFAULT_THRESHOLD = 1024


def shards_of(nelms: int, threshold: float | None, group: ReplicaGrouping | None = None) -> int:
    """Over how many replicas a tensor of ``nelms`` elements is sharded: 1 when it is too small or does not divide."""
    size = (group or popxl.gir().replica_grouping()).group_size
    if size == 1 or nelms % size or (threshold is not None and nelms < threshold):
        return 1
    return size


@checked_arguments
def replica_sharded_spec(
    t: popxl.Tensor | popxl.TensorSpec,
    shard_over: ReplicaGrouping | int | None = None,
    *,
    threshold: float | None = None,
) -> popxl.TensorSpec:
    """The spec of a shard of ``t``; the spec of ``t`` when it is sharded already or is not to be sharded.

    Args:
        shard_over: the replicas that hold a shard each (default: all); an integer is a threshold.
        threshold: shard tensors with at least so many elements, if their number divides by the replicas.
    """
    if shard_over is not None and not isinstance(shard_over, (int, ReplicaGrouping)):
        raise TypeError(f"replica_sharded_spec: shard_over is {told(shard_over)}; a ReplicaGrouping or None is needed")
    if isinstance(shard_over, int):
        threshold, shard_over = shard_over, None
    spec = t.spec
    if spec.meta_shape:
        return spec
    if threshold is None and shard_over is None:
        threshold = DEFAULT_THRESHOLD
    shards = shards_of(spec.nelms, threshold, shard_over)
    if shards == 1:
        return spec
    return popxl.TensorSpec((spec.nelms // shards,), spec.dtype, spec.shape)


@checked_arguments
def gather_replica_sharded_tensor(
    t: popxl.Tensor, use_io_tiles: bool = False, replica_group: ReplicaGrouping | None = None
) -> popxl.Tensor:
    """The whole tensor of a shard; ``t`` itself when it is not sharded.

    Args:
        use_io_tiles: ``t`` is on the I/O tiles; it is gathered there and copied to the compute tiles.
        replica_group: the replicas that hold a shard each (default: all).
    """
    if t.meta_shape:
        with popxl.io_tiles() if use_io_tiles else nullcontext():
            t = ops.collectives.replicated_all_gather(t, group=replica_group)
    return ops.io_tile_copy(t) if use_io_tiles else t


@checked_arguments
def all_gather_replica_sharded_graph(
    tensors: NamedTensors | NamedVariableFactories,
    use_io_tiles: bool = False,
    replica_groups: NamedReplicaGrouping | None = None,
) -> tuple[GraphWithNamedArgs, list[str]]:
    """A graph that gathers each sharded tensor and passes the others through; and the names of its outputs.

    Args:
        tensors: tensors, or factories of variables.
        replica_groups: the replicas that hold a shard each (default: all in an IPU-Link domain).

    With ``use_io_tiles`` the tensors come from the I/O tiles: see :func:`gather_replica_sharded_tensor`.
    """
    groups = {n: g.const_rg for n, g in replica_groups.to_dict().items()} if replica_groups is not None else {}
    return per_tensor_graph(
        "all_gather",
        tensors,
        lambda name, t: gather_replica_sharded_tensor(t, use_io_tiles, groups.get(name) or get_ild_replica_grouping()),
    )


@checked_arguments
def reduce_replica_sharded_tensor(
    t: popxl.Tensor,
    op: CollectiveOps = "add",
    replica_group: ReplicaGrouping | None = None,
    shard_group: ReplicaGrouping | None = None,
    *,
    threshold: float | None = None,
) -> popxl.Tensor:
    """``t`` reduced over ``replica_group`` (default: all) and sharded over ``shard_group`` (default: the same, within
    an IPU-Link domain).

    Equal groups give a reduce-scatter, others an all-reduce and a slice; a tensor that is below ``threshold`` or does
    not divide is all-reduced. A group that spans several IPU-Link domains is reduced within each, where shards are, and
    then the shards between them.
    """
    reduce_over = replica_group or popxl.gir().replica_grouping()
    shard_over = shard_group or get_ild_replica_grouping(reduce_over)
    if shards_of(t.nelms, threshold, shard_over) == 1:
        return ops.collectives.replicated_all_reduce(t, op, reduce_over)
    within = reduce_over if is_cross_ild(shard_over) else get_ild_replica_grouping(reduce_over)
    if within == shard_over:
        t = ops.collectives.replicated_reduce_scatter(
            t, op, within, configure_output_for_replicated_tensor_sharding=True
        )
    else:
        if within.group_size > 1:
            t = ops.collectives.replicated_all_reduce(t, op, within)
        t = ops.collectives.replica_sharded_slice(t, shard_over)
    domains = reduce_over.group_size // within.group_size
    if domains == 1:
        return t
    between = popxl.gir().replica_grouping(stride=get_ild_size_from_popdist(), group_size=domains)
    return ops.collectives.replicated_all_reduce(t, op, between)


@checked_arguments
def reduce_replica_sharded_graph(
    tensors: NamedTensors | NamedVariableFactories,
    op: CollectiveOps = "add",
    use_io_tiles: bool = False,
    shard_groups: NamedReplicaGrouping | None = None,
    replica_group: ReplicaGrouping | None = None,
    threshold: float | None = None,
) -> tuple[GraphWithNamedArgs, list[str]]:
    """A graph that reduces each tensor (see :func:`reduce_replica_sharded_tensor`); and the names of its outputs.

    Args:
        tensors: tensors, or factories of variables.

    With ``use_io_tiles`` each tensor is copied to the I/O tiles, reduced there, and left there.

    Usage: ``g, names = reduce_replica_sharded_graph(ts, "mean")``, ``NamedTensors.pack(names, g.bind(ts).call())``
    """
    groups = shard_groups.to_dict() if shard_groups is not None else {}

    def reduced(name: str, t: popxl.Tensor) -> popxl.Tensor:
        if not use_io_tiles:
            return reduce_replica_sharded_tensor(t, op, replica_group, groups.get(name), threshold=threshold)
        with popxl.io_tiles():
            t = ops.io_tile_copy(t)
            return reduce_replica_sharded_tensor(t, op, replica_group, groups.get(name), threshold=threshold)

    return per_tensor_graph("replica_reduce", tensors, reduced)


def per_tensor_graph(
    stem: str, tensors: NamedTensors | NamedVariableFactories, fn: Any
) -> tuple[GraphWithNamedArgs, list[str]]:
    """A graph with an input per tensor, sorted by name, and ``fn(name, input)`` as its output."""
    graph = popxl.gir().create_empty_graph(stem)
    args: dict[str, popxl.Tensor] = {}
    with graph, popxl.in_sequence(False):
        for name, tensor in zip(*tensors.unpack(), strict=True):
            args[name] = popxl.graph_input(tensor.shape, tensor.dtype, tensor.name, meta_shape=tensor.meta_shape)
            popxl.graph_output(fn(name, args[name]))
    return GraphWithNamedArgs(graph, NamedTensors.from_dict(args)), list(args)
