"""Collectives between replicas. ``group`` is a :class:`popxl.ReplicaGrouping` or :class:`CommGroup` (default: all
replicas)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ipuperf import ops as _k
from ipuperf.base.near_names import instead_of
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

_reshape: Callable[..., Tensor] = lifted(shapes.reshape)
_transpose: Callable[..., Tensor] = lifted(shapes.transpose)


def to_collective_op(op: str) -> str:
    """``op`` when it is a known operator; ValueError otherwise."""
    if op not in OPERATORS:
        raise ValueError(f"collective op {op!r} is not supported by ipuperf{instead_of(op, OPERATORS)}")
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
        axis: for ``concat``: along which the replicas' tensors are put together. A group may stand here too, as before
            PopART 3.2, where ``group`` was the second argument.
        output_shape: ``meta_shape`` (undo sharding), ``concat``, ``new_axis`` (the replicas' axis first), or ``auto``:
            the first when ``t`` is sharded, else ``concat``.

    Raises:
        ValueError: another ``output_shape``; ``meta_shape`` of a tensor that is not sharded; two groups; no such axis,
            or ``new_axis`` with another axis than 0, for which upstream mixes up the elements.
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
    if output_shape == "meta_shape":
        if not t.meta_shape:
            raise ValueError(f"replicated_all_gather: {t.id!r} {t.shape} has no meta_shape; use output_shape='concat'")
        return emit(_k.ReplicatedAllGather, [t], f"{t.name}_all_gathered", group=over._ir, mode="meta_shape")
    if output_shape == "new_axis":
        if axis != 0:
            raise ValueError(f"replicated_all_gather: output_shape='new_axis' puts the new axis first, not at {axis}")
        return _reshape(_gathered(t, over), (over.group_size, *t.shape))
    t = t if t.rank else _reshape(t, (1,))
    ordered = _to_front(t, axis, "replicated_all_gather")
    joined = (over.group_size * ordered.shape[0], *ordered.shape[1:])
    return _from_front(_reshape(_gathered(ordered, over), joined), axis)


def _gathered(t: Tensor, group: ReplicaGrouping) -> Tensor:
    """All elements of the members of a group, one member behind the other."""
    return emit(_k.ReplicatedAllGather, [t], f"{t.name}_all_gathered", group=group._ir, mode="flat")


def _to_front(t: Tensor, axis: int, function: str) -> Tensor:
    """``t`` with ``axis`` first.

    Raises:
        ValueError: no such axis. One counted from the end is none: upstream takes the first instead
            (``popxl/ops/collectives/collectives.py``).
    """
    if not 0 <= axis < t.rank:
        raise ValueError(f"{function}: axis {axis} of {t.id!r} {t.shape}; allowed: 0 to {t.rank - 1}")
    return _transpose(t, [axis, *(i for i in range(t.rank) if i != axis)]) if axis else t


def _from_front(t: Tensor, axis: int) -> Tensor:
    """``t`` with its first axis moved to ``axis``, or to the end."""
    rest = list(range(1, t.rank))
    return _transpose(t, [*rest[:axis], 0, *rest[axis:]]) if axis and rest else t


@checked_arguments
def replicated_slice(t: Tensor, axis: int = 0, group: Group = None) -> Tensor:
    """Of ``group_size`` equal parts of ``t`` along ``axis``, the one with the number of the replica in its group.
    Nothing is transferred; the gradient is an all-gather of the parts.

    A part one element long loses the axis, as upstream's code has it
    (``popxl/ops/collectives/replicated_reduce_scatter.py``). What is first then moves to ``axis``, or to the end: of
    (2, 4, 3) along axis 1 over four replicas (3, 2) is left.

    Raises:
        ValueError: no such axis, or its length is no multiple of the group size.
    """
    over = group_of(group)
    ordered = _to_front(t, axis, "replicated_slice")
    length, left = divmod(ordered.shape[0], over.group_size)
    if left:
        raise ValueError(
            f"replicated_slice: axis {axis} of {t.id!r} {t.shape} does not divide into {over.group_size} parts"
        )
    part = emit(_k.ReplicatedReduceScatter, [ordered], f"{t.name}_sliced", op="local", group=over._ir, rts=False)
    return _from_front(_reshape(part, (*[length] * (length != 1), *ordered.shape[1:])), axis)
