"""``fidelity="tile"``: simulates the single tiles of an IPU, which meet at a barrier after every local step.

A step is an array with the cycles of each tile and lasts as long as the slowest tile: one maximum and one event. The
durations are not looked up; they result from the clock. The tests compare this with a SimPy process per tile.
"""

from __future__ import annotations

import numpy as np

from .event_loop import Waiting


class Tiles:
    """``count`` tiles of one IPU."""

    def __init__(self, count: int) -> None:
        self.count = count

    def work(self, cycles: np.ndarray) -> Waiting:
        """Each tile is busy for its number of ``cycles`` (``int64[count]``), then all tiles meet."""
        longest = int(cycles.max())
        if longest:
            yield longest
