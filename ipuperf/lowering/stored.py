"""Device programs as atoms and tables of numbers, and back: the content of a file that stores a program.

Only the classes listed here are written and read: steps, memory reports, plans and their parts. Reading a file runs no
code that the file chooses. An object that is used at several places becomes one object again.

Every value has a number. Atoms (texts, numbers, None) come first, then arrays, vectors over tiles, objects, and finally
tuples and mappings, each after the tuples and mappings in it. Objects, tuples and mappings are rows of such numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ipuperf.machine.model import Chip, CodeSizes, RearrangementRates

from . import steps
from .planner.form import Axis, Form, Types
from .planner.kernels import Kernel
from .planner.plan import ConvolutionPlan, Request
from .program import CodeInfo, DeviceProgram, MemoryReport, OpInfo, ProgramWarning, VariableInfo
from .tilevector import TileVector
from .timeline import LiveIntervals, Timeline

_STEPS: list[type] = [vars(steps)[name] for name in steps.__all__ if is_dataclass(vars(steps)[name])]
_OBJECTS: tuple[type, ...] = (DeviceProgram, MemoryReport, ConvolutionPlan, Request, Form, Axis, Types, Kernel, Chip)
_OBJECTS += (CodeSizes, RearrangementRates, Timeline, LiveIntervals, *_STEPS)
_CLASSES: Mapping[str, type] = {kind.__name__: kind for kind in _OBJECTS}
_NAMES: Mapping[str, tuple[str, ...]] = {
    name: tuple([item.name for item in fields(kind)]) for name, kind in _CLASSES.items()
}
_ROWS: Mapping[str, type] = {
    kind.__name__: kind for kind in (tuple, dict, OpInfo, VariableInfo, CodeInfo, ProgramWarning)
}
_RARE = frozenset([float, bool, type(None)])
_ATOM, _ARRAY, _VECTOR, _OBJECT, _ROW = range(5)
_SHIFT = 32
"""Bits of a value's number within its sort; the bits above are the sort."""


class UnlistedValue(Exception):
    """A program holds something that no file can hold; the message names it."""


