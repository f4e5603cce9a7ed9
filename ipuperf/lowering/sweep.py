"""Bytes live at each program step: totals, and the fullest tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .tilevector import TileVector


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

    Few storages begin or end at a step, and most of them lie on few tiles: one vector of bytes per tile goes through
    the steps, and what changes is added to it. Give equal vectors once: what begins where an equal one ends is no
    change.
    """
    live = live[live[:, 2] > live[:, 1]]
    changes = _changes(live, len(vectors))
    moments, first = np.unique(np.append(0, changes[:, 0]), return_index=True)
    inside = int(np.searchsorted(moments, steps))
    length = np.diff(np.append(moments[:inside], steps))
    sums = np.array([vector.total for vector in vectors], dtype=np.int64)
    grown = np.append(0, np.cumsum(changes[:, 2] * sums[changes[:, 1]]))
    ends = np.append(first[1:], len(changes) + 1)[:inside] - 1
    total = grown[ends]
    fullest, where = _fullest(vectors, always, changes, ends.tolist())
    peak = np.zeros(len(always), dtype=np.int64)
    if inside:
        highest = int(moments[int(np.argmax(total))])
        there = live[(live[:, 1] <= highest) & (highest < live[:, 2]), 0]
        for number, count in zip(*np.unique(there, return_counts=True), strict=True):
            peak += vectors[number].dense() * count
    return Totals(np.repeat(total, length), np.repeat(fullest, length), np.repeat(where, length), peak)


def _changes(live: np.ndarray, kinds: int) -> np.ndarray:
    """``int64[n, 3]``: step, vector, how many more of it live from this step on; by step, then vector."""
    places = np.concatenate([live[:, 1], live[:, 2]]) * max(1, kinds) + np.tile(live[:, 0], 2)
    more = np.repeat(np.array([1, -1]), len(live))
    places, which = np.unique(places, return_inverse=True)
    counts = np.zeros(len(places), dtype=np.int64)
    np.add.at(counts, which, more)
    found = np.stack([places // max(1, kinds), places % max(1, kinds), counts], axis=1)
    return found[counts != 0]


def _fullest(
    vectors: Sequence[TileVector], always: np.ndarray, changes: np.ndarray, ends: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes on the fullest tile, and the first such tile, each time so many changes are made as ``ends`` says."""
    held = np.array(always, dtype=np.int64)
    everywhere = 0  # what all tiles hold alike moves no maximum
    parts = [_part(vector, held) for vector in vectors]
    top, tile = list[int](), list[int]()
    argmax, at = held.argmax, held.item
    rows = changes[:, 1:].tolist()
    done = 0
    for end in ends:
        for number, count in rows[done:end]:
            base, there, more = parts[number]
            everywhere += base * count
            if there is None:
                continue
            if count == 1:
                np.add(there, more, there)
            elif count == -1:
                np.subtract(there, more, there)
            else:
                np.add(there, more * count, there)
        done = end
        place = argmax()
        tile.append(place)
        top.append(at(place) + everywhere)
    return np.array(top, dtype=np.int64), np.array(tile, dtype=np.int64)


def _part(vector: TileVector, held: np.ndarray) -> tuple[int, np.ndarray | None, np.ndarray]:
    """A vector as what it adds to every tile, where else it adds something to ``held``, and what."""
    values, stops = vector.run_values, vector.run_stops
    base = int(values[-1])  # the last tiles are those without a piece
    rest = np.flatnonzero(values != base)
    if not len(rest):
        return base, None, values
    low, high = int(stops[rest[0] - 1]) if rest[0] else 0, int(stops[rest[-1]])
    return base, held[low:high], vector.dense()[low:high] - base
