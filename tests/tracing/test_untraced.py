"""The list of tests that coverage need not trace, and how it is chosen."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tracing_run", Path(__file__).with_name("run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _recorded(folder: Path, seconds: str, arcs: Mapping[str, str]) -> None:
    """Write a record: of each function (nothing: imports and fixtures) its arcs, a letter each."""
    folder.mkdir()
    (folder / "seconds.json").write_text(seconds)
    with sqlite3.connect(folder / "arcs") as data:
        data.execute("create table file (id integer, path text)")
        data.execute("create table context (id integer, context text)")
        data.execute("create table arc (file_id integer, context_id integer, fromno integer, tono integer)")
        data.execute("insert into file values (1, 'a.py')")
        for number, (function, own) in enumerate(arcs.items()):
            data.execute("insert into context values (?, ?)", (number, function))
            data.executemany("insert into arc values (1, ?, 0, ?)", [(number, ord(arc)) for arc in own])


def test_what_others_trace_is_left_out_the_dearest_first(run: ModuleType, tmp_path: Path) -> None:
    _recorded(tmp_path / "one", '{"dear": 9, "own": 0.3, "short": 0.05}', {"": "x", "dear": "abx", "own": "cx"})
    _recorded(tmp_path / "two", '{"cheap": 3, "again": 2}', {"cheap": "abd", "again": "abefgh", "short": "x"})
    record = run.Record(tmp_path)
    assert record.count.sum() == 1 + 3 + 2 + 3 + 6 + 1
    # others have what "dear" has; "cheap" has one arc of its own in 3 s; "again" then four in 2 s; "own" one in 0.3 s
    assert run.choose(record) == ["dear", "cheap"]


def test_names_are_those_of_tests(run: ModuleType, repository: Path) -> None:
    names = run.UNTRACED.read_text(encoding="utf-8").splitlines()
    assert names == sorted(set(names))
    assert names
    for name in names:
        file, *_, function = name.split("::")
        assert f"def {function}(" in (repository / file).read_text(encoding="utf-8"), name
