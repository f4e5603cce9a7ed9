"""Large element-wise updates in cache-sized pieces.

An update such as ``w = w + b * g`` needs a temporary for ``b * g``. On whole tensors the temporary goes through main
memory; in pieces of :data:`BLOCK` elements it stays in the L2 cache, and the update costs one pass over ``w`` and
``g``.
All pieces are views made once, when a kernel is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from . import half
from .base import Arrays, Kernel, rows
from .crew import SLOTS, ranges, share, together
from .half import Step

#: Elements per piece: 256 KiB of float32, a fraction of the L2 cache of current processors.
BLOCK = 65536

Piece = tuple[int, tuple[np.ndarray, ...]]
#: For one replica, read when the kernel runs: the coefficients ``(a, b)``.
Coefficients = Callable[[int], tuple[float, float]]


def pieces(arrays: Arrays, per_replica: bool, block: int = BLOCK) -> list[Piece]:
    """Split equally shaped arrays ``(R, *shape)`` in the same way into pieces ``(replica, views)``.

    With ``per_replica`` no piece spans two replicas. Otherwise the replicas form one long vector, and ``replica`` is
    0. Arrays that are all C-contiguous are split flat, others along their leading axes.
    """
    if not per_replica and all(a.flags.c_contiguous for a in arrays):
        return [(0, views) for views in _split_flat([a.reshape(-1) for a in arrays], block)]
    parts: list[Piece] = []
    for replica, replica_views in enumerate(zip(*(rows(a) for a in arrays), strict=True)):
        if all(a.flags.c_contiguous for a in replica_views):
            parts += [(replica, views) for views in _split_flat([a.reshape(-1) for a in replica_views], block)]
        else:
            parts += [(replica, views) for views in _split_rows(replica_views, block)]
    return parts


def _split_flat(arrays: Arrays, block: int) -> Iterator[tuple[np.ndarray, ...]]:
    for start in range(0, arrays[0].size, block):
        yield tuple(a[start : start + block] for a in arrays)


def _split_rows(arrays: Arrays, block: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Pieces along the first axis. A slice of that axis that is itself too large is split further."""
    array = arrays[0]
    if array.size <= block or array.ndim == 0:
        yield tuple(arrays)
        return
    row = array.size // array.shape[0]
    if row > block:
        for index in range(array.shape[0]):
            yield from _split_rows([a[index] for a in arrays], block)
        return
    step = max(1, block // row)
    for start in range(0, array.shape[0], step):
        yield tuple(a[start : start + step] for a in arrays)


def temporary(scratch: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The start of flat ``scratch`` in the shape of ``like``."""
    return scratch[: like.size].reshape(like.shape)


def largest(parts: Sequence[Piece]) -> int:
    """Elements of the largest piece (0 when there is none)."""
    return max((views[0].size for _, views in parts), default=0)


def scalar(value: float) -> np.ndarray:
    """``value`` as a float32 operand without axes: rounded as the IPU holds it, and cheap to pass to a ufunc."""
    return np.array(value, dtype=np.float32)


@dataclass(frozen=True)
class Bound:
    """A piece ready for arithmetic in float32: ``fill`` widens the operands, ``round`` stores the result."""

    replica: int
    views: tuple[np.ndarray, ...]
    fill: tuple[Step, ...]
    round: tuple[Step, ...]


def in_float32(parts: Sequence[Piece], scratch: Callable[[int, int], np.ndarray], slot: int) -> list[Bound]:
    """The pieces with float32 temporaries (from ``slot`` on) for views of other types. The first view of each piece
    is the result, which is only written."""
    size = largest(parts)
    temporaries: dict[int, np.ndarray] = {}

    def bind(replica: int, views: tuple[np.ndarray, ...]) -> Bound:
        wide = list(views)
        for index, view in enumerate(views):
            if view.dtype != np.float32:
                if index not in temporaries:
                    temporaries[index] = scratch(size, slot + index)
                # All pieces share one temporary per operand:
                # they are computed one after the other.
                wide[index] = temporary(temporaries[index], view)
        pairs = [(w, v) for w, v in zip(wide, views) if w is not v]
        result = [half.copy(v, w) for w, v in pairs if v is views[0]]
        return Bound(replica, tuple(wide), tuple(half.copy(w, v) for w, v in pairs if w is not wide[0]), tuple(result))

    return [bind(replica, views) for replica, views in parts]


def weighted_sum(
    out: np.ndarray, x: np.ndarray, y: np.ndarray, a: float, b: float, square: bool, temporaries: Arrays
) -> None:
    """``out = a * x + b * y`` (``y * y`` with ``square``) of float32 arrays.

    ``out`` may be ``x``. ``temporaries``: two float32 arrays of the same shape; the second is used when ``a != 1``.
    """
    term, scaled = temporaries
    if square:
        np.multiply(y, y, out=term)
        # A factor of 1 needs no pass over memory.
        if b != 1.0:
            np.multiply(term, scalar(b), out=term)
    elif b == 1.0:
        term = y
    else:
        np.multiply(y, scalar(b), out=term)
    if a != 1.0:
        np.multiply(x, scalar(a), out=scaled)
        x = scaled
    np.add(x, term, out=out)


def bind_weighted_sum(
    out: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    coefficients: Coefficients,
    static: bool,
    square: bool,
    scratch: Callable[[int, int], np.ndarray],
) -> Kernel:
    """A kernel for :func:`weighted_sum` over whole arrays of any floating-point types; the result is rounded once.

    Args:
        coefficients: read once now when ``static``, otherwise for each replica in each run.
        scratch: ``scratch(elements, slot)`` gives flat float32 temporary memory.
    """
    # Static factors are equal on all replicas, so replica 0 speaks for all.
    fixed = coefficients(0) if static else None
    plain = all(array.dtype == np.float32 for array in (out, x, y))

    def bind(parts: Sequence[Piece], scratch: Callable[[int, int], np.ndarray]) -> Kernel:
        size = largest(parts)
        term, scaled = scratch(size, 0), scratch(size, 1)
        # Plain SGD in float32 needs nothing but one or two ufunc calls per piece.
        if plain and fixed and fixed[0] == 1.0 and not square:
            return _plain_update(parts, fixed[1], term)
        views = (
            (b, (temporary(term, b.views[0]), temporary(scaled, b.views[0]))) for b in in_float32(parts, scratch, 2)
        )
        return _weighted_sums(list(views), coefficients, fixed, square)

    return by_pieces(pieces([out, x, y], per_replica=not static), bind, scratch)


def by_pieces(
    parts: Sequence[Piece],
    bind: Callable[[Sequence[Piece], Callable[[int, int], np.ndarray]], Kernel],
    scratch: Callable[[int, int], np.ndarray],
) -> Kernel:
    """``bind`` some of the pieces after each other with temporaries of their own: a kernel that runs them together."""

    def bound(number: int, some: slice) -> Kernel:
        return bind(parts[some], lambda size, slot: scratch(size, SLOTS * number + slot))

    shares = ranges(len(parts), share(sum(views[0].size for _, views in parts)))
    return together([bound(number, some) for number, some in enumerate(shares)])


def _weighted_sums(
    bound: Sequence[tuple[Bound, Arrays]], coefficients: Coefficients, fixed: tuple[float, float] | None, square: bool
) -> Kernel:
    """:func:`weighted_sum` of pieces with their temporaries, one after the other."""

    def run() -> None:
        current, pair = -1, fixed or (1.0, 1.0)
        for piece, temporaries in bound:
            # Factors that are tensors are read once per replica
            # and run, as an optimiser may change them in between.
            if piece.replica != current and not fixed:
                current, pair = piece.replica, coefficients(piece.replica)
            for step in piece.fill:
                step()
            piece_out, piece_x, piece_y = piece.views
            weighted_sum(piece_out, piece_x, piece_y, *pair, square, temporaries)
            for step in piece.round:
                step()

    return run


def _plain_update(parts: Sequence[Piece], b: float, scratch: np.ndarray) -> Kernel:
    """``out = x + b * y``, all float32: the inner loop of plain SGD, with nothing in it but ufunc calls."""
    add, multiply = np.add, np.multiply
    if b in (1.0, -1.0):
        # A factor of 1 or -1 needs no temporary.
        combine = add if b == 1.0 else np.subtract
        simple = [views for _, views in parts]

        def run_simple() -> None:
            for out, x, y in simple:
                combine(x, y, out)

        return run_simple
    factor = scalar(b)
    bound = [(out, x, y, temporary(scratch, out)) for _, (out, x, y) in parts]

    def run() -> None:
        for out, x, y, term in bound:
            multiply(y, factor, term)
            add(x, term, out)

    return run
