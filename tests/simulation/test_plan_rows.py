"""Table ``plans`` and the types of ops: what lowering knows of products, in the trace."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT16, FLOAT32, TensorSpec, Variable
from ipuperf.lowering import lower, plan_matmul
from ipuperf.lowering.planner.alternatives import next_best
from ipuperf.machine import load_machine
from ipuperf.simulation import simulate


@pytest.mark.parametrize(("dtype", "peak"), [(FLOAT16, 128 * 1472), (FLOAT32, 32 * 1472)])
def test_plans_are_those_of_the_planner(dtype, peak):
    program, machine = ir.Ir(), load_machine("gc200-1")
    graph = program.main_graph
    operands = []
    for name, shape in (("a", (64, 96)), ("b", (96, 32))):
        spec = TensorSpec(shape, dtype)
        value = np.zeros(shape, dtype.numpy)
        operands.append(Variable(graph.tensor_id(name), spec, graph, value, program.grouping()))
        graph.add(operands[-1])
    product = graph.create(ops.MatMul, operands, ["c"]).outputs[0]
    graph.create(ops.Add, [product, product], ["d"])
    trace = simulate(lower(program, machine), machine)
    assert trace.table("ops")["dtype"].tolist() == [dtype.name] * 2
    assert trace.meta["peak_flops_per_cycle"] == {dtype.name: peak}
    name = "f16" if dtype is FLOAT16 else "f32"
    plan = plan_matmul("gc200", 1, 64, 96, 32, name, "f32")
    other = next_best(plan)
    assert other is not None
    table = trace.table("plans")
    assert table[["op_id", "product", "rank"]].to_numpy().tolist() == [[0, 0, 0], [0, 0, 1]]
    assert table["cycles"].tolist() == [plan.total, other.total]
    assert table["vertex"].tolist() == [plan.vertex, other.vertex]
    assert table["plan"].tolist() == [plan.explain(), other.explain()]
    assert (table["tiles"].tolist(), table["temp_bytes"].tolist()) == (
        [plan.tiles, other.tiles],
        [plan.temp_bytes, other.temp_bytes],
    )
