"""Bytes live at each program step: totals, and the fullest tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .tilevector import TileVector

_ROWS = 1 << 20
"""Entries of the table of live counts that are worked on at a time."""

_PIVOTS = 64
"""Tiles with which later ones are compared (:func:`_foremost`)."""


class Totals(NamedTuple):
    """Per step: bytes of the IPU, bytes on the fullest tile, that tile; per tile: bytes at the step of the highest
    total."""

    total: np.ndarray
    fullest: np.ndarray
    where: np.ndarray
    peak: np.ndarray


def sweep(steps: int, vectors: Sequence[TileVector], live: np.ndarray, always: np.ndarray) -> Totals:
    """Totals over ``steps`` program steps.

    ``live`` is ``int64[n, 3]``: index into ``vectors``, first step, one past the last step of each storage (nothing
    where the last is not after the first); ``always`` is what every tile holds besides.

    Storages of the same vector are counted together, so the state of a step is a short row of counts: give equal
    vectors once. Programs repeat themselves: each different row is looked at once. Bytes per tile are sums of products
    of whole numbers far below 2**53, so the product in float64 is exact.
    """
    live = live[live[:, 2] > live[:, 1]]
    used, kind = np.unique(live[:, 0], return_inverse=True)
    vectors = [vectors[number] for number in used.tolist()]
    changes = np.zeros(max(steps, int(live[:, 2].max(initial=0))) + 1, dtype=bool)
    changes[0] = True
    changes[live[:, 1:].ravel()] = True
    moments = np.flatnonzero(changes[:steps])
    states, index = _states(moments, kind, live, len(vectors))
    table = _Tiles(vectors, always)
    sums = states @ table.sums if len(vectors) else np.zeros(len(states), dtype=np.int64)
    fullest, where = table.fullest(states)
    length = np.diff(np.append(moments, steps))
    total = np.repeat(sums[index], length)
    highest = states[index[int(np.argmax(sums[index]))]] if len(index) else np.zeros(len(vectors), dtype=np.int64)
    return Totals(total, np.repeat(fullest[index], length), np.repeat(where[index], length), table.bytes(highest))


def _states(moments: np.ndarray, kind: np.ndarray, live: np.ndarray, kinds: int) -> tuple[np.ndarray, np.ndarray]:
    """Different rows of counts by kind (``int64[states, kinds]``), and the row of each moment."""
    begin, end = np.searchsorted(moments, live[:, 1]), np.searchsorted(moments, live[:, 2])
    change = np.concatenate(
        [np.stack([begin, kind, np.ones_like(kind)]), np.stack([end, kind, -np.ones_like(kind)])], 1
    )
    change = change[:, np.argsort(change[0], kind="stable")]
    known: dict[bytes, int] = {}
    index = np.empty(len(moments), dtype=np.int64)
    count = np.zeros(kinds, dtype=np.int32)
    size = max(1, _ROWS // max(1, kinds))
    for low in range(0, len(moments), size):
        high = min(low + size, len(moments))
        a, b = np.searchsorted(change[0], (low, high))
        rows = np.zeros((high - low, kinds), dtype=np.int32)
        np.add.at(rows, (change[0, a:b] - low, change[1, a:b]), change[2, a:b].astype(np.int32))
        rows[0] += count
        np.cumsum(rows, axis=0, out=rows)
        count = rows[-1].copy()
        width, data = kinds * rows.itemsize, rows.tobytes()
        index[low:high] = [known.setdefault(data[n * width : (n + 1) * width], len(known)) for n in range(high - low)]
    states = np.frombuffer(b"".join(known), dtype=np.int32).reshape(len(known), kinds)
    return states.astype(np.int64), index


class _Tiles:
    """Bytes of all vectors on every tile; the fullest is looked for where it can be (:func:`_foremost`)."""

    def __init__(self, vectors: Sequence[TileVector], always: np.ndarray) -> None:
        self._dense = np.array([vector.dense() for vector in vectors], dtype=np.int64).reshape(-1, len(always))
        self._always = always
        self.sums = self._dense.sum(axis=1)
        self._tiles = _foremost(np.vstack([self._dense, always]))

    def fullest(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes on the fullest tile in each state, and the first such tile."""
        dense = self._dense[:, self._tiles].astype(np.float64)
        top, tile = np.empty(len(states), dtype=np.int64), np.empty(len(states), dtype=np.int64)
        size = max(1, _ROWS // max(1, len(self._tiles)))
        for low in range(0, len(states), size):
            held = states[low : low + size].astype(np.float64) @ dense + self._always[self._tiles]
            place = held.argmax(axis=1)
            tile[low : low + size] = self._tiles[place]
            top[low : low + size] = held[np.arange(len(held)), place]
        return top, tile

    def bytes(self, state: np.ndarray) -> np.ndarray:
        """Bytes per tile in one state, without what is always live."""
        return state @ self._dense


def _foremost(held: np.ndarray) -> np.ndarray:
    """Tiles (columns of ``held``), ascending, without such as hold no more of anything than an earlier one: whatever is
    live, they are never the first of the fullest. A tile is compared with the one before it (most vectors are a few
    runs of equal tiles; rows that never rise say nothing), then with the first tiles that are left."""
    kept: list[int] = []
    rises = held[:, 1:] > held[:, :-1]
    tiles = np.append(0, 1 + np.flatnonzero(rises.any(axis=0)))
    rest = np.ascontiguousarray(held[rises.any(axis=1)][:, tiles].T)
    while len(tiles) and len(kept) < _PIVOTS:
        kept.append(int(tiles[0]))
        more = (rest[1:] > rest[0]).any(axis=1)
        tiles, rest = tiles[1:][more], rest[1:][more]
    return np.append(np.array(kept, dtype=np.int64), tiles)
