"""Copies between the compute tiles and the I/O tiles of an IPU."""

from __future__ import annotations

from ipuperf import ops as _k

from ..handle import Tensor
from .operands import emit


def io_tile_copy(t: Tensor) -> Tensor:
    """``t`` on the other tile set of its IPU: from I/O tiles to compute tiles, or back.

    Where ``t`` is follows from the op that made it; variables, constants and graph inputs are on the compute tiles.
    Needs I/O tiles: set ``num_io_tiles`` of the Ir.
    """
    op = t._ir_tensor.producer
    source = "compute" if op is None else op.destination if isinstance(op, _k.IoTileCopy) else op.tile_set
    destination = "io" if source == "compute" else "compute"
    return emit(_k.IoTileCopy, [t], f"{t.name}_{destination}", destination=destination)
