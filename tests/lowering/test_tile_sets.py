"""Ops on I/O tiles: where their tensors lie, what a copy between the tile sets costs, what does not fit together."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import CONTEXT, FLOAT16, FLOAT32, IrError, ShapeError, Stream, TensorSpec
from ipuperf.lowering import lower
from ipuperf.lowering.steps import IoTiles, Phase, TileSetCopy
from ipuperf.machine import load_machine
from ipuperf.numerics import Evaluator

GC200 = load_machine("gc200-1")
CHIP = GC200.chip
SIZE = 320_000


def create(op_class, inputs=(), names=("t",), tiles="compute", **attributes):
    with CONTEXT.on_tiles(tiles):
        made = CONTEXT.graph.create(op_class, list(inputs), list(names), **attributes)
    return made.outputs[0] if made.outputs else None


def load_compute_store(io_tiles=32):
    """Load on I/O tiles, square on compute tiles, store from I/O tiles."""
    program = ir.Ir()
    program.num_io_tiles = io_tiles
    graph, spec = program.main_graph, TensorSpec((SIZE,), FLOAT32)
    streams = [Stream(graph.tensor_id(d), spec, graph, d) for d in ("h2d", "d2h")]
    with CONTEXT.use_graph(graph), CONTEXT.sequence(True):
        for stream in streams:
            graph.add(stream)
        empty = create(ops.Init, (), ("empty",), "io", shape=(SIZE,), dtype=FLOAT32, init="undefined")
        loaded = create(ops.HostLoad, [empty], ("loaded",), "io", stream=streams[0])
        x = create(ops.IoTileCopy, [loaded], ("x",), destination="compute")
        y = create(ops.Mul, [x, x], ("y",))
        leaving = create(ops.IoTileCopy, [y], ("leaving",), destination="io")
        create(ops.HostStore, [leaving], (), "io", stream=streams[1])
    return program, streams


def test_values_are_those_without_io_tiles():
    program, (h2d, d2h) = load_compute_store()
    data = np.arange(SIZE, dtype=np.float32).reshape(1, 1, SIZE)
    np.testing.assert_array_equal(Evaluator(program).run({h2d: data})[d2h], data * data)


def test_compute_has_the_other_tiles():
    for io_tiles in (32, 192):
        found = lower(load_compute_store(io_tiles)[0], GC200)
        assert found.io_tiles == io_tiles
        (work,) = [step for step in found.walk() if isinstance(step, Phase) and step.kind == "compute"]
        assert work.cycles.tiles == CHIP.tiles - io_tiles
    with pytest.raises(IrError, match="num_io_tiles is 1472, allowed on .*: 0 to 1471"):
        lower(load_compute_store(CHIP.tiles)[0], GC200)


def test_a_copy_lasts_as_long_as_its_busiest_tile():
    """10,000 elements of 4 bytes leave each of 32 I/O tiles; the compute tiles receive far fewer each."""
    found = lower(load_compute_store()[0], GC200)
    copies = [step for step in found.walk() if isinstance(step, TileSetCopy)]
    assert [copy.destination for copy in copies] == ["compute", "io"]
    expected = CHIP.exchange_setup_cycles + -(-40_000 // CHIP.exchange_bytes_per_cycle)
    assert [(copy.bytes, copy.sync, copy.cycles) for copy in copies] == [(4 * SIZE, CHIP.sync_cycles, expected)] * 2


def test_io_steps_stand_apart_in_the_tree():
    steps = lower(load_compute_store()[0], GC200).ipus[0].steps
    apart = [type(step).__name__ for step in steps if isinstance(step, (IoTiles, TileSetCopy))]
    assert apart == ["IoTiles", "TileSetCopy", "TileSetCopy", "IoTiles"]
    assert "I/O tiles:" in lower(load_compute_store()[0], GC200).describe()


def test_memory_of_both_buffers():
    """The loaded tensor lies on the last 32 tiles, its copy on the first 1,440."""
    memory = lower(load_compute_store()[0], GC200).memory
    held = {info.name: info.bytes.dense() for info in memory.variables}
    for name in ("empty", "leaving"):
        assert not held[name][: CHIP.tiles - 32].any()
        assert list(held[name][CHIP.tiles - 32 :]) == [40_000] * 32
    assert not held["x"][CHIP.tiles - 32 :].any()
    assert held["x"].sum() >= 4 * SIZE
    code = memory.categories[0]
    assert all(vector.tiles == CHIP.tiles for vector in code.values())
    headers = code["hostExchangePacketHeader"].dense()
    assert headers[-1] > 0
    assert headers[0] == 0
    assert memory.peak[0].shape == (CHIP.tiles,)


def test_without_io_tiles_ops_run_with_the_others():
    """``popxl.io_tiles()`` without I/O tiles, as before; only a copy between the sets needs them."""
    program, _ = load_compute_store(0)
    with pytest.raises(IrError, match=r"IoTileCopy.*: there are no I/O tiles; set num_io_tiles"):
        lower(program, GC200)


def test_operands_have_to_be_on_the_tiles_of_the_op():
    program = ir.Ir()
    program.num_io_tiles = 32
    with CONTEXT.use_graph(program.main_graph):
        there = create(ops.Init, (), ("there",), "io", shape=(64,), dtype=FLOAT32, init="zero")
        create(ops.Mul, [there, there], ("y",))
    with pytest.raises(IrError, match="it is on the compute tiles, its operand 'there' lies on the io tiles; copy it"):
        lower(program, GC200)


def test_bad_copies_are_refused():
    with CONTEXT.use_graph(ir.Ir().main_graph):
        one = create(ops.Init, (), ("one",), shape=(4,), dtype=FLOAT32, init="zero")
        other = create(ops.Init, (), ("other",), shape=(5,), dtype=FLOAT32, init="zero")
        half = create(ops.Init, (), ("half",), shape=(4,), dtype=FLOAT16, init="zero")
        with pytest.raises(IrError, match="destination='host'; allowed: compute, io"):
            create(ops.IoTileCopy, [one], destination="host")
        with pytest.raises(ShapeError, match=r"the buffer has shape \(5,\), the operand \(4,\)"):
            create(ops.IoTileCopy, [one, other], destination="io")
        with pytest.raises(IrError, match="float16"):
            create(ops.IoTileCopy, [one, half], destination="io")
