"""Ops in C++ that are compiled with recording headers: values, gradients, cost, and one error for what is wrong."""

from __future__ import annotations

import ctypes
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf import cppimport, poptorch, popxl  # noqa: E402
from ipuperf import popxl_addons as addons  # noqa: E402
from ipuperf.cppimport import CppOpError  # noqa: E402
from ipuperf.frontends.cppimport import recorder as recorders  # noqa: E402
from ipuperf.ir import FLOAT16, FLOAT32, IrError  # noqa: E402
from ipuperf.machine import load_machine  # noqa: E402
from ipuperf.ops.updates.update_vertices import fused_cycles  # noqa: E402
from ipuperf.popxl import ops  # noqa: E402
from ipuperf.popxl.context import get_current_context  # noqa: E402
from ipuperf.popxl.custom_ops import custom_op  # noqa: E402
from ipuperf.runtime import custom_ops  # noqa: E402
from ipuperf.runtime.install import install, uninstall  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

SOURCES = Path(__file__).with_name("recorded")
CUBE = ("Cube", "com.acme", 1)


@pytest.fixture(autouse=True)
def front_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(custom_ops, "_CLASSES", dict(custom_ops._CLASSES))
    install(force=True)
    yield
    uninstall()


def source_in(folder: Path, name: str = "cube.cpp", **changes: str) -> Path:
    """A copy of a source, with texts replaced."""
    text = (SOURCES / name).read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    (folder / name).write_text(text)
    return folder / name


class Cubes(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([0.5, 1.5, -2.0], dtype=dtype))

    def forward(self, x: torch.Tensor) -> Any:
        (y,) = poptorch.custom_op([x * self.w], *CUBE, example_outputs=[x], attributes={"scale": 2.0})
        return y, poptorch.identity_loss(y.sum(), "none")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_poptorch_trains_through_an_op_and_its_gradient_op(dtype: torch.dtype) -> None:
    # ``make`` would have put the library there; its source lies beside it.
    ctypes.cdll.LoadLibrary(str(SOURCES / "libcube.so"))
    model = Cubes(dtype)
    w = model.w.detach().float().clone().requires_grad_()
    x = torch.linspace(-1, 1, 12, dtype=dtype).reshape(4, 3)
    training = poptorch.trainingModel(model, poptorch.Options(), torch.optim.SGD(model.parameters(), lr=0.125))
    y, _ = training(x)
    eager = 2 * (x.float() * w) ** 3
    eager.sum().backward()
    tolerance = 1e-6 if dtype == torch.float32 else 5e-3
    torch.testing.assert_close(y.detach().float(), eager.detach(), rtol=tolerance, atol=tolerance)
    assert w.grad is not None
    torch.testing.assert_close(model.w.detach().float(), w.detach() - 0.125 * w.grad, rtol=tolerance, atol=tolerance)


def cube_op(source: Path, shape: tuple[int, ...] = (3,), dtype: Any = np.float32, **attributes: Any) -> Any:
    """An op of a library in PopXL's graph."""
    importlib.import_module("ipuperf.frontends.cppimport.libraries").load(source)
    op_class: Any = custom_ops.registered(CUBE)
    with popxl.Ir().main_graph:
        return custom_op(op_class, popxl.variable(np.ones(shape, dtype)), **attributes)


@pytest.mark.parametrize(("dtype", "kind"), [(np.float32, FLOAT32), (np.float16, FLOAT16)])
def test_several_operations_cost_what_a_generated_vertex_does(dtype: Any, kind: Any) -> None:
    (work,) = cube_op(SOURCES / "cube.cpp", (64, 48), dtype)._ir_tensor.producer.work()
    count, chip = np.array([0, 1, 100, 4096], np.int64), load_machine("gc200-1").chip
    np.testing.assert_array_equal(work.cycles(count, chip), fused_cycles(kind, 1, 0, 3)(count, chip))
    assert (work.elements, work.flops) == (64 * 48, 3 * 64 * 48)


def test_what_the_source_refuses_names_its_words() -> None:
    with pytest.raises(IrError, match=r"Cube.*cube\.cpp: Cube: rank 0 is too small"):
        cube_op(SOURCES / "cube.cpp", ())
    with pytest.raises(IrError, match=r"Cube.*cube\.cpp: attribute scale: a number is needed"):
        cube_op(SOURCES / "cube.cpp", scale="two")


def test_a_source_that_does_not_parse_is_one_error_with_the_compilers_first_line(tmp_path: Path) -> None:
    source = source_in(tmp_path, **{"outInfo(0) = inInfo(0); }\n  const": "outInfo(0) = nothing; }\n  const"})
    with pytest.raises(CppOpError, match=r"cube\.cpp does not compile.*cube\.cpp:\d+:\d+: error:.*nothing.*correct it"):
        ctypes.cdll.LoadLibrary(str(source.with_suffix(".so")))


def test_a_codelet_that_nobody_knows_asks_for_a_description(tmp_path: Path) -> None:
    grow = "    auto scale = getOp<CubeOp>().scale;\n"
    vertex = """    auto set = graph().addComputeSet("cubes");
    auto vertex = graph().addVertex(set, "CubeVertex", {{"x", get(inId(0))}});
    graph().setTileMapping(vertex, 0);
    prog.add(poplar::program::Execute(set));
"""
    source = source_in(tmp_path, **{grow: grow + vertex})
    with pytest.raises(IrError, match=r"codelet 'CubeVertex'.*describe the op in Python"):
        cube_op(source)


