"""Rows of the benchmarks: a figure beside a reference that was measured in the same run; how such pairs are timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

ADDITIONS = 5_000_000
LOOP = f"Python loop of {ADDITIONS:,} additions"
"""The reference of what is Python for the most part."""


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        name: as in the ``BOUNDS`` of its module.
        value: the figure, in ``unit``; less is better.
        reference: what it is compared with.
        reference_value: the figure of that, in the same unit.
        unit: ``s`` (CPU seconds where the name says nothing else) or ``MB``.
    """

    name: str
    value: float
    reference: str
    reference_value: float
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """Value by reference: below one is better than the reference."""
        return self.value / self.reference_value


def cpu_seconds(function: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def loop_seconds() -> float:
    """CPU seconds of :data:`LOOP`."""
    start, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - start


def in_turns(first: Callable[[], object], second: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median CPU seconds of two functions run in turns, so that a slow phase of the machine hits both, after one run of
    each that does not count."""
    first(), second()
    pairs = [(cpu_seconds(first), cpu_seconds(second)) for _ in range(repeats)]
    ours, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    return ours, theirs
