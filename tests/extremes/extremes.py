"""Values at which formulas break, where a result differs from a reference, and which differences are meant.

``differences.csv`` is the one list of the latter; ``docs/accuracy/extreme-values.md`` shows it.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

INF, NAN = float("inf"), float("nan")
FLOAT: Mapping[str, Sequence[float]] = {
    "tiny": (0.0, -0.0, 1e-40, -1e-40, 1e-20, 1e-7, -1e-7, 1e-4, 0.5, -0.5, 1.0, -1.0),
    "moderate": (1.5, 2.5, -2.5, 5.0, -5.0, 15.0, -15.0, 20.0, -20.0, 30.0, 88.0, -88.0),
    "large": (89.0, -89.0, 100.0, -100.0, 1e4, -1e4, 1e10, -1e10, 1e20, -1e20, 3e38, -3e38),
    "infinite": (INF, 0.0, -1.0, -INF, 1.0, 0.5, INF, -2.0, 2.0, -0.5, -INF, 3.0),
    "NaN": (1.0, NAN, -2.0, 0.5, -0.5, 3.0, 0.0, -1.0, 2.0, 0.25, -0.25, 4.0),
    "offset": (1e4, 10001.0, 10003.0, 10002.0, 10005.0, 10004.0, 10006.0),
}
HALF: Mapping[str, Sequence[float]] = {
    **FLOAT,
    "tiny": (0.0, -0.0, 6e-8, -6e-8, 6e-5, 1e-3, -1e-3, 0.01, 0.5, -0.5, 1.0, -1.0),
    "large": (9.0, -9.0, 12.0, -12.0, 100.0, -100.0, 255.0, -257.0, 3e4, -3e4, 65504.0, -65504.0),
    "offset": (1024.0, 1025.0, 1027.0, 1026.0, 1029.0, 1028.0, 1030.0),
}
LIMITS = (0, 1, -1, 7, -7, 2**31 - 1, -(2**31), 100, 65536, 46341, -3, 2)
"""Whole numbers of 32 bits."""

TOLERANCE = {"float32": (2e-5, 3e-6), "float16": (2e-3, 2e-3)}
"""Of an element, and of the largest finite one of its row."""
ROUNDING = 16
"""How many times what a reference in float64 moves the largest element of a row is rounding."""


def filled(kind: str, operand: np.ndarray, number: int) -> np.ndarray:
    """An operand of these values; each of a function's operands (``number``) begins elsewhere."""
    values = np.array((HALF if operand.dtype == np.float16 else FLOAT)[kind])
    return np.resize(np.roll(values, 5 * number), operand.shape).astype(operand.dtype)


def differ(result: np.ndarray, reference: np.ndarray, exact: np.ndarray | None = None, *, rows: bool = True) -> bool:
    """Whether a result is not that of a reference: infinities and NaN where it has them, other elements near.

    ``exact``: the reference with operands in float64. Where that is finite and the reference is not, or the other way
    round, the reference says nothing; how far they are apart is rounding. ``rows``: sums go along the last axis.
    """
    one, other = (np.atleast_1d(np.asarray(array)) for array in (result, reference))
    if one.shape != other.shape:
        return True
    rtol, atol = TOLERANCE.get(other.dtype.name, (0.0, 0.0))
    dtype, one, other = other.dtype, one.astype(np.float64), other.astype(np.float64)
    with np.errstate(all="ignore"):
        allowed = rtol * np.abs(other) + atol * _largest(other, rows) + 1e-37
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        if exact is not None and dtype.kind == "f":
            exact = np.asarray(exact, np.float64).reshape(other.shape)
            same |= _state(exact.astype(dtype)) != _state(other)
            allowed = allowed + ROUNDING * _largest(other - exact, rows)
        return not (same | (np.abs(one - other) <= allowed)).all()


def _largest(values: np.ndarray, rows: bool) -> np.ndarray:
    sizes = np.where(np.isfinite(values), np.abs(values), 0)
    return np.max(sizes, axis=-1 if rows else None, keepdims=True, initial=0)


def _state(values: np.ndarray) -> np.ndarray:
    return np.isnan(values) + 2 * np.isinf(values)


Difference = tuple[str, str, str, str]
"""An operation, the kind of values, the type, and whether its values or gradients differ."""


def meant() -> list[dict[str, str]]:
    """The rows of the list: operations (patterns) of a front end, whether values or gradients, the kinds of operands,
    types, what differs, and the upstream source that makes it so (or ours, where upstream's is not to be had)."""
    with (Path(__file__).parent / "differences.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def check(front_end: str, types: Sequence[str], found: Iterable[Difference]) -> None:
    """All differences are in the list, and each of its rows that is of these types is one."""
    rows = [row for row in meant() if row["front end"] == front_end and set(row["types"].split()) & set(types)]
    unused, unmeant = list(rows), []
    for name, kind, dtype, of in found:
        matching = [
            row
            for row in rows
            if any(fnmatchcase(name, pattern) for pattern in row["operations"].split("; "))
            and (kind in row["values"].split(", ") and dtype in row["types"].split() and of in row["of"].split())
        ]
        unused = [row for row in unused if row not in matching]
        unmeant += [] if matching else [(name, kind, dtype, of)]
    assert not unmeant, sorted(unmeant)
    assert not unused, f"no longer so: {[row['operations'] for row in unused]}"
