"""Optimisers in training loops, with accumulation and replicas, against TensorFlow's formulas in NumPy."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf2
from sessions import Compiled, configure, dequeued, value

from ipuperf.tensorflow.python import ipu
from ipuperf.tensorflow.python.ipu import loops, optimizers

tf = tf2.compat.v1
Dataset = tf2.data.Dataset
rng = np.random.default_rng(3)
X = rng.normal(size=(24, 4, 3)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype(np.float32)
START = np.array([[0.1], [0.2], [-0.3]], np.float32)


pytestmark = pytest.mark.usefixtures("graph")


def build(optimizer, iterations=12):
    """A compiled linear regression; each run takes ``iterations`` elements per replica."""
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices((X, Y)).repeat())
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def body(x, y):
        w = tf.get_variable("w", initializer=START)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
        return optimizer.minimize(loss), outfeed.enqueue(loss)

    return Compiled(lambda: loops.repeat(iterations, body, [], infeed), [], [infeed]), outfeed


def gradient(w, x, y):
    return 2 * x.T @ (x @ w - y) / len(x)


class Sgd:
    def __call__(self, w, g):
        return w - 0.05 * g


class Momentum:
    def __init__(self, nesterov=False):
        self.v, self.nesterov = 0.0, nesterov

    def __call__(self, w, g):
        self.v = 0.9 * self.v + g
        return w - 0.05 * (g + 0.9 * self.v if self.nesterov else self.v)


class Adam:
    def __init__(self):
        self.m = self.v = 0.0
        self.t = 0

    def __call__(self, w, g):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        rate = 0.05 * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        return w - rate * self.m / (np.sqrt(self.v) + 1e-8)


def expected(rule, elements, per_update=1, scale=1.0):
    w = START.astype(np.float64)
    for start in range(0, elements, per_update):
        parts = range(start, start + per_update)
        total = sum(gradient(w, X[i % 24].astype(np.float64), Y[i % 24]) for i in parts)
        w = rule(w, total * scale)
    return w


def weights():
    return value(tf.trainable_variables()[0])


CASES = [
    (lambda: tf.train.GradientDescentOptimizer(0.05), Sgd),
    (lambda: tf.train.MomentumOptimizer(0.05, 0.9), Momentum),
    (lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True), lambda: Momentum(True)),
    (lambda: tf.train.AdamOptimizer(0.05), Adam),
]


@pytest.mark.parametrize(("make", "rule"), CASES)
def test_formulas_over_two_runs(make, rule):
    net, outfeed = build(make())
    net.run()
    net.run()
    np.testing.assert_allclose(weights(), expected(rule(), 24), rtol=2e-4, atol=2e-5)
    losses = dequeued(outfeed)
    assert losses.shape == (24,)
    assert losses[0] == pytest.approx(((X[0] @ START - Y[0]) ** 2).mean(), rel=1e-4)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize(("make", "rule"), CASES)
def test_variables_of_one_element(make, rule, shape, replicas, accumulation):
    """The loss is ``a * mean(x)``, whose gradient is ``mean(x)`` whatever ``a`` is."""
    configure(auto_select_ipus=replicas)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices((X,)).repeat())
    optimizer = make() if replicas == 1 else optimizers.CrossReplicaOptimizer(make())
    if accumulation > 1:
        optimizer = optimizers.GradientAccumulationOptimizerV2(optimizer, accumulation)

    def body(x):
        a = tf.get_variable("a", initializer=np.full(shape, 1.5, np.float32))
        return optimizer.minimize(tf.reduce_sum(a * tf.reduce_mean(x)))

    Compiled(lambda: loops.repeat(6, body, [], infeed), [], [infeed]).run()
    step, a = rule(), np.full(shape, 1.5)
    means = X[: 6 * replicas].astype(np.float64).mean(axis=(1, 2)).reshape(-1, accumulation, replicas)
    for gradients in means:
        a = step(a, gradients.sum() / replicas)
    assert weights().shape == shape
    np.testing.assert_allclose(weights(), a, rtol=1e-4)


@pytest.mark.parametrize("offload", [True, False])
@pytest.mark.parametrize(("make", "rule"), CASES[1:])
def test_gradient_accumulation_with_state_in_either_memory(make, rule, offload):
    configure(optimizations__minimum_remote_tensor_size=8)
    net, outfeed = build(optimizers.GradientAccumulationOptimizerV2(make(), 3, offload))
    net.run()
    np.testing.assert_allclose(weights(), expected(rule(), 12, 3), rtol=2e-4, atol=2e-5)
    assert dequeued(outfeed).shape == (12,)
    remote = [v for v in net.program.ir.variables() if v.remote is not None]
    assert bool(remote) is offload
    loops_found = [op.trip_count for graph in net.program.ir.all_graphs() for op in graph.ops if op.type == "Loop"]
    assert sorted(loops_found) == [3, 4]


@pytest.mark.parametrize(("method", "scale"), [("SUM", 1.0), ("MEAN", 1 / 4), ("RUNNING_MEAN", 1 / 4)])
def test_reduction_methods(method, scale):
    method = optimizers.GradientAccumulationReductionMethod[method]
    wrapped = optimizers.GradientAccumulationOptimizerV2(
        tf.train.GradientDescentOptimizer(0.05), 4, reduction_method=method, dtype=lambda v: tf.float32
    )
    net, _ = build(wrapped)
    net.run()
    np.testing.assert_allclose(weights(), expected(Sgd(), 12, 4, scale), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda opt: optimizers.CrossReplicaGradientAccumulationOptimizer(opt, 3),
        lambda opt: optimizers.CrossReplicaGradientAccumulationOptimizerV2(opt, 3),
        lambda opt: optimizers.GradientAccumulationOptimizer(optimizers.CrossReplicaOptimizer(opt), 3),
    ],
)
def test_accumulation_and_mean_over_replicas(wrap):
    configure(auto_select_ipus=2)
    net, outfeed = build(wrap(tf.train.MomentumOptimizer(0.05, 0.9)), iterations=6)
    net.run()
    np.testing.assert_allclose(weights(), expected(Momentum(), 12, 6, 1 / 2), rtol=2e-4, atol=2e-5)
    assert dequeued(outfeed).shape == (6, 2)


def test_cross_replica_optimizer_alone(graph):
    configure(auto_select_ipus=4)
    net, _ = build(optimizers.CrossReplicaOptimizer(tf.train.GradientDescentOptimizer(0.05)), iterations=3)
    net.run()
    np.testing.assert_allclose(weights(), expected(Sgd(), 12, 4, 1 / 4), rtol=2e-4, atol=2e-5)
    graph.fresh()
    net, _ = build(tf.train.GradientDescentOptimizer(0.05))
    with pytest.raises(ValueError, match="'w' is updated on 4 replicas .*CrossReplicaOptimizer"):
        net.run()


def test_map_gradient_optimizer():
    seen = []

    def double(grad, variable):
        seen.append(variable.name)
        return grad * 2.0

    net, _ = build(optimizers.MapGradientOptimizer(tf.train.GradientDescentOptimizer(0.025), double))
    net.run()
    np.testing.assert_allclose(weights(), expected(Sgd(), 12), rtol=2e-4, atol=2e-5)
    assert seen == ["w:0"]


def test_learning_rate_from_an_argument_and_slots():
    optimizer = None
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices((X, Y)).repeat())

    def net(rate):
        nonlocal optimizer
        optimizer = tf.train.MomentumOptimizer(rate, 0.9)

        def body(x, y):
            w = tf.get_variable("w", initializer=START)
            return optimizer.minimize(tf.reduce_mean(tf.square(tf.matmul(x, w) - y)))

        return loops.repeat(6, body, [], infeed)

    compiled = Compiled(net, [np.float32(0.05)], [infeed])
    compiled.run()
    np.testing.assert_allclose(weights(), expected(Momentum(), 6), rtol=2e-4, atol=2e-5)
    before = weights()
    compiled(np.float32(0))
    np.testing.assert_array_equal(weights(), before)
    slot = optimizer.get_slot(tf.trainable_variables()[0], "momentum")
    assert slot.name == "w/Momentum:0"
    assert np.abs(value(slot)).max() > 0


def test_accumulation_that_does_not_fit(graph):
    sgd = tf.train.GradientDescentOptimizer(0.1)
    net, _ = build(optimizers.GradientAccumulationOptimizerV2(sgd, 3), 10)
    with pytest.raises(ValueError, match="number of mini batches inside a loop with 10 iterations"):
        net.run()
    graph.fresh()

    def outside(x):
        loss = tf.reduce_sum(tf.matmul(x, tf.get_variable("w", (3, 1))))
        return optimizers.GradientAccumulationOptimizerV2(sgd, 2).minimize(loss)

    with pytest.raises(ValueError, match="inside of a training loop generated by loops.repeat"):
        Compiled(outside, [X[0]]).run()
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        Compiled(lambda x: sgd.minimize(tf.reduce_sum(x)), [X[0]])


def test_an_update_that_uses_a_value_of_the_loop_is_refused():
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices((X, Y)).repeat())

    def body(x, y):
        w = tf.get_variable("w", initializer=START)
        rate = tf.reduce_mean(y)
        optimizer = optimizers.GradientAccumulationOptimizerV2(tf.train.GradientDescentOptimizer(rate), 2)
        return optimizer.minimize(tf.reduce_mean(tf.matmul(x, w)))

    with pytest.raises(ValueError, match="which is computed in each mini batch"):
        Compiled(lambda: loops.repeat(4, body, [], infeed), [], [infeed]).run()


@pytest.mark.parametrize("order", ["ZIGZAG", "HOOF"])
def test_training_on_two_shards(order):
    configure(selection_order=f"SelectionOrder.{order}")
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(Dataset.from_tensor_slices((X, Y)).repeat())
    first, second = (rng.normal(size=s).astype(np.float32) for s in ((3, 5), (5, 1)))

    def body(x, y):
        with ipu.scopes.ipu_shard(0):
            hidden = tf.tanh(tf.matmul(x, tf.get_variable("a", initializer=first)))
        with ipu.scopes.ipu_shard(2):
            loss = tf.reduce_mean(tf.square(tf.matmul(hidden, tf.get_variable("b", initializer=second)) - y))
            return tf.train.GradientDescentOptimizer(0.05).minimize(loss)

    net = Compiled(lambda: loops.repeat(6, body, [], infeed), [], [infeed])
    net.run()
    a, b = first.astype(np.float64), second.astype(np.float64)
    for x, y in zip(X[:6], Y[:6]):
        hidden = np.tanh(x @ a)
        error = 2 * (hidden @ b - y) / len(x)
        a, b = a - 0.05 * x.T @ ((error @ b.T) * (1 - hidden**2)), b - 0.05 * hidden.T @ error
    found = [value(v) for v in tf.trainable_variables()]
    np.testing.assert_allclose(found[0], a, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found[1], b, rtol=1e-3, atol=1e-5)
    shard = {"ZIGZAG": 2, "HOOF": 3}[order]
    assert {v.name: v.ipu or 0 for v in net.program.ir.variables()} == {"a": 0, "b": shard}
    assert net.program.executable.simulated_run_cycles > 0
