"""Positions in the host streams of one run. Each load takes the next slice, each store writes the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ipuperf.ir import Stream

from .errors import EvaluationError


class StreamedInput:
    """An input that is not in memory as a whole: stands for an array ``(transfers, R, *shape)``.

    Args:
        slices: gives each slice when a load takes it.
    """

    def __init__(self, slices: Iterator[np.ndarray], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._slices = slices
        self.shape = shape
        self.dtype = dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        return self._slices


class InputCursor:
    """Reads an input stream slice by slice."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._length = 0
        self._slices: Iterator[np.ndarray] = iter(())

    def open(self, array: np.ndarray | StreamedInput) -> None:
        """Start a run with ``array`` of shape ``(transfers, R, *shape)``."""
        self._length = len(array)
        # An iterator, as a load in a loop then needs no index.
        self._slices = iter(array)

    def reader(self) -> Callable[[], np.ndarray]:
        """A function giving the next slice."""

        def read() -> np.ndarray:
            try:
                return next(self._slices)
            except StopIteration:
                raise EvaluationError(
                    f"stream {self.stream.id!r}: a load reads beyond the {self._length} slices of this run's input; "
                    "give one slice per execution of a load"
                ) from None

        return read


class OutputCursor:
    """Writes an output stream slice by slice."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._array = np.empty((0,))
        self._position = 0

    def open(self, array: np.ndarray) -> None:
        """Start a run that fills ``array`` of shape ``(transfers, R, *shape)``."""
        self._array = array
        self._position = 0

    def close(self) -> None:
        """End a run: slices that no store has written become zero."""
        # The array is uninitialised memory until stores fill it.
        self._array[self._position :] = 0

    def writer(self) -> Callable[[np.ndarray], None]:
        """A function storing the next slice."""

        def write(value: np.ndarray) -> None:
            position = self._position
            if position >= len(self._array):
                raise EvaluationError(
                    f"stream {self.stream.id!r}: a store writes beyond the {len(self._array)} slices of a run; "
                    "num_host_transfers must count every execution of its stores"
                )
            self._array[position] = value
            self._position = position + 1

        return write
