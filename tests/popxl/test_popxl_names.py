"""Every public name of upstream's packages is here or says why it is not; exchanges, code loading, pictures."""

import importlib

import numpy as np
import pytest
from upstream_names import POPXL_NAMES, UPSTREAM

from ipuperf import popxl
from ipuperf.lowering import lower
from ipuperf.lowering.steps import RemoteTransfer
from ipuperf.machine import load_machine
from ipuperf.popxl import ops, transforms
from ipuperf.popxl.errors import CANNOT
from ipuperf.runtime.effects import WithoutEffectWarning


@pytest.mark.parametrize(("package", "name"), POPXL_NAMES)
def test_each_name_is_there_or_says_why_not(package, name):
    module = importlib.import_module(f"ipuperf.{package}")
    assert (name in vars(module)) == (f"{package}.{name}" not in CANNOT)
    if name in vars(module):
        return
    with pytest.raises(AttributeError) as error:
        getattr(module, name)
    text = str(error.value)
    assert text.startswith(f"{package}.{name} ")
    assert CANNOT[f"{package}.{name}"] in text


def test_reasons_are_for_names_that_are_missing():
    for qualified in CANNOT:
        package, name = qualified.rsplit(".", 1)
        assert name in UPSTREAM[package]
        assert name not in vars(importlib.import_module(f"ipuperf.{package}"))


def test_code_that_cannot_be_loaded():
    ir = popxl.Ir()
    with ir.main_graph as main:
        graph = ir.create_graph(lambda t: t + 1, popxl.variable(1))
        with pytest.raises(ValueError, match="from within that graph"):
            ops.remote_code_load(main, "executable")
        with pytest.raises(ValueError, match="allowed: executable"):
            ops.remote_code_load(graph, "disk")
        with pytest.raises(NotImplementedError, match="'io_buffer' is not supported; allowed: executable"):
            ops.remote_code_load(graph, "io_buffer")
        ops.remote_code_load(graph, "executable")
    with pytest.raises(popxl.errors.popart_exception, match="is never called, so it has no code"):
        lower(ir._ir, load_machine("gc200-1"))


def _loaded(program):
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones((64, 64), np.float32))
        graph = ir.create_graph(lambda t: ops.exp(ops.exp(t)), x)
        for step in program:
            if step == "load":
                ops.remote_code_load(graph, "executable")
            elif step == "call":
                ops.call(graph, x)
            else:
                ops.sin(x)
    return lower(ir._ir, load_machine("pod4"))


def test_code_is_there_from_its_load_to_its_last_call():
    always = _loaded(["sin", "call", "sin", "call", "sin"])
    loaded = _loaded(["sin", "load", "call", "sin", "load", "call", "sin"])
    (code,) = [v for v in loaded.memory.variables if v.category == "code"]
    names = loaded.memory.step_names[0]
    for first, last in code.intervals:
        assert names[first].startswith("RemoteCodeLoad")
        assert "EXP" in names[last - 1]
        assert "SIN" in names[last]
    assert len(code.intervals) == 2
    own, there = always.memory.categories[0], loaded.memory.categories[0]

    assert own["controlCode"].at(0) - there["controlCode"].at(0) + 2 * 24 == code.bytes.at(0)
    assert code.bytes.at(0) == 2 * 8  # two compute sets, a step of 8 bytes each
    transfers = [s for s in loaded.walk() if isinstance(s, RemoteTransfer)]
    assert [(s.direction, s.bytes) for s in transfers] == [("load", code.bytes.total)] * 2
    packet = load_machine("pod4").ipu_machine.remote_packet_bytes
    assert transfers[0].wire_bytes == np.maximum(code.bytes.dense(), packet).sum()


@pytest.mark.parametrize("program", [["call", "load", "call"], ["call"]])
def test_code_that_is_called_before_it_is_loaded_is_always_there(program):
    assert not [v for v in _loaded(program).memory.variables if v.category == "code"]


def test_what_locations_do_not_follow_is_said():
    def function():
        return 3

    assert popxl.context.op_debug_context(function) is function
    with pytest.warns(WithoutEffectWarning, match="op_debug_context.name. is without effect"):
        assert popxl.context.op_debug_context("called")(function) is function
    with pytest.raises(TypeError, match="a function or a name is needed"):
        popxl.context.op_debug_context(3)
    said = pytest.warns(WithoutEffectWarning, match="debug_context_frame_offset")
    with said, popxl.context.debug_context_frame_offset(2), popxl.Ir().main_graph:
        assert popxl.variable(1.0).name == "t"
    with pytest.raises(ValueError), popxl.context.debug_context_frame_offset("2"):
        pass


def test_exchanges_of_a_block_keep_their_values():
    ir = popxl.Ir()
    ir.num_io_tiles = 32
    with ir.main_graph:
        source, target = popxl.h2d_stream((4,), popxl.float32), popxl.d2h_stream((4,), popxl.float32)
        buffer = popxl.remote_buffer((4,), popxl.float32, 2)
        with transforms.io_tile_exchange():
            x = ops.host_load(source)
            y = ops.remote_load(buffer, 1)
        total = ops.io_tile_copy(x) + ops.io_tile_copy(y)
        with transforms.merge_exchange():
            ops.host_store(target, total)
            ops.remote_store(buffer, 0, total)
        popxl.remote_variable(np.full(4, 2, np.float32), buffer, 1)
    with popxl.Session(ir, "ipu_hw") as session:
        found = session.run({source: np.arange(4, dtype=np.float32)})[target]
    np.testing.assert_array_equal(found, np.arange(4) + 2)


def test_dependent_exchanges_do_not_overlap():
    buffer_of = popxl.remote_buffer
    with popxl.Ir().main_graph:
        buffer = buffer_of((), popxl.float32, 1)
        with pytest.raises(RuntimeError, match="needs the result of"), transforms.io_tile_exchange():
            ops.remote_store(buffer, 0, ops.remote_load(buffer, 0))
        with pytest.raises(RuntimeError, match="are no exchanges"), transforms.io_tile_exchange():
            popxl.variable(1.0) + 1.0
        with transforms.io_tile_exchange(verify_overlap=False):
            ops.remote_store(buffer, 0, ops.remote_load(buffer, 0))


def test_sums_of_gradients_are_additions_already():
    ir = popxl.Ir()
    with ir.main_graph:
        graph = ir.create_graph(lambda t: t * t + t * t * t, popxl.variable(1.0))
        info = transforms.autodiff(graph)
        assert transforms.decompose_sum(info.graph) == info.graph
        assert not [op for op in info.graph._base.ops if len(op.inputs) > 2 and op.type.startswith("Sum")]
    with pytest.raises(TypeError, match="popxl.Graph is needed"):
        transforms.decompose_sum(ir)


def test_pictures_of_graphs(tmp_path):
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(1.0, name="x")
        ops.call(ir.create_graph(lambda t: t + 1, x), x)
    ir.dot_checkpoint("before", tmp_path / "dots")
    files = sorted(path.name for path in (tmp_path / "dots").iterdir())
    assert len(files) == 2
    assert files[0].startswith("before_")
    text = (tmp_path / "dots" / "before_main.dot").read_text()
    assert text.startswith('digraph "main" {')
    assert '"x" -> "Call.' in text
