"""Figures of executables and their traces, for golden rows."""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ipuperf.runtime.executable import Executable
from ipuperf.trace import Trace
from ipuperf.trace.schema import TABLES

Figures = dict[str, Any]
MEMORY = {"variables", "tile_memory", "live_intervals", "liveness"}
"""Tables of a trace whose digest is that of memory."""


def lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each row of figures."""
    return [", ".join(f"{name} {value}" for name, value in row.items()) for row in rows]


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
        "times": digest({name: _numbers(trace, name) for name in TABLES if name not in {*MEMORY, "plans", "code"}}),
    }


def _numbers(trace: Trace, table: str) -> list[list[Any]]:
    """Columns of numbers, as lists: names and lines are no cost."""
    columns = trace.columns(table)
    return [column.tolist() for column in columns.values() if column.dtype != np.dtype(object)]
