"""Check and convert the columns of a table, and encode strings as small integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipuperf.trace.errors import TraceError
from ipuperf.trace.schema import TABLES, Column, Table

_NUMPY: dict[str, Any] = {"i8": np.int64, "i4": np.int32, "f8": np.float64, "bool": np.bool_}


@dataclass(frozen=True)
class Words:
    """A column of strings that repeat: row i is ``words[codes[i]]``. Made and checked without a look at each row."""

    words: Sequence[str]
    codes: np.ndarray

    @classmethod
    def of(cls, strings: Iterable[str]) -> Words:
        """These strings, words in order of first appearance."""
        rows = list(strings)
        words = tuple(dict.fromkeys(rows))
        index = dict(zip(words, range(len(words)), strict=True))
        return cls(words, np.fromiter(map(index.__getitem__, rows), dtype=np.int32, count=len(rows)))

    def __len__(self) -> int:
        return len(self.codes)

    def strings(self) -> np.ndarray:
        """The string of each row, as a read-only object array."""
        # An object array keeps Python's strings. A plain `np.array` would pad all of them to the longest.
        words = np.empty(len(self.words), dtype=object)
        words[:] = self.words
        rows: np.ndarray = words[self.codes]
        rows.flags.writeable = False
        return rows


Stored = np.ndarray | Words
"""A checked column: read-only numbers or strings, or words that become strings when somebody reads them."""


def empty_column(column: Column) -> np.ndarray:
    """A column of no rows with the right dtype."""
    return np.empty(0, dtype=object if column.dtype == "str" else _NUMPY[column.dtype])


def code_of(values: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Position of each string in ``words`` (int64). Strings that are not among them raise ``KeyError``."""
    index = {word: position for position, word in enumerate(words)}
    return np.fromiter(map(index.__getitem__, values.tolist()), dtype=np.int64, count=len(values))


def numbered(names: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The distinct names, sorted, and for each name its place among them."""
    words = names.tolist()
    distinct = sorted(set(words))
    place = {name: number for number, name in enumerate(distinct)}
    return distinct, np.fromiter(map(place.__getitem__, words), dtype=np.int64, count=len(words))


def lookup(ids: np.ndarray, keys: np.ndarray, values: np.ndarray, default: Any) -> np.ndarray:
    """``values`` at the place where ``keys`` equals each of ``ids``; ``default`` where no key does. Keys are unique."""
    if len(keys) == 0:
        result = np.empty(len(ids), dtype=values.dtype)
        result[:] = default
        return result
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    # Behind the last key, searchsorted gives a place that does not exist. The comparison below finds no match then.
    place = np.minimum(np.searchsorted(sorted_keys, ids), len(keys) - 1)
    result = values[order[place]]
    result[sorted_keys[place] != ids] = default
    return result


def _strings(where: str, column: Column, values: Sequence[str]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    if set(map(type, values)) == {str}:  # the common case, without a look at each row
        array[:] = values
        if not column.values or set(values) <= set(column.values):
            return array
    # Subclasses such as np.str_ become plain strings.
    array[:] = [str(value) if isinstance(value, str) else value for value in values]
    allowed = frozenset(column.values)
    for row, value in enumerate(array):
        if not isinstance(value, str):
            raise TraceError(f"{where}: row {row} is {value!r} ({type(value).__name__}), expected a string")
        if allowed and value not in allowed:
            raise TraceError(f"{where}: row {row} is {value!r}, allowed are {', '.join(column.values)}")
    return array


def _words(where: str, column: Column, values: Words, *, copy: bool) -> Words:
    words, codes = _strings(where, column, values.words), values.codes
    low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, -1)
    if low < 0 or high >= len(words):
        raise TraceError(f"{where}: codes run from {low} to {high}, there are {len(words)} words")
    return Words(words.tolist(), codes.copy() if copy else codes)


def _numbers(where: str, column: Column, values: Any, *, copy: bool) -> np.ndarray:
    array = np.asarray(values)
    dtype = np.dtype(_NUMPY[column.dtype])
    if array.size == 0:
        return np.empty(0, dtype=dtype)
    # Whole numbers may fill a column of floats, but never the other way round.
    allowed_kinds = {"i": "iu", "f": "iuf", "b": "b"}[dtype.kind]
    if array.dtype.kind not in allowed_kinds:
        raise TraceError(f"{where}: dtype is {array.dtype}, expected {dtype} ({column.unit or 'no unit'})")
    if dtype.kind == "i" and array.dtype != dtype:
        limits = np.iinfo(dtype)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise TraceError(f"{where}: values run from {low} to {high}, which does not fit {dtype}")
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise TraceError(f"{where}: row {int(np.argmin(np.isfinite(array)))} is not a finite number")
    return array.astype(dtype, copy=copy)


def coerce_column(table: str, column: Column, values: Any, *, copy: bool = True) -> Stored:
    """One column as a read-only array of the dtype the schema asks for; strings that come as :class:`Words` stay words.

    Numbers are never rounded, cut or reinterpreted: floats for an integer column, values out of range, booleans for
    numbers and strings outside the allowed set raise :class:`TraceError` with table, column and value. ``copy=False``
    takes arrays that have the right dtype as they are (and makes them read-only).
    """
    where = f"trace table {table!r}, column {column.name!r}"
    if isinstance(values, Words):
        dimensions = np.ndim(values.codes)
    else:
        # One row shows the dimensions of a list without converting all of it.
        dimensions = np.ndim(values[:1] if isinstance(values, (list, tuple)) else values)
    if dimensions != 1:
        raise TraceError(f"{where}: has {dimensions} dimensions, expected a list or an array of one dimension")
    if column.dtype == "str" and isinstance(values, Words):
        return _words(where, column, values, copy=copy)
    array = _strings(where, column, values) if column.dtype == "str" else _numbers(where, column, values, copy=copy)
    array.flags.writeable = False
    return array


def coerce_table(table: Table, data: Mapping[str, Any], *, copy: bool = True) -> dict[str, Stored]:
    """All columns of one table, checked. An empty mapping is a table of no rows; otherwise no column may be missing."""
    unknown = [name for name in data if name not in table.column_names]
    if unknown:
        raise TraceError(
            f"trace table {table.name!r}: unknown column {unknown[0]!r}, "
            f"the columns are {', '.join(table.column_names)}"
        )
    if not data:
        return {column.name: empty_column(column) for column in table.columns}
    missing = [name for name in table.column_names if name not in data]
    if missing:
        raise TraceError(f"trace table {table.name!r}: missing column(s) {', '.join(missing)}")
    columns = {column.name: coerce_column(table.name, column, data[column.name], copy=copy) for column in table.columns}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        seen = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise TraceError(f"trace table {table.name!r}: columns have different lengths ({seen})")
    return columns


def check_names(tables: Iterable[str]) -> None:
    """Raise :class:`TraceError` unless these are tables of the schema and all that are required."""
    unknown = [name for name in tables if name not in TABLES]
    if unknown:
        raise TraceError(f"trace: unknown table {unknown[0]!r}, the tables are {', '.join(TABLES)}")
    missing = [name for name, table in TABLES.items() if table.required and name not in tables]
    if missing:
        raise TraceError(f"trace: missing table(s) {', '.join(missing)}; give an empty mapping if nothing was executed")
