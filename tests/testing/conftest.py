"""Traces of a few steps, written by hand, and the run of pytest in another process."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ipuperf.trace import TABLES, Trace

#: The example project is a project of its own: its tests run in a copy of it, not among those of ipuperf.
collect_ignore = ["example_project"]

Step = tuple[int, int, int, int, int, str, str]
MakeTrace = Callable[..., Trace]
WITHOUT = [word for name in ("hypothesispytest", "pytest_cov") for word in ("-p", f"no:{name}")]
"""Plug-ins of others that no run of :func:`run_pytest` uses: to load them takes half of its time."""
RunPytest = Callable[..., "subprocess.CompletedProcess[str]"]


def _columns(table: str, rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    names = TABLES[table].column_names
    assert all(len(row) == len(names) for row in rows), table
    return {name: [row[place] for row in rows] for place, name in enumerate(names)} if rows else {}


def build_trace(
    steps: Sequence[Step],
    runs: Sequence[tuple[int, int]] = (),
    tiles: Sequence[tuple[int, int, str, int]] = (),
    variables: Sequence[tuple[str, int, int, int, int]] = (),
    transfers: Sequence[tuple[str, str, int]] = (),
    **meta: Any,
) -> Trace:
    """A trace of steps (replica, ipu, lane, start, dur, kind, op), runs (start, dur), tile memory (ipu, tile, category,
    bytes), variables (name, ipu, first tile, last tile + 1, bytes) and transfers (kind, link kind, bytes)."""
    ops = {name: row for row, name in enumerate(dict.fromkeys(step[6] for step in steps if step[6]))}
    links = {kind: row for row, kind in enumerate(dict.fromkeys(row[1] for row in transfers))}
    types = {name: name.rpartition("/")[2].partition(".")[0] for name in ops}
    rows: dict[str, list[tuple[Any, ...]]] = {
        "ops": [(row, name, types[name], "main", "fwd", 0, "", "float16", "main") for name, row in ops.items()],
        "steps": [
            (number, 0, -1, ops.get(op, -1), kind, 0, dur, float(dur), 1, 0, 0, 0, 0, lane, -1)
            for number, (_, _, lane, _, dur, kind, op) in enumerate(steps)
        ],
        "instances": [
            (number, number, ipu, replica, -1, -1, start, dur, 0)
            for number, (replica, ipu, _, start, dur, _, _) in enumerate(steps)
        ],
        "runs": [(row, f"run {row}", start, dur) for row, (start, dur) in enumerate(runs)],
        "tile_memory": list(tiles),
        "variables": [
            (row, name, -1, "", "float32", ipu, first, last, size, True, "tile", row)
            for row, (name, ipu, first, last, size) in enumerate(variables)
        ],
        "links": [(row, kind, kind, "a", "b", 1e9, 1) for kind, row in links.items()],
        "transfers": [(row, links[link], 0, 1, size, -1, kind, 0) for row, (kind, link, size) in enumerate(transfers)],
    }
    given = {"machine": "handmade", "clock_hz": 1_000_000, "tiles_per_ipu": 4, "bytes_per_tile": 1000, "num_ipus": 2}
    tables = {name: _columns(name, values) for name, values in rows.items()}
    return Trace({**given, "program": "model", **meta}, tables)


@pytest.fixture(scope="session")
def make_trace() -> MakeTrace:
    """See :func:`build_trace`."""
    return build_trace


@pytest.fixture
def run_pytest(child_environment: dict[str, str]) -> RunPytest:
    """``run_pytest(folder, *args)``: pytest in a process of its own, as a user starts it there."""

    def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *WITHOUT, *args],
            cwd=folder,
            env={**child_environment, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
