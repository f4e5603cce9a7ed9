"""``ops.ipu_copy``, slices at run-time positions, counters, and on which IPU tensors are."""

from collections.abc import Callable

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.lowering import lower
from ipuperf.machine import load_machine
from ipuperf.popxl import ops


def run(build: Callable[[], list[popxl.Tensor]]) -> list[np.ndarray]:
    """The values of the tensors that ``build`` makes in a main graph."""
    ir = popxl.Ir()
    with ir.main_graph:
        streams = []
        for tensor in build():
            stream = popxl.d2h_stream(tensor.shape, tensor.dtype)
            with popxl.ipu(tensor.ipu):
                ops.host_store(stream, tensor)
            streams.append(stream)
    lower(ir._ir, load_machine("pod4"))
    with popxl.Session(ir, "ipu_hw") as session:
        out = session.run()
    return [out[s] for s in streams]


# -- copies ------------------------------------------------------------------------------------------------------------


def test_copy_keeps_the_value_and_changes_the_ipu() -> None:
    def build() -> list[popxl.Tensor]:
        with popxl.ipu(0):
            x = popxl.variable(np.arange(6, dtype=np.float32), name="x") + 1
        y = ops.ipu_copy(x, 1)
        assert (x.ipu, y.ipu, y.name, y.spec) == (0, 1, f"{x.name}_c1", x.spec)
        with popxl.ipu(1):
            z = y * 2
        return [z, z.copy_to_ipu(3), z.copy_to_ipu(0, 1)]

    for value in run(build):
        np.testing.assert_array_equal(value, (np.arange(6) + 1) * 2)


def test_source_of_variables_and_constants_is_stated() -> None:
    def build() -> list[popxl.Tensor]:
        return [popxl.variable(1.0).copy_to_ipu(1, 0), popxl.constant(2.0).copy_to_ipu(2, 0)]

    assert run(build) == [1.0, 2.0]
    with popxl.Ir().main_graph:
        for tensor in (popxl.variable(1.0), popxl.constant(1.0)):
            with pytest.raises(TypeError, match="src"):
                tensor.copy_to_ipu(1)


def test_source_of_a_variable_is_where_it_is_read() -> None:
    with popxl.Ir().main_graph:
        x = popxl.variable(1.0)
        with popxl.ipu(2):
            x + 1
        assert ops.ipu_copy(x, 1).ipu == 1
        assert x.ipu == 2


def test_source_of_a_graph_input() -> None:
    """Where it is read inside; where callers have it."""
    ir = popxl.Ir()
    with ir.main_graph:

        def reads(x: popxl.Tensor) -> popxl.Tensor:
            with popxl.ipu(2):
                x + 1
            return x.copy_to_ipu(1)

        inner = ir.create_graph(reads, popxl.variable(1.0))
        assert [op.source for op in inner._base.ops if op.type == "IpuCopy"] == [2]

        called = ir.create_empty_graph("called")
        with called:
            x = popxl.graph_input((), popxl.float32, "x")
        with popxl.ipu(3):
            ops.call(called, popxl.variable(1.0) + 1)
        with called:
            popxl.graph_output(x.copy_to_ipu(1))
        assert called._base.ops[0].source == 3


def test_source_is_what_a_called_graph_gives() -> None:
    ir = popxl.Ir()
    with ir.main_graph:

        def add(x: popxl.Tensor) -> popxl.Tensor:
            with popxl.ipu(2):
                return x + 1

        (y,) = ops.call(ir.create_graph(add, popxl.variable(1.0)), popxl.variable(1.0))
        assert y.ipu == 2
        assert y.copy_to_ipu(1).ipu == 1


def test_ops_outside_of_an_ipu_context_are_on_ipu_0() -> None:
    with popxl.Ir().main_graph:
        x = popxl.variable(1.0) + 1
        assert x.ipu == 0
        assert x.copy_to_ipu(1).ipu == 1
        with popxl.ipu() as number:
            assert number == 0


