"""Encodings of columns of numbers on the page, which are small and quick to decode."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, np.ndarray]
"""A table of a trace: its columns by name."""
Tables = Mapping[str, Columns]
"""Tables of a trace by name."""


_TYPES = ("int8", "int16", "int32")
"""The types in which columns of whole numbers are written, the smallest first. What fits into none is ``float64``,
as are all numbers of the page's scripts."""


def packed(facts: Mapping[str, Any]) -> list[bytes]:
    """Facts as bytes, in pieces that follow each other.

    They are the length of a text (4 bytes, the lowest first), the text, and columns of numbers. The text is JSON. Where
    an array of whole numbers stands in the facts, it has ``{"$": [type, begin, length]}``: ``begin`` is the place of
    the column among the columns, which begin at the next multiple of 8 bytes, as each does. An array of two dimensions
    is written row after row.

    Raises:
        ValueError: a number is not finite.
    """
    columns, size = [b""], 0

    def refer(values: object) -> dict[str, list[Any]]:
        nonlocal size
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
            raise TypeError(f"a fact is {type(values).__name__}, allowed are arrays of whole numbers and what JSON has")
        low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
        fitting = (name for name in _TYPES if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
        kind = next(fitting, "float64")
        written = values.astype(f"<{np.dtype(kind).str[1:]}").tobytes()
        columns.append(written + bytes(-len(written) % 8))
        begin, size = size, size + len(columns[-1])
        return {"$": [kind, begin, values.size]}

    text = json.dumps(facts, separators=(",", ":"), allow_nan=False, default=refer).encode("utf-8")
    return [len(text).to_bytes(4, "little"), text, bytes(-(4 + len(text)) % 8), *columns]


def lists(table: pd.DataFrame | Columns) -> dict[str, Any]:
    """A table by column name: whole numbers as arrays, everything else as lists."""
    columns = {str(name): np.asarray(table[name]) for name in table}
    return {name: values if values.dtype.kind in "iu" else values.tolist() for name, values in columns.items()}


def runs_of(values: np.ndarray) -> list[list[int]]:
    """The run-length encoding of values: pairs of a value and its number of repetitions in a row."""
    if not len(values):
        return []
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return [
        [int(values[begin]), int(count)] for begin, count in zip(begins, np.diff([*begins, len(values)]), strict=True)
    ]


def steps_up(values: np.ndarray) -> np.ndarray:
    """The first value, and the difference of each further value to its predecessor."""
    return np.diff(values, prepend=0)


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
