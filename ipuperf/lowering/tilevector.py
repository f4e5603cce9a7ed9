"""A whole number per tile, held as runs of equal tiles.

Most phases load the tiles evenly, so a vector over 1,472 tiles is two or three runs. Runs are half-open, ascending and
cover ``[0, tiles)``; neighbouring runs differ in value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class TileVector:
    """One integer (cycles or bytes) per tile.

    Attributes:
        stops: end (exclusive) of each run; the last one is the number of tiles.
        values: value of each run.
    """

    stops: tuple[int, ...]
    values: tuple[int, ...]

    @classmethod
    def of(cls, vector: np.ndarray) -> TileVector:
        """From a dense vector."""
        dense = np.asarray(vector, dtype=np.int64)
        edges = np.flatnonzero(np.diff(dense)) + 1
        stops = np.append(edges, len(dense))
        starts = np.append(0, edges)
        return cls(tuple(int(s) for s in stops), tuple(int(v) for v in dense[starts]))

    @classmethod
    def uniform(cls, value: int, tiles: int, used: int | None = None) -> TileVector:
        """``value`` on the first ``used`` tiles (default all), zero on the others."""
        used = tiles if used is None else min(used, tiles)
        if used == tiles or value == 0:
            return cls((tiles,), (value,))
        if used == 0:
            return cls((tiles,), (0,))
        return cls((used, tiles), (value, 0))

    @property
    def tiles(self) -> int:
        """Length of the vector."""
        return self.stops[-1]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tiles per run."""
        return np.diff(np.concatenate(([0], self.stops)))

    @cached_property
    def max(self) -> int:
        """Largest value."""
        return max(self.values)

    @cached_property
    def argmax(self) -> int:
        """First tile with the largest value."""
        index = self.values.index(self.max)
        return self.stops[index - 1] if index else 0

    @cached_property
    def total(self) -> int:
        """Sum over tiles."""
        return int(np.dot(self.lengths, np.asarray(self.values, dtype=np.int64)))

    @cached_property
    def active(self) -> int:
        """Tiles with a value above zero."""
        return int(self.lengths[np.asarray(self.values) > 0].sum())

    def dense(self) -> np.ndarray:
        """The vector as ``int64[tiles]``."""
        return np.repeat(np.asarray(self.values, dtype=np.int64), self.lengths)

    def __add__(self, other: TileVector) -> TileVector:
        return TileVector.of(self.dense() + other.dense())
