"""Dynamic GRUs in graphs of version 1, trained for a step, against the steps written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from sessions import Compiled, graphs

from ipuperf.tensorflow.python import ipu

tf1 = tf.compat.v1
UNITS, INPUTS = 3, 2
LENGTHS = np.array([1, 4, 2], np.int32)
RNG = np.random.default_rng(11)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def steps(kernel, x, scores):
    """Results ``[batch, time, units]``, zeros behind the lengths; gates of the kernel are update, reset, candidate."""
    own, recurrent = np.split(kernel, [INPUTS])
    batch, time, _ = x.shape
    state, found = np.zeros((batch, UNITS)), np.zeros((batch, time, UNITS))
    for t in range(time):
        sums, more = x[:, t] @ own, state @ recurrent[:, : 2 * UNITS]
        update = sigmoid(sums[:, :UNITS] + more[:, :UNITS])
        reset = sigmoid(sums[:, UNITS : 2 * UNITS] + more[:, UNITS:])
        candidate = np.tanh(sums[:, 2 * UNITS :] + (reset * state) @ recurrent[:, 2 * UNITS :])
        update = update if scores is None else update * (1 - scores[:, t, None])
        inside = (t < LENGTHS)[:, None]
        state = np.where(inside, update * state + (1 - update) * candidate, state)
        found[:, t] = np.where(inside, state, 0)
    return found


def slope(kernel, x, scores):
    """Of the mean of the squares of the results, by central differences."""
    found = np.zeros_like(kernel)
    for place in np.ndindex(kernel.shape):
        step = np.zeros_like(kernel)
        step[place] = 1e-6
        ends = [np.mean(steps(kernel + sign * step, x, scores) ** 2) for sign in (1, -1)]
        found[place] = (ends[0] - ends[1]) / 2e-6
    return found


@pytest.mark.parametrize("kind", ["gru", "augru"])
def test_results_and_a_step(kind):
    x = RNG.normal(size=(len(LENGTHS), LENGTHS.max(), INPUTS))
    scores = RNG.uniform(size=x.shape[:2]) if kind == "augru" else None
    weights = RNG.normal(size=(INPUTS + UNITS, 3 * UNITS))

    def net(x, lengths, scores):
        layers = ipu.ops.rnn_ops
        if kind == "gru":
            rows, _ = layers.PopnnDynamicGRU(UNITS)(x, lengths, time_major=False)
        else:
            rows, _ = layers.PopnnAUGRU(UNITS)(x, lengths, scores, time_major=False)
        rows = tf.transpose(rows, [1, 0, 2])
        optimizer = tf1.train.GradientDescentOptimizer(learning_rate=1)
        train = optimizer.minimize(tf.reduce_mean(tf.square(rows)))
        with tf1.control_dependencies([train]):
            return tf.identity(rows)

    with graphs() as made:
        values = [x.astype(np.float32), LENGTHS, (x[..., 0] if scores is None else scores).astype(np.float32)]
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            run = Compiled(net, values)
        made.session.run(tf1.global_variables_initializer())
        (kernel,) = (v for v in tf1.global_variables() if v.name.endswith("/kernel:0"))
        biases = [v for v in tf1.global_variables() if "bias" in v.name]
        made.session.run([tf1.assign(kernel, weights), *(tf1.assign(b, np.zeros(b.shape)) for b in biases)])
        (rows,) = run()
        np.testing.assert_allclose(rows, steps(weights, x, scores), rtol=1e-5, atol=1e-6)
        trained = weights - slope(weights, x, scores)
        np.testing.assert_allclose(made.session.run(kernel), trained, rtol=1e-5, atol=1e-6)