def test_a_library_without_the_op_of_its_name(tmp_path: Path) -> None:
    source = source_in(tmp_path, **{"static popart::popx::OpxCreator<CubeOpx> opx({ids::Cube});\n": ""})
    with pytest.raises(IrError, match=r"no Opx is registered for com\.acme\.Cube:1"):
        cube_op(source)


def test_a_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = recorders.library_of(SOURCES / "cube.cpp")
    monkeypatch.setattr(recorders, "_compile", lambda *_: pytest.fail("compiled again"))
    assert recorders.library_of(SOURCES / "cube.cpp") == first
    assert first.contents == {"ops": [list(CUBE)], "bindings": []}


def turned(x: np.ndarray, sin: np.ndarray, cos: np.ndarray, factor: float, sign: int = 1) -> np.ndarray:
    """Halves as complex numbers, turned."""
    half = x.shape[-1] // 2
    pairs = (x[..., :half] + 1j * x[..., half:]) * (cos + sign * 1j * sin) * factor
    return np.concatenate([pairs.real, pairs.imag], -1)


def add_turn(binding: Any, operands: list[popxl.Tensor], *values: Any, **named: Any) -> popxl.Tensor:
    """As programs write it."""
    context = get_current_context()
    graph = context.graph
    settings = context._get_op_settings("Turn")
    ids = {number: operand.id for number, operand in enumerate(operands)}
    named = {**named, "settings": settings} if named else {}
    op = binding.createOpInGraph(
        graph._pb_graph, ids, {0: graph._create_tensor_id("turned")}, *values, *([] if named else [settings]), **named
    )
    context._op_created(op)
    return popxl.Tensor._from_pb_tensor(op.outTensor(0))


@pytest.mark.parametrize("values", [{"factor": 1.5, "back": False}, (1.5, False)])
def test_a_module_of_popxl_with_its_gradient(values: Any) -> None:
    binding = cppimport.imp_from_filepath(SOURCES / "turn_binding.cpp").TurnOp
    rng = np.random.default_rng(3)
    x, grad = (rng.normal(size=(2, 3, 8)).astype(np.float32) for _ in range(2))
    sin, cos = (rng.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        tensors = [popxl.variable(array) for array in (x, sin, cos, grad)]

        def write(*operands: popxl.Tensor) -> popxl.Tensor:
            if isinstance(values, tuple):
                return add_turn(binding, list(operands), *values)
            return add_turn(binding, list(operands), **values)

        graph = ir.create_graph(write, *tensors[:3])
        info = ops.call_with_info(graph, *tensors[:3])
        back = popxl.transforms.autodiff(graph, grads_required=graph.inputs[:1])
        (dx,) = ops.call(back.graph, tensors[3], inputs_dict=back.inputs_dict(info))
        streams = [addons.host_store(tensor) for tensor in (info.outputs[0], dx)]
    with popxl.Session(ir, "ipu_hw") as session:
        results = session.run()
    np.testing.assert_allclose(results[streams[0]], turned(x, sin, cos, 1.5), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(results[streams[1]], turned(grad, sin, cos, 1.5, -1), rtol=1e-5, atol=1e-5)


def test_what_a_module_of_popxl_refuses() -> None:
    binding = cppimport.imp_from_filepath(SOURCES / "turn_binding.cpp").TurnOp
    with popxl.Ir().main_graph:
        x, table = popxl.variable(np.ones((2, 8), np.float32)), popxl.variable(np.ones(3, np.float32))
        with pytest.raises(IrError, match=r"2 values; \[factor, back\] and the op's settings are needed"):
            add_turn(binding, [x, table, table], 1.5)
        with pytest.raises(IrError, match=r"turn_binding\.cpp: dimensions \d and \d cannot be broadcast together"):
            add_turn(binding, [x, table, table], 1.5, False)
        with pytest.raises(TypeError, match="no number, text or list of these"):
            add_turn(binding, [x, table, table], object(), False)


def test_without_a_compiler_a_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-compiler")
    with pytest.raises(CppOpError, match=r"'turn_binding'.*needs g\+\+.*describe its op in Python"):
        cppimport.imp_from_filepath(SOURCES / "turn_binding.cpp")


CREATOR = """#include "turn.hpp"
#include <popart/opmanager.hpp>
static popart::OpDefinitions definitions({{turn::Turn, {}}});
static popart::OpCreator<turn::TurnOp> creator(definitions, [](const popart::OpCreatorInfo &info) {
  auto factor = info.attributes.getAttribute<popart::Attributes::Float>("factor");
  return std::unique_ptr<popart::Op>(new turn::TurnOp(info.opid, factor, false, info.settings));
});
"""


def test_a_library_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "a_creator.cpp").write_text(CREATOR)
    for name in ("turn.hpp", "turn_opx.cpp"):
        shutil.copy(SOURCES / name, tmp_path)
    ctypes.cdll.LoadLibrary(str(tmp_path / "build" / "libturn.so"))
    op_class: Any = custom_ops.registered(("Turn", "test.ops", 1))
    with popxl.Ir().main_graph:
        x, table = popxl.variable(np.ones((2, 8), np.float32)), popxl.variable(np.ones(4, np.float32))
        assert custom_op(op_class, x, table, table, factor=2.0).shape == (2, 8)
        with pytest.raises(IrError, match="attribute factor is missing"):
            custom_op(op_class, x, table, table)
