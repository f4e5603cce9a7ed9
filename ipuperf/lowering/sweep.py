"""Bytes live at each program step: totals, and the fullest tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .tilevector import TileVector


class Totals(NamedTuple):
    """Totals of a program.

    Attributes:
        total, fullest, where: per step, bytes of the IPU, bytes on the fullest tile, and that tile.
        peak: per tile, bytes at the step of the highest total.
    """

    total: np.ndarray
    fullest: np.ndarray
    where: np.ndarray
    peak: np.ndarray


def sweep(steps: int, vectors: Sequence[TileVector], live: np.ndarray, always: np.ndarray) -> Totals:
    """Totals over ``steps`` program steps.

    ``live`` is ``int64[n, 3]``: index into ``vectors``, first step, one past the last step of each storage. A storage
    whose end is not after its begin is ignored. ``always`` is the always-live bytes of every tile.

    Few storages begin or end at a step, and most of them lie on few tiles. So one vector of bytes per tile goes through
    the steps, and only the changes are added to it. Equal vectors should be given once: a storage that begins where an
    equal one ends is then no change.
    """
    live = live[live[:, 2] > live[:, 1]]
    changes = _changes(live, len(vectors))
    # Step 0 is a moment even without a change there.
    moments, first_changes = np.unique(np.append(0, changes[:, 0]), return_index=True)
    inside = int(np.searchsorted(moments, steps))
    length = np.diff(np.append(moments[:inside], steps))
    sums = np.array([vector.total for vector in vectors], dtype=np.int64)
    # The total of the IPU changes by whole vectors, so it needs no look at single tiles.
    grown = np.append(0, np.cumsum(changes[:, 2] * sums[changes[:, 1]]))
    ends = np.append(first_changes[1:], len(changes) + 1)[:inside] - 1
    total = grown[ends]
    fullest, where = _fullest(vectors, always, changes, ends.tolist())
    peak = np.zeros(len(always), dtype=np.int64)
    if inside:
        highest = int(moments[int(np.argmax(total))])
        live_vectors = live[(live[:, 1] <= highest) & (highest < live[:, 2]), 0]
        for number, count in zip(*np.unique(live_vectors, return_counts=True), strict=True):
            peak += vectors[number].dense() * count
    return Totals(np.repeat(total, length), np.repeat(fullest, length), np.repeat(where, length), peak)


def _changes(live: np.ndarray, kinds: int) -> np.ndarray:
    """``int64[n, 3]``: step, vector, and how many more storages of it live from this step on, in this order."""
    # One number for step and vector, so that one sort orders by both.
    places = np.concatenate([live[:, 1], live[:, 2]]) * max(1, kinds) + np.tile(live[:, 0], 2)
    deltas = np.repeat(np.array([1, -1]), len(live))
    places, change_of = np.unique(places, return_inverse=True)
    counts = np.zeros(len(places), dtype=np.int64)
    np.add.at(counts, change_of, deltas)
    changes = np.stack([places // max(1, kinds), places % max(1, kinds), counts], axis=1)
    real: np.ndarray = changes[counts != 0]
    return real


def _fullest(
    vectors: Sequence[TileVector], always: np.ndarray, changes: np.ndarray, ends: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes on the fullest tile, and the first such tile, after as many changes as each of ``ends`` says."""
    tile_bytes = np.array(always, dtype=np.int64)
    # Bytes that every tile has do not move the maximum, so they are kept apart.
    everywhere = 0
    parts = [_part(vector, tile_bytes) for vector in vectors]
    top, tile = list[int](), list[int]()
    # Bound once, as the loop has one turn for each step with a change.
    argmax, at = tile_bytes.argmax, tile_bytes.item
    rows = changes[:, 1:].tolist()
    done = 0
    for end in ends:
        for number, count in rows[done:end]:
            base, part_of_tiles, more = parts[number]
            everywhere += base * count
            if part_of_tiles is None:
                continue
            if count == 1:
                np.add(part_of_tiles, more, part_of_tiles)
            elif count == -1:
                np.subtract(part_of_tiles, more, part_of_tiles)
            else:
                np.add(part_of_tiles, more * count, part_of_tiles)
        done = end
        place = int(argmax())
        tile.append(place)
        top.append(at(place) + everywhere)
    return np.array(top, dtype=np.int64), np.array(tile, dtype=np.int64)


def _part(vector: TileVector, tile_bytes: np.ndarray) -> tuple[int, np.ndarray | None, np.ndarray]:
    """A vector as bytes that it adds to every tile, the tiles of ``tile_bytes`` with more, and the difference."""
    values, stops = vector.run_values, vector.run_stops
    # The last tiles are the ones without a piece, so their value is the common one.
    base = int(values[-1])
    differing_runs = np.flatnonzero(values != base)
    if not len(differing_runs):
        return base, None, values
    low, high = int(stops[differing_runs[0] - 1]) if differing_runs[0] else 0, int(stops[differing_runs[-1]])
    return base, tile_bytes[low:high], vector.dense()[low:high] - base
