"""Replicated programs: data parallel training, host grouping, sharded variables. Oracles: NumPy and PyTorch."""

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.numerics import EvaluationError
from ipuperf.ops import Accumulate, AdamUpdater, ScaledAddLhsInplace
from ipuperf.ops.control import Call
from ipuperf.ops.elementwise.arithmetic import Add, AddLhsInplace, Mul
from ipuperf.ops.gradients import autodiff
from ipuperf.ops.products.matmul import MatMul
from ipuperf.ops.reductions.axes_reduced import ReduceMean
from ipuperf.ops.shape import Init, Transpose
from ipuperf.ops.transfers.collectives import (
    ReplicatedAllGather,
    ReplicatedAllReduce,
    ReplicatedAllReduceInplace,
    ReplicatedReduceScatter,
)
from ipuperf.ops.transfers.remote import RemoteLoad, RemoteStore

F32 = ir.FLOAT32


def linear_loss(p, batch):
    """Mean of squares of ``x @ w`` and its gradient graph."""
    graph = p.ir.create_graph("loss")
    x = graph.add_input(ir.TensorSpec((batch, 3), F32), "x")
    w = graph.add_input(ir.TensorSpec((3, 2), F32), "w")
    y = p.op(MatMul, [x, w], graph)
    graph.add_output(p.op(ReduceMean, [p.op(Mul, [y, y], graph)], graph, axes=None, keepdims=False))
    return graph, autodiff(graph, required=[w])


def gradients(p, graph, derivative, x, w):
    (loss, *_) = p.op(Call, [x, w], callee=graph)
    call = loss.producer
    operands = []
    for connection in derivative.inputs:
        if connection.is_gradient:
            operands.append(p.main.constant(np.float32(1)))
        elif connection.tensor in graph.inputs:
            operands.append(call.inputs[graph.inputs.index(connection.tensor)])
        else:
            operands.append(call.outputs[graph.outputs.index(connection.tensor)])
    return loss, p.op(Call, operands, callee=derivative.graph)[0]


def sgd_program(program, replicas, batch, start):
    p = program(replicas)
    w = p.variable("w", start)
    x = p.stream("x", (batch, 3))
    graph, derivative = linear_loss(p, batch)
    loss, grad = gradients(p, graph, derivative, p.load(x), w)
    if replicas > 1:
        grad = p.op(ReplicatedAllReduceInplace, [grad], op="mean", group=p.ir.grouping())
    p.op(ScaledAddLhsInplace, [w, grad], a=1.0, b=-0.1)
    return p, w, x, p.store(loss)


def test_replicas_train_like_one_with_the_global_batch(program):
    rng = np.random.default_rng(0)
    start = rng.normal(size=(3, 2)).astype(np.float32)
    many, w4, x4, out4 = sgd_program(program, 4, 2, start.copy())
    one, w1, x1, out1 = sgd_program(program, 1, 8, start.copy())
    a, b, w = many.evaluator(), one.evaluator(), start.astype(np.float64)
    for _ in range(5):
        batch = rng.normal(size=(8, 3)).astype(np.float32)
        losses = a.run({x4: batch.reshape(1, 4, 2, 3)})[out4]
        loss = b.run({x1: batch.reshape(1, 1, 8, 3)})[out1]
        y = batch @ w
        np.testing.assert_allclose(losses.mean(), (y**2).mean(), rtol=1e-5)
        np.testing.assert_allclose(loss.item(), (y**2).mean(), rtol=1e-5)
        w -= 0.1 * batch.T @ (2 * y / y.size)
    np.testing.assert_allclose(b.variables[w1][0], w, rtol=1e-5)
    for replica in range(4):
        np.testing.assert_allclose(a.variables[w4][replica], w, rtol=1e-5)
    a.store_variables([w4])
    np.testing.assert_allclose(w4.data, w, rtol=1e-5)


