"""Autodiff with the ops' gradients: a whole MLP against PyTorch, and kernels that allocate nothing."""

import itertools
import tracemalloc

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT32, INT32, IrError, TensorSpec


def mlp(g, x, labels, *weights):
    """gelu MLP with biases, softmax and mean loss."""
    for i in range(0, len(weights), 2):
        x = g.create(ops.MatMul, [x, weights[i]], ["mm"], pass_="fcfwd").outputs[0]
        x = g.create(ops.Add, [x, weights[i + 1]], ["add"]).outputs[0]
        if i + 2 < len(weights):
            x = g.create(ops.Gelu, [x], ["gelu"]).outputs[0]
    probs = g.create(ops.Softmax, [x], ["probs"], axis=-1).outputs[0]
    return g.create(ops.Nll, [probs, labels], ["loss"], reduction="mean").outputs[0]


def torch_mlp(torch):
    def reference(x, labels, *weights):
        for i in range(0, len(weights), 2):
            x = x @ weights[i] + weights[i + 1]
            if i + 2 < len(weights):
                x = torch.nn.functional.gelu(x, approximate="tanh")
        return torch.nn.functional.cross_entropy(x, labels.long())

    return reference


def mlp_arrays(rng, sizes, batch, replicas=2):
    arrays = [rng.standard_normal((replicas, batch, sizes[0]))]
    arrays.append(rng.integers(0, sizes[-1], (replicas, batch)).astype(np.int32))
    for rows, columns in itertools.pairwise(sizes):
        arrays.append(rng.standard_normal((replicas, rows, columns)) / np.sqrt(rows))
        arrays.append(rng.standard_normal((replicas, columns)))
    return arrays


def test_mlp(bench, rng):
    torch = pytest.importorskip("torch")
    bench.check(mlp, torch_mlp(torch), mlp_arrays(rng, (20, 16, 12, 10), 8))


def test_central_differences(bench, rng):
    """Independent of PyTorch: the loss's slope along random directions."""
    arrays = mlp_arrays(rng, (6, 5, 4), 3, replicas=1)
    _, grad, found = bench.gradients(mlp, arrays)
    floating = [i for i, a in enumerate(arrays) if a.dtype == np.float64]
    step = 1e-5
    for position, gradient in zip(floating, found, strict=True):
        direction = rng.standard_normal(arrays[position].shape)

        def loss(offset, position=position, direction=direction):
            moved = [a + offset * direction if i == position else a for i, a in enumerate(arrays)]
            return bench.gradients(mlp, moved)[0]

        slope = (loss(step) - loss(-step)) / (2 * step)
        np.testing.assert_allclose(np.sum(direction * gradient), slope[0] * grad[0], rtol=1e-6)


def test_gradient_graph_of_an_mlp_has_no_copies_for_transposes(run_graph, rng):
    graph = ir.Ir().create_graph("g")
    x, w = (graph.add_input(TensorSpec(s, FLOAT32), n) for s, n in (((4, 6), "x"), ((6, 5), "w")))
    graph.add_output(graph.create(ops.MatMul, [x, w], ["y"]).outputs[0])
    back = ops.autodiff(graph)
    arrays = {t: rng.standard_normal((2, *t.shape)).astype(np.float32) for t in back.graph.inputs}
    values = run_graph(back.graph, arrays)
    for op in back.graph.ops:
        if op.type == "Transpose":
            assert np.may_share_memory(values[op.outputs[0]], values[op.inputs[0]])


def test_gradients_that_meet_are_added(bench, rng):
    def build(g, t):
        a = g.create(ops.Exp, [t], ["a"]).outputs[0]
        return g.create(ops.Sub, [g.create(ops.Mul, [a, t], ["b"]).outputs[0], a], ["y"]).outputs[0]

    bench.check(build, lambda t: t.exp() * t - t.exp(), [rng.standard_normal((2, 5))])


def test_ops_without_gradient_say_so():
    graph = ir.Ir().create_graph("g")
    x = graph.add_input(TensorSpec((2, 3), FLOAT32), "x")
    y = graph.add_input(TensorSpec((2,), INT32), "y")
    one = graph.add_input(TensorSpec((), FLOAT32), "one")
    op = graph.create(ops.NlllWithSoftmaxGradDirect, [x, y, one], ["l", "d"])
    graph.add_output(op.outputs[0])
    with pytest.raises(IrError, match="has no gradient"):
        ops.autodiff(graph)


class Memory:
    """An environment that, like the evaluator, hands out the same scratch memory every time."""

    replicas = 1

    def __init__(self):
        self.held = {}

    def scratch(self, shape, dtype, slot=0):
        key = (tuple(shape), np.dtype(dtype), slot)
        return self.held.setdefault(key, np.empty(shape, dtype))


def test_kernels_allocate_no_arrays(rng):
    graph = ir.Ir().create_graph("g")
    arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in mlp_arrays(rng, (300, 512, 10), 128, 1)]
    tensors = [graph.add_input(TensorSpec(a.shape[1:], ir.dtype_of(a)), f"x{i}") for i, a in enumerate(arrays)]
    graph.add_output(mlp(graph, *tensors))
    derivative = ops.autodiff(graph)
    values, env, kernels = dict(zip(tensors, arrays, strict=True)), Memory(), []

    def bind(which):
        for op in ir.schedule(which):
            inputs = [values[t] for t in op.inputs]
            made = op.view(inputs, env)
            if made is None:
                made = [np.empty((1, *t.shape), t.dtype.numpy) for t in op.outputs]
                kernels.append(op.kernel(inputs, made, env))
            values.update(zip(op.outputs, made, strict=True))

    bind(graph)
    for image, connection in zip(derivative.graph.inputs, derivative.inputs, strict=True):
        values[image] = np.ones((1,), np.float32) if connection.is_gradient else values[connection.tensor]
    values.update({t: t.data[None] for t in derivative.graph.tensors.values() if isinstance(t, ir.Constant)})
    bind(derivative.graph)
    for kernel in kernels:
        kernel()
    tracemalloc.start()
    try:
        for kernel in kernels:
            kernel()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16  # NumPy buffers up to 8192 elements of a broadcast; an activation has 4 x that
