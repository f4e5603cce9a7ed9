"""``popxl.io_tiles``, ``ops.io_tile_copy`` and ``Ir.num_io_tiles``: a loop that loads while it computes."""

from dataclasses import replace

import numpy as np
import pytest

from ipuperf import popxl, simulate_session
from ipuperf.machine import load_machine
from ipuperf.popxl import ops
from ipuperf.trace import check

SIZE = 4096


def squares(io_tiles: int) -> tuple[popxl.Session, popxl.HostToDeviceStream, popxl.DeviceToHostStream]:
    """Four micro-batches, each squared after many steps; with I/O tiles the next one is loaded meanwhile."""
    ir = popxl.Ir()
    ir.num_host_transfers = 4
    ir.num_io_tiles = io_tiles
    with ir.main_graph, popxl.in_sequence(True):
        h2d, d2h = popxl.h2d_stream((SIZE,), popxl.float32, "x"), popxl.d2h_stream((SIZE,), popxl.float32, "y")
        with popxl.io_tiles():
            loaded = ops.host_load(h2d)
        for step in range(4):
            x = ops.io_tile_copy(loaded) if io_tiles else loaded
            if step < 3:
                with popxl.io_tiles():
                    loaded = ops.host_load(h2d)
            for _ in range(30):
                x = ops.abs(x)
            ops.host_store(d2h, x * x)
    return popxl.Session(ir, "ipu_hw"), h2d, d2h


def test_overlapped_loads_give_the_same_and_take_less_time() -> None:
    data = np.random.default_rng(0).normal(size=(4, SIZE)).astype(np.float32)
    made, times = load_machine("gc200-1"), []
    machine = replace(made, host=replace(made.host, callback_seconds=0.0))
    for io_tiles in (0, 64):
        session, h2d, d2h = squares(io_tiles)
        with session:
            np.testing.assert_array_equal(session.run({h2d: data})[d2h], data * data)
        trace = simulate_session(session, machine)
        assert check(trace) == []
        times.append(trace.summary()["total_cycles"])
    assert times[1] < times[0]


def test_copies_go_back_and_forth() -> None:
    ir = popxl.Ir()
    ir.num_io_tiles = 32
    with ir.main_graph, popxl.in_sequence(True):
        there = ops.io_tile_copy(popxl.variable(np.arange(6, dtype=np.float32)))
        back = ops.io_tile_copy(there)
        d2h = popxl.d2h_stream(back.shape, back.dtype)
        ops.host_store(d2h, back)
    assert [op.attributes["destination"] for op in ir._ir.main_graph.ops[:2]] == ["io", "compute"]
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run()[d2h], np.arange(6))
        with pytest.raises(RuntimeError, match="num_io_tiles cannot be changed after a Session was built"):
            ir.num_io_tiles = 64


def test_constants_are_on_the_tiles_of_their_readers() -> None:
    """Rows from the host fill a remote buffer on the I/O tiles: the loop's counter begins as a constant, which is
    also read on the compute tiles."""
    ir = popxl.Ir()
    ir.num_io_tiles, ir.num_host_transfers = 32, 3
    with ir.main_graph, popxl.in_sequence(True):
        h2d = popxl.h2d_stream((8,), popxl.float32)
        buffer = popxl.remote_buffer((8,), popxl.float32, 3)

        @popxl.io_tiles()
        def fill(i: popxl.Tensor) -> popxl.Tensor:
            ops.remote_store(buffer, i, ops.host_load(h2d))
            return i + 1

        first = popxl.constant(0, popxl.int32)
        ops.repeat(ir.create_graph(fill, first), 3, first)
        five = ops.cast(first, popxl.float32) + 5
        out = popxl.d2h_stream((8,), popxl.float32)
        for row in range(3):
            ops.host_store(out, ops.remote_load(buffer, row) * five)
    data = np.arange(24, dtype=np.float32).reshape(3, 8)
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run({h2d: data})[out], data * 5)
        assert session.executable.device_program.io_tiles == 32


def test_a_call_is_counted_once_beside_steps_of_the_io_tiles() -> None:
    ir = popxl.Ir(4)
    ir.num_io_tiles = 32
    with ir.main_graph, popxl.in_sequence(True):
        x = popxl.variable(np.ones(64, np.float32))
        out = popxl.d2h_stream((64,), popxl.float32)
        stored = ops.io_tile_copy(x)
        with popxl.io_tiles():
            ops.host_store(out, stored)
        ops.collectives.replicated_reduce_scatter(x, "mean")
    with popxl.Session(ir, "ipu_hw") as session:
        session.run()
    operations = session.executable.trace.operations().set_index("type")
    assert operations.loc["ReplicatedReduceScatter", "calls"] == 4


def test_a_constant_that_a_call_returns_is_on_the_compute_tiles() -> None:
    ir = popxl.Ir()
    ir.num_io_tiles = 32
    with ir.main_graph, popxl.in_sequence(True):
        (constant,) = ops.call(ir.create_graph(lambda: popxl.constant(np.arange(8, dtype=np.float32))))
        out = popxl.d2h_stream((8,), popxl.float32)
        stored = ops.io_tile_copy(constant)
        with popxl.io_tiles():
            ops.host_store(out, stored)
    with popxl.Session(ir, "ipu_hw") as session:
        assert session.run()[out].tolist() == list(range(8))


def test_a_copy_starts_where_its_operand_is() -> None:
    ir = popxl.Ir()
    ir.num_io_tiles = 32
    with ir.main_graph, popxl.in_sequence(True):
        buffer = popxl.remote_buffer((8,), popxl.float32, 1)
        x = popxl.variable(np.arange(8, dtype=np.float32))

        def load() -> popxl.Tensor:
            with popxl.io_tiles():
                return ops.remote_load(buffer, 0)

        def to_io(x: popxl.Tensor) -> popxl.Tensor:
            with popxl.io_tiles():
                return ops.io_tile_copy(x)

        def to_compute(x: popxl.Tensor) -> popxl.Tensor:
            return ops.io_tile_copy(x)

        def doubled_and_stored(x: popxl.Tensor) -> None:
            y = x + x
            with popxl.io_tiles():
                ops.remote_store(buffer, 0, ops.io_tile_copy(y))

        def read_then_copied(x: popxl.Tensor) -> tuple[popxl.Tensor, popxl.Tensor]:
            return ops.call(ir.create_graph(lambda x: x * 2, x), x)[0], ops.io_tile_copy(x)

        (there,) = ops.call(ir.create_graph(to_io, x), x)
        (back,) = ops.call(ir.create_graph(to_compute, there), there)
        ops.call(ir.create_graph(doubled_and_stored, back), back)
        (loaded,) = ops.call(ir.create_graph(load))
        result = ops.io_tile_copy(loaded)
        twice, again = ops.call(ir.create_graph(read_then_copied, result), result)
        d2h = [popxl.d2h_stream((8,), popxl.float32) for _ in range(2)]
        ops.host_store(d2h[0], twice)
        ops.host_store(d2h[1], ops.io_tile_copy(again))
    with popxl.Session(ir, "ipu_hw") as session:
        out = session.run()
    np.testing.assert_array_equal(out[d2h[0]], 4 * np.arange(8))
    np.testing.assert_array_equal(out[d2h[1]], 2 * np.arange(8))
