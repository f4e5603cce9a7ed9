"""How columns of numbers are written on the page: small, and quick to read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def lists(table: pd.DataFrame) -> dict[str, list[Any]]:
    """A table as lists by column name."""
    return {str(name): table[name].tolist() for name in table.columns}


def runs_of(values: np.ndarray) -> list[list[int]]:
    """Values and how often each comes in a row."""
    if not len(values):
        return []
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return [[int(values[at]), int(count)] for at, count in zip(begins, np.diff([*begins, len(values)]), strict=True)]


def steps_up(values: np.ndarray) -> list[int]:
    """The first value and the difference of each to the one before it."""
    found: list[int] = np.diff(values, prepend=0).tolist()
    return found


def thinned(most: int, step: np.ndarray, *values: np.ndarray) -> list[list[int]]:
    """The same curves with at most so many points: the largest value of each stretch."""
    if len(step) > most:
        edges = np.linspace(0, len(step), most + 1).astype(np.int64)[:-1]
        step, values = step[edges], tuple(np.maximum.reduceat(value, edges) for value in values)
    return [step.tolist(), *(value.tolist() for value in values)]


def grouped(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct keys, sorted; the order that sorts the rows by them; and where the rows of each begin in it, with
    the number of rows at the end."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    begins = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(keys) else np.empty(0, dtype=np.int64)
    return ranked[begins], order, np.append(begins, len(keys))
