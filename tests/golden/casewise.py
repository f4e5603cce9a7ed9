"""Golden tables with a test for each case: a CSV file in this folder whose first column is the case.

``pytest tests/golden --update-baselines`` writes the rows of the cases that run, in the order of the cases.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ipuperf.runtime.executable import Executable
from ipuperf.testing import tables
from ipuperf.testing.files import write_text
from ipuperf.trace import Trace
from ipuperf.trace.schema import TABLES

FOLDER = Path(__file__).resolve().parent
Figures = dict[str, Any]
KEYS = ("case", "draw")
MEMORY = {"variables", "tile_memory", "live_intervals", "liveness"}
"""Tables of a trace whose digest is that of memory."""


def check(table: str, order: Sequence[str], case: str, rows: Iterable[Mapping[str, Any]], *, update: bool) -> None:
    """Compare the rows of a case with the file of its table, or write them there."""
    found = [{"case": case, "draw": str(number), **row} for number, row in enumerate(rows)]
    now = tables.normalised(found, KEYS)
    path = FOLDER / f"{table}.csv"
    if update:
        _write(path, order, case, now)
        return
    moved = tables.moved(_kept(path).get(case, []), now, KEYS)
    assert not moved, f"{tables.report(path.name, moved, 20)}\nIf that is meant: pytest tests/golden --update-baselines"


def cases_of(table: str) -> set[str]:
    """The cases that the file of a table holds."""
    return set(_kept(FOLDER / f"{table}.csv"))


def _write(path: Path, order: Sequence[str], case: str, now: tables.Rows) -> None:
    kept = {**(_read(path) if path.is_file() else {}), case: now}
    write_text(path, tables.text_of([row for name in order for row in kept.get(name, [])]))


def _read(path: Path) -> dict[str, tables.Rows]:
    kept: dict[str, tables.Rows] = {}
    for row in tables.read(path, KEYS):
        kept.setdefault(row["case"], []).append(row)
    return kept


_kept = cache(_read)


# -- figures -----------------------------------------------------------------------------------------------------------


def digest(values: Any) -> str:
    """Eight digits that stand for numbers, texts and what holds them."""
    return f"{zlib.crc32(repr(values).encode()):08x}"


def figures(executable: Executable) -> Figures:
    """What a program takes, and digests of the numbers of all tables: of times, of memory, of plans."""
    trace = executable.trace
    memory, ops = trace.columns("liveness"), trace.columns("ops")
    return {
        **times(trace),
        "flops": int(ops["flops"].sum()),
        "always_live": int(memory["always_live"].max(initial=0)),
        "not_always_live": int(memory["not_always_live"].max(initial=0)),
        "fullest_tile": int(memory["max_tile"].max(initial=0)),
        "ops": len(ops["flops"]),
        "memory": digest({name: _numbers(trace, name) for name in sorted(MEMORY)}),
        "plans": digest((_numbers(trace, "plans"), trace.columns("plans")["plan"].tolist())),
        "warnings": len(executable.device_program.warnings),
    }


def times(trace: Trace) -> Figures:
    """Cycles of a run and of each kind of work on all IPUs, numbers of rows, and a digest of all numbers."""
    totals = trace.totals()
    kinds = {kind: int(totals[kind].sum()) for kind in totals.columns[2:-1]}
    return {
        "cycles": int(trace.columns("runs")["dur"].sum()),
        "by_kind": ", ".join(f"{kind} {cycles}" for kind, cycles in kinds.items() if cycles),
        "steps": trace.rows("steps"),
        "transfers": trace.rows("transfers"),
        "times": digest({name: _numbers(trace, name) for name in TABLES if name not in MEMORY and name != "plans"}),
    }


def _numbers(trace: Trace, table: str) -> list[list[Any]]:
    """Columns of numbers, as lists: names and lines are no cost."""
    columns = trace.columns(table)
    return [column.tolist() for column in columns.values() if column.dtype != np.dtype(object)]
