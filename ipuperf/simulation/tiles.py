"""``fidelity="tile"``: the tiles of an IPU one by one; they meet at a barrier after every local step.

A step is an array with the cycles of each tile, and lasts as long as the slowest of them: one maximum and one event.
Durations are not looked up but come out of the clock. The tests hold the reference for this, a SimPy process per tile.
"""

from __future__ import annotations

import numpy as np

from .event_loop import Waiting


class Tiles:
    """``count`` tiles of one IPU."""

    def __init__(self, count: int) -> None:
        self.count = count

    def work(self, cycles: np.ndarray) -> Waiting:
        """Each tile is busy for its own ``cycles`` (``int64[count]``), then all meet."""
        longest = int(cycles.max())
        if longest:
            yield longest
