"""Lowering of small programs: phases, layouts, calls, remote and host steps, memory over time."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import BOOL, CONTEXT, FLOAT16, FLOAT32, INT32, Stream, TensorSpec, Variable
from ipuperf.lowering import (
    Collective,
    DoesNotFitError,
    Phase,
    ProgramWarning,
    RemoteTransfer,
    Repeat,
    StreamCopy,
    Sync,
    linear,
    lower,
)
from ipuperf.lowering.streaming_memory import check_capacity
from ipuperf.machine import MachineError, load_machine, load_scaled
from ipuperf.runtime.executable import Executable

GC200 = load_machine("gc200-1")
POD4 = load_machine("pod4")


def variable(program, name, shape, dtype=FLOAT32):
    graph = program.main_graph
    tensor = Variable(
        graph.tensor_id(name), TensorSpec(tuple(shape), dtype), graph, np.zeros(shape, dtype.numpy), program.grouping()
    )
    graph.add(tensor)
    return tensor


def stream(program, name, shape, direction, dtype=FLOAT32):
    graph = program.main_graph
    tensor = Stream(graph.tensor_id(name), TensorSpec(tuple(shape), dtype), graph, direction)
    graph.add(tensor)
    return tensor


def load(graph, source):
    init = graph.create(ops.Init, [], ["init"], shape=source.shape, dtype=source.dtype, init="undefined")
    return graph.create(ops.HostLoad, init.outputs, ["loaded"], stream=source).outputs[0]


def add(graph, a, b):
    return graph.create(ops.Add, [a, b], ["sum"]).outputs[0]


def kinds(program):
    return [s.kind if isinstance(s, Phase) else type(s).__name__ for s in program.walk()]


def test_elementwise_op_on_equal_layouts_needs_no_exchange():
    program = ir.Ir()
    a, b = (variable(program, n, (4096,)) for n in "ab")
    add(program.main_graph, a, b)
    lowered = lower(program, GC200)
    assert kinds(lowered) == ["compute"]
    (phase,) = lowered.walk()
    expected = ops.vertices.binary("ADD", FLOAT32, 4096).cycles
    per_tile = linear(4096, 4, 2, 1472).elements
    vertices = int(expected(np.array([per_tile.max]), GC200.chip)[0])
    assert phase.cycles.max == GC200.chip.launch_cycles + vertices
    assert phase.cycles.active == per_tile.active  # nothing is launched where no vertex is
    assert phase.flops == 4096


def test_operand_that_lies_elsewhere_is_exchanged():
    program = ir.Ir()
    a, b = variable(program, "a", (4096,), FLOAT16), variable(program, "b", (4096,), FLOAT32)
    graph = program.main_graph
    wide = graph.create(ops.Cast, [a], ["wide"], dtype=FLOAT32).outputs[0]
    add(graph, wide, b)
    lowered = lower(program, GC200)
    assert kinds(lowered) == ["compute", "Sync", "exchange", "compute"]
    exchange = next(s for s in lowered.walk() if isinstance(s, Phase) and s.kind == "exchange")
    assert exchange.bytes_in == exchange.bytes_out == 4096 * 4


@pytest.mark.parametrize(("elements", "copied"), [(0, []), (1, ["Sync", "exchange", "compute"])])
def test_nothing_is_copied_of_an_empty_tensor(elements, copied):
    program = ir.Ir()
    program.main_graph.create(ops.Identity, [variable(program, "a", (elements,), BOOL)], ["b"])
    assert kinds(lower(program, GC200)) == copied


def test_filling_with_zeros_reads_nothing():
    """The gradient of a slice brings in the operand once, for the copy into the zeros; the zeros bring in nothing."""
    program = ir.Ir()
    part = variable(program, "part", (512, 512), FLOAT16)
    program.main_graph.create(ops.SliceGrad, [part], ["whole"], shape=(512, 1536), axis=1, start=0, stop=512)
    steps = [s for s in lower(program, GC200).walk() if isinstance(s, Phase)]
    assert [(s.kind, s.vertex.split("<")[0]) for s in steps[:2]] == [("compute", "popops::Fill"), ("exchange", "")]
    moved = sum(s.bytes_in for s in steps)
    assert 512 * 512 * 2 <= moved < 1.05 * 512 * 512 * 2


@pytest.mark.parametrize(("columns", "proportion", "passes"), [(4096, 0.6, 1), (4096, 0.003, 4), (8192, 0.003, 16)])
def test_the_passes_of_a_product_are_a_loop_whose_code_is_there_once(columns, proportion, passes):
    program = ir.Ir()
    a, b = variable(program, "a", (16, 256), FLOAT16), variable(program, "b", (256, columns), FLOAT16)
    program.main_graph.create(ops.MatMul, [a, b], ["c"], available_memory_proportion=proportion)
    lowered = lower(program, GC200)
    names = [s.name for s in lowered.walk() if isinstance(s, Phase) and s.kind == "compute"]
    assert max(names.count(name) for name in names) == passes
    state = lowered.memory.categories[0]["vertexInstanceState"]
    assert state.max == len(set(names)) * GC200.chip.code.vertex_state_bytes


def test_a_tile_reads_the_statistics_of_its_rows_only():
    """1,536 rows of 1,024 halves lie on 1,468 tiles, two or three rows on each: the gradient of a layer norm brings the
    scale to all of them, and three of each of the two statistics of a row."""
    program = ir.Ir()
    graph = program.main_graph
    x, grad = (variable(program, name, (1536, 1024), FLOAT16) for name in ("x", "grad"))
    scale = variable(program, "scale", (1024,), FLOAT16)
    mean, inverse = (variable(program, name, (1536,)) for name in ("mean", "inverse"))
    graph.create(ops.GroupNormalizationGrad, [x, scale, mean, inverse, grad], ["dx", "ds", "db"], num_groups=1)
    first = next(s for s in lower(program, GC200).walk() if isinstance(s, Phase) and s.kind == "exchange")
    assert first.name == "GroupNormalizationGrad/operands"
    assert first.bytes_in == first.cycles.active * (1024 * 2 + 2 * 3 * 4)


def test_views_take_no_steps_and_no_memory():
    program = ir.Ir()
    graph = program.main_graph
    a = variable(program, "a", (64, 64))
    flat = graph.create(ops.Reshape, [add(graph, a, a)], ["flat"], shape=(4096,)).outputs[0]
    add(graph, flat, flat)
    lowered = lower(program, GC200)
    assert kinds(lowered) == ["compute"] * 2
    assert (
        lowered.memory.peak_not_always_live() == 3 * 4096 * 4
    )  # the variable, the sum (reshaped in place), the result


def test_matmul_phases_follow_the_plan():
    program = ir.Ir()
    a, b = variable(program, "a", (64, 784)), variable(program, "b", (784, 128))
    program.main_graph.create(ops.MatMul, [a, b], ["c"])
    lowered = lower(program, GC200)
    from ipuperf.lowering import plan_matmul

    plan = plan_matmul(GC200.chip, 1, 64, 784, 128, "f32", "f32")
    compute = [s for s in lowered.walk() if isinstance(s, Phase) and s.kind == "compute"]
    assert plan.compute in {s.slowest for s in compute}
    assert sum(s.flops for s in compute) == 2 * 64 * 784 * 128
    assert max(s.cycles.active for s in compute) <= plan.tiles


def test_host_streams_become_stream_copies():
    program = ir.Ir()
    graph = program.main_graph
    source, sink = stream(program, "in", (8, 4), "h2d"), stream(program, "out", (8, 4), "d2h")
    value = load(graph, source)
    graph.create(ops.HostStore, [value], [], stream=sink)
    copies = [s for s in lower(program, GC200).walk() if isinstance(s, StreamCopy)]
    assert [(s.direction, s.bytes, s.stream) for s in copies] == [("h2d", 128, "in"), ("d2h", 128, "out")]


def test_functions_are_lowered_once_and_called():
    program = ir.Ir()
    main, sub = program.main_graph, program.create_graph("double")
    x = sub.add_input(TensorSpec((4096,), FLOAT32), "x")
    sub.add_output(add(sub, x, x))
    a = variable(program, "a", (4096,))
    for _ in range(3):
        (a,) = main.create(ops.Call, [a], ["y"], callee=sub).outputs
    lowered = lower(program, GC200)
    assert list(lowered.functions) == ["double_subgraph(0)@0"]
    assert kinds(lowered) == ["compute"] * 3


def test_loop_becomes_a_repeat():
    program = ir.Ir()
    main, sub = program.main_graph, program.create_graph("double")
    x = sub.add_input(TensorSpec((4096,), FLOAT32), "x")
    sub.add_output(add(sub, x, x))
    a = variable(program, "a", (4096,))
    main.create(ops.Loop, [a], ["y"], callee=sub, trip_count=5)
    lowered = lower(program, GC200)
    assert any(isinstance(s, Repeat) and s.count == 5 for s in lowered.ipus[0].steps)
    assert [s.name.partition("::")[2][:6] for s in lowered.walk()] == [
        "Binary",
        "Memcpy",
        "Memcpy",
    ] * 5  # carried values


def test_operand_by_value_that_the_callee_changes_is_copied_first():
    def lowered(by_ref):
        program = ir.Ir()
        main, sub = program.main_graph, program.create_graph("change")
        x = sub.add_input(TensorSpec((4096,), FLOAT32), "x", by_ref=by_ref)
        sub.create(ops.AccumulatorScale, [x], ["y"], factor=2.0)
        main.create(ops.Call, [variable(program, "a", (4096,))], [], callee=sub)
        return lower(program, GC200)

    value, reference = lowered(False), lowered(True)
    assert next(s.name for s in value.walk()) == "poplar::Memcpy32"
    assert len(list(value.walk())) == len(list(reference.walk())) + 1
    assert value.memory.peak_not_always_live() == 2 * reference.memory.peak_not_always_live() == 2 * 4096 * 4


def test_collective_states_groups_and_bytes():
    program = ir.Ir(4)
    a = variable(program, "a", (1000,))
    program.main_graph.create(ops.ReplicatedAllReduce, [a], ["r"], op="add", group=program.grouping())
    (step,) = [s for s in lower(program, POD4).walk() if isinstance(s, Collective)]
    assert (step.kind, step.bytes, step.groups) == ("all_reduce", 4000, ((0, 1, 2, 3),))
    assert step.reduce_cycles > 0


def remote_program():
    program = ir.Ir(4)
    graph = program.main_graph
    buffer = program.remote_buffer((100_000,), FLOAT32, 1)
    offset = graph.constant(np.int32(0), INT32, "offset")
    init = graph.create(ops.Init, [], ["init"], shape=(100_000,), dtype=FLOAT32, init="undefined").outputs
    with CONTEXT.sequence(True):
        loaded = graph.create(ops.RemoteLoad, [*init, offset], ["loaded"], buffer=buffer).outputs[0]
        graph.create(ops.RemoteStore, [loaded, offset], [], buffer=buffer)
    return program


def test_remote_transfers_count_bytes_and_wire_bytes():
    steps = [s for s in lower(remote_program(), POD4).walk() if isinstance(s, RemoteTransfer)]
    assert [(s.direction, s.bytes) for s in steps] == [("load", 400_000), ("store", 400_000)]
    assert all(s.wire_bytes >= s.bytes for s in steps)


def test_remote_memory_on_a_machine_without_it_is_refused():
    with pytest.raises(MachineError, match="no Streaming Memory"):
        lower(remote_program(), load_machine("gc2-1"))


@pytest.mark.parametrize(("replicas", "fits"), [(1, 200), (2, 120), (4, 60), (5, 60), (8, 60)])
def test_remote_buffers_that_do_not_fit_into_streaming_memory_are_refused(replicas: int, fits: int):
    """256 GB for the four IPUs of an IPU-Machine; each replica has a copy."""
    machine = load_machine("pod16")
    program = ir.Ir(replicas)
    program.remote_buffer((1_000,), FLOAT32, fits * 250_000)
    check_capacity(program, machine)
    program.remote_buffer((1_000,), FLOAT32, 100 * 250_000)
    with pytest.raises(MachineError, match="bytes of Streaming Memory .* would help: fewer entries"):
        check_capacity(program, machine)
    with pytest.raises(MachineError, match="bytes of Streaming Memory"):
        Executable(program, machine).device_program  # noqa: B018 - a property that raises
    check_capacity(program, load_scaled("pod16", {"ipu_machine.ddr_capacity": 4}))


def test_the_three_largest_buffers_are_named():
    program = ir.Ir()
    for entries in (3, 1, 5, 2, 4):
        program.remote_buffer((1_000,), FLOAT32, entries * 25_000_000)
    with pytest.raises(MachineError) as caught:
        check_capacity(program, load_machine("pod4"))
    named = re.search("largest on a replica: (.*); would help", str(caught.value))
    assert re.findall(r" ([\d,]+)(?:, |$)", named[1]) == ["500,000,000,000", "400,000,000,000", "300,000,000,000"]


def test_too_many_replicas_are_refused():
    program = ir.Ir(8)
    add(program.main_graph, *(variable(program, n, (4,)) for n in "ab"))
    with pytest.raises(MachineError, match=r"pod4: 8 replicas x 1 IPUs per replica need 8 IPUs, there are 4"):
        lower(program, POD4)


def test_intermediates_live_from_definition_to_last_use():
    program = ir.Ir()
    graph = program.main_graph
    a = variable(program, "a", (4096,))
    with CONTEXT.sequence(True):
        first = add(graph, a, a)
        second = add(graph, a, a)
        add(graph, first, second)
    memory = lower(program, GC200).memory
    rows = {v.name: tuple(v.intervals) for v in memory.variables}
    assert rows[first.id] == ((1, 4),)
    assert rows[second.id] == ((2, 4),)
    size = 4096 * 4
    assert memory.not_always_live[0].tolist() == [0, 2 * size, 3 * size, 4 * size]


def test_conservation_of_memory():
    memory = lower(remote_program(), POD4).memory
    for ipu, timeline in memory.not_always_live.items():
        total = np.asarray(timeline)
        assert (total >= 0).all()
        assert memory.peak[ipu].sum() == total.max()
        steps = np.zeros(len(total), dtype=np.int64)
        for row in memory.variables:
            for first, last in row.intervals:
                steps[first:last] += row.bytes.total
        assert np.array_equal(steps, total)
        assert (np.asarray(memory.max_tile[ipu]) >= memory.always_live_bytes(ipu) // POD4.chip.tiles).all()


def test_program_that_does_not_fit_says_where_and_by_how_much():
    program = ir.Ir()
    big = 1472 * 100_000
    a, b = (variable(program, n, (big,)) for n in "ab")
    add(program.main_graph, a, b)
    (warning,) = lower(program, GC200).texts("does not fit")
    assert "IPU 0 tile " in warning
    assert "bytes over the 638,976 there are" in warning
    assert "largest: " in warning
    assert any(name in warning for name in ("a 4", "b 4", "sum 4"))
    with pytest.raises(DoesNotFitError, match="does not fit: IPU 0 tile"):
        lower(program, GC200, strict_memory=True)


def test_a_warning_is_of_the_kind_that_made_it_whatever_it_says():
    program = ir.Ir()
    add(program.main_graph, *(variable(program, n, (1472 * 100_000,)) for n in ("does not fit", "b")))
    lowered = lower(program, GC200)
    (warning,) = lowered.warnings
    assert warning.kind == "does not fit"
    made_up = replace(lowered, warnings=(ProgramWarning("low confidence", "does not fit: it only says so"),))
    assert made_up.texts("does not fit") == []
    assert made_up.texts("low confidence") == ["does not fit: it only says so"]


def test_the_op_table_holds_what_ops_are_for():
    program = ir.Ir()
    x = variable(program, "x", (64,))
    graph = program.create_graph("my_bwd_filter")
    inner = graph.add_input(x.spec, "x")
    (y,) = graph.create(ops.Relu, [inner], ["y"]).outputs
    graph.add_output(y)
    program.main_graph.create(ops.Call, [x], ["y"], callee=graph)
    with CONTEXT.phase("bwd"):
        program.main_graph.create(ops.Relu, [x], ["z"])
    found = [(op.type, op.graph, op.phase) for op in lower(program, GC200).ops]
    assert sorted(found) == [("Call", "main", "fwd"), ("Relu", "main", "bwd"), ("Relu", graph.name, "fwd")]


def test_lowering_is_deterministic_and_printable():
    first, second = lower(remote_program(), POD4), lower(remote_program(), POD4)
    assert first.describe() == second.describe()
    assert "RemoteTransfer" in first.describe()


def test_syncs_precede_exchanges():
    program = ir.Ir()
    a, b = variable(program, "a", (64, 784)), variable(program, "b", (784, 128))
    program.main_graph.create(ops.MatMul, [a, b], ["c"])
    steps = list(lower(program, GC200).walk())
    for before, step in zip(steps, steps[1:], strict=False):
        if isinstance(step, Phase) and step.kind == "exchange":
            assert isinstance(before, Sync)


def test_costs_by_op_add_up_to_the_program():
    program = ir.Ir()
    a, b = variable(program, "a", (64, 784)), variable(program, "b", (784, 128))
    product = program.main_graph.create(ops.MatMul, [a, b], ["c"]).outputs[0]
    add(program.main_graph, product, product)
    lowered = lower(program, GC200)
    costs = lowered.costs()
    steps = [s for s in lowered.walk() if isinstance(s, (Phase, Sync))]
    assert set(costs) == {0, 1}
    assert sum(c.cycles for c in costs.values()) == sum(s.cost.cycles for s in steps)
    assert costs[0].flops == 2 * 64 * 784 * 128
    assert costs[1].flops == 64 * 128
