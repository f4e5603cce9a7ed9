"""A whole number per tile, held as runs of equal tiles.

Most phases load the tiles evenly, so a vector over 1,472 tiles is two or three runs; an even spread of a number that
does not divide is more than a thousand. Runs are half-open, ascending and cover ``[0, tiles)``; in a vector made by
:meth:`TileVector.of` neighbouring runs differ in value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np


def _frozen(numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """``numbers`` as a read-only ``int64`` array; an array that already is one is not copied."""
    array = np.asarray(numbers, dtype=np.int64)
    if array.flags.writeable:
        # The caller may go on changing its own array.
        array = array.copy() if array is numbers else array
        array.flags.writeable = False
    return array


def _ends(values: np.ndarray) -> np.ndarray:
    """Index of the last of each run of equal ``values``."""
    ends_run = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=ends_run[:-1])
    return np.flatnonzero(ends_run)


class TileVector:
    """One integer (cycles or bytes) per tile. A vector is immutable; derived vectors are computed once and cached.

    Args:
        stops: end (exclusive) of each run; the last one is the number of tiles.
        values: value of each run.

    Attributes:
        run_stops, run_values: the same as read-only ``int64`` arrays.
    """

    def __init__(self, stops: Sequence[int] | np.ndarray, values: Sequence[int] | np.ndarray) -> None:
        self.run_stops = _frozen(stops)
        self.run_values = _frozen(values)
        self._derived: dict[tuple[str, int], TileVector] = {}

    @classmethod
    def of(cls, vector: np.ndarray) -> TileVector:
        """From a dense vector."""
        dense = np.asarray(vector, dtype=np.int64)
        ends = _ends(dense)
        return cls(ends + 1, dense[ends])

    @classmethod
    def uniform(cls, value: int, tiles: int, used: int | None = None) -> TileVector:
        """``value`` on the first ``used`` tiles (default all), zero on the others."""
        used = tiles if used is None else min(used, tiles)
        if used == tiles or value == 0:
            return cls((tiles,), (value,))
        if used == 0:
            return cls((tiles,), (0,))
        return cls((used, tiles), (value, 0))

    @classmethod
    def summed(cls, parts: Sequence[tuple[TileVector, int]]) -> TileVector:
        """The sum of vectors, each taken so many times; there has to be one.

        >>> TileVector.summed([(TileVector((2, 5), (7, 1)), 1), (TileVector((5,), (3,)), 10)])
        TileVector(stops=(2, 5), values=(37, 31))
        """
        runs = np.array([len(vector.run_stops) for vector, _ in parts])
        firsts = np.cumsum(runs) - runs
        values = np.concatenate([vector.run_values for vector, _ in parts])
        values = values * np.repeat(np.array([count for _, count in parts], dtype=np.int64), runs)
        begins = np.concatenate([vector.run_stops for vector, _ in parts])
        tiles = int(begins[-1])
        # What each run adds to the one before it; the first of a vector begins at tile 0.
        begins[1:], values[1:] = begins[:-1].copy(), np.diff(values)
        begins[firsts] = 0
        values[firsts] = [vector.run_values[0] * count for vector, count in parts]
        added = np.zeros(tiles, dtype=np.int64)
        np.add.at(added, begins, values)
        return cls.of(np.cumsum(added))

    # -- properties ------------------------------------------------------------------------------------------------

    @cached_property
    def stops(self) -> tuple[int, ...]:
        """End (exclusive) of each run."""
        return tuple(self.run_stops.tolist())

    @cached_property
    def values(self) -> tuple[int, ...]:
        """Value of each run."""
        return tuple(self.run_values.tolist())

    @cached_property
    def tiles(self) -> int:
        """Length of the vector."""
        return int(self.run_stops[-1])

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tiles per run (read-only)."""
        lengths: np.ndarray = self.run_stops.copy()
        lengths[1:] -= self.run_stops[:-1]
        lengths.flags.writeable = False
        return lengths

    @cached_property
    def max(self) -> int:
        """Largest value."""
        return int(self.run_values.max())

    @cached_property
    def min(self) -> int:
        """Smallest value."""
        return int(self.run_values.min())

    @cached_property
    def argmax(self) -> int:
        """First tile with the largest value."""
        index = int(self.run_values.argmax())
        return int(self.run_stops[index - 1]) if index else 0

    @cached_property
    def total(self) -> int:
        """Sum over tiles."""
        return int(np.dot(self.lengths, self.run_values))

    @cached_property
    def active(self) -> int:
        """Tiles with a value above zero."""
        return int(np.dot(self.lengths, self.run_values > 0))

    def dense(self) -> np.ndarray:
        """The vector as ``int64[tiles]``."""
        return np.repeat(self.run_values, self.lengths)

    def at(self, tile: int) -> int:
        """Value of one tile."""
        return self.values[bisect_right(self.stops, tile)]

    # -- derived vectors -------------------------------------------------------------------------------------------

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> TileVector:
        """The same runs with ``function`` of their values."""
        return TileVector(self.run_stops, function(self.run_values))

    def merged(self) -> TileVector:
        """The same vector with neighbouring runs of equal value joined, as :meth:`of` makes them."""
        ends = _ends(self.run_values)
        return self if len(ends) == len(self.run_values) else TileVector(self.run_stops[ends], self.run_values[ends])

    def times(self, factor: int) -> TileVector:
        """Every value multiplied by ``factor``."""
        return self._keep(("times", factor), lambda values: values * factor)

    def raised(self, amount: int) -> TileVector:
        """Every value above zero raised by ``amount``."""
        return self._keep(("raised", amount), lambda values: values + amount * (values > 0))

    def at_least(self, amount: int) -> TileVector:
        """Every value but zero raised to at least ``amount``."""
        return self._keep(("at_least", amount), lambda values: np.where(values != 0, np.maximum(values, amount), 0))

    def rounded_up(self, step: int) -> TileVector:
        """Every value rounded up to a multiple of ``step``."""
        return self._keep(("rounded_up", step), lambda values: -(-values // step) * step)

    def _keep(self, key: tuple[str, int], function: Callable[[np.ndarray], np.ndarray]) -> TileVector:
        derived = self._derived.get(key)
        if derived is None:
            derived = self._derived[key] = self.map(function)
        return derived

    def __add__(self, other: TileVector) -> TileVector:
        return TileVector.of(self.dense() + other.dense())

    # -- as a value ------------------------------------------------------------------------------------------------

    @cached_property
    def _bytes(self) -> tuple[bytes, bytes]:
        return self.run_stops.tobytes(), self.run_values.tobytes()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TileVector):
            return NotImplemented
        # Runs are compared as they are: a mapped vector differs from its merged form.
        return self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        return f"TileVector(stops={self.stops}, values={self.values})"
