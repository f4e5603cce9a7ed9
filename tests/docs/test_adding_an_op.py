"""``docs/adding-an-op.md``, followed to the letter: its blocks define an op, name it, and test it."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import DTypeError

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "adding-an-op.md").read_text(encoding="utf-8")


def fixtures_of_ops() -> ModuleType:
    """``tests/ops/conftest.py``."""
    spec = importlib.util.spec_from_file_location("conftest_of_ops", ROOT / "tests" / "ops" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {"pytest": pytest, "DTypeError": DTypeError}
    for block in re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.S | re.M):
        exec(block, found)
    return found


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", TEXT, flags=re.M))
def test_the_tests_of_the_guide_pass(name: str, names: dict[str, Any]) -> None:
    conftest = fixtures_of_ops()
    wanted = inspect.signature(names[name]).parameters
    names[name](**{key: getattr(conftest, key)._get_wrapped_function()() for key in wanted})


def test_its_function_runs_in_a_program(names: dict[str, Any]) -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.d2h_stream((2,), popxl.float32)
        popxl.ops.host_store(stream, names["popxl_rsqrt"](popxl.variable(np.array([4, 16], np.float32))))
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run()[stream], np.array([0.5, 0.25], np.float32))


def test_every_name_and_file_it_mentions_is_there() -> None:
    for path in re.findall(r"`((?:ipuperf|docs|tests)/[\w/.]+\.(?:py|md))`", TEXT):
        assert (ROOT / path).is_file(), path
    unary, activations = (ROOT / "ipuperf" / "ops" / name for name in ("unary.py", "activations.py"))
    assert "class Unary(" in unary.read_text()
    assert "class TanhGrad(" in activations.read_text()
