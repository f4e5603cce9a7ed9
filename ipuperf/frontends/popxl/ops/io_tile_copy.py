"""Copies between the compute tiles and the I/O tiles of an IPU."""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.ir import CONTEXT

from ..arguments import checked_arguments
from ..handle import Tensor
from ..placement import copied_from
from .operands import emit


@checked_arguments
def io_tile_copy(t: Tensor) -> Tensor:
    """``t`` on the other tile set of its IPU: from I/O tiles to compute tiles, or back.

    Where ``t`` is follows from the op that made it, else from callers and from the first op that reads it, both through
    calls; variables and constants are on the compute tiles. Nothing says it of the input of a graph that nobody reads
    yet: it is copied to the tiles of the context (I/O tiles inside ``popxl.io_tiles()``), as upstream.
    Needs I/O tiles: set ``num_io_tiles`` of the Ir.
    """
    source = copied_from(t._ir_tensor)
    if source is None:
        destination = CONTEXT.tile_sets[-1] if CONTEXT.tile_sets else "compute"
    else:
        destination = "io" if source == "compute" else "compute"
    return emit(_k.IoTileCopy, [t], f"{t.name}_{destination}", destination=destination)
