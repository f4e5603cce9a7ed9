"""``ops.conditional``: values by NumPy's where, replica by replica, and the cost of the longer branch."""

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import IrError
from ipuperf.lowering import lower
from ipuperf.lowering.steps import Collective, InterIpuCopy, LocalStep
from ipuperf.machine import load_machine
from ipuperf.numerics.errors import EvaluationError
from ipuperf.popxl import ops


@pytest.fixture
def rng():
    return np.random.default_rng(5)


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
        cond, a, b = popxl.variable(taken), popxl.variable(data), popxl.variable(data + data.dtype.type(4))
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


def _trained(branches, data, taken, replication=1):
    """Gradients of ``sum(branch(x, w))`` for ``x`` and ``w`` (a list per replica when there are several)."""
    ir = popxl.Ir(replication=replication)
    rg = {"replica_grouping": ir.replica_grouping(group_size=1)} if replication > 1 else {}
    with ir.main_graph:
        cond = popxl.variable(taken, popxl.bool, **rg)
        x, w = (popxl.variable(array, **rg) for array in data)

        def forward(c, x, w):
            inner = [ir.create_graph(branch, x, w) for branch in branches]
            return ops.conditional(c, *inner, [x * 2, w], [x * 2, w])

        graph = ir.create_graph(forward, cond, x, w)
        back = popxl.transforms.autodiff(graph, grads_required=[graph.inputs[1], graph.inputs[2]])
        called = ops.call_with_info(graph, cond, x, w)
        seeds = [popxl.constant(np.full(t.shape, 1, t.dtype.as_numpy())) for t in called.outputs[:2]]
        grads = ops.call(back.graph, *seeds, inputs_dict=back.inputs_dict(called))
    return _results(ir, *grads)


def _gradients_by_torch(branch, data):
    torch = pytest.importorskip("torch")
    x, w = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in data)
    sum(t.sum() for t in branch(torch, x * 2, w)).backward()
    return [np.zeros(t.shape) if t.grad is None else t.grad.numpy() for t in (x, w)]


BRANCHES = {
    "both operands": (lambda o, x, w: (o.exp(x) * w, x * w), lambda o, x, w: (x * x, o.tanh(w) * 3.0)),
    "one operand each": (lambda o, x, w: (o.exp(x), x), lambda o, x, w: (w * w, w)),
    "an operand and a constant": (lambda o, x, w: (x, o.exp(o.exp(w) * 0.1)), lambda o, x, w: (x * 0.5, w - x)),
    "one result twice": (lambda o, x, w: (x * w,) * 2, lambda o, x, w: (x, w)),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("name", BRANCHES)
def test_gradients_are_those_of_the_taken_branch(name, taken, shape, dtype, rng):
    data = [rng.uniform(0.2, 0.9, shape).astype(dtype) for _ in range(2)]
    then, other = BRANCHES[name]
    found = _trained([lambda x, w: then(ops, x, w), lambda x, w: other(ops, x, w)], data, taken)
    expected = _gradients_by_torch(then if taken else other, data)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5 if dtype == np.float32 else 1e-2)


def test_gradients_follow_each_replica(rng):
    data = [rng.uniform(0.2, 0.9, (4, 3)).astype(np.float32) for _ in range(2)]
    taken = np.array([True, False, True, False])
    then, other = BRANCHES["both operands"]
    found = _trained([lambda x, w: then(ops, x, w), lambda x, w: other(ops, x, w)], data, taken, 4)
    for replica, chosen in enumerate(taken):
        own = [a[replica] for a in data]
        expected = _gradients_by_torch(then if chosen else other, own)
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(value[replica], wanted, rtol=1e-5)


def test_gradients_through_calls_and_conditionals_within_a_branch(rng):
    def inner(o, x, w):
        return (x * w * 0.5,)

    def nested(x, w):
        ir = x.ir
        graphs = [ir.create_graph(branch, x, w) for branch in (lambda a, b: a * b, lambda a, b: ops.exp(a) * b)]
        (y,) = ops.conditional(ops.greater(ops.sum(x), 100.0), *graphs, [x, w], [x, w])
        called = ir.create_graph(lambda a, b: inner(ops, a, b), x, w)
        return y, ops.call(called, x, w)[0]

    data = [rng.uniform(0.2, 0.9, (3, 2)).astype(np.float32) for _ in range(2)]
    found = _trained([nested, lambda x, w: (x, w)], data, True)
    expected = _gradients_by_torch(lambda o, x, w: (o.exp(x) * w, *inner(o, x, w)), data)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5)


