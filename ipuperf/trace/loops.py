"""Loops inside segments: the times of their steps, computed from counts and periods instead of stored.

A step in nested loops is executed at ``start + k1 * period1 + k2 * period2 + ...``, outermost loop first, with every
``k`` from 0 to its count - 1. The functions work on columns of equal length, one row per step. They need time and
memory for the rows they return, not for the trips they count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ipuperf.trace.errors import TraceError

MOST_TRIPS = 2**62
"""In one execution of a segment, executions of a step and cycles of a loop are below this: int64 then holds sums."""


class Executions(NamedTuple):
    """Executions of steps: the number of the given row, the start, and the trip of the innermost loop (-1: none)."""

    row: np.ndarray
    start: np.ndarray
    trip: np.ndarray


@dataclass(frozen=True)
class Loops:
    """Table ``loops`` as chains from the outermost loop inwards.

    ``chain``, ``count`` and ``period`` have a row for each loop, and one more at the end for "no loop", which index -1
    therefore finds. A chain that is shorter than others is filled with loop -1, which has one trip.
    """

    ids: np.ndarray
    chain: np.ndarray
    count: np.ndarray
    period: np.ndarray

    @property
    def depth(self) -> int:
        """The largest number of nested loops."""
        return int(self.chain.shape[1])

    def place(self, loop: np.ndarray) -> np.ndarray:
        """The row of each loop id, -1 where there is no such loop."""
        if len(self.ids) == 0:
            return np.full(len(loop), -1, dtype=np.int64)
        order = np.argsort(self.ids)
        rows = order[np.minimum(np.searchsorted(self.ids[order], loop), len(order) - 1)]
        return np.where(self.ids[rows] == loop, rows, -1)

    @cached_property
    def inner(self) -> np.ndarray:
        """Executions of a step in one trip of the loops above each level; column 0: in one execution of the segment."""
        # Products go from the innermost loop outwards, as a trip holds all trips of the loops inside it.
        return np.append(np.cumprod(self.count[:, ::-1], axis=1)[:, ::-1], np.ones((len(self.count), 1), np.int64), 1)

    @cached_property
    def rest(self) -> np.ndarray:
        """Cycles from the first to the last start of a step in one trip of the loops above each level."""
        span = (self.count - 1) * self.period
        return np.append(np.cumsum(span[:, ::-1], axis=1)[:, ::-1], np.zeros((len(span), 1), np.int64), 1)


def build_loops(columns: Mapping[str, np.ndarray]) -> Loops:
    """The chains of table ``loops`` (checked: see :func:`check_loops`)."""
    place = {int(loop): row for row, loop in enumerate(columns["loop"].tolist())}
    chains: list[list[int]] = []
    for row, parent in enumerate(columns["parent"].tolist()):
        # A parent stands before its loops (`check_loops`), so its chain is known here.
        chains.append([*(chains[place[parent]] if parent >= 0 else []), row])
    depth = max(map(len, chains), default=0)
    chain = np.full((len(chains) + 1, depth), -1, dtype=np.int64)
    for row, loops in enumerate(chains):
        chain[row, : len(loops)] = loops
    # The additional row is for "no loop": one trip that takes no time.
    count, period = np.append(columns["count"], 1), np.append(columns["period"], 0)
    return Loops(columns["loop"].astype(np.int64), chain, count[chain], period[chain])


def check_loops(columns: Mapping[str, np.ndarray]) -> None:
    """Raise :class:`TraceError` for a loop inside itself or a later one, without trips, or with too many to count."""
    # Trips and cycles of the chain down to each loop. Loop -1 stands for no loop.
    totals: dict[int, tuple[int, int]] = {-1: (1, 0)}
    for loop, parent, count, period in zip(
        *(columns[name].tolist() for name in ("loop", "parent", "count", "period")), strict=True
    ):
        where = f"trace table 'loops', loop {loop}"
        if parent not in totals:
            raise TraceError(f"{where}: its parent is {parent}, allowed: -1 or a loop that stands before it")
        if count < 1 or period < 0:
            raise TraceError(
                f"{where}: {count} trips of {period} cycles, allowed: at least 1 trip of at least 0 cycles"
            )
        trips, cycles = totals[parent]
        totals[loop] = trips * count, cycles + (count - 1) * period
        if max(totals[loop]) >= MOST_TRIPS:
            raise TraceError(f"{where}: {totals[loop][0]:,} trips in {totals[loop][1]:,} cycles, allowed: below 2**62")


def _touched(loops: Loops, level: int, rows: _Rows, window: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The first trip of a level that may touch the window, and the first trip after it that may not."""
    # ``-(a // b)`` is ``-a / b`` rounded up.
    count, period = loops.count[rows.loop, level], loops.period[rows.loop, level]
    far, step = rows.dur + loops.rest[rows.loop, level + 1], np.maximum(period, 1)
    # A slice that ends where the window begins does not touch it, unless it has no duration.
    low = -((rows.start + far - _down(window[0]) - (rows.dur > 0)) // step)
    high = -((rows.start + _down(-window[1])) // step)
    # Without a period all trips are at the same time, so all of them may touch.
    no_length = period == 0
    return np.where(no_length, 0, np.clip(low, 0, count)), np.where(no_length, count, np.clip(high, 0, count))


def _inside(loops: Loops, level: int, rows: _Rows, window: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`_touched`, for trips in which every execution starts within the window."""
    count, period = loops.count[rows.loop, level], loops.period[rows.loop, level]
    step, last_start = np.maximum(period, 1), rows.start + loops.rest[rows.loop, level + 1]
    low, high = -((rows.start + _down(-window[0])) // step), -((last_start + _down(-window[1])) // step)
    return np.clip(low, 0, count), np.clip(high, 0, count)


@dataclass(frozen=True)
class _Rows:
    """Start and duration of steps, the row of their loop (-1: none), and how many executions each row represents."""

    start: np.ndarray
    dur: np.ndarray
    loop: np.ndarray
    times: np.ndarray

    def spread(self, row: np.ndarray, offset: np.ndarray, times: np.ndarray) -> _Rows:
        """The given rows, shifted by ``offset``; each represents ``times`` as many executions."""
        return _Rows(self.start[row] + offset, self.dur[row], self.loop[row], self.times[row] * times)


def _ranges(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``row`` and ``k`` for every k in [low, high) of each row."""
    number = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(number)), number)
    return row, low[row] + np.arange(len(row)) - np.repeat(np.cumsum(number) - number, number)


def _touches(start: np.ndarray, dur: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    """Whether some of each slice lies inside the window, or its start if it has no duration."""
    return (start < window[1]) & np.where(dur > 0, start + dur > window[0], start >= window[0])


def unrolled(
    loops: Loops, start: np.ndarray, dur: np.ndarray, loop: np.ndarray, window: tuple[int, int] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every execution that touches the window (all if it is None).

    Returns:
        The number of the given row, the start, and the trip of each loop around it (executions x depth).
    """
    row, trips = np.arange(len(start)), np.zeros((len(start), loops.depth), dtype=np.int64)
    rows = _Rows(start, dur, loop, np.ones(len(start), dtype=np.int64))
    for level in range(loops.depth):
        count = loops.count[rows.loop, level]
        picked, trip = _ranges(*((0 * count, count) if window is None else _touched(loops, level, rows, window)))
        rows, row = rows.spread(picked, trip * loops.period[rows.loop[picked], level], np.ones_like(trip)), row[picked]
        trips = trips[picked]
        trips[:, level] = trip
    if window is None:
        return row, rows.start, trips
    # Rows outside of loops and trips without a period were taken untested.
    touching = _touches(rows.start, rows.dur, window)
    return row[touching], rows.start[touching], trips[touching]


def executions(
    loops: Loops, start: np.ndarray, dur: np.ndarray, loop: np.ndarray, window: tuple[int, int] | None
) -> Executions:
    """Every execution of the steps that touches the window, or all if it is None; ``loop`` holds rows of ``loops``."""
    row, begin, trips = unrolled(loops, start, dur, loop, window)
    trip = np.full(len(row), -1, dtype=np.int64)
    for level in range(loops.depth):
        trip = np.where(loops.chain[loop[row], level] >= 0, trips[:, level], trip)
    return Executions(row, begin, trip)


def count_executions(
    loops: Loops, start: np.ndarray, dur: np.ndarray, loop: np.ndarray, window: tuple[int, int] | None
) -> int:
    """How many rows :func:`executions` would return."""
    # Trips that lie wholly inside are counted by a product. Only those at the edges are followed to inner loops.
    if window is None:
        return sum(loops.inner[loop, 0].tolist()) if loops.depth else len(start)
    rows = _Rows(start, dur, loop, np.ones(len(start), dtype=np.int64))
    total = 0
    for level in range(loops.depth):
        no_length = loops.period[rows.loop, level] == 0
        low, high = _touched(loops, level, rows, window)
        first_whole, end_whole = _inside(loops, level, rows, window)
        whole = np.where(no_length, 0, np.maximum(end_whole - first_whole, 0))
        # Without a whole trip, all trips of the range count as those before one.
        first_whole, end_whole = np.where(whole > 0, first_whole, high), np.where(whole > 0, end_whole, high)
        total += _sum(whole * loops.inner[rows.loop, level + 1] * rows.times)
        repetitions = np.where(no_length, high, 1)  # trips of a loop without length are all at the same time
        partly_before, partly_after = (
            _ranges(low, np.where(no_length, 1, first_whole)),
            _ranges(end_whole, np.where(no_length, end_whole, high)),
        )
        picked, trip = (
            np.concatenate([partly_before[0], partly_after[0]]),
            np.concatenate([partly_before[1], partly_after[1]]),
        )
        rows = rows.spread(picked, trip * loops.period[rows.loop[picked], level], repetitions[picked])
    return total + _sum(rows.times[_touches(rows.start, rows.dur, window)])


def _sum(values: np.ndarray) -> int:
    """The exact sum of whole numbers, also where it is beyond int64."""
    return int(values.sum()) if np.abs(values).sum(dtype=float) < 2**62 else sum(values.tolist())


def spent(loops: Loops, dur: np.ndarray, loop: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Cycles that all executions of each step have taken until ``time`` after its first start (may be a float)."""
    done = np.zeros(np.shape(time), dtype=np.result_type(time, np.int64))
    left = time
    for level in range(loops.depth):
        count, period = loops.count[loop, level], loops.period[loop, level]
        # The last trip counts as not completed. Its part is cut off at the duration below.
        trips = np.where(period > 0, np.clip(left // np.maximum(period, 1), 0, count - 1), 0)
        done = done + trips * loops.inner[loop, level + 1] * dur
        left = left - trips * period
    cycles: np.ndarray = done + np.clip(left, 0, dur)
    return cycles


def product(values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """``values * times``, such that the products and their sum are exact.

    The dtype is int64, or object (Python's integers) where int64 could overflow.
    """
    if values.dtype.kind == "f" or not len(values):
        products: np.ndarray = values * times
        return products
    # A float says how large the sum is, because int64 could overflow in the test itself.
    total = np.abs(values).astype(float) @ times.astype(float)
    exact: np.ndarray = values * times if total < 2**62 else values.astype(object) * times.astype(object)
    return exact


def common_depth(loops: Loops, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """How many loops the chains of each pair (rows of ``loops``) have in common, from the outside."""
    shared = (loops.chain[earlier] == loops.chain[later]) & (loops.chain[earlier] >= 0)
    depth: np.ndarray = np.logical_and.accumulate(shared, axis=1).sum(axis=1, dtype=np.int64)
    return depth


def _down(edge: float) -> int:
    """The last whole cycle not after the edge of a window. An edge may lie between two cycles or be infinite."""
    return int(min(max(edge, -MOST_TRIPS), MOST_TRIPS) // 1)


__all__ = [
    "MOST_TRIPS",
    "Executions",
    "Loops",
    "build_loops",
    "check_loops",
    "common_depth",
    "count_executions",
    "executions",
    "product",
    "spent",
    "unrolled",
]
