"""Layer norm of rows that are split over replicas.

Semantics of popxl-addons: popxl_addons/ops/layer_norm_distributed.
"""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.frontends.popxl import ReplicaGrouping, Tensor
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.ops.collectives.collectives import group_of
from ipuperf.frontends.popxl.ops.operands import emit_all

__all__ = ["layer_norm_distributed"]


@checked_arguments
def layer_norm_distributed(
    t: Tensor, w: Tensor, b: Tensor, epsilon: float = 1e-5, group: ReplicaGrouping | None = None
) -> Tensor:
    """``t`` ``(N, H)`` normalised over the rows that the group's replicas hold together, times ``w`` plus ``b``
    ``(H,)``; each replica has its H elements of all three."""
    names = ["outputs", "mean", "std"]
    return emit_all(_k.DistributedLayerNorm, [t, w, b], names, group=group_of(group)._ir, epsilon=epsilon)[0]
