"""Collectives between replicas that are a stride apart.

Semantics of popxl-addons: popxl_addons/ops/replicated_strided_collectives. ``op`` is ``add`` or ``mean``
(``popart_exception`` for others).
"""

from __future__ import annotations

from contextlib import nullcontext

from ipuperf import ops as _k
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import ReplicaGrouping, Tensor, ops
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.ops.collectives.collectives import CollectiveOps, group_of, to_collective_op
from ipuperf.frontends.popxl.ops.operands import emit

from ..graph import GraphWithNamedArgs
from ..named_tensors import NamedTensors
from ..rts import per_tensor_graph

__all__ = [
    "replicated_all_gather_strided",
    "replicated_all_reduce_strided",
    "replicated_all_reduce_strided_graph",
    "replicated_all_reduce_strided_identical_grad_inputs",
    "replicated_all_reduce_strided_identical_inputs",
    "replicated_reduce_scatter_strided",
]


@checked_arguments
def replicated_all_reduce_strided(t: Tensor, op: CollectiveOps = "add", group: ReplicaGrouping | None = None) -> Tensor:
    """The reduction of ``t`` over the group (default: all replicas); the gradient is the gradients' reduction."""
    return _all_reduce(t, op, group)


def replicated_all_reduce_strided_identical_inputs(
    t: Tensor, op: CollectiveOps = "add", group: ReplicaGrouping | None = None
) -> Tensor:
    """``t`` itself, which is the same on all replicas of the group; the gradient is their reduction."""
    return _all_reduce(t, op, group, identical_inputs=True)


def replicated_all_reduce_strided_identical_grad_inputs(
    t: Tensor, op: CollectiveOps = "add", group: ReplicaGrouping | None = None
) -> Tensor:
    """The reduction of ``t`` over the group; the gradient, the same on all its replicas, passes through."""
    return _all_reduce(t, op, group, identical_grad_inputs=True)


def _all_reduce(t: Tensor, op: CollectiveOps, group: ReplicaGrouping | None, **identical: bool) -> Tensor:
    name, over = f"{t.name}_all_reduce_strided", group_of(group)._ir
    return emit(_k.ReplicatedAllReduceStrided, [t], name, op=to_collective_op(op), group=over, **identical)


def replicated_all_reduce_strided_graph(
    tensors: NamedTensors,
    op: CollectiveOps = "add",
    group: ReplicaGrouping | None = None,
    use_io_tiles: bool = False,
) -> tuple[GraphWithNamedArgs, list[str]]:
    """A graph that reduces each tensor over the group, on the I/O tiles if wanted; and the names of its outputs.

    Usage: ``g, names = replicated_all_reduce_strided_graph(ts)``, ``NamedTensors.pack(names, g.bind(ts).call())``
    """

    def reduced(_: str, t: Tensor) -> Tensor:
        with popxl.io_tiles() if use_io_tiles else nullcontext():
            return replicated_all_reduce_strided(ops.io_tile_copy(t) if use_io_tiles else t, op, group)

    return per_tensor_graph("replica_reduce", tensors, reduced)


@checked_arguments
def replicated_reduce_scatter_strided(
    t: Tensor,
    op: CollectiveOps = "add",
    group: ReplicaGrouping | None = None,
    configure_output_for_replicated_tensor_sharding: bool = False,
) -> Tensor:
    """The replica's shard ``(ceil(nelms / group_size),)`` of the reduction of ``t`` over the group.

    Args:
        configure_output_for_replicated_tensor_sharding: give the result the shape of ``t`` as ``meta_shape``.
    """
    attributes = {"op": to_collective_op(op), "rts": bool(configure_output_for_replicated_tensor_sharding)}
    name, over = f"{t.name}_reduce_scattered_strided", group_of(group)._ir
    return emit(_k.ReplicatedReduceScatterStrided, [t], name, group=over, **attributes)


@checked_arguments
def replicated_all_gather_strided(t: Tensor, group: ReplicaGrouping | None = None) -> Tensor:
    """The tensors of the group's replicas one behind the other, flat; of shards the whole tensor (``meta_shape``)."""
    mode = "meta_shape" if t.meta_shape else "flat"
    over = group_of(group)._ir
    return emit(_k.ReplicatedAllGatherStrided, [t], f"{t.name}_all_gathered_strided", group=over, mode=mode)
