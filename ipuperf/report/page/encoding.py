"""Encodings of columns of numbers on the page, which are small and quick to decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, np.ndarray]
"""A table of a trace: its columns by name."""
Tables = Mapping[str, Columns]
"""Tables of a trace by name."""


def lists(table: pd.DataFrame | Columns) -> dict[str, list[Any]]:
    """A table as lists by column name."""
    return {str(name): table[name].tolist() for name in table}


def runs_of(values: np.ndarray) -> list[list[int]]:
    """The run-length encoding of values: pairs of a value and its number of repetitions in a row."""
    if not len(values):
        return []
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return [
        [int(values[begin]), int(count)] for begin, count in zip(begins, np.diff([*begins, len(values)]), strict=True)
    ]


def steps_up(values: np.ndarray) -> list[int]:
    """The first value, and the difference of each further value to its predecessor."""
    differences: list[int] = np.diff(values, prepend=0).tolist()
    return differences


def thinned(most: int, step: np.ndarray, *values: np.ndarray) -> list[list[int]]:
    """The curves with at most ``most`` points, each of which is the largest value of a stretch."""
    if len(step) > most:
        edges = np.linspace(0, len(step), most + 1).astype(np.int64)[:-1]
        step, values = step[edges], tuple(np.maximum.reduceat(value, edges) for value in values)
    return [step.tolist(), *(value.tolist() for value in values)]


def numbered(names: np.ndarray) -> tuple[list[str], list[int]]:
    """The distinct names, sorted, and for each name its place among them."""
    distinct, place = np.unique(names.astype(str), return_inverse=True)
    return distinct.tolist(), place.reshape(-1).tolist()


def grouped(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct keys, the order that sorts the rows by key, and where the rows of each key begin in that order.

    The keys are sorted, and the last array ends with the number of rows.
    """
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    begins = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(keys) else np.empty(0, dtype=np.int64)
    return ranked[begins], order, np.append(begins, len(keys))


def groups(keys: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each distinct key with its rows, in order of the keys."""
    distinct, order, begins = grouped(keys)
    for key, begin, end in zip(distinct.tolist(), begins[:-1], begins[1:], strict=True):
        yield key, order[begin:end]


def summed(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys, sorted, and the sum of the values of each."""
    distinct, order, begins = grouped(keys)
    # reduceat refuses an empty list of beginnings.
    return distinct, np.add.reduceat(values[order], begins[:-1]) if len(keys) else np.empty(0, dtype=np.int64)


def stretches(start: np.ndarray, dur: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stretches in which at least one of the intervals, sorted by start, is under way.

    They are three columns: the row of the first interval of each stretch, and its start and end.
    """
    # How far the intervals up to each one reach. One that begins later begins a stretch.
    reach = np.maximum.accumulate(start + dur)
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return first, start[first], reach[np.append(first[1:], len(start)) - 1]
