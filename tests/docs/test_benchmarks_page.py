"""``docs/benchmarks.md`` has every row of the benchmarks with its bound, and a row above its bound is told."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
ROWS = [
    {"module": "a", "name": "fast", "value": 0.5, "unit": "s", "reference": "b", "reference_value": 1.0, "ratio": 0.5,
     "bound": 0.6},
    {"module": "a", "name": "large", "value": 900.0, "unit": "MB", "reference": "c", "reference_value": 300.0,
     "ratio": 3.0, "bound": 2.0},
]  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``benchmarks/run.py``."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module("run")
    for name in {*sys.modules} - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def test_the_page_has_every_row(run: ModuleType) -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    on_page = {}
    for title, section in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        cells = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
        on_page[title] = {name.removeprefix("| "): float(rest[-1].removesuffix(" |")) for name, *rest in cells}
    assert list(on_page) == list(run.MODULES), "python benchmarks/run.py --write"
    known = {name: run.bounds(name) for name in run.MODULES if not run.missing(name)}
    assert {name: on_page[name] for name in known} == known, "python benchmarks/run.py --write"


def test_a_row_above_its_bound(run: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "MODULES", {"a": (), "b": ("no_such_package",)})
    monkeypatch.setattr(run, "measure", lambda name, repeats: ROWS)
    done = CliRunner().invoke(run.main, ["--json", str(tmp_path / "rows.json")])
    assert done.exit_code == 0, done.output
    assert "b: left out, no_such_package not installed" in done.stderr
    assert [line.endswith("EXCEEDED") for line in done.stdout.splitlines()] == [False, True]
    done = CliRunner().invoke(run.main, ["--check"])
    assert done.exit_code == 1
    assert "1 of 2 rows above their bounds: large" in done.stderr
    done = CliRunner().invoke(run.main, ["--write"])
    assert done.exit_code == 2
    assert "b needs no_such_package" in done.stderr
    text = run.page(ROWS)
    assert "| fast | 500 ms | b: 1 s | 0.50 | 0.6 |" in text
    assert "| large | 900 MB | c: 300 MB | 3.00 | 2 |" in text
