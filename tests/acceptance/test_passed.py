"""``--keep-passed`` and ``--passed``: what ``.ci/run`` does not run twice; ``--untraced``: what it does not trace."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def shared(request: pytest.FixtureRequest, repository: Path) -> ModuleType:
    """The file of fixtures that all tests share."""
    found: ModuleType = request.config.pluginmanager.getplugin(str(repository / "tests" / "conftest.py"))
    return found


def _items(path: Path, text: str, count: int, *marks: str) -> list[Any]:
    path.write_text(text)
    marked = dict.fromkeys(marks, True)
    return [SimpleNamespace(nodeid=f"{path.name}::test[{n}]", path=path, keywords=marked) for n in range(count)]


def _report(nodeid: str, when: str, passed: bool) -> Any:
    return SimpleNamespace(nodeid=nodeid, when=when, passed=passed)


def test_what_passed_runs_again_where_pytorch_is_named_and_else_one_in_so_many(shared: Any, tmp_path: Path) -> None:
    plain = _items(tmp_path / "test_plain.py", "import numpy", 2 * shared.AGAIN + 2)
    about = _items(tmp_path / "test_about.py", "pytest.importorskip('torch')", 3)
    heavy = _items(tmp_path / "test_heavy.py", "pytest.importorskip('torch')", 2, "heavy")
    kept = shared._Passed(tmp_path / "passed.txt")
    for item in [*plain[:-1], *heavy, *about]:
        kept.pytest_runtest_logreport(_report(item.nodeid, "setup", True))
        kept.pytest_runtest_logreport(_report(item.nodeid, "call", item is not plain[0]))
    kept.pytest_sessionfinish()
    names = (tmp_path / "passed.txt").read_text().splitlines()
    assert sorted(names) == sorted(item.nodeid for item in [*plain[1:-1], *heavy, *about])

    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    items = [*plain, *heavy, *about]
    shared._leave_out_passed(tmp_path / "passed.txt", SimpleNamespace(hook=hook), items)
    # failed, two samples, never ran, the third sample, PyTorch
    again = [plain[0], plain[1], plain[1 + shared.AGAIN], plain[-1], heavy[0], *about]
    assert items == again
    assert left_out == [*(item for item in plain if item not in again), heavy[1]]


def test_functions_that_are_named_run_without_tracing(shared: Any) -> None:
    def trace(*_: object) -> None:
        pass

    def seen(nodeid: str) -> list[object]:
        item = SimpleNamespace(nodeid=nodeid, config=SimpleNamespace(stash={shared._UNTRACED: {"test_a.py::test"}}))
        around = shared.pytest_runtest_call(item)
        next(around)
        found = [sys.gettrace(), threading.gettrace()]
        assert list(around) == []
        return found

    before = sys.gettrace(), threading.gettrace()
    try:
        sys.settrace(trace)
        threading.settrace(trace)
        assert seen("test_a.py::test[1]") == [None, None]
        assert [sys.gettrace(), threading.gettrace()] == [trace, trace] == seen("test_b.py::test[1]")
    finally:
        sys.settrace(before[0])
        threading.settrace(before[1])
