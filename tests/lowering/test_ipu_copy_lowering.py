"""Programs of several IPUs: merged copies, host exchanges, stashes, loops, calls, and where memory is counted."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import CONTEXT, FLOAT16, FLOAT32, UINT32, Stream, TensorSpec, Variable
from ipuperf.lowering import Call as CallStep
from ipuperf.lowering import (
    HostCopy,
    HostExchange,
    InterIpuCopy,
    IpuTransfer,
    Phase,
    Repeat,
    StreamCopy,
    linear,
    lower,
)
from ipuperf.machine import load_machine
from ipuperf.simulation import simulate
from ipuperf.trace import check

POD4 = load_machine("pod4")


def variable(program, name, shape, dtype=FLOAT32, ipu=None):
    graph = program.main_graph
    tensor = Variable(
        graph.tensor_id(name), TensorSpec(tuple(shape), dtype), graph, np.zeros(shape, dtype.numpy), program.grouping()
    )
    tensor.ipu = ipu
    graph.add(tensor)
    return tensor


def stream(program, name, shape, direction):
    graph = program.main_graph
    tensor = Stream(graph.tensor_id(name), TensorSpec(tuple(shape), FLOAT32), graph, direction)
    graph.add(tensor)
    return tensor


def create(graph, op_class, inputs, ipu=None, **attributes):
    """The output of an op in sequence, on an IPU."""
    names = ["t"] if op_class is not ops.HostStore else []
    with CONTEXT.on_ipu(ipu or 0):
        outputs = graph.create(op_class, inputs, names, **attributes).outputs
    return outputs[0] if outputs else None


def move(graph, tensor, source, destination, *buffer):
    return create(graph, ops.IpuCopy, [tensor, *buffer], source=source, destination=destination)


def load(graph, source, ipu):
    init = create(graph, ops.Init, [], ipu, shape=source.shape, dtype=source.dtype, init="undefined")
    return create(graph, ops.HostLoad, [init], ipu, stream=source)


def leaves(program, ipu, *types):
    return [step for step in program.walk(ipu) if isinstance(step, types)]


@pytest.fixture
def built():
    """A program whose ops are created in sequence."""
    program = ir.Ir()
    with CONTEXT.use_graph(program.main_graph), CONTEXT.sequence(True):
        yield program


# -- merging -----------------------------------------------------------------------------------------------------------


def test_copies_that_follow_each_other_are_one_exchange(built):
    graph = built.main_graph
    x, y, z = (variable(built, name, (100 * (ipu + 1),), ipu=ipu) for ipu, name in enumerate("xyz"))
    outs = [
        move(graph, x, 0, 1),
        move(graph, y, 1, 2),
        move(graph, y, 1, 0),
        move(graph, x, 0, 1),
        move(graph, z, 2, 1),
    ]
    for out in outs:
        create(graph, ops.Relu, [out], out.ipu)
    program = lower(built, POD4)
    steps = [leaves(program, ipu, InterIpuCopy) for ipu in range(3)]
    assert steps[0] == steps[1] == steps[2]
    (step,) = steps[0]
    assert step.participants == (0, 1, 2)
    merged = {(0, 1): 800, (1, 2): 800, (1, 0): 800, (2, 1): 1200}  # the two of 0->1 together
    assert step.copies == tuple(IpuTransfer(*pair, size) for pair, size in merged.items())
    assert (step.received(1), step.sent(1)) == (2000, 1600)
    assert "800 bytes 0->1, 800 bytes 1->2" in program.describe()
    assert check(simulate(program, POD4)) == []


def test_work_in_between_separates(built):
    graph = built.main_graph
    x = variable(built, "x", (64,), ipu=0)
    first = move(graph, x, 0, 1)
    create(graph, ops.Relu, [first], 1)
    move(graph, x, 0, 2)
    program = lower(built, POD4)
    assert [step.participants for step in leaves(program, 0, InterIpuCopy)] == [(0, 1), (0, 2)]
    kinds = [type(step).__name__ for step in program.walk(1)]
    assert kinds == ["ExternalSync", "InterIpuCopy", "Phase", "ExternalSync"]  # IPU 1 meets 0 and 2 before their copy


def test_a_copy_that_waits_for_another_is_not_merged(built):
    graph = built.main_graph
    x = variable(built, "x", (64,), ipu=0)
    view = create(graph, ops.ReshapeInplace, [move(graph, x, 0, 1)], 1, shape=(8, 8))
    move(graph, view, 1, 2)  # forwards what has just arrived
    assert len(leaves(lower(built, POD4), 1, InterIpuCopy)) == 2


def test_a_buffer_that_is_still_being_sent_is_not_overwritten(built):
    graph = built.main_graph
    x, buffer = variable(built, "x", (64,), ipu=0), variable(built, "buffer", (64,), ipu=1)
    move(graph, buffer, 1, 2)
    move(graph, x, 0, 1, buffer)
    assert len(leaves(lower(built, POD4), 1, InterIpuCopy)) == 2


def test_layout_follows_the_source_and_memory_is_where_it_lies(built):
    graph = built.main_graph
    a, b = variable(built, "a", (256, 256), ipu=0), variable(built, "b", (256, 256), ipu=0)
    product = create(graph, ops.MatMul, [a, b], 0)
    there = move(graph, product, 0, 1)
    buffer = variable(built, "buffer", (256, 256), ipu=1)
    kept = move(graph, product, 0, 1, buffer)
    create(graph, ops.Add, [there, kept], 1)
    program = lower(built, POD4)
    on_one = [step for step in program.walk(1) if isinstance(step, Phase)]
    assert [step.kind for step in on_one] == ["compute"]  # both operands lie alike: no exchange before the addition
    where = {info.name: info.ipu for info in program.memory.variables}
    assert (where["a"], where["b"], where["buffer"]) == (0, 0, 1)
    assert {where[name] for name in (product.id, there.id)} == {0, 1}
    assert program.memory.step_names[0][-1] == program.memory.step_names[1][1] == "IpuCopy(0->1) and 1 more"
    (arrived,) = [info for info in program.memory.variables if info.name == there.id]
    assert list(arrived.intervals) == [(1, 3)]  # from the exchange to the addition
    for ipu in (0, 1):
        assert program.memory.categories[ipu]["globalExchangeCode"].total > 0


# -- host exchanges ----------------------------------------------------------------------------------------------------


def feeding(program, ipus):
    """HostLoads on each of ``ipus``, an op, and a store from the last of them."""
    graph = program.main_graph
    loaded = [load(graph, stream(program, f"s{n}", (64,), "h2d"), ipu) for n, ipu in enumerate(ipus)]
    result = [create(graph, ops.Relu, [tensor], ipu) for tensor, ipu in zip(loaded, ipus)][-1]
    create(graph, ops.HostStore, [result], ipus[-1], stream=stream(program, "out", (64,), "d2h"))


def test_single_pipeline_leaves_each_ipu_alone(built):
    feeding(built, [0, 3])
    program = lower(built, POD4)
    assert [[step.stream for step in leaves(program, ipu, StreamCopy)] for ipu in range(4)] == [
        ["s0"], [], [], ["s1", "out"]
    ]  # fmt: skip


def test_full_makes_all_ipus_stand(built):
    feeding(built, [0, 3])
    program = lower(built, POD4, sync_pattern="full")
    for ipu in range(4):
        first, second = leaves(program, ipu, HostExchange)
        assert leaves(program, ipu, StreamCopy) == []
        assert first.participants == second.participants == (0, 1, 2, 3)
        assert first.copies == (HostCopy(0, "h2d", 256, "s0"), HostCopy(3, "h2d", 256, "s1"))
        assert second.copies == (HostCopy(3, "d2h", 256, "out"),)
    assert "HostExchange HostLoad(s0) and 1 more of IPUs 0, 1, 2, 3: h2d s0 256 bytes on IPU 0" in program.describe()
    trace = simulate(program, POD4)
    assert check(trace) == []
    stood = trace.expand()
    stood = stood[stood["kind"] == "host_end"]
    ended = [sorted((stood["start"] + stood["dur"])[stood["ipu"] == ipu]) for ipu in range(4)]
    assert len(ended[0]) == 2
    assert ended[0] == ended[1] == ended[2] == ended[3]


def test_ladder_sides_stand_apart(built):
    feeding(built, [0, 2, 3])
    program = lower(built, POD4, sync_pattern="replica_and_ladder")
    found = [[(s.participants, len(s.copies)) for s in leaves(program, ipu, HostExchange)] for ipu in range(4)]
    even, odd = [((0, 2), 2)], [((1, 3), 1), ((1, 3), 1)]
    assert found == [even, odd, even, odd]


def test_ipus_that_only_stand_for_the_host_io_of_a_graph_call_it(built):
    """IPUs 1 to 3 do nothing in the called graph but wait: its exchange is theirs as well."""
    body = built.create_graph("body")
    source = stream(built, "s", (64,), "h2d")
    with CONTEXT.detached(), CONTEXT.use_graph(body):
        create(body, ops.Relu, [load(body, source, 0)])
    variable(built, "far", (4,), ipu=3)
    built.main_graph.create(ops.Call, [], [], callee=body)
    program = lower(built, POD4, sync_pattern="full")
    for ipu in range(4):
        (exchange,) = leaves(program, ipu, HostExchange)
        assert exchange.participants == (0, 1, 2, 3)
    assert check(simulate(program, POD4)) == []


def test_one_stream_twice_is_two_exchanges(built):
    source = stream(built, "s", (64,), "h2d")
    load(built.main_graph, source, 0)
    load(built.main_graph, source, 0)
    variable(built, "far", (4,), ipu=1)
    program = lower(built, POD4, sync_pattern="full")
    assert [len(step.copies) for step in leaves(program, 1, HostExchange)] == [1, 1]
    simulate(program, POD4)


def test_one_ipu_has_nobody_to_wait_for(built):
    feeding(built, [0])
    assert list(lower(built, POD4, sync_pattern="full").walk()) == list(lower(built, POD4).walk())


def test_unknown_pattern(built):
    with pytest.raises(ir.IrError, match="sync_pattern is 'half'; allowed: full, single_pipeline, replica_and_ladder"):
        lower(built, POD4, sync_pattern="half")


# -- stashes -----------------------------------------------------------------------------------------------------------


def stash_program(built, producer):
    """A stash of 5 activations that is written and read at a counter."""
    graph = built.main_graph
    stash, counter = variable(built, "stash", (5, 64, 64), FLOAT16), variable(built, "counter", (1,), UINT32)
    activation = producer(graph)
    row = create(graph, ops.ReshapeInplace, [activation], shape=(1, 64, 64))
    written = create(graph, ops.DynamicUpdateInplace, [stash, counter, row], axes=[0], sizes=[1])
    read = create(graph, ops.DynamicSlice, [written, counter], axes=[0], sizes=[1])
    create(graph, ops.Add, [read, row])
    create(graph, ops.IncrementModInplace, [counter], increment=1, modulus=5)
    return activation


def test_stash_lies_as_what_is_written_to_it(built):
    a, b = (variable(built, name, (64, 64), FLOAT16) for name in "ab")
    stash_program(built, lambda graph: create(graph, ops.MatMul, [a, b]))
    program = lower(built, POD4)
    dynamic = [s for s in program.walk() if isinstance(s, Phase) and s.name.startswith(("Dynamic", "popops::Dynamic"))]
    exchanges = [step for step in dynamic if step.kind == "exchange"]
    tiles = dynamic[1].cycles.active
    assert [step.kind for step in dynamic] == ["exchange", "compute", "exchange", "compute"]
    assert [step.bytes_in for step in exchanges] == [4 * tiles] * 2  # the index only
    add = next(s for s in program.walk() if isinstance(s, Phase) and "BinaryOp1D<ADD" in s.name)
    assert add.cycles.active == tiles
    assert "Add/operands" not in [step.name for step in program.walk()]  # what comes out lies as what went in
    (info,) = [v for v in program.memory.variables if v.name == "stash"]
    assert 5 * 64 * 64 * 2 <= info.bytes.total < 5 * 64 * 64 * 2 + 16 * tiles
    assert any("IncrementModInPlace" in text for text in program.texts("low confidence"))


def test_slice_of_a_variable_costs_the_vertex_of_its_tiles(built):
    table, at = variable(built, "table", (10, 2944)), variable(built, "at", (1,), UINT32)
    create(built.main_graph, ops.DynamicSlice, [table, at], axes=[0], sizes=[1])
    exchange, compute = (step for step in lower(built, POD4).walk() if isinstance(step, Phase))
    unit = linear(2944, 4, 2, 1472).elements
    assert exchange.bytes_in == 4 * unit.active
    assert compute.cycles.active == unit.active
    worker = -(-unit.max // 6)
    assert compute.slowest == 25 + 6 * (39 + 24 + 2 * -(-worker // 2))


def test_a_base_that_does_not_lie_sliced_is_moved(built):
    graph = built.main_graph
    x, at = variable(built, "x", (10, 64)), variable(built, "at", (1,), UINT32)
    base = create(graph, ops.Relu, [x])
    create(graph, ops.DynamicSlice, [base, at], axes=[0], sizes=[1])
    moved = next(s for s in lower(built, POD4).walk() if isinstance(s, Phase) and s.name == "DynamicSlice/index")
    assert moved.bytes_in == 10 * 64 * 4 + 4 * linear(64, 4, 2, 1472).elements.active


def test_stash_through_calls_and_loops(built):
    """The stash is a by-reference operand of a loop's body, where it is written."""
    graph = built.main_graph
    a, b = (variable(built, name, (64, 64), FLOAT16) for name in "ab")
    stash, counter = variable(built, "stash", (5, 64, 64), FLOAT16), variable(built, "counter", (1,), UINT32)
    body = built.create_graph("body")
    with CONTEXT.detached(), CONTEXT.use_graph(body), CONTEXT.sequence(True):
        inner = [body.add_input(t.spec, t.name, by_ref=True) for t in (stash, counter, a, b)]
        product = create(body, ops.MatMul, inner[2:])
        row = create(body, ops.ReshapeInplace, [product], shape=(1, 64, 64))
        create(body, ops.DynamicUpdateInplace, [*inner[:2], row], axes=[0], sizes=[1])
        create(body, ops.IncrementModInplace, [inner[1]], increment=1, modulus=5)
    graph.create(ops.Loop, [stash, counter, a, b], [], callee=body, trip_count=3)
    program = lower(built, POD4)
    steps = [s for s in program.walk() if isinstance(s, Phase) and s.name == "DynamicUpdateInplace/index"]
    assert len(steps) == 3
    assert steps[0].bytes_in == 4 * steps[0].cycles.active


