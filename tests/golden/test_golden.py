"""The golden tables of this folder against what ipuperf says now.

``python tests/golden/regenerate.py`` rewrites them.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
MACHINES = ("gc200-1", "pod4", "bow-pod4")
TABLES = ("steps", "operations", "matmul_plans", "vertex_cycles")


def _regenerate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_regenerate", HERE / "regenerate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = _regenerate()


@lru_cache
def _now(machine: str) -> dict[str, list[dict[str, str]]]:
    return golden.tables(machine)  # type: ignore[no-any-return]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("machine", MACHINES)
def test_no_row_moved(machine: str, table: str) -> None:
    kept = golden.read(machine, table)
    assert kept, f"{machine}/{table}.csv is not there; run `{golden.COMMAND}`"
    lines = golden.moved(table, kept, _now(machine)[table])
    if lines:
        pytest.fail(golden.report(machine, table, lines), pytrace=False)


def test_tables_are_those_the_script_writes() -> None:
    assert golden.MACHINES == MACHINES
    assert tuple(golden.KEYS) == TABLES
    assert {str(p.relative_to(HERE)) for p in HERE.glob("*/*.csv")} == {
        f"{m}/{t}.csv" for m in MACHINES for t in TABLES
    }


def test_moved_rows_are_shown_with_both_values() -> None:
    old = [{"vertex": "a", "elements": "1", "cycles": "100"}, {"vertex": "b", "elements": "1", "cycles": "5"}]
    new = [{"vertex": "a", "elements": "1", "cycles": "110"}, {"vertex": "c", "elements": "1", "cycles": "7"}]
    lines = golden.moved("vertex_cycles", old, new)
    assert lines == ["- b | 1", "~ a | 1: cycles 100 -> 110 (+10.00%)", "+ c | 1: cycles 7"]
    text = golden.report("pod4", "vertex_cycles", lines, most=2)
    assert text.splitlines()[0] == "pod4/vertex_cycles.csv: 3 rows moved"
    assert "... and 1 more" in text
    assert golden.COMMAND in text
    assert golden.moved("vertex_cycles", old, old) == []
    with pytest.raises(ValueError, match="two rows of"):
        golden.moved("vertex_cycles", old + old, new)


def test_the_script_leaves_no_front_ends_behind() -> None:
    from ipuperf.runtime.install import installed_names

    before = installed_names()
    golden.tables("gc200-1")
    assert installed_names() == before


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert golden.main(["--chek"]) == 2
    assert f"usage: {golden.COMMAND}" in capsys.readouterr().err
