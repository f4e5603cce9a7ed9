"""Phased execution as a program: the order of its steps, overlap of the two tile sets, memory, phases, bad input."""

import logging
from functools import partial
from typing import Any

import numpy as np
import pytest

from ipuperf import ir as base
from ipuperf import ops as kernels
from ipuperf import popxl, simulate_session
from ipuperf import popxl_addons as addons
from ipuperf.ir import phases_of
from ipuperf.machine import load_machine
from ipuperf.popxl import ops
from ipuperf.popxl_addons.transforms.batch_serialisation import (
    RemoteHandle,
    batch_serial_buffer,
    batch_serialise,
    batch_serialise_fwd_and_grad,
    batch_serialise_non_overlapped,
    batch_serialise_overlapped,
)
from ipuperf.testing import overlap_share
from ipuperf.trace import Trace, check

SIZE, BATCH = 256, 64


class Layer(addons.Module):
    """``gelu(x @ w)``, several times."""

    def __init__(self, products: int = 1) -> None:
        super().__init__()
        self.products = products

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        w = self.add_variable_input("w", partial(np.zeros, (x.shape[-1], x.shape[-1])), x.dtype)
        for _ in range(self.products):
            x = ops.gelu(x @ w)
        return x


def phase(mode: Any, steps: int, products: int = 1) -> tuple[popxl.Ir, addons.GraphWithNamedArgs]:
    """One phase that loads from one row of a buffer and stores to the next."""
    ir = popxl.Ir()
    ir.num_io_tiles = 32 if mode != "compute" else 0
    with ir.main_graph, popxl.in_sequence(True):
        factories, graph = Layer(products).create_graph(popxl.TensorSpec((BATCH, SIZE), popxl.float32))
        buffer = batch_serial_buffer(graph.graph.outputs[0], steps, 2)
        made = batch_serialise(
            graph, steps, {graph.graph.inputs[0]: (buffer, 0)}, {}, {graph.graph.outputs[0]: (buffer, 1)}, io_mode=mode
        ).graph
        made.bind(factories.init()).call(0)
    return ir, made


LETTERS = {"HostLoad": "load", "RemoteLoad": "load", "HostStore": "store", "RemoteStore": "store", "Call": "compute"}


def order(graph: base.Graph) -> list[Any]:
    """Loads, computation and stores in order of execution; a loop is the list of its trip and the trips."""
    found: list[Any] = []
    for op in base.schedule(graph):
        if isinstance(op, kernels.Loop):
            found.append((order(op.called_graphs()[0]), op.trip_count))
        elif op.type in LETTERS:
            found.append(LETTERS[op.type])
    return found


@pytest.mark.parametrize("mode", ["compute", "io"])
@pytest.mark.parametrize("steps", [1, 4])
def test_without_overlap_each_step_loads_computes_and_stores(mode: str, steps: int) -> None:
    _, made = phase(mode, steps)
    assert order(made.graph._base) == [(["load", "compute", "store"], steps)]


@pytest.mark.parametrize("steps", [2, 3, 6])
def test_overlap_ramps_up_loops_and_ramps_down(steps: int) -> None:
    _, made = phase("io_overlapped", steps)
    up, steady, down = ["load", "load", "compute"], ["load", "store", "compute"], ["store", "compute", "store"]
    loop = [(steady, steps - 2)] if steps > 2 else []
    assert order(made.graph._base) == [*up, *loop, *down]


