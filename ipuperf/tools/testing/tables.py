"""Tables as baselines: CSV files whose rows are named by key columns."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ipuperf.tools.errors import BaselineError
from ipuperf.tools.testing.compare import Tolerance
from ipuperf.tools.testing.text import counted
from ipuperf.trace.printable import in_cell, of_cell

Row = dict[str, str]
Rows = list[Row]
Key = tuple[str, ...]


def normalised(table: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Rows:
    """Return the table with values as text.

    Raises:
        ValueError: there are no rows, rows have different columns, a key is no column, or two rows have one key.
    """
    rows = [{str(column): str(value) for column, value in row.items()} for row in table]
    if not rows:
        raise ValueError("table: no rows, there is nothing to compare")
    columns = list(rows[0])
    for place, row in enumerate(rows):
        if list(row) != columns:
            raise ValueError(f"table: row {place} has columns {', '.join(row)}, row 0 has {', '.join(columns)}")
    missing = [key for key in keys if key not in columns]
    if missing or not keys:
        raise ValueError(f"keys: {missing[0] if missing else keys!r}, the columns are {', '.join(columns)}")
    keyed(rows, keys)
    return rows


def read(path: str | os.PathLike[str], keys: Sequence[str]) -> Rows:
    """Read the table at ``path``.

    Raises:
        FileNotFoundError: there is no file.
        BaselineError: the file is no such table.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            rows = [{name: of_cell(value) for name, value in row.items()} for row in reader]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise BaselineError(f"baseline {os.fspath(path)} cannot be read: {error}") from None
    try:
        for place, row in enumerate(rows, start=2):
            # ``DictReader`` puts extra cells under the key None and None into missing ones.
            if None in row or None in row.values():
                raise ValueError(f"line {place} has more or fewer cells than the first")
        return normalised(rows, keys)
    except ValueError as error:
        raise BaselineError(f"baseline {os.fspath(path)} cannot be read: {error}") from None


def text_of(rows: Rows) -> str:
    """Return the text of a table's file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: in_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def keyed(rows: Rows, keys: Sequence[str]) -> dict[Key, Row]:
    """Return the values by key; raise ``ValueError`` if two rows have one key."""
    rows_by_key: dict[Key, Row] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        if key in rows_by_key:
            raise ValueError(f"two rows of {' | '.join(key)}")
        rows_by_key[key] = {name: value for name, value in row.items() if name not in keys}
    return rows_by_key


def moved(baseline: Rows, current: Rows, keys: Sequence[str], tolerance: Tolerance | None = None) -> list[str]:
    """Return a line for each row that is new (``+``), gone (``-``) or changed (``~``); gone rows come first."""
    tolerance = tolerance or Tolerance()
    old, new = keyed(baseline, keys), keyed(current, keys)
    lines = [f"- {' | '.join(key)}" for key in old if key not in new]
    for key, row in new.items():
        if key not in old:
            lines.append(f"+ {' | '.join(key)}: {', '.join(f'{name} {value}' for name, value in row.items())}")
            continue
        changes = [
            f"{name} {_change(old[key].get(name, 'none'), row.get(name, 'none'))}"
            for name in {**old[key], **row}
            if not _same(old[key].get(name), row.get(name), tolerance)
        ]
        if changes:
            lines.append(f"~ {' | '.join(key)}: {', '.join(changes)}")
    return lines


def report(title: str, lines: Sequence[str], rows: int) -> str:
    """Return the lines as text, at most ``rows`` of them and the number of the remaining ones."""
    shown = [f"{title}: {counted(len(lines), 'row')} moved", *(f"  {line}" for line in lines[:rows])]
    if len(lines) > rows:
        shown.append(f"  ... and {len(lines) - rows:,} more")
    return "\n".join(shown)


def _number(value: str | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _same(baseline: str | None, current: str | None, tolerance: Tolerance) -> bool:
    if baseline == current:
        return True
    old, new = _number(baseline), _number(current)
    # Without a tolerance, values are compared as text: 1.0 and 1 differ.
    wide = tolerance.rtol > 0 or tolerance.atol > 0
    return wide and old is not None and new is not None and tolerance.holds(old, new)


def _change(baseline: str, current: str) -> str:
    old, new = _number(baseline), _number(current)
    if old is None or new is None or old == 0:
        return f"{baseline} -> {current}"
    return f"{baseline} -> {current} ({new / old - 1:+.2%})"
