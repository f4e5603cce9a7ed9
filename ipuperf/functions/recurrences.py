"""Recurrent layers as one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipuperf.ir import Tensor
from ipuperf.ops import Recurrent
from ipuperf.ops.recurrent_cells import CELLS

from .making import make_all


def recurrent(operands: Sequence[Tensor], *, cell: str, trains: bool, **attributes: Any) -> tuple[list[Tensor], int]:
    """The results of a layer, and how many of them are no more than kept for its backward pass (the last ones).

    Args:
        operands, cell, trains, attributes: of :class:`.Recurrent`; the results are its.
    """
    kind = CELLS[cell]
    kept = [*["cells"] * (kind.states - 1), *["kept"] * (kind.kept > 0)] if trains else []
    names = ["results", *["last", "last_cell"][: kind.states], *kept]
    return make_all(Recurrent, operands, names, cell=cell, trains=trains, **attributes), len(kept)