def test_one_step_cannot_overlap(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _, made = phase("io_overlapped", 1)
    assert "needs at least 2 steps" in caplog.text
    assert order(made.graph._base) == [(["load", "compute", "store"], 1)]


@pytest.mark.parametrize("mode", ["compute", "io", "io_overlapped"])
def test_transfers_run_on_the_tiles_of_the_mode(mode: str) -> None:
    _, made = phase(mode, 4)
    graphs = [made.graph._base, *made.graph._base.called_graphs()]
    sets = {op.tile_set for g in graphs for op in g.ops if op.type in ("RemoteLoad", "RemoteStore")}
    assert sets == {"compute" if mode == "compute" else "io"}
    copies = sum(op.type == "IoTileCopy" for g in graphs for op in g.ops)
    # the row, then one load and one store: in the loop, and in the ramps
    assert copies == {"compute": 0, "io": 1 + 2, "io_overlapped": 1 + 2 + (2 + 2)}[mode]


def timed(mode: str, steps: int = 8, products: int = 1) -> Trace:
    ir, _ = phase(mode, steps, products)
    session = popxl.Session(ir, "ipu_hw")
    with session:
        session.run()
    trace = simulate_session(session, load_machine("pod4"))
    assert check(trace) == []
    return trace


def test_load_compute_and_store_overlap_in_the_time_line() -> None:
    """Enough products that computing takes about as long as the transfers.

    Without overlap only the random seed of the next step is computed while the I/O tiles still store or load already.
    """
    apart, beside = timed("io", products=20), timed("io_overlapped", products=20)
    for kind in ("remote_load", "remote_store"):
        assert overlap_share(apart, (kind, "compute")) < 0.15
        assert overlap_share(beside, (kind, "compute")) > 0.5
    machine = load_machine("pod4")
    call = machine.chip.cycles(machine.host.start_seconds())
    assert beside.summary()["total_cycles"] - call < 0.8 * (apart.summary()["total_cycles"] - call)
    lanes = {int(lane) for lane in beside.table("steps").query("kind == 'compute' or kind == 'remote_load'")["lane"]}
    assert lanes == {0, 1}


def stacked(layers: int, phased: bool) -> popxl.Ir:
    """Layers one after the other: weights on chip, or each layer a phase with its weights in Streaming Memory."""
    ir, steps = popxl.Ir(), 4
    ir.num_host_transfers = steps
    with ir.main_graph, popxl.in_sequence(True):
        h2d = popxl.h2d_stream((8, SIZE), popxl.float32, "x")
        factories, graph = Layer().create_graph(h2d.spec)
        d2h = popxl.d2h_stream((8, SIZE), popxl.float32, "y")
        if not phased:
            weights = [factories.init() for _ in range(layers)]
            body = ir.create_empty_graph("micro_batch")
            with body, popxl.in_sequence(True):
                x = ops.host_load(h2d)
                for w in weights:
                    inner = popxl.graph_input(**w.w.spec, name="w", by_ref=True)
                    (x,) = graph.call(x, args={graph.args.w: inner})
                ops.host_store(d2h, x)
            ops.repeat(body, steps, *[w.w for w in weights])
            return ir
        x, y = graph.graph.inputs[0], graph.graph.outputs[0]
        buffers = addons.named_variable_buffers(factories, layers)
        x_buffer = batch_serial_buffer(x, steps, layers + 1)
        for row in range(layers):
            factories.init_remote(buffers, row)
        made = batch_serialise(graph, steps, {x: (x_buffer, 0)}, {}, {y: (x_buffer, 1)}, None, layers, "compute").graph
        load, names = addons.load_remote_graph(buffers, layers)
        for row in range(layers):
            made.bind(addons.NamedTensors.pack(names, load.call(row))).call(row)
    return ir


def peak(ir: popxl.Ir) -> int:
    """Bytes that are not always live, at most."""
    session = popxl.Session(ir, "ipu_hw")
    with session:
        session.run({s: np.zeros((4, *s.shape), np.float32) for s in session.expected_inputs()})
    return int(session.executable.trace.table("liveness")["not_always_live"].max())


def test_memory_does_not_grow_with_the_layers() -> None:
    weight = 4 * SIZE * SIZE
    few, many = peak(stacked(2, phased=True)), peak(stacked(12, phased=True))
    assert abs(many - few) < 0.1 * weight
    assert peak(stacked(12, phased=False)) - peak(stacked(2, phased=False)) >= 10 * weight
    assert many < 0.5 * peak(stacked(12, phased=False))


@pytest.mark.parametrize("mode", ["compute", "io", "io_overlapped"])
def test_loops_of_a_gradient_graph_are_backward(mode: Any) -> None:
    ir = popxl.Ir()
    ir.num_io_tiles = 32
    with ir.main_graph, popxl.in_sequence(True):
        factories, fwd = Layer().create_graph(popxl.TensorSpec((4, 8), popxl.float32))
        sums, grad = addons.autodiff_with_accumulation(fwd, fwd.args.tensors)
        x = fwd.graph.inputs[0]
        buffers = [batch_serial_buffer(t, 4) for t in (x, grad.graph.inputs[0])]
        loads = {x: (buffers[0], 0), grad.graph.inputs[0]: (buffers[1], 0)}
        made, back = batch_serialise_fwd_and_grad(fwd, grad, fwd.args, 4, loads, {}, {}, io_mode=mode)
        weights, accumulators = factories.init(), sums.init()
        made.graph.bind(weights).call(0)
        named = accumulators.copy()
        named.update(weights)
        back.graph.bind(named).call(0)
        ops.scaled_add_(weights.w, accumulators.accum.w, b=-0.1)
    found = phases_of(ir._ir.main_graph)

    def kinds(graph: popxl.Graph) -> set[str]:
        below = [graph._base, *graph._base.called_graphs()]
        return {found[op] for g in below for op in g.ops} - {"io"}

    assert kinds(made.graph.graph) == {"fwd"}
    assert kinds(back.graph.graph) == {"bwd"}
    assert [found[op] for op in ir._ir.main_graph.ops if op.type == "Call"] == ["fwd", "bwd"]
    assert [found[op] for op in ir._ir.main_graph.ops if op.type == "ScaledAddLhsInplace"] == ["update"]


@pytest.mark.parametrize("io", [False, True])
def test_weights_and_gradients_are_gathered_and_reduced_on_the_tiles_asked_for(io: bool) -> None:
    """Shards of a weight loaded and gathered, its gradient reduced to shards, a bias whole: two replicas."""
    ir = popxl.Ir(2)
    ir.num_io_tiles = 32 if io else 0
    with ir.main_graph, popxl.in_sequence(True):
        w = addons.VariableFactory(partial(np.arange, 6, dtype=np.float32), popxl.float32, "w")
        b = addons.VariableFactory(partial(np.arange, 3, dtype=np.float32), popxl.float32, "b")
        facts = addons.NamedVariableFactories(w=w, b=b)
        buffers = addons.named_variable_buffers(facts, shard_over_dict={"w": 2, "b": 1})
        facts.init_remote(buffers)
        load, names = addons.load_remote_graph(buffers, use_io_tiles=io)
        shards = addons.NamedTensors.pack(names, load.call(0))
        gather, names = addons.all_gather_replica_sharded_graph(
            addons.NamedTensors.pack(names, load.graph.outputs), use_io_tiles=io
        )
        whole = addons.NamedTensors.pack(names, gather.bind(shards).call())
        assert (whole.w.shape, whole.b.shape) == ((6,), (3,))
        reduce, names = addons.reduce_replica_sharded_graph(whole, "add", use_io_tiles=io)
        sums = addons.NamedTensors.pack(names, reduce.bind(whole).call())
        assert sums.w.shape == (3,)
        streams = {}
        for name, t in {"w": whole.w, "b": whole.b, "dw": sums.w, "db": sums.b}.items():
            streams[name] = popxl.d2h_stream(t.shape, t.dtype, name)
            ops.host_store(streams[name], ops.io_tile_copy(t) if io and name.startswith("d") else t)
    collectives = [op for g in ir._ir.all_graphs() for op in g.ops if op.type.startswith("Replicated")]
    assert {op.tile_set for op in collectives} == {"io" if io else "compute"}
    with popxl.Session(ir, "ipu_hw") as session:
        out = {name: session.run()[stream] for name, stream in streams.items()}
    np.testing.assert_array_equal(out["w"], [np.arange(6)] * 2)
    np.testing.assert_array_equal(out["b"], [np.arange(3)] * 2)
    np.testing.assert_array_equal(out["dw"], [[0, 2, 4], [6, 8, 10]])
    np.testing.assert_array_equal(out["db"], [[0, 2, 4]] * 2)
    assert check(simulate_session(session, load_machine("pod4"))) == []


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def made() -> Any:
    """A graph with input, output and buffers for them, inside its Ir."""

    class Case:
        ir = popxl.Ir()

    case = Case()
    case.ir.num_io_tiles = 32
    with case.ir.main_graph, popxl.in_sequence(True):
        case.factories, case.graph = Layer().create_graph(popxl.TensorSpec((4, 8), popxl.float32))
        case.x, case.y = case.graph.graph.inputs[0], case.graph.graph.outputs[0]
        case.buffer = batch_serial_buffer(case.y, 2, 2)
        yield case


def test_numbers_below_one(made: Any) -> None:
    args = ({made.x: (made.buffer, 0)}, {}, {made.y: (made.buffer, 1)})
    with pytest.raises(ValueError, match="rows is 0; a whole number of at least 1"):
        batch_serialise(made.graph, 2, *args, rows=0)
    with pytest.raises(ValueError, match="steps is 0; a whole number of at least 1"):
        batch_serialise(made.graph, 0, *args)
    with pytest.raises(ValueError, match="steps using overlapped IO is 1; a whole number of at least 2"):
        batch_serialise_overlapped(made.graph, 1, *args)
    for name in ("steps", "rows"):
        with pytest.raises(ValueError, match=f"batch_serial_buffer: {name} is 0"):
            batch_serial_buffer(made.y, **{name: 0})


def test_modes(made: Any) -> None:
    with pytest.raises(ValueError, match=r"Unknown 'io_mode' 'overlap'. Supported: \(compute, io, io_overlapped\)"):
        batch_serialise(made.graph, 2, {}, {}, {}, io_mode="overlap")
    made.ir.num_io_tiles = 0
    for mode in ("io", "io_overlapped"):
        with pytest.raises(ValueError, match="IR must have IO tiles"):
            batch_serialise(made.graph, 2, {}, {}, {}, io_mode=mode)
    with pytest.raises(ValueError, match="IR must have IO tiles"):
        batch_serialise_non_overlapped(made.graph, 2, {}, {}, {}, use_io_tiles=True)


@pytest.mark.parametrize("handle", [3, "x", (1, 2), None])
def test_what_is_no_handle(made: Any, handle: object) -> None:
    with pytest.raises(TypeError, match=r"load_handles of .*incompatible handle .*; allowed: a HostToDeviceStream, "):
        batch_serialise(made.graph, 2, {made.x: handle}, {}, {})
    with pytest.raises(TypeError, match="store_buffers of .* is no handle"):
        batch_serialise(made.graph, 2, {}, {}, {made.y: handle})


def test_rows_of_handles_are_numbers_from_0(made: Any) -> None:
    for row in (-1, 1.5):
        with pytest.raises(ValueError, match="load_handles of .*: row_offset is .*; a whole number of at least 0"):
            batch_serialise(made.graph, 2, {made.x: RemoteHandle(made.buffer, row)}, {}, {})


def test_tensors_that_the_graph_does_not_have(made: Any) -> None:
    _, other = Layer().create_graph(made.x.spec)
    foreign, name = other.graph.inputs[0], made.graph.name
    stream = popxl.d2h_stream(made.y.shape, made.y.dtype)
    with pytest.raises(ValueError, match="load_handles: .* is no input of graph") as error:
        batch_serialise(made.graph, 2, {foreign: (made.buffer, 0)}, {}, {})
    assert name in str(error.value)
    assert foreign.id in str(error.value)
    with pytest.raises(ValueError, match="load_handles: .* is no input of graph"):
        batch_serialise(made.graph, 2, {made.y: (made.buffer, 0)}, {}, {})
    with pytest.raises(ValueError, match="store_streams: .* is no input or output of graph"):
        batch_serialise(made.graph, 2, {}, {foreign: stream}, {})
    with pytest.raises(ValueError, match="store_buffers: .* is no input or output of graph"):
        batch_serialise(made.graph, 2, {}, {}, {foreign: (made.buffer, 0)})
    with pytest.raises(ValueError, match="seed_input .* is no input of graph"):
        batch_serialise(made.graph, 2, {}, {}, {}, foreign)


def test_handles_of_another_shape_or_type(made: Any) -> None:
    wide = popxl.remote_buffer((4, 9), popxl.float32, 2)
    half = popxl.h2d_stream((4, 8), popxl.float16)
    with pytest.raises(ValueError, match=r"the tensor is \(4, 8\) float32, remote buffer \d+ holds \(4, 9\) float32"):
        batch_serialise(made.graph, 2, {made.x: (wide, 0)}, {}, {})
    with pytest.raises(ValueError, match=r"the tensor is \(4, 8\) float32, stream .* holds \(4, 8\) float16"):
        batch_serialise(made.graph, 2, {made.x: half}, {}, {})


def test_a_gradient_without_a_handle(made: Any) -> None:
    _, grad = addons.autodiff_with_accumulation(made.graph, made.graph.args.tensors)
    args = (made.graph, grad, made.graph.args, 2, {made.x: (made.buffer, 0)}, {}, {})
    with pytest.raises(ValueError, match="FwdGrad input .* must have a load_handle"):
        batch_serialise_fwd_and_grad(*args)
    _, other = Layer().create_graph(made.x.spec)
    with pytest.raises(ValueError, match="store_buffers: .* is neither an input nor an output of"):
        batch_serialise_fwd_and_grad(*args[:-1], {other.graph.outputs[0]: (made.buffer, 0)})
    with pytest.raises(AttributeError, match="grad_graph_info"):
        batch_serialise_fwd_and_grad(made.graph, made.graph, *args[2:])
