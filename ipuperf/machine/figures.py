"""Figures: numbers with a unit, a source and a kind, and their conversion into base units.

A figure in TOML is ``{ value = 1.325, unit = "GHz", source = "...", kind = "datasheet" }`` with exactly these four
keys. A file states what a machine does not have instead of leaving it out: ``{ absent = "why", source = "..." }``.

Base units: hertz, bytes, bytes per second, seconds, bytes per cycle, cycles per byte and plain counts. A *latency* may
be written in cycles of the tile clock or in a unit of time; it becomes whole cycles (rounded up) when the chip's clock
is known.

Kinds:

``datasheet``
    stated by the maker, in a data sheet, a document or published source, or read out of these by the source named;
``measured``
    taken on a device by the source named;
``calibrated``
    fitted, once and for all machines, to the measurements that the source names;
``assumed``
    none of these: a third party's model constant, an inference, or a starting value that nobody has fitted yet.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Generic, TypeVar

from ipuperf.base.near_names import instead_of
from ipuperf.machine.errors import MachineError

KINDS = ("datasheet", "measured", "calibrated", "assumed")

_V = TypeVar("_V")

_SECONDS = {"s": Fraction(1), "ms": Fraction(1, 10**3), "us": Fraction(1, 10**6), "ns": Fraction(1, 10**9)}
_BYTES = {
    "bytes": Fraction(1),
    "kB": Fraction(10**3),
    "MB": Fraction(10**6),
    "GB": Fraction(10**9),
    "TB": Fraction(10**12),
    "KiB": Fraction(2**10),
    "MiB": Fraction(2**20),
    "GiB": Fraction(2**30),
    "TiB": Fraction(2**40),
}

UNITS: Mapping[str, Mapping[str, Fraction]] = {
    "frequency": {"Hz": Fraction(1), "kHz": Fraction(10**3), "MHz": Fraction(10**6), "GHz": Fraction(10**9)},
    "size": _BYTES,
    "bandwidth": {
        **{f"{unit}/s": factor for unit, factor in _BYTES.items()},
        "Mbit/s": Fraction(10**6, 8),
        "Gbit/s": Fraction(10**9, 8),
    },
    "time": _SECONDS,
    "latency": {"cycles": Fraction(1), **_SECONDS},
    "rate": {"bytes/cycle": Fraction(1)},
    "cost": {"cycles/byte": Fraction(1)},
    "count": {"count": Fraction(1)},
    "ratio": {"ratio": Fraction(1), "percent": Fraction(1, 100)},
}
"""Dimension -> unit -> number of base units in one of it."""

LARGEST: Mapping[str, int] = {
    "frequency": 10**11,
    "size": 2**60,
    "bandwidth": 10**18,
    "time": 10**4,
    "latency": 10**12,
    "rate": 10**9,
    "cost": 10**6,
    "count": 2**16,
    "ratio": 1,
}
"""Dimension -> largest value of a figure, in base units (for a latency in a unit of time, that of a *time*).

Chosen so that no machine comes near and cycles and bytes of a program fit into 64 bits."""

_MAY_BE_ZERO = frozenset({"time", "latency"})
_WHOLE = frozenset({"size", "rate", "count"})


class FrozenMapping(Mapping[str, _V], Generic[_V]):
    """A read-only, picklable mapping that keeps the order it was built in (``MappingProxyType`` cannot be pickled)."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, _V]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> _V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"FrozenMapping({self._items!r})"


@dataclass(frozen=True)
class Figure:
    """One number as it stands in TOML: ``value`` in ``unit``, its source, and how well it is known (`KINDS`)."""

    value: float
    unit: str
    source: str
    kind: str


@dataclass(frozen=True)
class Absence:
    """An explicit "there is none here": ``reason`` says why the machine has no such figure."""

    reason: str
    source: str


