"""Collectives that become one: how many there are, what they move, what must not merge, and values."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import CONTEXT, FLOAT16, FLOAT32, Stream, TensorSpec, Variable
from ipuperf.lowering import Collective, CollectiveMerging, Phase, lower
from ipuperf.lowering.collective_merging import NO_MERGING, contiguous
from ipuperf.machine import load_machine
from ipuperf.numerics import Evaluator
from ipuperf.simulation import simulate
from ipuperf.trace import check

POD4 = load_machine("pod4")
ALL = CollectiveMerging(None, None, None)
TOGETHER = CollectiveMerging(None, None, None, contiguous=True)


def variable(program, name, elements, dtype=FLOAT32, value=1.0):
    graph = program.main_graph
    spec, group = TensorSpec((elements,), dtype), program.grouping(1, 1)
    data = np.full((program.replication_factor, elements), value, dtype.numpy)
    data += np.arange(program.replication_factor, dtype=dtype.numpy)[:, None]
    tensor = Variable(graph.tensor_id(name), spec, graph, data, group)
    graph.add(tensor)
    return tensor


def reduce(program, tensor, op="add", group=None, kind=ops.ReplicatedAllReduceInplace):
    return program.main_graph.create(kind, [tensor], ["r"], op=op, group=group or program.grouping()).outputs[0]


def updates(program, sizes, dtypes=None):
    """All-reduce and update one variable after the other, in this order, as a weight update does."""
    weights = []
    with CONTEXT.sequence(True):
        for number, size in enumerate(sizes):
            dtype = dtypes[number] if dtypes else FLOAT32
            gradient, weight = (variable(program, f"{name}{number}", size, dtype) for name in "gw")
            reduced = reduce(program, gradient)
            program.main_graph.create(ops.AddLhsInplace, [weight, reduced], ["u"])
            weights.append(weight)
    return weights


def collectives(program, merging, machine=POD4):
    return [step for step in lower(program, machine, merging=merging).walk() if isinstance(step, Collective)]


def test_nothing_merges_unless_asked_to():
    program = ir.Ir(4)
    updates(program, [100, 200, 300])
    assert [step.bytes for step in collectives(program, NO_MERGING)] == [400, 800, 1200]
    assert [step.bytes for step in collectives(program, ALL)] == [400, 800, 1200]  # an update stands between them


def test_contiguous_ones_merge():
    program = ir.Ir(4)
    updates(program, [100, 200, 300])
    (step,) = collectives(program, TOGETHER)
    assert (step.bytes, step.kind, step.groups) == (2400, "all_reduce", ((0, 1, 2, 3),))
    assert step.name == "ReplicatedAllReduceInplace[add] and 2 more"


def test_neighbours_merge_without_moving_anything():
    program = ir.Ir(4)
    for name in "abc":
        reduce(program, variable(program, name, 1000))
    (step,) = collectives(program, ALL)
    assert step.bytes == 12_000


def test_reduction_and_rearrangement_are_those_of_all_bytes():
    one, many = ir.Ir(4), ir.Ir(4)
    reduce(one, variable(one, "a", 8 * 1472))
    for name in "abcd":
        reduce(many, variable(many, name, 2 * 1472))
    whole, merged = (lower(program, POD4, merging=ALL) for program in (one, many))
    assert [s.reduce_cycles for s in whole.walk() if isinstance(s, Collective)] == [
        s.reduce_cycles for s in merged.walk() if isinstance(s, Collective)
    ]
    assert sum(s.bytes_in for s in whole.walk() if isinstance(s, Phase)) == sum(
        s.bytes_in for s in merged.walk() if isinstance(s, Phase)
    )


def test_limit_in_bytes():
    """Buffers of 1,000 bytes: 400 + 400 fit, 400 more do not; a tensor of 1,200 goes alone."""
    program = ir.Ir(4)
    updates(program, [100, 100, 100, 300, 100])
    merging = CollectiveMerging(1000, contiguous=True)
    assert [step.bytes for step in collectives(program, merging)] == [800, 400, 1200, 400]
    assert [step.bytes for step in collectives(program, CollectiveMerging(0, None, None, contiguous=True))] == [
        400, 400, 400, 1200, 400,
    ]  # fmt: skip


def test_as_much_as_the_limit_merges_and_a_single_one_has_its_own_name():
    program = ir.Ir(4)
    updates(program, [100] * 5)
    found = collectives(program, CollectiveMerging(800, contiguous=True))
    name = "ReplicatedAllReduceInplace[add]"
    assert [(step.bytes, step.name) for step in found] == [(800, f"{name} and 1 more")] * 2 + [(400, name)]


def test_other_types_operators_and_groups_stay_apart():
    program = ir.Ir(4)
    reduce(program, variable(program, "a", 10))
    reduce(program, variable(program, "b", 10, FLOAT16))
    reduce(program, variable(program, "c", 10), "max")
    reduce(program, variable(program, "d", 10), group=program.grouping(1, 2))
    reduce(program, variable(program, "e", 16), kind=ops.ReplicatedReduceScatter)
    assert len(collectives(program, TOGETHER)) == 5


def test_one_that_needs_another_waits():
    program = ir.Ir(4)
    first = reduce(program, variable(program, "a", 10), kind=ops.ReplicatedAllReduce)
    reduce(program, first, kind=ops.ReplicatedAllReduce)
    assert len(collectives(program, TOGETHER)) == 2


def test_in_place_changes_keep_their_order():
    """The gradient is read before it is reduced in place, and written after: neither may pass the collective."""
    program = ir.Ir(4)
    graph = program.main_graph
    with CONTEXT.sequence(True):
        a, b = variable(program, "a", 10), variable(program, "b", 10)
        reduce(program, b)
        copy = graph.create(ops.Add, [a, a], ["before"]).outputs[0]
        reduce(program, a)
        graph.create(ops.AddLhsInplace, [a, copy], ["after"])
    known = list(graph.ops)
    order = contiguous(graph, known, TOGETHER, lambda op: op.work())
    assert [op.type for op in order] == ["Add", *["ReplicatedAllReduceInplace"] * 2, "AddLhsInplace"]
    assert len(collectives(program, TOGETHER)) == 1


def test_gathers_of_a_sharded_update_merge_at_its_end():
    program = ir.Ir(4)
    graph, group = program.main_graph, program.grouping()
    with CONTEXT.sequence(True):
        for number in range(3):
            gradient, weight = variable(program, f"g{number}", 400), variable(program, f"w{number}", 400)
            shard = reduce(program, gradient, kind=ops.ReplicatedReduceScatter)
            own = graph.create(ops.ReplicatedReduceScatter, [weight], ["own"], op="local", group=group).outputs[0]
            graph.create(ops.AddLhsInplace, [own, shard], ["u"])
            whole = graph.create(
                ops.ReplicatedAllGather, [own], ["whole"], group=group, mode="shape", shape=(400,)
            ).outputs[0]
            graph.create(ops.CopyVarUpdate, [weight, whole], ["w"])
    assert [(s.kind, s.bytes) for s in collectives(program, TOGETHER)] == [
        ("reduce_scatter", 4800), ("all_gather", 4800),
    ]  # fmt: skip
    assert len(collectives(program, NO_MERGING)) == 6


def test_values_do_not_depend_on_merging_and_time_shrinks():
    program = ir.Ir(4)
    weights = updates(program, [10] * 20)
    times = []
    for merging in (NO_MERGING, TOGETHER):
        trace = simulate(lower(program, POD4, merging=merging), POD4)
        check(trace)
        times.append(int(trace.columns("runs")["dur"][0]))
    assert times[1] < times[0]
    evaluator = Evaluator(program)
    evaluator.load_variables()
    evaluator.run({})
    evaluator.store_variables(weights)
    for weight in weights:  # 1 + r on replica r, plus the sum 1 + 2 + 3 + 4 of the gradients
        np.testing.assert_array_equal(weight.data, np.repeat([[11.0], [12.0], [13.0], [14.0]], 10, axis=1))


def test_streams_keep_their_order():
    """Two loads of one stream around a collective: the second one does not pass the first."""
    program = ir.Ir(4)
    graph = program.main_graph
    stream = Stream(graph.tensor_id("x"), TensorSpec((10,), FLOAT32), graph, "h2d")
    graph.add(stream)
    with CONTEXT.sequence(True):
        for name in "ab":
            init = graph.create(ops.Init, [], [name], shape=(10,), dtype=FLOAT32, init="undefined").outputs[0]
            loaded = graph.create(ops.HostLoad, [init], [f"{name}_loaded"], stream=stream).outputs[0]
            reduce(program, loaded)
    order = contiguous(graph, list(graph.ops), TOGETHER, lambda op: op.work())
    loads = [op.inputs[0].name for op in order if op.type == "HostLoad"]
    assert loads == ["a", "b"]
    assert len(collectives(program, TOGETHER)) == 1


def test_negative_limits_are_refused():
    with pytest.raises(ValueError, match="all_gather is -1, allowed: bytes from 0 on, None for no limit"):
        CollectiveMerging(all_gather=-1)
