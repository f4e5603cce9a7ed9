"""Every public name of upstream's packages is here or says why it is not; exchanges, code loading, pictures."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.popxl import ops, transforms
from ipuperf.popxl.errors import CANNOT
from ipuperf.popxl.surface import REFUSING, UPSTREAM, missing

NAMES = [(package, name) for package, names in UPSTREAM.items() for name in names]


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_each_name_is_there_or_says_why_not(package, name):
    module, reasons = importlib.import_module(f"ipuperf.{package}"), dict(missing())
    if name in vars(module):
        assert reasons.get(f"{package}.{name}") == REFUSING.get(f"{package}.{name}")
        return
    with pytest.raises(AttributeError) as error:
        getattr(module, name)
    text = str(error.value)
    assert text.startswith(f"{package}.{name} ")
    assert CANNOT.get(f"{package}.{name}", "not supported by ipuperf yet") in text


def test_reasons_are_for_names_that_are_missing():
    for qualified in CANNOT:
        package, name = qualified.rsplit(".", 1)
        assert name in UPSTREAM[package]
        assert name not in vars(importlib.import_module(f"ipuperf.{package}"))


def test_code_stays_in_tile_memory():
    ir = popxl.Ir()
    with ir.main_graph as main:
        graph = ir.create_graph(lambda t: t + 1, popxl.variable(1))
        with pytest.raises(ValueError, match="from within that graph"):
            ops.remote_code_load(main, "executable")
        with pytest.raises(ValueError, match="allowed: executable"):
            ops.remote_code_load(graph, "disk")
        with pytest.raises(NotImplementedError, match="stays in tile memory"):
            ops.remote_code_load(graph, "executable")


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
