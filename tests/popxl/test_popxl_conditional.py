"""``ops.conditional``: values by NumPy's where, replica by replica, and the cost of the longer branch."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import IrError
from ipuperf.lowering import lower
from ipuperf.lowering.steps import LocalStep
from ipuperf.machine import load_machine
from ipuperf.numerics.errors import EvaluationError
from ipuperf.popxl import ops


def _results(ir, *tensors):
    """What the tensors hold after one run."""
    with ir.main_graph:
        streams = [popxl.d2h_stream(t.shape, t.dtype) for t in tensors]
        for stream, tensor in zip(streams, tensors, strict=True):
            ops.host_store(stream, tensor)
    with popxl.Session(ir, "ipu_model") as session:
        found = session.run()
    return [found[s] for s in streams]


@pytest.mark.parametrize("dtype", [popxl.float16, popxl.float32, popxl.int32])
@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
@pytest.mark.parametrize("taken", [True, False])
def test_the_taken_branch_gives_the_results_and_operands_stay(taken, shape, dtype):
    data = np.full(shape, 3, dtype.as_numpy())
    ir = popxl.Ir()
    with ir.main_graph:
        cond, a, b = popxl.variable(taken), popxl.variable(data), popxl.variable(data + 4)
        double = ir.create_graph(lambda x: (ops.add_(x, x), x), a)
        plus = ir.create_graph(lambda x: (x + 1, x * x), b)
        y, z = ops.conditional(cond, double, plus, [a], [b])
    assert y.name.endswith("_or_add_out")
    found = _results(ir, y, z, a)
    wanted = (data + data, data + data, data) if taken else (data + 5, (data + 4) * (data + 4), data)
    for value, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_each_replica_takes_its_own_way():
    ir = popxl.Ir(replication=4)
    chosen = np.array([True, False, False, True])
    with ir.main_graph:
        cond = popxl.variable(chosen, replica_grouping=ir.replica_grouping(group_size=1))
        x = popxl.variable(
            np.arange(8, dtype=np.float32).reshape(4, 2), replica_grouping=ir.replica_grouping(group_size=1)
        )
        negative = ir.create_graph(lambda t: -t, x)
        same = ir.create_graph(lambda t: t, x)
        (y,) = ops.conditional(cond, negative, same, [x], [x])
    (found,) = _results(ir, y)
    data = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(found, np.where(chosen[:, None], -data, data))


def test_a_branch_that_communicates_needs_one_way_for_all_replicas():
    ir = popxl.Ir(replication=2)
    with ir.main_graph:
        cond = popxl.variable(np.array([True, False]), replica_grouping=ir.replica_grouping(group_size=1))
        x = popxl.variable(np.ones(2, np.float32))
        total = ir.create_graph(lambda t: ops.collectives.replicated_all_reduce(t), x)
        same = ir.create_graph(lambda t: t, x)
        (y,) = ops.conditional(cond, total, same, [x], [x])
    with pytest.raises(EvaluationError, match="replicas differ in the condition"):
        _results(ir, y)


def test_in_a_loop_the_condition_is_read_in_each_trip():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.float32(1))
        double, halve = ir.create_graph(lambda t: t * 2, x), ir.create_graph(lambda t: t / 16, x)
        body = ir.create_graph(lambda t: ops.conditional(ops.greater(t, 20.0), halve, double, [t], [t])[0], x)
        (y,) = ops.repeat(body, 7, x)
    value = 1.0
    for _ in range(7):
        value = value / 16 if value > 20 else value * 2
    assert _results(ir, y)[0] == value


def _cycles(then, other):
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones((64, 64), np.float32))
        graphs = [ir.create_graph(branch, x) for branch in (then, other)]
        ops.conditional(popxl.variable(True), *graphs, [x], [x])
    return sum(s.duration for s in lower(ir._ir, load_machine("gc200-1")).walk() if isinstance(s, LocalStep))


def test_the_branch_that_takes_longer_is_charged():
    def short(x):
        return x + 1

    def long(x):
        return ops.exp(ops.exp(x @ x))

    both = [_cycles(long, short), _cycles(short, long), _cycles(long, long)]
    assert len(set(both)) == 1
    assert both[0] > _cycles(short, short)


def test_wrong_branches_are_named():
    ir = popxl.Ir()
    with ir.main_graph:
        x, stream = popxl.variable(np.ones(2, np.float32)), popxl.h2d_stream((2,), popxl.float32)
        one = ir.create_graph(lambda t: t + 1, x)
        other_shape = ir.create_graph(lambda t: ops.sum(t), x)
        loads = ir.create_graph(lambda t: t + ops.host_load(stream), x)
        with pytest.raises(IrError, match="branches need the same results"):
            ops.conditional(popxl.variable(True), one, other_shape, [x], [x])
        with pytest.raises(IrError, match="moves host data"):
            ops.conditional(popxl.variable(True), one, loads, [x], [x])
        with pytest.raises(IrError, match="a boolean scalar is needed"):
            ops.conditional(x, one, one, [x], [x])
        info = ops.conditional_with_info(popxl.variable(True), one, one, [x], [x])
        with pytest.raises(NotImplementedError):
            info.set_parent_input_modified(x)
