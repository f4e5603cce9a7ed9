"""Who meets before one IPU of a replica communicates: collectives, copies, Streaming Memory; calls and I/O tiles."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import CONTEXT, FLOAT32, UINT32, TensorSpec, Variable
from ipuperf.lowering import Collective, ExternalSync, RemoteTransfer, lower
from ipuperf.machine import load_machine
from ipuperf.simulation import simulate
from ipuperf.trace import check

POD4, POD16 = load_machine("pod4"), load_machine("pod16")


def variable(program, name, ipu, shape=(64,), dtype=FLOAT32):
    graph = program.main_graph
    data = np.zeros(shape, dtype.numpy)
    tensor = Variable(graph.tensor_id(name), TensorSpec(shape, dtype), graph, data, program.grouping())
    tensor.ipu = ipu
    graph.add(tensor)
    return tensor


def create(graph, op_class, inputs, ipu, **attributes):
    with CONTEXT.on_ipu(ipu):
        return graph.create(op_class, inputs, ["t"], **attributes).outputs[0]


def reduced(program, ipu, graph=None):
    value = variable(program, f"v{ipu}", ipu) if graph is None else graph.add_input(TensorSpec((64,), FLOAT32), "v")
    value.ipu = ipu
    graph = graph or program.main_graph
    return create(graph, ops.ReplicatedAllReduceInplace, [value], ipu, op="add", group=program.grouping())


def kinds(program, ipu):
    return [type(step).__name__ for step in program.walk(ipu) if isinstance(step, (ExternalSync, Collective))]


def replicated(ipus=2, replicas=2):
    program = ir.Ir(replicas)
    for ipu in range(ipus):
        reduced(program, ipu)
    return program


def test_collectives_of_the_stages_follow_each_other():
    lowered = lower(replicated(), POD4)
    assert kinds(lowered, 0) == ["ExternalSync", "Collective", "ExternalSync"]
    assert kinds(lowered, 1) == ["ExternalSync", "ExternalSync", "Collective"]
    syncs = [step for step in lowered.walk(0) if isinstance(step, ExternalSync)]
    assert {step.participants for step in syncs} == {(0, 1)}
    assert "ExternalSync" in lowered.describe()
    trace = simulate(lowered, POD4)
    assert check(trace) == []
    transfers = trace.table("transfers")
    first = transfers[transfers["op_id"] == 0]
    assert (first["start"] + first["dur"]).max() < transfers[transfers["op_id"] == 1]["start"].min()


@pytest.mark.parametrize("pattern", ["full", "single_pipeline", "replica_and_ladder"])
def test_collectives_meet_under_every_pattern(pattern):
    lowered = lower(replicated(), POD4, sync_pattern=pattern)
    assert sum(isinstance(step, ExternalSync) for step in lowered.walk(0)) == 2


def test_nobody_to_meet():
    assert kinds(lower(replicated(ipus=1), POD4), 0) == ["Collective"]
    assert kinds(lower(replicated(ipus=2, replicas=1), POD4), 0) == []  # a group of one communicates with nobody


@pytest.mark.parametrize(("pattern", "met"), [("full", 4), ("replica_and_ladder", 2), ("single_pipeline", 0)])
def test_streaming_memory_follows_the_pattern(pattern, met):
    program = ir.Ir(1)
    buffer = program.remote_buffer((64,), FLOAT32, 1)
    value, other = variable(program, "value", 0), variable(program, "other", 3)
    entry = variable(program, "entry", 0, (), UINT32)
    with CONTEXT.on_ipu(0):
        program.main_graph.create(ops.RemoteStore, [value, entry], [], buffer=buffer)
    create(program.main_graph, ops.Relu, [other], 3)
    lowered = lower(program, POD4, sync_pattern=pattern)
    assert sum(isinstance(step, RemoteTransfer) for step in lowered.walk(0)) == 1
    syncs = [step for ipu in range(4) for step in lowered.walk(ipu) if isinstance(step, ExternalSync)]
    assert len(syncs) == met
    assert check(simulate(lowered, POD4)) == []


def test_a_function_of_one_ipu_makes_the_others_wait():
    program = ir.Ir(2)
    inner = program.create_named_graph("update")
    reduced(program, 1, inner)
    value = variable(program, "value", 1)
    variable(program, "other", 0)
    with CONTEXT.on_ipu(1):
        program.main_graph.create(ops.Call, [value], [], callee=inner)
    lowered = lower(program, POD4)
    assert set(lowered.functions) == {"update@0", "update@1"}
    assert kinds(lowered, 0) == ["ExternalSync"]
    assert check(simulate(lowered, POD4)) == []
