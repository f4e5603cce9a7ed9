"""Names that functions declare reach the front ends by themselves: a new function takes two files."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ipuperf
from ipuperf.functions.naming import names_in

ROOM = Path(ipuperf.__file__).parent

OP = '''
import numpy as np

from ipuperf.ir import GradientBuilder, Tensor
from ipuperf.ops.reductions.axes_reduced import Reduce
from ipuperf.ops.elementwise.unary import Exp


class ReduceLogSumExp(Reduce):
    """Logarithm of the sum of exponentials."""

    type = "ReduceLogSumExp"
    ufunc = np.logaddexp
    vertex = "ADD"
    needs_float = True

    def gradient_from(self, builder: GradientBuilder, grad: Tensor):
        """``g * exp(x - out)``."""
        x, out = builder.forward(self.inputs[0]), builder.forward(self.outputs[0])
        share = builder.op(Exp, [x - self.spread(builder, out)])
        return [self.spread(builder, grad) * share]
'''

FUNCTION = '''
from ipuperf.ops import ReduceLogSumExp

from .making import make, many
from .naming import named


@named(aten="logsumexp")
def logsumexp(t: "Tensor", axis=None, keepdims: bool = False) -> "Tensor":
    """Logarithm of the sum of exponentials."""
    return make(ReduceLogSumExp, t, axes=many(axis), keepdims=keepdims)
'''

LACKED = """
import ipuperf.popxl.ops
assert "logsumexp" not in ipuperf.popxl.ops.__all__
"""

PROGRAM = """
import numpy as np
from ipuperf import popxl

X = np.linspace(-3, 200, 12, dtype=np.float32).reshape(3, 4)
TOTAL = np.logaddexp.reduce(X, 1)
SHARE = np.exp(X - TOTAL[:, None])
near = lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)

ir = popxl.Ir()
with ir.main_graph, popxl.in_sequence():
    graph = ir.create_graph(lambda t: popxl.ops.logsumexp(t, 1), popxl.TensorSpec(X.shape, popxl.float32))
    backward = popxl.transforms.autodiff(graph)
    x = popxl.variable(X)
    info = popxl.ops.call_with_info(graph, x)
    seed = popxl.constant(np.ones(3, np.float32))
    (slope,) = popxl.ops.call(backward.graph, seed, inputs_dict=backward.inputs_dict(info))
    streams = [popxl.d2h_stream(t.shape, popxl.float32) for t in (info.outputs[0], slope)]
    for stream, t in zip(streams, (info.outputs[0], slope)):
        popxl.ops.host_store(stream, t)
OPS = {type(op).__name__ for op in graph._base.ops}
assert OPS >= EXPECTED, OPS
with popxl.Session(ir, "ipu_hw") as session:
    found = session.run()
near(found[streams[0]], TOTAL), near(found[streams[1]], SHARE)

"""

TORCH = """
import torch
from ipuperf import poptorch
import numpy as np


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.logsumexp(x, 1), torch.logsumexp(x, (0, 1), keepdim=True)


x = torch.linspace(-3, 200, 12).reshape(3, 4)
for found, wanted in zip(poptorch.inferenceModel(Model())(x), Model()(x)):
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
"""


def runs(program: str, room: Path = ROOM) -> None:
    """``program`` ends without an error in a process that has the package of ``room``."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(room.parent)}, cwd=room.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def without(source: str, name: str) -> str:
    """A module without its function ``name``."""
    tree = ast.parse(source)
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    tree.body.remove(found)
    return ast.unparse(tree)


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package without ``logsumexp``."""
    room = tmp_path_factory.mktemp("copy") / "ipuperf"
    shutil.copytree(ROOM, room, ignore=shutil.ignore_patterns("__pycache__"))
    path = room / "functions" / "reductions.py"
    path.write_text(without(path.read_text(encoding="utf-8"), "logsumexp"), encoding="utf-8")
    runs(LACKED, room)
    return room


@pytest.fixture(scope="module")
def extended(lacking: Path) -> Path:
    """The same with ``logsumexp`` again, as an op of its own: two files."""
    (lacking / "ops" / "logsumexp.py").write_text(OP, encoding="utf-8")
    (lacking / "functions" / "sums_of_exponentials.py").write_text(FUNCTION, encoding="utf-8")
    return lacking


def test_logsumexp_is_in_popxl_with_its_gradient() -> None:
    runs("EXPECTED = {'ReduceLogSumExp'}" + PROGRAM)


def test_a_new_op_in_two_files_is_in_popxl(extended: Path) -> None:
    runs("EXPECTED = {'ReduceLogSumExp'}" + PROGRAM, extended)


def test_a_new_op_in_two_files_is_in_poptorch(extended: Path) -> None:
    pytest.importorskip("torch")
    runs("from ipuperf import ops\nassert 'ReduceLogSumExp' in ops.__all__\n" + TORCH, extended)


# -- declarations ------------------------------------------------------------------------------------------------------


def test_aten_names_are_pytorchs_and_declared_once() -> None:
    torch = pytest.importorskip("torch")
    from ipuperf.poptorch.aten import table as aten

    names = [name for name, _ in names_in("aten")]
    assert len(names) == len(set(names)) > 40
    for name in names:
        packet, _, overload = name.partition(".")
        assert getattr(getattr(torch.ops.aten, packet), overload or "overloads")
    families = (aten.aten_elementwise, aten.aten_reduce, aten.aten_shape, aten.aten_products, aten.aten_norms)
    for family in families:
        assert not family.HANDLERS.keys() & set(names), "a name that a function declares stands in a table too"