def read_figure(where: str, table: Any, dimension: str, may_be_absent: bool) -> Figure | Absence:
    """Check one TOML table and return it as a `Figure`, or as an `Absence` where the schema allows one.

    ``where`` is "file: dotted.key", put in front of every message. Raises `MachineError` when the table is not one,
    has an unknown or missing key, an unknown unit or kind, an empty source, or a value that is not a finite number
    of the right sign (and whole, once converted, for sizes, counts and rates).
    """
    example = '{ value = ..., unit = "...", source = "...", kind = "..." }'
    if not isinstance(table, dict):
        raise MachineError(f"{where}: {table!r} is not a figure, write {example}")
    if "absent" in table:
        return _read_absence(where, table, may_be_absent)
    _exact_keys(where, table, ("value", "unit", "source", "kind"))
    for key in ("unit", "source", "kind"):
        _text(where, table, key)
    units = UNITS[dimension]
    if table["unit"] not in units:
        raise MachineError(
            f"{where}: unknown unit {table['unit']!r} for a {dimension}{instead_of(table['unit'], units)}"
        )
    if table["kind"] not in KINDS:
        raise MachineError(f"{where}: unknown kind {table['kind']!r}{instead_of(table['kind'], KINDS)}")
    figure = Figure(_number(where, table["value"]), table["unit"], table["source"], table["kind"])
    _check_range(where, figure, dimension)
    return figure


def base_value(figure: Figure, dimension: str) -> Fraction:
    """The figure in base units, exactly; a latency in cycles stays in cycles, one in a unit of time becomes seconds."""
    # By way of the text, as the nearest float to 0.1 is not a tenth.
    return Fraction(str(figure.value)) * UNITS[dimension][figure.unit]


def scaled_figure(figure: Figure, dimension: str, factor: float) -> Figure:
    """The figure multiplied by ``factor``. It stays whole where its dimension is (at least 1), and a ratio at most
    1."""
    value = figure.value * factor
    if dimension in _WHOLE or figure.unit == "cycles":
        value = max(1, round(value))
    if dimension == "ratio":
        # The bound is 1 in base units, which is 100 in percent.
        value = min(value, float(1 / UNITS[dimension][figure.unit]))
    return replace(figure, value=value)


def _read_absence(where: str, table: dict[str, Any], may_be_absent: bool) -> Absence:
    if not may_be_absent:
        raise MachineError(f"{where}: this figure cannot be absent, give value, unit, source and kind")
    _exact_keys(where, table, ("absent", "source"))
    return Absence(_text(where, table, "absent"), _text(where, table, "source"))


def _exact_keys(where: str, table: dict[str, Any], keys: tuple[str, ...]) -> None:
    unknown = sorted(set(table) - set(keys))
    missing = [key for key in keys if key not in table]
    if unknown:
        raise MachineError(f"{where}: unknown key {unknown[0]!r} in a figure{instead_of(unknown[0], keys)}")
    if missing:
        raise MachineError(f"{where}: missing {missing[0]!r} in a figure, needed: {', '.join(keys)}")


def _text(where: str, table: dict[str, Any], key: str) -> str:
    text = table[key]
    if not isinstance(text, str) or not text.strip():
        raise MachineError(f"{where}: {key} = {text!r}, it must be a text that is not empty")
    return text


def _number(where: str, value: Any) -> float:
    # bool is a subclass of int in Python.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MachineError(f"{where}: value = {value!r} is not a number")
    # Also catches NaN, for which every comparison is false.
    if not abs(value) <= sys.float_info.max:
        shown = value if isinstance(value, float) else f"an integer of {len(str(abs(value)))} digits"
        raise MachineError(f"{where}: value = {shown} is not a finite number")
    return value


def _check_range(where: str, figure: Figure, dimension: str) -> None:
    base = base_value(figure, dimension)
    if base < 0 or (base == 0 and dimension not in _MAY_BE_ZERO):
        least = "at least 0" if dimension in _MAY_BE_ZERO else "greater than 0"
        raise MachineError(f"{where}: value = {figure.value!r} {figure.unit}, a {dimension} must be {least}")
    # Smaller ones may round to 0, and times are divided by them.
    if dimension in ("frequency", "bandwidth") and base < 1:
        least = f"at least 1 {next(iter(UNITS[dimension]))}"
        raise MachineError(f"{where}: value = {figure.value!r} {figure.unit}, a {dimension} must be {least}")
    # A latency in seconds is not in cycles yet, so the bound of times applies.
    largest = LARGEST["time" if dimension == "latency" and figure.unit != "cycles" else dimension]
    if base > largest:
        most = f"{float(largest / UNITS[dimension][figure.unit]):g} {figure.unit}"
        raise MachineError(f"{where}: value = {figure.value:g} {figure.unit}, a {dimension} must not exceed {most}")
    whole = dimension in _WHOLE or figure.unit == "cycles"
    if whole and base.denominator != 1:
        raise MachineError(f"{where}: value = {figure.value!r} {figure.unit} is not a whole number of base units")
