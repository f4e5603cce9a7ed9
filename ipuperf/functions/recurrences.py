"""Recurrent layers as one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipuperf.ir import Tensor
from ipuperf.ops import Recurrent
from ipuperf.ops.recurrent.cells import CELLS

from .making import make_all


def recurrent(operands: Sequence[Tensor], *, cell: str, trains: bool, **attributes: Any) -> tuple[list[Tensor], int]:
    """The results of a layer, and how many of them only its backward pass needs (the last ones).

    Args:
        operands, cell, trains, attributes: as of :class:`.Recurrent`, whose results these are.
    """
    cell_kind = CELLS[cell]
    backward_names = [*["cells"] * (cell_kind.states - 1), *["kept"] * (cell_kind.kept > 0)] if trains else []
    # Values that only the backward pass needs come last, so that callers can cut them off.
    names = ["results", *["last", "last_cell"][: cell_kind.states], *backward_names]
    return make_all(Recurrent, operands, names, cell=cell, trains=trains, **attributes), len(backward_names)
