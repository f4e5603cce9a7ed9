"""Cross entropy of logits whose classes are split over replicas.

Semantics of popxl-addons: popxl_addons/ops/cross_entropy_sharded_loss.
"""

from __future__ import annotations

from typing import Literal

from ipuperf import ops as _k
from ipuperf.frontends.options import ADDONS as EFFECTS
from ipuperf.frontends.popxl import ReplicaGrouping, Tensor, ops
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.ops.collectives.collectives import group_of
from ipuperf.frontends.popxl.ops.operands import emit_all

__all__ = ["cross_entropy_sharded_loss"]

REDUCTION_TYPE = Literal["mean", "sum", "none"]


@checked_arguments
def cross_entropy_sharded_loss(
    logits: Tensor,
    indices: Tensor,
    ignore_index: Tensor | int | None = None,
    replica_grouping: ReplicaGrouping | None = None,
    reduction: REDUCTION_TYPE = "mean",
    available_memory_proportion: float = 0.4,
) -> Tensor:
    """The loss of all classes of the group, the same on each of its replicas.

    Args:
        logits: ``(samples, classes of this replica)``.
        indices: ``(samples,)``, the labels less the number of the replica's first class.
        ignore_index: labels without loss and gradient, adjusted in the same way.
        replica_grouping: the replicas that hold the classes (default: all).
        reduction: ``mean`` (over labels that are not ignored), ``sum`` or ``none``.

    Raises:
        ValueError: another reduction.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"`reduction` is {reduction!r}; allowed: mean, sum, none")
    names = ["cross_entropy_sharded_out", "cross_entropy_sharded_soft_max_out"]
    EFFECTS.given(
        "ops.cross_entropy_sharded_loss.cross_entropy_sharded_loss(available_memory_proportion)",
        available_memory_proportion,
    )
    loss, _ = emit_all(_k.CrossEntropySharded, [logits, indices], names, group=group_of(replica_grouping)._ir)
    if ignore_index is None:
        return ops.mean(loss) if reduction == "mean" else ops.sum(loss) if reduction == "sum" else loss
    mask = ops.cast(ops.logical_not(ops.equal(indices, ignore_index)), loss.dtype)
    loss = loss * mask
    if reduction == "none":
        return loss
    return ops.sum(loss) / ops.sum(mask) if reduction == "mean" else ops.sum(loss)
