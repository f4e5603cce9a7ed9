"""Encodings of columns of numbers on the page, which are small and quick to decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def lists(table: pd.DataFrame) -> dict[str, list[Any]]:
    """A table as lists by column name."""
    return {str(name): table[name].tolist() for name in table.columns}


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


def grouped(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct keys, the order that sorts the rows by key, and where the rows of each key begin in that order.

    The keys are sorted, and the last array ends with the number of rows.
    """
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    begins = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(keys) else np.empty(0, dtype=np.int64)
    return ranked[begins], order, np.append(begins, len(keys))