def stored(program: DeviceProgram) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A program as JSON and arrays by name.

    Raises:
        UnlistedValue: the program contains a value of a class that is not listed.
    """
    writer = _Writer()
    writer.number(program)
    return writer.document(), writer.tables()


def restored(document: Mapping[str, Any], tables: Mapping[str, np.ndarray]) -> DeviceProgram:
    """The program again.

    Raises:
        ValueError, KeyError, IndexError, TypeError: the tables do not come from :func:`stored`.
    """
    objects = [_CLASSES[name] for name in document["classes"]]
    # A file of another version may have classes with other fields.
    if [list(_NAMES[name]) for name in document["classes"]] != document["fields"]:
        raise ValueError("classes with other fields")
    values: list[Any] = [float.fromhex(atom[0]) if isinstance(atom, list) else atom for atom in document["atoms"]]
    numbers = tables["numbers"]
    # All arrays of the program are views of this one, so it must not be changed.
    numbers.flags.writeable = False
    values += [numbers[begin:stop] for begin, stop in _spans(tables["array_lengths"])]
    values += [TileVector(values[stops], values[runs]) for stops, runs in tables["vectors"].reshape(-1, 2).tolist()]
    # Objects are made before their fields are set, because tuples and mappings refer to them.
    instances = [object.__new__(objects[kind]) for kind in tables["objects"].tolist()]
    values += instances
    _compose(values, document, tables)
    get, names = values.__getitem__, [_NAMES[name] for name in document["classes"]]
    rows = _rows(tables["fields"], np.array([len(field_names) for field_names in names])[tables["objects"]])
    for instance, kind, row in zip(instances, tables["objects"].tolist(), rows, strict=True):
        instance.__dict__.update(zip(names[kind], map(get, row), strict=True))
    if not instances or type(instances[0]) is not DeviceProgram:
        raise ValueError("no program")
    return instances[0]


def _compose(values: list[Any], document: Mapping[str, Any], tables: Mapping[str, np.ndarray]) -> None:
    """Append the tuples and mappings."""
    kinds = [_ROWS[name] for name in document["rows"]]
    # Bound once, as there are very many rows.
    get, append, new = values.__getitem__, values.append, tuple.__new__
    for number, row in zip(tables["rows"].tolist(), _rows(tables["items"], tables["row_lengths"]), strict=True):
        kind = kinds[number]
        if kind is dict:
            append(dict(zip(map(get, row[::2]), map(get, row[1::2]), strict=True)))
        else:
            append(new(kind, map(get, row)))


def _spans(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    return pairwise([0, *np.cumsum(lengths).tolist()])


def _rows(flat: np.ndarray, lengths: np.ndarray) -> Iterator[list[int]]:
    listed = flat.tolist()
    return (listed[begin:stop] for begin, stop in _spans(lengths))


class _Writer:
    """Numbers the values of a program."""

    def __init__(self) -> None:
        self.atoms: list[Any] = []
        self._plain: dict[type, dict[Any, int]] = {str: {}, int: {}}
        self._rare: dict[tuple[type, Any], int] = {}
        self.arrays: list[np.ndarray] = []
        self.vectors: list[tuple[int, int]] = []
        self.objects: list[tuple[str, list[int]]] = []
        self.rows: list[tuple[str, list[int]]] = []
        self._known: dict[int, int] = {}

    def number(self, value: Any) -> int:
        """The number of a value: its sort, and its number within the sort."""
        kind = type(value)
        # Nearly all values are texts or integers. A key that includes the type costs more than a dictionary per type.
        if kind is str or kind is int:
            number = self._plain[kind].get(value)
            if number is None:
                number = self._plain[kind][value] = _numbered(_ATOM, self.atoms, value)
            return number
        if kind in _RARE:
            # The type is part of the key because 1, 1.0 and True are equal.
            key = kind, value.hex() if kind is float else value
            if key not in self._rare:
                # Hexadecimal text keeps every bit of a float, and JSON has no infinities.
                self._rare[key] = _numbered(_ATOM, self.atoms, [key[1]] if kind is float else value)
            return self._rare[key]
        number = self._known.get(id(value))
        if number is None:
            # The program keeps its values alive meanwhile, so their identities stay unique.
            number = self._known[id(value)] = self._new(value, kind)
        return number

    def _new(self, value: Any, kind: type) -> int:
        name, number = kind.__name__, self.number
        if kind is np.ndarray and value.dtype == np.int64 and value.ndim == 1:
            return _numbered(_ARRAY, self.arrays, value)
        if kind is TileVector:
            return _numbered(_VECTOR, self.vectors, (number(value.run_stops), number(value.run_values)))
        if _CLASSES.get(name) is kind:
            row: list[int] = []
            # Numbered before its fields, so that the program itself is object 0.
            own_number = self._known[id(value)] = _numbered(_OBJECT, self.objects, (name, row))
            row += [number(getattr(value, member)) for member in _NAMES[name]]
            return own_number
        if _ROWS.get(name) is kind:
            members = [part for pair in value.items() for part in pair] if kind is dict else value
            return _numbered(_ROW, self.rows, (name, [number(member) for member in members]))
        raise UnlistedValue(f"{value!r} of type {kind.__module__}.{kind.__qualname__}")

    def document(self) -> dict[str, Any]:
        """Atoms and classes; a floating-point atom is a list with one hexadecimal text."""
        classes = _distinct(self.objects)
        return {
            "atoms": self.atoms,
            "classes": classes,
            "fields": [list(_NAMES[name]) for name in classes],
            "rows": _distinct(self.rows),
        }

    def tables(self) -> dict[str, np.ndarray]:
        """Arrays by name."""
        sizes = [len(self.atoms), len(self.arrays), len(self.vectors), len(self.objects)]
        # Numbers within a sort become places in one list that holds sort after sort.
        offsets = np.cumsum([0, *sizes])

        def flat(rows: Any) -> np.ndarray:
            codes = np.array([code for row in rows for code in row], np.int64)
            places: np.ndarray = (offsets[codes >> _SHIFT] + (codes & ((1 << _SHIFT) - 1))).astype(np.int32)
            return places

        return {
            "numbers": np.concatenate([np.zeros(0, np.int64), *self.arrays]),
            "array_lengths": np.array([len(array) for array in self.arrays], np.int32),
            "vectors": flat(self.vectors),
            "objects": _kinds(self.objects),
            "fields": flat(row for _, row in self.objects),
            "rows": _kinds(self.rows),
            "row_lengths": np.array([len(row) for _, row in self.rows], np.int32),
            "items": flat(row for _, row in self.rows),
        }


def _numbered(sort: int, among: list[Any], value: Any) -> int:
    among.append(value)
    return (sort << _SHIFT) + len(among) - 1


def _distinct(rows: list[tuple[str, list[int]]]) -> list[str]:
    return list(dict.fromkeys([name for name, _ in rows]))


def _kinds(rows: list[tuple[str, list[int]]]) -> np.ndarray:
    number: Callable[[str], int] = {name: index for index, name in enumerate(_distinct(rows))}.__getitem__
    return np.array([number(name) for name, _ in rows], np.int16)
