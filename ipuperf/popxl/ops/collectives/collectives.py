"""Collectives between replicas. ``group`` is a :class:`popxl.ReplicaGrouping` or :class:`CommGroup` (default: all
replicas)."""

from __future__ import annotations

from typing import Literal

from ipuperf import ops as _k
from ipuperf.functions import shapes

from ... import context
from ...arguments import checked_arguments
from ...handle import Tensor
from ...replica_grouping import ReplicaGrouping
from ..lifting import lifted
from ..operands import emit
from .comm_group import CommGroup

CollectiveOps = Literal["add", "mean", "mul", "min", "max", "and", "or", "square_add"]
OPERATORS = ("add", "mean", "mul", "min", "max", "and", "or", "square_add")

Group = ReplicaGrouping | CommGroup | None

_reshape, _transpose = lifted(shapes.reshape), lifted(shapes.transpose)


def to_collective_op(op: str) -> str:
    """``op`` when it is a known operator; ValueError otherwise."""
    if op not in OPERATORS:
        raise ValueError(f"collective op {op!r} is not supported by ipuperf; allowed: {', '.join(OPERATORS)}")
    return op


def group_of(group: ReplicaGrouping | CommGroup | None) -> ReplicaGrouping:
    """The grouping that an argument ``group`` stands for; TypeError for anything else."""
    if group is None:
        return context.gir().replica_grouping()
    if isinstance(group, CommGroup):
        return group.replica_grouping(context.gir())
    if not isinstance(group, ReplicaGrouping):
        raise TypeError(f"group is a {type(group).__name__}; a popxl.ReplicaGrouping is needed")
    return group


@checked_arguments
def replicated_all_reduce(t: Tensor, op: CollectiveOps = "add", group: Group = None) -> Tensor:
    """The same reduction of ``t`` over the group on each of its replicas."""
    return emit(_k.ReplicatedAllReduce, [t], f"{t.name}_all_reduce", op=to_collective_op(op), group=group_of(group)._ir)


@checked_arguments
def replicated_all_reduce_(t: Tensor, op: CollectiveOps = "add", group: Group = None) -> Tensor:
    """As :func:`replicated_all_reduce`, in place."""
    return emit(
        _k.ReplicatedAllReduceInplace, [t], f"{t.name}_all_reduce", op=to_collective_op(op), group=group_of(group)._ir
    )


@checked_arguments
def replicated_reduce_scatter(
    t: Tensor,
    op: CollectiveOps | Literal["local"] = "add",
    group: Group = None,
    configure_output_for_replicated_tensor_sharding: bool = False,
) -> Tensor:
    """The replica's shard ``(ceil(nelms / group_size),)`` of the reduction of ``t`` over the group.

    Args:
        op: the reduction; ``"local"`` slices without reducing (upstream before 3.1, see :func:`replica_sharded_slice`).
        configure_output_for_replicated_tensor_sharding: give the result the shape of ``t`` as ``meta_shape``.
    """
    operator = op if op == "local" else to_collective_op(op)
    rts = bool(configure_output_for_replicated_tensor_sharding)
    return emit(
        _k.ReplicatedReduceScatter, [t], f"{t.name}_reduce_scattered", op=operator, group=group_of(group)._ir, rts=rts
    )


@checked_arguments
def replica_sharded_slice(t: Tensor, group: Group = None) -> Tensor:
    """The replica's RTS shard of ``t``, without any reduction. The gradient is an all-gather."""
    return replicated_reduce_scatter(t, "local", group, True)


@checked_arguments
def replicated_all_gather(
    t: Tensor, axis: int | ReplicaGrouping | CommGroup = 0, group: Group = None, output_shape: str = "auto"
) -> Tensor:
    """The tensors of all replicas of the group, on each of them. The gradient is the replica's own part of its own
    gradient: nothing is summed over the group.

    Args:
        axis: for ``concat`` and ``new_axis``: where the replicas' tensors are put together. A group may stand here
            too, as before PopART 3.2, where ``group`` was the second argument.
        output_shape: ``meta_shape`` (undo sharding), ``concat``, ``new_axis``, or ``auto``: the first when ``t`` is
            sharded, else ``concat``.

    Raises:
        ValueError: another ``output_shape``; ``meta_shape`` of a tensor that is not sharded; two groups.
    """
    if isinstance(axis, ReplicaGrouping | CommGroup):
        if group is not None:
            raise ValueError(f"replicated_all_gather: two groups, {axis} in place of the axis and {group}")
        group, axis = axis, 0
    if output_shape not in ("auto", "meta_shape", "concat", "new_axis"):
        raise ValueError(f"output_shape {output_shape!r}; allowed: auto, meta_shape, concat, new_axis")
    if output_shape == "auto":
        output_shape = "meta_shape" if t.meta_shape else "concat"
    over = group_of(group)
    name = f"{t.name}_all_gathered"
    if output_shape == "meta_shape":
        if not t.meta_shape:
            raise ValueError(f"replicated_all_gather: {t.id!r} {t.shape} has no meta_shape; use output_shape='concat'")
        return emit(_k.ReplicatedAllGather, [t], name, group=over._ir, mode="meta_shape")
    return _gather_along(t, axis, over, output_shape == "new_axis", name)


def _gather_along(t: Tensor, axis: int, group: ReplicaGrouping, new_axis: bool, name: str) -> Tensor:
    """Gather flat, then order the axes: members first, moved in front of ``axis`` and, for concat, merged with it."""
    rank = t.rank + 1 if new_axis else t.rank
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise ValueError(f"replicated_all_gather: axis {axis} of a tensor with {t.rank} axes")
    axis = axis % max(rank, 1)
    flat = emit(_k.ReplicatedAllGather, [t], name, group=group._ir, mode="flat")
    members = _reshape(flat, (group.group_size, *t.shape))
    order = [*range(1, axis + 1), 0, *range(axis + 1, t.rank + 1)]
    if order != list(range(t.rank + 1)):
        members = _transpose(members, order)
    if new_axis:
        return members
    if t.rank == 0:
        return _reshape(members, (group.group_size,))
    return _reshape(members, (*t.shape[:axis], group.group_size * t.shape[axis], *t.shape[axis + 1 :]))


@checked_arguments
def replicated_slice(t: Tensor, axis: int = 0, group: Group = None) -> Tensor:
    """Of ``group_size`` equal parts of ``t`` along ``axis``, the one with the number of the replica in its group.
    Nothing is transferred; the gradient is an all-gather of the parts.

    Raises:
        ValueError: no such axis, or its length is no multiple of the group size.
    """
    over = group_of(group)
    if not -t.rank <= axis < t.rank:
        raise ValueError(f"replicated_slice: axis {axis} of {t.id!r} with {t.rank} axes")
    axis, members = axis % t.rank, over.group_size
    if t.shape[axis] % members:
        raise ValueError(f"replicated_slice: axis {axis} of {t.id!r} {t.shape} does not divide into {members} parts")
    front = [axis, *(i for i in range(t.rank) if i != axis)]
    ordered = t if axis == 0 else _transpose(t, front)
    part = emit(_k.ReplicatedReduceScatter, [ordered], f"{t.name}_sliced", op="local", group=over._ir, rts=False)
    shaped = _reshape(part, (ordered.shape[0] // members, *ordered.shape[1:]))
    return shaped if axis == 0 else _transpose(shaped, [front.index(i) for i in range(t.rank)])
