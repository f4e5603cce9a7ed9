"""Bytes live at each program step: totals, and the fullest tile.

A call is swept once for each content of the tiles that it finds. Calls of a pipeline stage find the same one in nearly
every window, so the work goes by distinct graphs and not by steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .tilevector import TileVector
from .timeline import Block, Timeline


class Totals(NamedTuple):
    """Totals of a program.

    Attributes:
        total, fullest, where: per step, bytes of the IPU, bytes on the fullest tile, and that tile.
        peak: per tile, bytes at the step of the highest total.
    """

    total: Timeline
    fullest: Timeline
    where: Timeline
    peak: np.ndarray


_Part = tuple[int, slice | None, np.ndarray]
_Series = tuple[np.ndarray | Timeline, np.ndarray | Timeline, np.ndarray | Timeline]


def sweep(block: Block, vectors: Sequence[TileVector], vector_of: np.ndarray, always: np.ndarray) -> Totals:
    """Totals over the program steps of ``block``.

    ``vector_of`` is for each kind of storage its bytes, an index into ``vectors``. ``always`` is the always-live bytes
    of every tile. Equal vectors should be given once: a storage that begins where an equal one ends is then no change.
    """
    return _Sweep(block, vectors, vector_of, always).totals(block)


class _Sweep:
    """The sweep of one IPU. Counts say how many storages of each vector live, changes are step, vector and count."""

    def __init__(self, main: Block, vectors: Sequence[TileVector], vector_of: np.ndarray, always: np.ndarray) -> None:
        owns = {block: block.own for block in main.blocks()}
        numbers = [vector_of[own[:, 0]] for own in owns.values()]
        # This IPU has few of the program's vectors, so they get numbers of their own.
        used, codes = np.unique(np.concatenate([np.empty(0, np.int64), *numbers]), return_inverse=True)
        splits = np.split(codes, np.cumsum([len(own) for own in owns.values()])[:-1])
        self._changes = {
            block: _changes(np.column_stack([split, own[:, 1:]]), len(used))
            for (block, own), split in zip(owns.items(), splits, strict=True)
        }
        self._vectors = [vectors[number] for number in used.tolist()]
        self._sums = np.array([vector.total for vector in self._vectors], dtype=np.int64)
        self._known: dict[tuple[int, bytes, bytes], _Series] = {}
        self._tiles = np.array(always, dtype=np.int64)
        self._on_tiles = self._none()
        self._parts = [_part(vector) for vector in self._vectors]

    def totals(self, main: Block) -> Totals:
        """The totals of the main graph."""
        series = self._over(main, np.empty((0, 3), np.int64), self._none())
        total, fullest, where = (one if isinstance(one, Timeline) else Timeline((one,)) for one in series)
        peak = np.zeros(len(self._tiles), dtype=np.int64)
        if len(total):
            counts = self._counts_at(main, total.argmax())
            for number in np.flatnonzero(counts).tolist():
                peak += self._vectors[number].dense() * counts[number]
        return Totals(total, fullest, where, peak)

    def _none(self) -> np.ndarray:
        return np.zeros(len(self._vectors), dtype=np.int64)

    def _counts_at(self, block: Block, step: int) -> np.ndarray:
        """What lives at a step of ``block``, without what its callers hold."""
        changes, counts = self._changes[block], self._none()
        before = changes[: np.searchsorted(changes[:, 0], step, "right")]
        np.add.at(counts, before[:, 1], before[:, 2])
        for begin, end, inner in block.stretches:
            if inner is not None and begin <= step < end:
                counts = counts + self._counts_at(inner, step - begin)
        return counts

    def _over(self, block: Block, outer: np.ndarray, counts: np.ndarray) -> _Series:
        """The series of a call that finds ``counts``, while its callers make the changes ``outer``."""
        changes = self._changes[block]
        if len(outer):
            changes = _summed(np.concatenate([changes, outer]), len(self._vectors))
        bounds = np.array([stretch[:2] for stretch in block.stretches], dtype=np.int64).reshape(-1, 2)
        # Changes at the begin of a stretch come before it, those at its end after it.
        firsts = np.searchsorted(changes[:, 0], bounds[:, 0], "right").tolist()
        lasts = np.searchsorted(changes[:, 0], bounds[:, 1], "left").tolist()
        parts, done = list[_Series](), 0
        for (begin, end, inner), first, last in zip(block.stretches, firsts, lasts, strict=True):
            if first > done:
                np.add.at(counts, changes[done:first, 1], changes[done:first, 2])
            inside = changes[first:last] - np.array((begin, 0, 0))
            # Blocks live as long as the sweep; lengths are negative, so they are no identities.
            key = (begin - end if inner is None else id(inner), counts.tobytes(), inside.tobytes())
            if key not in self._known:
                self._known[key] = (
                    self._flat(end - begin, inside, counts)
                    if inner is None
                    else self._over(inner, inside, counts.copy())
                )
            parts.append(self._known[key])
            if last > first:
                np.add.at(counts, inside[:, 1], inside[:, 2])
            done = last
        if len(parts) == 1:
            return parts[0]
        total, fullest, where = zip(*parts, strict=True) if parts else ((), (), ())
        return Timeline(total), Timeline(fullest), Timeline(where)

    def _flat(self, steps: int, changes: np.ndarray, counts: np.ndarray) -> _Series:
        """The series of ``steps`` without calls.

        Few storages begin or end at a step, and most of them lie on few tiles. So one vector of bytes per tile goes
        through the steps, and only the changes are added to it.
        """
        # Step 0 is a moment even without a change there.
        moments, first_changes = np.unique(np.append(0, changes[:, 0]), return_index=True)
        length = np.diff(np.append(moments, steps))
        # The total of the IPU changes by whole vectors, so it needs no look at single tiles.
        grown = np.append(0, np.cumsum(changes[:, 2] * self._sums[changes[:, 1]])) + int(counts @ self._sums)
        ends = np.append(first_changes[1:], len(changes) + 1) - 1
        more = counts - self._on_tiles
        for number in np.flatnonzero(more).tolist():
            self._tiles += self._vectors[number].dense() * more[number]
        self._on_tiles = counts.copy()
        fullest, where = _fullest(self._parts, self._tiles.copy(), changes, ends.tolist())
        return np.repeat(grown[ends], length), np.repeat(fullest, length), np.repeat(where, length)


def _changes(live: np.ndarray, vectors: int) -> np.ndarray:
    """``int64[n, 3]``: step, vector, and how many more storages of it live from this step on, in this order."""
    ones = np.ones(len(live), dtype=np.int64)
    begins = np.column_stack([live[:, 1], live[:, 0], ones])
    return _summed(np.concatenate([begins, np.column_stack([live[:, 2], live[:, 0], -ones])]), vectors)


def _summed(changes: np.ndarray, vectors: int) -> np.ndarray:
    """Changes in order of steps and vectors, those of one step and vector added."""
    # One number for step and vector, so that one sort orders by both.
    places, change_of = np.unique(changes[:, 0] * max(1, vectors) + changes[:, 1], return_inverse=True)
    counts = np.zeros(len(places), dtype=np.int64)
    np.add.at(counts, change_of, changes[:, 2])
    table = np.column_stack([places // max(1, vectors), places % max(1, vectors), counts])
    real: np.ndarray = table[counts != 0]
    return real


def _fullest(
    parts: Sequence[_Part], tile_bytes: np.ndarray, changes: np.ndarray, ends: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes on the fullest tile, and the first such tile, after as many changes as each of ``ends`` says."""
    # Bytes that every tile has do not move the maximum, so they are kept apart.
    everywhere = 0
    top, tile = list[int](), list[int]()
    # Bound once, as the loop has one turn for each step with a change.
    argmax, at = tile_bytes.argmax, tile_bytes.item
    rows = changes[:, 1:].tolist()
    # A stretch changes few of all vectors.
    spans = {number: parts[number][1] for number, _ in rows}
    slices = {number: None if span is None else tile_bytes[span] for number, span in spans.items()}
    done = 0
    for end in ends:
        for number, count in rows[done:end]:
            (base, _, more), part_of_tiles = parts[number], slices[number]
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


def _part(vector: TileVector) -> _Part:
    """A vector as bytes that it adds to every tile, the tiles with more, and the difference there."""
    values, stops = vector.run_values, vector.run_stops
    # The last tiles are the ones without a piece, so their value is the common one.
    base = int(values[-1])
    differing_runs = np.flatnonzero(values != base)
    if not len(differing_runs):
        return base, None, values
    low, high = int(stops[differing_runs[0] - 1]) if differing_runs[0] else 0, int(stops[differing_runs[-1]])
    return base, slice(low, high), vector.dense()[low:high] - base