# -- several IPUs in calls and loops -----------------------------------------------------------------------------------


def two_stage_body(built):
    """A graph with ops on IPUs 0 and 1, a copy between them, and a by-reference accumulator on IPU 1."""
    body = built.create_graph("body")
    with CONTEXT.detached(), CONTEXT.use_graph(body), CONTEXT.sequence(True):
        x = body.add_input(TensorSpec((64,), FLOAT32), "x")
        total = body.add_input(TensorSpec((64,), FLOAT32), "total", by_ref=True)
        here = create(body, ops.Relu, [x], 0)
        there = move(body, here, 0, 1)
        create(body, ops.AddLhsInplace, [total, there], 1)
        two = body.constant(np.full(64, 2, np.float32))
        body.add_output(create(body, ops.Mul, [here, two], 0))
        create(body, ops.Mul, [there, two], 1)
    return body


def test_loop_over_several_ipus(built):
    x, total = variable(built, "x", (64,), ipu=0), variable(built, "total", (64,), ipu=1)
    body = two_stage_body(built)
    result = built.main_graph.create(ops.Loop, [x, total], ["y"], callee=body, trip_count=6).outputs[0]
    create(built.main_graph, ops.Relu, [result], 0)
    program = lower(built, POD4)
    for ipu in range(2):
        loops = [step for step in program.ipus[ipu].steps if isinstance(step, Repeat)]
        assert [loop.count for loop in loops] == [6]
        assert isinstance(loops[0].body.steps[0], CallStep)
        assert len(leaves(program, ipu, InterIpuCopy)) == 6
    carried = [step.name for step in program.ipus[0].steps[0].body.steps[1:]]
    assert carried == ["poplar::Memcpy32"] * 2  # on IPU 0: into a clone, and from it
    assert len(program.ipus[1].steps[0].body.steps) == 1
    trace = simulate(program, POD4)
    assert check(trace) == []
    assert trace == simulate(program, POD4, fold=False)
    where = {info.name: info.ipu for info in program.memory.variables}
    assert (where["x"], where["total"]) == (0, 1)
    for ipu in range(2):  # the constant is read on both
        assert program.memory.categories[ipu]["constant"].total == 64 * 4


