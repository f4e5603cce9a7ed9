"""A program's own function over an op in C++ stays as it is: a binding over a description in Python answers it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import cppimport, popxl
from ipuperf import popxl_addons as addons
from ipuperf.cppimport import bindings
from ipuperf.cppimport.sources import digest
from ipuperf.ir import IrError
from ipuperf.ops import RotaryPosEmbed, RotaryPosEmbedHalves
from ipuperf.popxl import ops
from ipuperf.popxl.context import get_current_context
from ipuperf.popxl.custom_ops import Binding
from ipuperf.runtime.install import install, uninstall

SOURCE = "// cppimport\n#include <popart/op.hpp>\n"
HALVES = Path(bindings.__file__ or "").with_name("rotary_halves.py")
FUNCTION = """import cppimport.import_hook
from . import turn_binding
"""


def turned(op_class: Any, x: popxl.Tensor, sin: popxl.Tensor, cos: popxl.Tensor, *values: Any) -> popxl.Tensor:
    """As the programs write it."""
    context = get_current_context()
    graph = context.graph
    op = op_class.createOpInGraph(
        graph._pb_graph,
        {0: x.id, 1: sin.id, 2: cos.id},
        {0: graph._create_tensor_id("turned")},
        *values,
        context._get_op_settings("RotaryPosEmbedOp"),
    )
    context._op_created(op)
    return popxl.Tensor._from_pb_tensor(op.outTensor(0))


def pairs(x: np.ndarray, sin: np.ndarray, cos: np.ndarray, n: int, halves: bool) -> np.ndarray:
    """Each pair as a complex number, times ``exp(i angle)``."""
    real, imaginary = (slice(0, n // 2), slice(n // 2, n)) if halves else (slice(0, n, 2), slice(1, n, 2))
    numbers = (x[..., real] + 1j * x[..., imaginary]) * (cos + 1j * sin)[None, :, None]
    out = x.copy()
    out[..., real], out[..., imaginary] = numbers.real, numbers.imag
    return out


@pytest.mark.parametrize("n", [4, 8])
def test_halves_are_turned_and_their_gradient_turns_neighbours_back(n: int) -> None:
    """The gradient is the source's, not the derivative."""
    rng = np.random.default_rng(n)
    x, grad = (rng.normal(size=(2, 3, 2, 8)).astype(np.float32) for _ in range(2))
    sin, cos = (rng.normal(size=(3, n // 2)).astype(np.float32) for _ in range(2))
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        tensors = [popxl.variable(array) for array in (x, sin[None], cos[None], grad)]
        graph = ir.create_graph(lambda *t: turned(Binding(RotaryPosEmbedHalves), *t, n), *tensors[:3])
        info = ops.call_with_info(graph, *tensors[:3])
        back = popxl.transforms.autodiff(graph, grads_required=graph.inputs[:1])
        (dx,) = ops.call(back.graph, tensors[3], inputs_dict=back.inputs_dict(info))
        streams = [addons.host_store(t) for t in (info.outputs[0], dx)]
    with popxl.Session(ir, "ipu_hw") as session:
        results = session.run()
    np.testing.assert_allclose(results[streams[0]], pairs(x, sin, cos, n, True), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[streams[1]], pairs(grad, -sin, cos, n, False), rtol=1e-5, atol=1e-5)


def test_halves_cost_what_neighbours_do() -> None:
    with popxl.Ir().main_graph:
        x, table = popxl.variable(np.zeros((2, 3, 2, 8), np.float16)), popxl.variable(np.zeros((1, 3, 4), np.float16))
        made = [
            turned(Binding(c), x, table, table, 8)._ir_tensor.producer for c in (RotaryPosEmbedHalves, RotaryPosEmbed)
        ]
    counts = [[getattr(work, "elements", work) for work in op.work()] for op in made]
    assert counts[0] == counts[1]


def test_names_of_outputs_have_the_scope_once() -> None:
    with popxl.Ir().main_graph, popxl.name_scope("layer"):
        x, table = popxl.variable(np.zeros((1, 3, 2, 4), np.float32)), popxl.variable(np.zeros((1, 3, 2), np.float32))
        assert turned(Binding(RotaryPosEmbedHalves), x, table, table, 4).id == "layer/turned"
        assert turned(Binding(RotaryPosEmbedHalves), x, table, table, 4).id.startswith("layer/turned__t")


def test_what_a_binding_refuses() -> None:
    ir = popxl.Ir()
    other = ir.create_empty_graph("other")
    with ir.main_graph:
        x, table = popxl.variable(np.zeros((1, 3, 2, 4), np.float32)), popxl.variable(np.zeros((1, 3, 2), np.float32))
        binding = Binding(RotaryPosEmbedHalves)
        settings = get_current_context()._get_op_settings("RotaryPosEmbedOp")
        inputs, outputs = {0: x.id, 1: table.id, 2: table.id}, {0: "y"}
        for graph, operands, values, message in (
            (other, inputs, (4, settings), r"graph 'other_subgraph\(0\)' is not the current one"),
            (ir.main_graph, inputs | {1: "none"}, (4, settings), "graph 'main' has no tensor 'none'"),
            (ir.main_graph, inputs, (settings,), r"1 values; \[rotary_dim\] and the op's settings are needed"),
            (ir.main_graph, inputs, (4,), r"1 values; \[rotary_dim\]"),
            (ir.main_graph, inputs, (), r"0 values; \[rotary_dim\]"),
        ):
            with pytest.raises(IrError, match=f"RotaryPosEmbedHalves.createOpInGraph: {message}"):
                binding.createOpInGraph(graph._pb_graph, operands, outputs, *values)
        with pytest.raises(TypeError, match="an op of createOpInGraph is needed"):
            get_current_context()._op_created(x)  # type: ignore[arg-type]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package ``own_ops`` with a module in C++, with cppimport under its own name."""
    folder = tmp_path / "own_ops"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "turn_binding.cpp").write_text(SOURCE)
    (folder / "turn.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    install(force=True)
    yield folder
    uninstall()
    for name in [
        n for n in sys.modules if n.startswith(("own_ops", "turn_binding", "ipuperf.frontends.cppimport.imp"))
    ]:
        del sys.modules[name]


def test_a_module_whose_source_is_known(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "FILES", {digest(package / "turn_binding.cpp"): HALVES.name})
    imported = importlib.import_module("own_ops.turn").turn_binding
    assert imported.RotaryPosEmbedOp == Binding(RotaryPosEmbedHalves)
    source = package / "turn_binding.cpp"
    assert cppimport.imp_from_filepath(source).RotaryPosEmbedOp == imported.RotaryPosEmbedOp
    assert sys.modules["turn_binding"].__file__ == str(HALVES)
    assert cppimport.imp("own_ops.turn_binding").RotaryPosEmbedOp == imported.RotaryPosEmbedOp
    source.write_text(SOURCE + "int other;\n")
    with pytest.raises(cppimport.CppOpError, match=r"'turn_binding'.*describe its op in Python"):
        cppimport.imp_from_filepath(source)


def test_a_description_beside_the_source(package: Path) -> None:
    """Python finds a module of the name before cppimport is asked."""
    (package / "turn_binding.py").write_text(
        "from ipuperf.popxl.custom_ops import Binding\nfrom ipuperf.ops import RotaryPosEmbed\n"
        "TurnOp = Binding(RotaryPosEmbed)\n"
    )
    assert importlib.import_module("own_ops.turn").turn_binding.TurnOp == Binding(RotaryPosEmbed)


def test_every_binding_has_a_file() -> None:
    for name in bindings.FILES.values():
        assert HALVES.with_name(name).is_file()
    assert bindings.binding_of(HALVES.parent) is None
