"""Device programs as atoms and tables of numbers, and back: the content of a file that stores a program.

Only the classes listed here are written and read: steps, memory reports, plans and their parts. Reading a file runs no
code that the file chooses. An object that is used at several places becomes one object again.

Every value has a number. Atoms (texts, numbers, None) come first, then arrays, vectors and objects, and finally tuples
and mappings, each after the tuples and mappings in it. Values of a class are a group, written member by member in
columns of such numbers: Python goes through a column several times faster than through values one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import chain, count, pairwise, repeat
from operator import attrgetter
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
_MEMBERS: Mapping[type, tuple[str, ...]] = {
    TileVector: ("run_stops", "run_values"),
    **{kind: tuple([item.name for item in fields(kind)]) for kind in _OBJECTS},
    **{kind: kind._fields for kind in (OpInfo, VariableInfo, CodeInfo, ProgramWarning)},
}
_CLASSES: Mapping[str, type] = {kind.__name__: kind for kind in (*_MEMBERS, tuple, dict)}
_ATOMS = (str, int, bool, type(None), float)
_KEYS: Mapping[type, Callable[[Any], Any] | None] = {**dict.fromkeys(_ATOMS), float: float.hex}
"""What tells atoms of a class apart; None: their value."""
_SHIFT = 32
"""Bits of a value's number within its class; the bits above are the number of the class."""
_AT_ONCE = 65_536
"""So many values are numbered at once, which bounds the memory that this takes."""
_ROW = 3
"""Height of a tuple or mapping without another in it (:func:`_height`)."""


class UnlistedValue(Exception):
    """A program holds something that no file can hold; the message names it."""


