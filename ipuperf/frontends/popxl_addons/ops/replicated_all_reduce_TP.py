"""All-reduces of tensor parallelism, with the gradients that it needs.

Semantics of popxl-addons: popxl_addons/ops/replicated_all_reduce_TP. ``op``: only
``add`` (``popart_exception`` for others).
"""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.frontends.popxl import ReplicaGrouping, Tensor
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.ops.collectives.collectives import CollectiveOps, group_of, to_collective_op
from ipuperf.frontends.popxl.ops.operands import emit

__all__ = [
    "replicated_all_reduce",
    "replicated_all_reduce_identical_grad_inputs",
    "replicated_all_reduce_identical_inputs",
]


@checked_arguments
def replicated_all_reduce_identical_inputs(
    t: Tensor, op: CollectiveOps = "add", group: ReplicaGrouping | None = None
) -> Tensor:
    """``t`` itself, which is the same on all replicas of the group; the gradient is their sum."""
    return _all_reduce(t, op, group, identical_inputs=True)


@checked_arguments
def replicated_all_reduce_identical_grad_inputs(
    t: Tensor, op: CollectiveOps = "add", group: ReplicaGrouping | None = None
) -> Tensor:
    """The sum of ``t`` over the group; the gradient, the same on all its replicas, passes through."""
    return _all_reduce(t, op, group, identical_grad_inputs=True)


@checked_arguments
def replicated_all_reduce(t: Tensor, op: CollectiveOps = "add", group: ReplicaGrouping | None = None) -> Tensor:
    """The sum of ``t`` over the group; the gradient is the sum of the gradients."""
    return _all_reduce(t, op, group)


def _all_reduce(t: Tensor, op: CollectiveOps, group: ReplicaGrouping | None, **identical: bool) -> Tensor:
    name = f"{t.name}_all_reduce"
    over = group_of(group)._ir
    return emit(_k.ReplicatedAllReduceTP, [t], name, op=to_collective_op(op), group=over, **identical)
