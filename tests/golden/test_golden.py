"""The golden tables of this folder against what ipuperf says now.

``python tests/golden/regenerate.py`` rewrites them, and so does ``pytest tests/golden --update-baselines``.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

from ipuperf.machine import load_machine
from ipuperf.testing import CycleBaseline
from ipuperf.testing.fixture import Ledger

HERE = Path(__file__).resolve().parent
MACHINES = ("gc200-1", "pod4", "bow-pod4")
TABLES = ("steps", "operations", "matmul_plans")


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
def test_no_row_moved(machine: str, table: str, cycle_baseline: CycleBaseline) -> None:
    rows = _now(machine)[table]
    cycle_baseline.check_table(rows, table, keys=golden.KEYS[table], folder=HERE / machine, rows=golden.SHOWN)


def test_tables_are_those_the_script_writes() -> None:
    assert golden.MACHINES == MACHINES
    assert tuple(golden.KEYS) == TABLES
    assert {str(p.relative_to(HERE)) for p in HERE.glob("*/*.csv")} == {
        f"{m}/{t}.csv" for m in MACHINES for t in TABLES
    }


def test_the_script_and_the_fixture_see_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = golden.plan_rows(load_machine("gc200-1").chip)[:3]
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    golden.write("gc200-1", "matmul_plans", rows)
    written = tmp_path / "gc200-1" / "matmul_plans.csv"
    fixture = CycleBaseline("test_x.py::test", "test_x.test", tmp_path, False, "pytest", Ledger())
    fixture.check_table(rows, "matmul_plans", keys=golden.KEYS["matmul_plans"], folder=written.parent)
    changed = [*rows[:-1], {**rows[-1], "total": str(2 * int(rows[-1]["total"]))}]
    (line,) = golden.moved("gc200-1", "matmul_plans", changed)
    assert line.startswith("~ ")
    assert line.endswith("(+100.00%)")
    text = golden.report("gc200-1", "matmul_plans", [line])
    assert text.splitlines()[0] == "gc200-1/matmul_plans.csv: 1 row moved"
    assert golden.COMMAND in text


def test_the_script_leaves_no_front_ends_behind() -> None:
    from ipuperf.runtime.install import installed_names

    before = installed_names()
    golden.tables("gc200-1")
    assert installed_names() == before


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert golden.main(["--chek"]) == 2
    assert f"usage: {golden.COMMAND}" in capsys.readouterr().err