def stored(program: DeviceProgram) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A program as JSON and arrays by name.

    Raises:
        UnlistedValue: the program contains a value of a class that is not listed.
    """
    return _Writer(program).written()


def restored(document: Mapping[str, Any], tables: Mapping[str, np.ndarray]) -> DeviceProgram:
    """The program again.

    Raises:
        ValueError, KeyError, IndexError, TypeError: the tables do not come from :func:`stored`.
    """
    values: list[Any] = [float.fromhex(atom[0]) if isinstance(atom, list) else atom for atom in document["atoms"]]
    numbers = tables["numbers"].astype(np.int64)
    # All arrays of the program are views of this one, so it must not be changed.
    numbers.flags.writeable = False
    values += [numbers[begin:stop] for begin, stop in _spans(tables["array_lengths"])]
    first, get, members, widths = len(values), values.__getitem__, tables["members"], tables["widths"]
    objects: list[tuple[list[Any], Mapping[str, list[int]]]] = []
    for name, names, size in document["groups"]:
        kind = _CLASSES[name]
        if kind is tuple or kind is dict:
            spans, widths = list(_spans(widths[:size])), widths[size:]
            stop = spans[-1][1]
            row = list(map(get, members[:stop].tolist()))
            rows = [row[begin:end] for begin, end in spans]
            values += map(tuple, rows) if kind is tuple else [dict(zip(r[::2], r[1::2], strict=True)) for r in rows]
        else:
            # A file of another version may have classes with other members.
            if list(_MEMBERS[kind]) != names:
                raise ValueError("classes with other fields")
            stop = size * len(names)
            columns = members[:stop].reshape(len(names), size).tolist()
            if is_dataclass(kind):
                # Objects are made before their members are set, because tuples and mappings refer to them.
                objects.append((list(map(object.__new__, repeat(kind, size))), dict(zip(names, columns, strict=True))))
                values += objects[-1][0]
            elif kind is TileVector:
                values += map(TileVector, *[map(get, column) for column in columns])
            else:
                values += map(tuple.__new__, repeat(kind), zip(*[map(get, column) for column in columns], strict=True))
        members = members[stop:]
    for instances, columns_by_name in objects:
        for name, column in columns_by_name.items():
            # Consumes the iterator without a loop of Python's.
            deque(map(object.__setattr__, instances, repeat(name), map(get, column)), maxlen=0)
    program = values[first]
    if type(program) is not DeviceProgram:
        raise ValueError("no program")
    return program


def _spans(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    return pairwise([0, *np.cumsum(lengths).tolist()])


class _Writer:
    """Numbers the values of a program, column by column."""

    def __init__(self, program: DeviceProgram) -> None:
        self._known: dict[type, dict[Any, int]] = {}
        self._values: dict[type, list[Any]] = {}
        #: Of each class, the lengths of its values and the codes of their members, value by value.
        self._widths: dict[type, list[np.ndarray]] = {}
        self._members: dict[type, list[np.ndarray]] = {}
        self._codes([program])
        seen: dict[type, int] = {}
        # Members are values with members of their own.
        while any(len(values) > seen.get(kind, 0) for kind, values in self._values.items()):
            for kind, values in list(self._values.items()):
                fresh = values[seen.get(kind, 0) :]
                seen[kind] = len(values)
                if fresh and kind in _CLASSES.values():
                    self._take(kind, fresh)

    def _take(self, kind: type, fresh: list[Any]) -> None:
        """Note the members of these values of a class."""
        if kind in _MEMBERS:
            columns = [self._codes(list(map(attrgetter(name), fresh))) for name in _MEMBERS[kind]]
            widths, codes = np.full(len(fresh), len(columns)), np.stack(columns, axis=1).ravel()
        else:
            rows = [tuple(chain.from_iterable(value.items())) for value in fresh] if kind is dict else fresh
            widths, codes = np.array(list(map(len, rows))), self._codes(list(chain.from_iterable(rows)))
        self._widths.setdefault(kind, []).append(widths)
        self._members.setdefault(kind, []).append(codes)

    def _codes(self, column: list[Any]) -> np.ndarray:
        """The number of each value: its class, and its number within the class."""
        if len(column) > _AT_ONCE:
            parts = [self._codes(column[begin : begin + _AT_ONCE]) for begin in range(0, len(column), _AT_ONCE)]
            return np.concatenate(parts)
        distinct = dict.fromkeys(map(type, column))
        if len(distinct) == 1:
            return self._codes_of(type(column[0]), column)
        codes, at = np.empty(len(column), np.int64), np.array(list(map(id, map(type, column))))
        for kind in distinct:
            (places,) = np.nonzero(at == id(kind))
            codes[places] = self._codes_of(kind, list(map(column.__getitem__, places.tolist())))
        return codes

    def _codes_of(self, kind: type, values: list[Any]) -> np.ndarray:
        # The program keeps its values alive meanwhile, so their identities stay unique.
        tell = _contents() if kind is np.ndarray else _KEYS.get(kind, id)
        keys = values if tell is None else list(map(tell, values))
        known = self._known.setdefault(kind, {})
        by_key = dict.fromkeys(keys) if tell is None else dict(zip(keys, values, strict=True))
        new = [key for key in by_key if key not in known]
        if new:
            if kind not in _ATOMS and kind is not np.ndarray and kind not in _CLASSES.values():
                raise _unlisted(values[0])
            known.update(zip(new, count(len(known)), strict=False))
            self._values.setdefault(kind, []).extend(new if tell is None else map(by_key.__getitem__, new))
        code = list(self._known).index(kind) << _SHIFT
        return np.fromiter(map(known.__getitem__, keys), np.int64, len(keys)) + code

    def written(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The document and the tables; a floating-point atom is a list with one hexadecimal text."""
        kinds, values = list(self._known), self._values
        sizes = [len(values[kind]) for kind in kinds]
        bases, kind_of = np.cumsum([0, *sizes]), np.repeat(np.arange(len(kinds)), sizes)
        widths = {kind: np.concatenate(parts) for kind, parts in self._widths.items()}
        codes = {kind: np.concatenate(parts) for kind, parts in self._members.items()}
        members = {kind: bases[code >> _SHIFT] + (code & ((1 << _SHIFT) - 1)) for kind, code in codes.items()}
        # A tuple or mapping is higher than the tuples and mappings in it, and all of these are higher than the rest.
        heights = np.array([_height(kind) for kind in kinds])[kind_of]
        rows = [(base, kind) for base, kind in zip(bases.tolist(), kinds, strict=False) if _height(kind) == _ROW]
        inner = np.concatenate([members[kind] for _, kind in rows])
        owners = np.concatenate([np.repeat(base + np.arange(len(values[kind])), widths[kind]) for base, kind in rows])
        owners, inner = owners[heights[inner] == _ROW], inner[heights[inner] == _ROW]
        before = np.zeros(0, np.int64)
        while not np.array_equal(before, heights):
            before = heights.copy()
            np.maximum.at(heights, owners, before[inner] + 1)
        order = np.lexsort((kind_of, heights))
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order))
        atoms: list[Any] = []
        groups, listed_widths, listed_members = [], [np.zeros(0, np.int32)], []
        edges = np.flatnonzero(np.diff(kind_of[order]) | np.diff(heights[order])) + 1
        for group in np.split(order, edges):
            kind, numbers = kinds[kind_of[group[0]]], group - bases[kind_of[group[0]]]
            if kind in _ATOMS:
                # Hexadecimal text keeps every bit of a float, and JSON has no infinities.
                atoms += [[value.hex()] for value in values[kind]] if kind is float else values[kind]
            elif kind in _MEMBERS:
                names = list(_MEMBERS[kind])
                listed_members.append(places[members[kind].reshape(-1, len(names))[numbers].T.ravel()])
                groups.append((kind.__name__, names, len(numbers)))
            elif kind is not np.ndarray:
                width, ends = widths[kind][numbers], np.cumsum(widths[kind])[numbers]
                begins = np.repeat(ends - np.cumsum(width), width)
                listed_members.append(places[members[kind][begins + np.arange(len(begins))]])
                listed_widths.append(width.astype(np.int32))
                groups.append((kind.__name__, [], len(numbers)))
        arrays = values.get(np.ndarray, [])
        return {"atoms": atoms, "groups": groups}, {
            "numbers": np.concatenate([np.zeros(0, np.int64), *arrays]),
            "array_lengths": np.array(list(map(len, arrays)), np.int32),
            "widths": np.concatenate(listed_widths),
            "members": np.concatenate(listed_members),
        }


def _height(kind: type) -> int:
    return 0 if kind in _ATOMS else 1 if kind is np.ndarray else _ROW if issubclass(kind, (tuple, dict)) else 2


def _contents() -> Callable[[np.ndarray], bytes]:
    """What tells arrays apart: equal ones become one. A column has many arrays twice, whose bytes are taken once."""
    known: dict[int, bytes] = {}

    def content(array: np.ndarray) -> bytes:
        if id(array) not in known:
            if array.dtype != np.int64 or array.ndim != 1:
                raise _unlisted(array)
            known[id(array)] = array.tobytes()
        return known[id(array)]

    return content


def _unlisted(value: Any) -> UnlistedValue:
    return UnlistedValue(f"{value!r} of type {type(value).__module__}.{type(value).__qualname__}")
