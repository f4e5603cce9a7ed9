"""Sets of time as sorted, disjoint intervals: two arrays, starts and ends, in cycles."""

from __future__ import annotations

import numpy as np

Intervals = tuple[np.ndarray, np.ndarray]


def union(start: np.ndarray, end: np.ndarray) -> Intervals:
    """Return the time covered by intervals given in any order; empty intervals are ignored."""
    non_empty = end > start
    order = np.argsort(start[non_empty], kind="stable")
    start, end = (
        start[non_empty][order],
        np.maximum.accumulate(end[non_empty][order]) if non_empty.any() else end[non_empty],
    )
    # Ends are running maxima, so a gap before an interval means that no earlier one reaches it.
    begins = np.append(True, start[1:] > end[:-1]) if len(start) else np.empty(0, dtype=bool)
    ends = np.append(begins[1:], True) if len(start) else begins
    return start[begins], end[ends]


def length(intervals: Intervals) -> int:
    """Return the number of cycles in the set."""
    return int((intervals[1] - intervals[0]).sum())


def covered(start: np.ndarray, end: np.ndarray, by: Intervals) -> np.ndarray:
    """Return how many cycles of each interval ``[start, end)`` lie within a set (int64)."""
    cycles: np.ndarray = _before(end, by) - _before(start, by)
    return cycles


def _before(time: np.ndarray, by: Intervals) -> np.ndarray:
    """Return the cycles of the set before each time."""
    start, end = by
    if len(start) == 0:
        return np.zeros(len(time), dtype=np.int64)
    total = np.concatenate([[0], np.cumsum(end - start)])
    place = np.searchsorted(start, time, side="right")
    # The last interval that begins before the time may end after it; that part does not count.
    inside = np.maximum(end[np.maximum(place - 1, 0)] - time, 0)
    return np.where(place > 0, total[place] - inside, 0).astype(np.int64)
