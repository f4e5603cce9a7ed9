"""``docs/how-to/adding-an-op.md``, followed: its blocks are an op and its row, which reach all front ends."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from opbench import Bench

import ipuperf
from ipuperf import ops
from ipuperf.frontends.catalogue import ROWS
from ipuperf.ir import DTypeError

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "adding-an-op.md").read_text(encoding="utf-8")
IMPORTS = """
from ipuperf.ir import GradientBuilder, Tensor
from ipuperf.ops.base import Gradients
from ipuperf.ops.elementwise.activations import ActivationOp
from ipuperf.ops.formula import Term, sqrt
"""
CHECK = """
from ipuperf.frontends.catalogue import ROWS
import vocabularies
(row,) = [row for row in ROWS if row.function == "ops.Rsqrt"]
"""
COMPARISONS = {
    "torch": """
import popxl_addons as addons
from ipuperf import popxl

class Layer(addons.Module):
    def build(self, x):
        return popxl.ops.rsqrt(x)

with popxl.Ir().main_graph:
    _, graph = Layer().create_graph(popxl.TensorSpec((3,), popxl.float32))
assert [op.type for op in graph.graph._base.ops] == ["Rsqrt"]
vocabularies.compare_library(row)
vocabularies.compare_popxl(row, "rsqrt")
vocabularies.compare_poptorch(row)
""",
    "tensorflow": "vocabularies.compare_graph_op(row, 'Rsqrt')",
}
"""What is run, by the package that it needs."""


def block(language: str) -> str:
    """The block of the guide in a language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.S | re.M)
    return text


@pytest.fixture(scope="module")
def op_class() -> Any:
    """The op of the guide."""
    names: dict[str, Any] = {}
    exec(IMPORTS + block("python"), names)
    return names["Rsqrt"]


# -- the trial ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package without a row of ``rsqrt``, to which the guide's class and row were added."""
    copy = tmp_path_factory.mktemp("copy") / "ipuperf"
    shutil.copytree(Path(ipuperf.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "ops" / "elementwise" / "rsqrt.py").write_text(IMPORTS + block("python"), encoding="utf-8")
    table = copy / "frontends" / "catalogue" / "functions.csv"
    lines = table.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if "rsqrt" not in line]
    head, row = block("text").splitlines()
    assert head == lines[0]
    table.write_text("\n".join([*kept, row, ""]), encoding="utf-8")
    return copy


def done(room: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A run of a program with the package of ``room``."""
    tests = [str(ROOT / "tests" / name) for name in ("catalogue", "ops", "poptorch", "tensorflow")]
    paths = os.pathsep.join([str(room.parent), *tests])
    start = "import ipuperf\nipuperf.install()\n"
    return subprocess.run(
        [sys.executable, "-c", start + CHECK + program],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=room.parent,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.heavy
@pytest.mark.parametrize("needed", ["torch", "tensorflow"])
def test_one_class_and_one_row_reach_every_front_end(needed: str, room: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(needed)
    run = done(room, COMPARISONS[needed])
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(("old", "new"), [("return 1 / sqrt(x)", "return 1.01 / sqrt(x)"), ("* -0.5", "* -0.49")])
def test_a_wrong_op_fails(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import vocabularies

    assert old in block("python")
    names: dict[str, Any] = {}
    exec(IMPORTS + block("python").replace(old, new), names)
    monkeypatch.setattr(ops, "Rsqrt", names["Rsqrt"], raising=False)
    (row,) = (row for row in ROWS if row.function == "arithmetic.rsqrt")
    with pytest.raises(AssertionError):
        vocabularies.compare_library(replace(row, function="ops.Rsqrt"))


# -- what the guide asks for besides -----------------------------------------------------------------------------------


def test_half_is_rounded_once(op_class: Any) -> None:
    x = np.random.default_rng(2).uniform(0.5, 4, (2, 300)).astype(np.float16)
    expected = (1 / np.sqrt(x.astype(np.float32))).astype(np.float16)
    np.testing.assert_array_equal(Bench().run(op_class, x), expected)


def test_integers_are_refused(op_class: Any) -> None:
    with pytest.raises(DTypeError, match="x0.* is int32; allowed: floating"):
        Bench().op(op_class, np.ones((2, 3), np.int32))


def test_cycles_of_the_vertex(op_class: Any) -> None:
    """PopLibs' own estimate for 64 halves on a tile."""
    (work,) = Bench().op(op_class, np.ones((1, 64), np.float16)).work()
    chip = SimpleNamespace(workers=6, vector_width=lambda size: max(1, 8 // size))
    assert work.cycles(np.array([64]), chip)[0] == 464


def test_every_name_and_file_it_mentions_is_there() -> None:
    for path in re.findall(r"`((?:ipuperf|docs|tests)/[\w/.]+\.(?:py|md))`", TEXT):
        assert (ROOT / path).is_file(), path
    unary, activations = (ROOT / "ipuperf" / "ops" / "elementwise" / name for name in ("unary.py", "activations.py"))
    assert "class Unary(" in unary.read_text()
    assert "class TanhGrad(" in activations.read_text()