def test_operands_by_value_are_copied_where_they_lie(built):
    x, total = variable(built, "x", (64,), ipu=0), variable(built, "total", (64,), ipu=1)
    body = two_stage_body(built)
    body.inputs[1].by_ref = False  # changed inside, so a copy is made, on IPU 1
    built.main_graph.create(ops.Call, [x, total], ["y"], callee=body)
    program = lower(built, POD4)
    assert [step.name for step in program.ipus[1].steps] == ["poplar::Memcpy32", body.name]
    assert [step.name for step in program.ipus[0].steps] == [body.name]


def test_variable_without_an_ipu_lies_with_its_reader(built):
    x = variable(built, "x", (64,))
    body = built.create_graph("body")
    with CONTEXT.detached(), CONTEXT.use_graph(body):
        create(body, ops.Relu, [body.add_input(x.spec, "x")], 2)
    built.main_graph.create(ops.Call, [x], [], callee=body)
    program = lower(built, POD4)
    assert [(info.name, info.ipu) for info in program.memory.variables if info.category == "variable"] == [("x", 2)]


def test_operand_on_another_ipu_is_refused(built):
    x = variable(built, "x", (64,), ipu=0)
    create(built.main_graph, ops.Relu, [x], 1)
    with pytest.raises(ir.IrError, match=r"Relu.*it is on IPU 1 and its operand 'x' lies on IPU 0; copy it there"):
        lower(built, POD4)


def test_calls_with_operands_on_different_ipus_are_refused(built):
    body = built.create_graph("body")
    with CONTEXT.detached(), CONTEXT.use_graph(body):
        create(body, ops.Relu, [body.add_input(TensorSpec((64,), FLOAT32), "x")], 0)
    for ipu in range(2):
        built.main_graph.create(ops.Call, [variable(built, f"x{ipu}", (64,), ipu=ipu)], [], callee=body)
    with pytest.raises(ir.IrError, match="operand 'x1' lies on IPU 1, an earlier call of graph 'body.*' passes one on"):
        lower(built, POD4)


def test_carried_value_that_ends_elsewhere_is_refused(built):
    body = built.create_graph("body")
    with CONTEXT.detached(), CONTEXT.use_graph(body):
        x = body.add_input(TensorSpec((64,), FLOAT32), "x")
        body.add_output(move(body, x, 0, 1))
    built.main_graph.create(ops.Loop, [variable(built, "x", (64,), ipu=0)], ["y"], callee=body, trip_count=2)
    with pytest.raises(ir.IrError, match="lies on IPU 1 and is carried to .* on IPU 0; copy it back"):
        lower(built, POD4)