@pytest.mark.parametrize(("stride", "size"), [(1, 4), (1, 2), (2, 2), (1, 1)])
@pytest.mark.parametrize("retrieval", ["one_per_group", "all_replicas"])
def test_host_grouping(program, stride, size, retrieval):
    p = program(4)
    grouping = p.ir.grouping(stride, size)
    groups = grouping.num_groups
    host = np.arange(groups * 3, dtype=np.float32).reshape(groups, 3)
    v = p.variable("v", (host if groups > 1 else host[0]).copy(), grouping, retrieval=retrieval)
    members = [[r for r in range(4) if (r // (stride * size)) * stride + r % stride == g] for g in range(groups)]
    evaluator = p.evaluator()
    for g, replicas in enumerate(members):
        for r in replicas:
            np.testing.assert_array_equal(evaluator.variables[v][r], host[g])
    evaluator.variables[v] += np.arange(4, dtype=np.float32).reshape(4, 1) * 100
    everything = evaluator.variables[v].copy()
    evaluator.store_variables()
    if retrieval == "all_replicas":
        np.testing.assert_array_equal(v.data, everything)
        evaluator.variables[v][:] = 0
        evaluator.load_variables()
        np.testing.assert_array_equal(evaluator.variables[v], everything)
    else:
        expected = everything[[m[0] for m in members]]
        np.testing.assert_array_equal(v.data, expected if groups > 1 else expected[0])


def test_host_data_of_the_wrong_shape(program):
    p = program(2)
    v = p.variable("v", np.zeros(3, np.float32))
    evaluator = p.evaluator()
    v.data = np.zeros(4, np.float32)
    with pytest.raises(EvaluationError, match=r"'v'.*\(4,\).*\(3,\)"):
        evaluator.load_variables()


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_sharded_variables_round_trip(program, remote, size):
    """7 elements over 2 or 4 of 4 replicas: padded, gathered by the collective and by the host alike."""
    p = program(4)
    grouping = p.ir.grouping(1, size)
    shard = -(-7 // size)
    host = np.arange(1, 1 + 7 * (4 // size), dtype=np.float32).reshape(4 // size, 7)
    buffer = p.ir.remote_buffer((shard,), F32, 2, meta_shape=(7,)) if remote else None
    v = p.variable(
        "v",
        host.copy() if size < 4 else host[0].copy(),
        grouping,
        spec=ir.TensorSpec((shard,), F32, (7,)),
        remote=(buffer, 1) if remote else None,
    )
    held = v
    if remote:
        init = p.op(Init, [], shape=(shard,), dtype=F32, init="zero", meta_shape=(7,))
        held = p.op(RemoteLoad, [init, p.main.constant(1, ir.INT32)], buffer=buffer)
        assert held.meta_shape == (7,)
    out = p.store(p.op(ReplicatedAllGather, [held], group=grouping, mode="meta_shape"))
    if remote:
        doubled = p.op(Add, [held, held])
        p.op(RemoteStore, [doubled, p.main.constant(1, ir.INT32)], buffer=buffer, names=[])
    else:
        p.op(AddLhsInplace, [held, held])
    evaluator = p.evaluator()
    result = evaluator.run()[out][0]
    for r in range(4):
        np.testing.assert_array_equal(result[r], host[r // size])
    evaluator.store_variables()
    np.testing.assert_array_equal(v.data, (2 * host) if size < 4 else 2 * host[0])
    evaluator.store_variables([v])
    np.testing.assert_array_equal(v.data, (2 * host) if size < 4 else 2 * host[0])


def test_shards_that_do_not_fit_the_replica_group(program):
    p = program(4)
    v = p.variable("v", np.zeros(9, np.float32), spec=ir.TensorSpec((4,), F32, (9,)))
    with pytest.raises(EvaluationError, match=r"'v'.*shards of 4 elements.*must divide"):
        p.evaluator()
    assert v.grouping.group_size == 4


def adam_program(program, sharded, start):
    """Adam on ``sum over replicas of mean((x @ w) ** 2)``, states whole or sharded over the 4 replicas."""
    p = program(4)
    group = p.ir.grouping()
    w = p.variable("w", start)
    x = p.stream("x", (2, 3))
    graph, derivative = linear_loss(p, 2)
    _, grad = gradients(p, graph, derivative, p.load(x), w)
    step = p.variable("step", np.zeros((), np.float32))
    kwargs = {"mode": "adam", "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.0, "has_step": True}
    zeros = np.zeros((3, 2), np.float32)
    if sharded:
        spec = ir.TensorSpec((2,), F32, (3, 2))
        m, v = (p.variable(n, zeros.copy(), spec=spec) for n in ("m", "v"))
        grad = p.op(ReplicatedReduceScatter, [grad], op="mean", group=group, rts=True)
    else:
        m, v = (p.variable(n, zeros.copy()) for n in ("m", "v"))
        grad = p.op(ReplicatedAllReduce, [grad], op="mean", group=group)
    m = p.op(Accumulate, [m, grad], kind="moving_average", factor=0.9)
    v = p.op(Accumulate, [v, grad], kind="moving_average_square", factor=0.99)
    updater = p.op(AdamUpdater, [m, v, step], **kwargs)
    if sharded:
        assert updater.meta_shape == (3, 2)
        updater = p.op(ReplicatedAllGather, [updater], group=group, mode="meta_shape")
    p.op(ScaledAddLhsInplace, [w, updater], a=1.0, b=-0.05)
    return p, w, x


def test_sharded_adam_equals_unsharded_and_torch(program):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    start = rng.normal(size=(3, 2)).astype(np.float32)
    runs = [(p, w, x, p.evaluator()) for p, w, x in (adam_program(program, s, start.copy()) for s in (False, True))]
    weight = torch.nn.Parameter(torch.tensor(start))
    optimiser = torch.optim.Adam([weight], lr=0.05, betas=(0.9, 0.99), eps=1e-8)
    for _ in range(6):
        batch = rng.normal(size=(1, 4, 2, 3)).astype(np.float32)
        optimiser.zero_grad()
        ((torch.tensor(batch.reshape(8, 3)) @ weight) ** 2).mean().backward()
        optimiser.step()
        for _, _, x, evaluator in runs:
            evaluator.run({x: batch})
    whole, sharded = (evaluator.variables[w] for _, w, _, evaluator in runs)
    np.testing.assert_allclose(sharded, whole, rtol=1e-6)
    np.testing.assert_allclose(whole[0], weight.detach().numpy(), rtol=2e-5)
    for _, w, _, evaluator in runs:
        evaluator.store_variables()
        np.testing.assert_array_equal(w.data, evaluator.variables[w][0])


def test_replicas_do_not_mix_without_collectives(program):
    p = program(3)
    x = p.stream("x", (2, 3))
    loaded = p.load(x)
    out = p.store(p.op(MatMul, [loaded, p.op(Transpose, [loaded], permutation=(1, 0))]))
    data = np.random.default_rng(2).normal(size=(1, 3, 2, 3)).astype(np.float32)
    result = p.evaluator().run({x: data})[out]
    for r in range(3):
        np.testing.assert_allclose(result[0, r], data[0, r] @ data[0, r].T, rtol=1e-6)
