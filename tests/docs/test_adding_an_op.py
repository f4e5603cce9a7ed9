"""``docs/adding-an-op.md``, followed to the letter: its block defines an op, names it, and tests it."""

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
from ipuperf.popxl.ops.lifting import lifted

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


IMPORTS = """
from collections.abc import Sequence
import pytest
from ipuperf.functions.making import make
from ipuperf.functions.naming import named
from ipuperf.ir import GradientBuilder, Tensor
from ipuperf.ops.elementwise.activations import ActivationOp
from ipuperf.ops.base import Gradients
from ipuperf.ops.formula import Term, sqrt
"""


def executed(*changes: tuple[str, str]) -> dict[str, Any]:
    """The names of the guide's block, with texts in it replaced."""
    (block,) = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.S | re.M)
    for old, new in changes:
        assert old in block
        block = block.replace(old, new)
    found: dict[str, Any] = {}
    exec(IMPORTS + block, found)
    return found


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    return executed()


@pytest.fixture
def bench() -> Any:
    return fixtures_of_ops().bench._get_wrapped_function()()


GUIDES_TESTS = re.findall(r"^def (test_\w+)", TEXT, flags=re.M)


def run_guides_test(name: str, names: dict[str, Any]) -> None:
    conftest = fixtures_of_ops()
    wanted = inspect.signature(names[name]).parameters
    names[name](**{key: getattr(conftest, key)._get_wrapped_function()() for key in wanted})


@pytest.mark.parametrize("name", GUIDES_TESTS)
def test_the_tests_of_the_guide_pass(name: str, names: dict[str, Any]) -> None:
    run_guides_test(name, names)


@pytest.mark.parametrize("name", GUIDES_TESTS)
@pytest.mark.parametrize(
    ("old", "new"), [("1 / sqrt(x)\n\n    def", "1.01 / sqrt(x)\n\n    def"), ("* -0.5", "* -0.49")]
)
def test_the_tests_of_the_guide_fail_for_a_wrong_op(name: str, old: str, new: str) -> None:
    pytest.importorskip("torch")  # the guide's own oracle
    with pytest.raises(AssertionError):
        run_guides_test(name, executed((old, new)))


def test_half_is_rounded_once(names: dict[str, Any], bench: Any) -> None:
    x = np.random.default_rng(2).uniform(0.5, 4, (2, 300)).astype(np.float16)
    expected = (1 / np.sqrt(x.astype(np.float32))).astype(np.float16)
    np.testing.assert_array_equal(bench.run(names["Rsqrt"], x), expected)


def test_integers_are_refused(names: dict[str, Any], bench: Any) -> None:
    with pytest.raises(DTypeError, match="x0.* is int32; allowed: floating"):
        bench.op(names["Rsqrt"], np.ones((2, 3), np.int32))


def test_cycles_of_the_vertex(names: dict[str, Any], bench: Any) -> None:
    """PopLibs' own estimate for 64 halves on a tile."""
    (work,) = bench.op(names["Rsqrt"], np.ones((1, 64), np.float16)).work()
    assert work.cycles(np.array([64]), fixtures_of_ops().mk2._get_wrapped_function()())[0] == 464


def test_its_function_runs_in_a_program(names: dict[str, Any]) -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.d2h_stream((2,), popxl.float32)
        popxl.ops.host_store(stream, lifted(names["rsqrt"])(popxl.variable(np.array([4, 16], np.float32))))
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run()[stream], np.array([0.5, 0.25], np.float32))


def test_every_name_and_file_it_mentions_is_there() -> None:
    for path in re.findall(r"`((?:ipuperf|docs|tests)/[\w/.]+\.(?:py|md))`", TEXT):
        assert (ROOT / path).is_file(), path
    unary, activations = (ROOT / "ipuperf" / "ops" / "elementwise" / name for name in ("unary.py", "activations.py"))
    assert "class Unary(" in unary.read_text()
    assert "class TanhGrad(" in activations.read_text()
