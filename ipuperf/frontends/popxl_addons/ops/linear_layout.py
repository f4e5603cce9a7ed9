"""A tensor spread linearly over the tiles. Semantics of popxl-addons: popxl_addons/ops/linear_layout."""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.frontends.popxl import Tensor
from ipuperf.frontends.popxl.arguments import checked_arguments, whole
from ipuperf.frontends.popxl.ops.operands import emit

__all__ = ["linear_layout"]


@checked_arguments
def linear_layout(t: Tensor, bs: int = 1) -> Tensor:
    """``t`` in linear layout, with a multiple of ``bs`` elements on each tile."""
    return emit(_k.LinearLayout, [t], "linear_layout", grain=whole(bs, "linear_layout: bs", 1))
