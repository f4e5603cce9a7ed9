"""The steps of a trace by segment, and windows of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ipuperf.trace.loops import Loops

Window = tuple[int, int]
"""A stretch of time in cycles, half open."""


@dataclass(frozen=True)
class Template:
    """The steps, sorted by segment and sequence.

    Attributes:
        order: ``order[first[i] : first[i] + count[i]]`` are the rows of table ``steps`` of segment ``segments[i]``.
        segments: ids of the segments.
        first: place of the first step of each segment in ``order``.
        count: number of steps of each segment.
        low: first start among the steps of each segment, relative to the instance.
        extent: last end among the steps of each segment, relative to the instance.
        slices: how many slices an instance of each segment has.
        loop: for each row of table ``steps``, the row of its loop in ``Trace.loops`` (-1: none).
        trips: for each row of table ``steps``, how often an instance executes it.
        reach: for each row of table ``steps``, the end of its last execution.
    """

    order: np.ndarray
    segments: np.ndarray
    first: np.ndarray
    count: np.ndarray
    low: np.ndarray
    extent: np.ndarray
    slices: np.ndarray
    loop: np.ndarray
    trips: np.ndarray
    reach: np.ndarray

    def place(self, segment: np.ndarray) -> np.ndarray:
        """Index into ``segments`` of each segment id; -1 where the segment has no steps."""
        if len(self.segments) == 0:
            return np.full(len(segment), -1, dtype=np.int64)
        place = np.minimum(np.searchsorted(self.segments, segment), len(self.segments) - 1)
        return np.where(self.segments[place] == segment, place, -1)


def build_template(steps: Mapping[str, np.ndarray], loops: Loops) -> Template:
    """Sort table ``steps`` once; see :class:`Template`."""
    order = np.lexsort((steps["seq"], steps["segment"]))
    segments, first_steps, count = np.unique(steps["segment"][order], return_index=True, return_counts=True)
    loop = loops.place(steps["loop"])
    trips, reach = loops.inner[loop, 0], steps["rel_start"] + loops.rest[loop, 0] + steps["dur"]
    if len(segments) == 0:
        nothing = np.empty(0, dtype=np.int64)
        return Template(order, segments, first_steps, count, nothing, nothing, nothing, loop, trips, reach)
    low = np.minimum.reduceat(steps["rel_start"][order], first_steps)
    extent, slices_of = np.maximum.reduceat(reach[order], first_steps), np.add.reduceat(trips[order], first_steps)
    return Template(order, segments, first_steps, count, low, extent, slices_of, loop, trips, reach)


def check_window(window: Window | None) -> None:
    """Raise ``ValueError`` unless ``window`` is None or (start, stop) with start < stop."""
    if window is not None and not _is_window(window):
        raise ValueError(f"window {window!r}: expected (start, stop) in cycles with start < stop")


def _is_window(window: object) -> bool:
    """Whether ``window`` is two numbers, the second larger."""
    if not isinstance(window, (tuple, list, np.ndarray)) or len(window) != 2:
        return False
    return all(isinstance(edge, (int, float, np.integer)) for edge in window) and bool(window[0] < window[1])
