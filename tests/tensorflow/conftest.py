"""Every test has a TensorFlow state of its own; files beside the tests hold what several of them share.

What a test builds, and the errors that it expects, have a golden row (:mod:`built`). Tests that need TensorFlow are
skipped without it.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from built import Built
    from sessions import Graphs

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
RECORDED_WITH = ("3.11", "2.21")
"""Python and TensorFlow of the golden rows: others word errors otherwise and make other graphs."""
_PASSED = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def fresh_state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if importlib.util.find_spec("tensorflow") is None:
        yield
        return
    from ipuperf.tensorflow.state import isolated

    _forget_seeds()
    recorded = _versions() == RECORDED_WITH
    built = _noted(monkeypatch)
    with isolated():
        yield
    if recorded:
        _compare(request.node, built)


@pytest.fixture
def graph() -> Iterator[Graphs]:
    """A graph and a session of version 1."""
    from sessions import graphs

    with graphs() as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[_PASSED] = report.passed
    return report


def _versions() -> tuple[str, str]:
    import tensorflow as tf

    return f"{sys.version_info[0]}.{sys.version_info[1]}", tf.__version__.rpartition(".")[0]


def _forget_seeds() -> None:
    """No seed of an earlier test is in force; those that Keras draws are the same in every process."""
    from tensorflow.python.eager import context

    context.context()._seed = None
    random.seed(1)
    if "tf_keras" in sys.modules:
        sys.modules["tf_keras"].backend._SEED_GENERATOR = threading.local()


def _noted(monkeypatch: pytest.MonkeyPatch) -> Built:
    """What is built and raised from now on."""
    from built import Built

    from ipuperf.ir import Ir
    from ipuperf.runtime.executable import Executable

    built = Built()
    for kind, made in ((Ir, built.programs), (Executable, built.executables)):

        def initialised(self: Any, *args: Any, _first: Any = kind.__init__, _made: Any = made, **options: Any) -> None:
            _made.append(self)
            _first(self, *args, **options)

        monkeypatch.setattr(kind, "__init__", initialised)
    leave = pytest.RaisesExc.__exit__

    def left(self: Any, kind: Any, error: Any, trace: Any) -> bool:
        expected = leave(self, kind, error, trace)
        built.fail(error)
        return expected

    monkeypatch.setattr(pytest.RaisesExc, "__exit__", left)
    return built


def _compare(test: pytest.Item, built: Built) -> None:
    """The golden row of a test that passed is as it was."""
    from rows import check

    if not built.nothing and test.stash.get(_PASSED, False) and not test.get_closest_marker("rowless"):
        check(test, built.text(), "builds")
