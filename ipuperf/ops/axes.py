"""Checks of axes: negative ones count from the end, as everywhere in NumPy.

The functions bring attributes into the form that ops read (:mod:`ipuperf.ir.attributes`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import Op


def wrapped(op: Op, axis: int, rank: int) -> int:
    """``axis`` counted from the begin of ``rank`` axes; :class:`ShapeError` for one that does not exist."""
    if not -rank <= axis < rank:
        op.refuse(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axis_of(op: Op, axis: int) -> int:
    """``axis`` of the first operand, counted from the begin."""
    rank = len(op.inputs[0].spec.shape)
    # Most axes are in range already; this is asked for every op that is made.
    return axis if 0 <= axis < rank else wrapped(op, axis, rank)


def axes_of(op: Op, axes: Sequence[int] | None) -> tuple[int, ...]:
    """``axes`` of the first operand, counted from the begin, in ascending order; None: all of them."""
    rank = len(op.inputs[0].shape)
    if axes is None:
        return tuple(range(rank))
    ascending = tuple(sorted({wrapped(op, axis, rank) for axis in axes}))
    if len(ascending) != len(axes):
        op.refuse(f"axes {tuple(axes)} name an axis twice")
    return ascending