def test_gradient_graph_is_on_the_ipus_of_the_forward_graph() -> None:
    """y = (x * 3 on IPU 1) copied to IPU 2, squared there: dy/dx = 18 x."""
    ir = popxl.Ir()
    with ir.main_graph:

        def forward(x: popxl.Tensor) -> popxl.Tensor:
            with popxl.ipu(1):
                y = (x * 3 + x * 0).copy_to_ipu(2)
            with popxl.ipu(2):
                return y * y

        graph = ir.create_graph(forward, popxl.TensorSpec((), popxl.float32))
        info = popxl.transforms.autodiff(graph)
        places = {op.type: op.ipu for op in info.graph._base.ops}
        assert places["IpuCopy"] == 1
        assert {op.ipu for op in info.graph._base.ops} == {1, 2}
        with popxl.ipu(1):
            x = popxl.variable(5.0)
            call = ops.call_with_info(graph, x)
        with popxl.ipu(2):
            dy = popxl.variable(1.0)
        out = popxl.d2h_stream((), popxl.float32)
        (dx,) = ops.call(info.graph, dy, inputs_dict=info.inputs_dict(call))
        with popxl.ipu(1):
            ops.host_store(out, dx)
    lower(ir._ir, load_machine("pod4"))
    with popxl.Session(ir, "ipu_hw") as session:
        assert session.run()[out] == 90.0


# -- slices and counters -----------------------------------------------------------------------------------------------


def test_dynamic_slice_and_update() -> None:
    data = np.arange(24, dtype=np.float32).reshape(4, 6)

    def build() -> list[popxl.Tensor]:
        t = popxl.variable(data)
        index = popxl.variable(np.array([1, 2], np.uint32))
        update = popxl.constant(np.full((2, 3), -1.0), popxl.float32)
        taken = ops.dynamic_slice(t, index, axes=[0, 1], sizes=[2, 3], no_overlap=True)
        changed = ops.dynamic_update(t, index, update, axes=[0, 1], sizes=[2, 3], no_overlap=True)
        assert (taken.name, changed.name) == ("dynamic_slice_out", "dynamic_update_out")
        return [taken, changed, t + 0]

    taken, changed, same = run(build)
    np.testing.assert_array_equal(taken, data[1:3, 2:5])
    expected = data.copy()
    expected[1:3, 2:5] = -1
    np.testing.assert_array_equal(changed, expected)
    np.testing.assert_array_equal(same, data)


def test_a_ring_with_a_counter() -> None:
    """Six values into a ring of four, in place."""
    ir = popxl.Ir()
    ir.num_host_transfers = 6
    with ir.main_graph, popxl.in_sequence(True):
        ring, counter = popxl.variable(np.zeros((4, 2), np.float32)), popxl.variable(np.zeros(1, np.uint32))
        stream = popxl.h2d_stream((1, 2), popxl.float32)

        def put(ring: popxl.TensorByRef, counter: popxl.TensorByRef) -> None:
            x = ops.host_load(stream)
            ops.dynamic_update_(ring, counter, x, axes=[0], sizes=[1], no_overlap=True)
            ops.increment_mod_(counter, 1, 4)

        ops.repeat(ir.create_graph(put, ring, counter), 6, ring, counter)
    x = np.arange(12, dtype=np.float32).reshape(6, 1, 2)
    with popxl.Session(ir, "ipu_hw") as session:
        session.run({stream: x})
        np.testing.assert_array_equal(session.get_tensor_data(ring), x[[4, 5, 2, 3], 0])
        assert session.get_tensor_data(counter) == [2]


def test_increment_mod() -> None:
    def build() -> list[popxl.Tensor]:
        t = popxl.variable(np.array([0, 3, 4], np.int32))
        return [ops.increment_mod(t, 2, 5), t + 0]

    new, old = run(build)
    np.testing.assert_array_equal(new, [2, 0, 1])
    np.testing.assert_array_equal(old, [0, 3, 4])
