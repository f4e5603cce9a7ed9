"""The executions of IPUs that stood in syncs one after the other (:mod:`.steps.external_sync`), as columns.

A training step of a pipeline has a sync of all IPUs for each communication of its weight update. There may be more of
these executions than of all others, so neither they nor their segments are objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from .instructions import Segment, StepPart
from .recorder import Stood


class SyncWaits(NamedTuple):
    """The waits in rows of syncs; a sync for which nobody waits is left out.

    Attributes:
        row: the row of each wait.
        place: its place among the waits of the row.
        leaf, start, dur: its leaf, when it began, and its cycles.
        context: the number of its counters, -1 for those that the row has.
    """

    row: np.ndarray
    place: np.ndarray
    leaf: np.ndarray
    start: np.ndarray
    dur: np.ndarray
    context: np.ndarray


def waits_of(rows: Sequence[Stood]) -> SyncWaits:
    """The waits in these rows.

    >>> waits_of([Stood([7, 9, 9, 12], 1, 4, 30, 8, 5)])[:5]  # no wait for the second of the three syncs
    (array([0, 0]), array([0, 1]), array([30, 32]), array([8, 9]), array([1, 3]))
    """
    counts = _whole([row.stop - row.first for row in rows])
    ends = np.fromiter(chain.from_iterable(row.times[row.first : row.stop] for row in rows), dtype=np.int64)
    which, begin = np.repeat(np.arange(len(rows)), counts), np.cumsum(counts) - counts
    place = np.arange(len(ends)) - begin[which]
    # Each wait begins when the sync before it is over.
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    starts[begin] = [row.mark for row in rows]
    leaf, context = (_whole(values)[which] for values in ([row.leaf for row in rows], [row.context for row in rows]))
    waited = ends > starts
    columns = [which, place, leaf + place, starts, ends - starts, np.where(place == 0, -1, context)]
    row, _, *others = (column[waited] for column in columns)
    kept = np.bincount(row, minlength=len(rows))
    return SyncWaits(row, np.arange(len(row)) - (np.cumsum(kept) - kept)[row], *others)


def _whole(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


class WaitSegments:
    """The segments of such waits: the leaf of each, and its cycles. They are numbered after all other segments."""

    def __init__(self) -> None:
        self._waits: list[tuple[np.ndarray, np.ndarray]] = []
        self._count = 0
        self.leaf = self.dur = _whole([])
        self._first = 0

    def add(self, waits: SyncWaits) -> np.ndarray:
        """Preliminary numbers of the segments of these waits, below zero."""
        self._waits.append((waits.leaf, waits.dur))
        begin, self._count = self._count, self._count + len(waits.leaf)
        return -1 - np.arange(begin, self._count)

    def number(self, numbers: np.ndarray, first: int) -> None:
        """Replace preliminary numbers by the true ones, from ``first`` on. Waits that are alike share a segment."""
        self._first = first
        if not self._count:
            return
        leaf, dur = (np.concatenate(columns) for columns in zip(*self._waits, strict=True))
        self._waits.clear()
        # Two columns in one number are sorted in a fraction of the time.
        lengths, length = np.unique(dur, return_inverse=True)
        keys, alike = np.unique(leaf * len(lengths) + length, return_inverse=True)
        self.leaf, self.dur = keys // len(lengths), lengths[keys % len(lengths)]
        preliminary = numbers < 0
        numbers[preliminary] = first + alike[-1 - numbers[preliminary]]

    def segment(self, number: int) -> Segment:
        """The segment with this number."""
        leaf, dur = int(self.leaf[number - self._first]), int(self.dur[number - self._first])
        return Segment(number, (leaf,), (StepPart("sync_external", 0, dur),))