def test_gradients_are_where_their_operands_are():
    ir = popxl.Ir()
    with ir.main_graph:
        cond = popxl.variable(False)
        with popxl.ipu(1):
            x, w = popxl.variable(np.full(2, 3, np.float32)), popxl.variable(np.full(2, 5, np.float32))

            def forward(c, x, w):
                then, other = ir.create_graph(lambda t: t * t, x), ir.create_graph(lambda t: ops.exp(t), w)
                return ops.conditional(c, then, other, [x], [w])

            graph = ir.create_graph(forward, cond, x, w)
            back = popxl.transforms.autodiff(graph, grads_required=graph.inputs[1:3])
            called = ops.call_with_info(graph, cond, x, w)
            seed = popxl.constant(np.ones(2, np.float32))
            dx, dw = ops.call(back.graph, seed, inputs_dict=back.inputs_dict(called))
            assert (dx.ipu, dw.ipu) == (1, 1)
            found = _results(ir, dx, dw)
    np.testing.assert_allclose(found, [np.zeros(2), np.exp(np.full(2, 5))], rtol=1e-6)


def test_every_tile_reads_the_condition():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(4, np.float32))
        same = ir.create_graph(lambda t: t, x)
        ops.conditional(popxl.variable(True), same, same, [x], [x])
    machine = load_machine("gc200-1")
    program = lower(ir._ir, machine)
    sync, exchange = [s for s in program.walk() if s.name == "If/condition"]
    chip = machine.chip
    words = -(-4 // chip.exchange_bytes_per_cycle)
    assert (sync.duration, exchange.duration) == (chip.sync_cycles, chip.exchange_setup_cycles + words)
    assert exchange.cost.bytes_in == 4 * chip.tiles


def test_the_condition_goes_to_the_ipus_of_the_branches():
    ir = popxl.Ir()
    with ir.main_graph:
        cond = popxl.variable(True)
        with popxl.ipu(1):
            x = popxl.variable(np.ones(4, np.float32))
            double, same = ir.create_graph(lambda t: t * 2, x), ir.create_graph(lambda t: t + 1, x)
            ops.conditional(cond, double, same, [x], [x])
    program = lower(ir._ir, load_machine("pod4"))
    (copy,) = [s for s in program.walk(0) if isinstance(s, InterIpuCopy)]
    assert [(c.source, c.destination, c.bytes) for c in copy.copies] == [(0, 1, 4)]
    for ipu in (0, 1):
        assert sum(s.name == "If/condition" for s in program.walk(ipu)) == 3  # the copy, sync and exchange


@pytest.mark.parametrize("heavy", ["communicating", "other", "equal"])
def test_branches_are_compared_by_work_and_traffic(heavy):
    ir = popxl.Ir(replication=2)
    with ir.main_graph:
        x = popxl.variable(np.ones((64, 64), np.float32))

        def total(t):
            return ops.collectives.replicated_all_reduce(t @ t if heavy == "communicating" else t)

        def other(t):
            return ops.collectives.replicated_all_reduce(t) if heavy == "equal" else ops.exp(t @ t @ t)

        branches = [ir.create_graph(total, x), ir.create_graph(other if heavy != "communicating" else ops.exp, x)]
        ops.conditional(popxl.variable(True), *branches, [x], [x])
    machine = load_machine("pod4")
    if heavy == "other":
        with pytest.raises(IrError, match="which branch takes longer cannot be said before they run"):
            lower(ir._ir, machine)
    else:
        assert sum(isinstance(s, Collective) for s in lower(ir._ir, machine).walk()) == 1


def test_a_result_given_twice_by_a_called_graph_has_both_gradients():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.float32(3))

        def outer(x):
            twice = ir.create_graph(lambda t: (t * t,) * 2, x)
            a, b = ops.call(twice, x)
            return a + b * 10

        graph = ir.create_graph(outer, x)
        back = popxl.transforms.autodiff(graph)
        called = ops.call_with_info(graph, x)
        (dx,) = ops.call(back.graph, popxl.constant(np.float32(1)), inputs_dict=back.inputs_dict(called))
    assert _results(ir, dx)[0] == 66


def test_the_gradient_of_a_graph_that_a_loop_executes_runs_it_again():
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.float32(0.5))
        graph = ir.create_graph(lambda t: ops.exp(ops.exp(t) * 0.5) * 0.25, x)
        (y,) = ops.repeat(graph, 2, x)
        back = popxl.transforms.autodiff(graph)
        assert len(graph.outputs) == 1
        assert {c.fwd_tensor for c in back.expected_inputs if c.connection_type.name == "Fwd"} == {graph.inputs[0]}
        (dx,) = ops.call(back.graph, popxl.constant(np.float32(1)), x)
    found = _results(ir, y, dx)

    def value(t):
        return np.exp(np.exp(t) * 0.5) * 0.25

    np.testing.assert_allclose(found, [value(value(0.5)), value(0.5) * np.exp(0.5) * 0.5], rtol=1e-6)
