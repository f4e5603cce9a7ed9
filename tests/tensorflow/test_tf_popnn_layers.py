"""Recurrent layers of PopNN against cells of TensorFlow and Keras with the same weights."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
import tf_keras
from graphcases import check
from sessions import Compiled, graphs, missing

from ipuperf.tensorflow.python import ipu

tf1 = tf.compat.v1
TIME, BATCH, INPUTS, UNITS = 5, 3, 4, 6
LENGTHS = np.array([5, 2, 4], np.int32)


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def with_gradients(layer, *more):
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = tf.nest.flatten(layer(x, *more))
            loss = tf.add_n([tf.reduce_sum(t * t) for t in found])
        return [*found, *tape.gradient(loss, [x, *layer.trainable_variables])]

    return tf.function(function)


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def test_lstm_equals_keras() -> None:
    layer = ipu.rnn_ops.PopnnLSTM(UNITS, weights_initializer=tf1.random_normal_initializer(seed=1))
    x = array(TIME, BATCH, INPUTS)
    layer(x)
    program = check(with_gradients(layer, None), x)
    kinds = [op.type for op in program.ir.main_graph.ops]
    assert (kinds.count("Recurrent"), kinds.count("RecurrentGrad"), kinds.count("Loop")) == (1, 1, 0)
    outputs, state = layer(x)
    keras = tf_keras.layers.LSTM(UNITS, return_sequences=True, return_state=True, time_major=True)
    keras(x)
    kernel = layer.kernel.numpy()
    keras.set_weights([kernel[:INPUTS], kernel[INPUTS:], np.zeros(4 * UNITS, np.float32)])
    for one, other in zip([outputs, state.h, state.c], keras(x)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert layer.kernel.shape == (INPUTS + UNITS, 4 * UNITS)
    assert layer.biases.shape == (4, UNITS)


def test_dynamic_lstm_equals_a_masked_one() -> None:
    layer = ipu.rnn_ops.PopnnDynamicLSTM(UNITS, seed=2)
    x = array(TIME, BATCH, INPUTS)
    outputs, state = layer(x, LENGTHS)
    check(with_gradients(layer, LENGTHS), x)
    for number, length in enumerate(LENGTHS):
        plain = ipu.rnn_ops.PopnnLSTM(UNITS)
        own = x[:length, number : number + 1]
        plain(own)
        plain.set_weights(layer.get_weights())
        rows, end = plain(own)
        np.testing.assert_allclose(outputs[:length, number], rows[:, 0], rtol=1e-5, atol=1e-6)
        assert not np.any(outputs[length:, number])
        np.testing.assert_allclose(state.c[number], end.c[0], rtol=1e-5, atol=1e-6)


def gru(weights, x, scores=None, after: bool = False):
    """Step by step in NumPy."""
    kernel, biases = weights
    own, recurrent = kernel[:INPUTS], kernel[INPUTS:]
    state, rows = np.zeros((BATCH, UNITS), np.float32), []
    for t in range(TIME):
        first, second = (biases[:, 0], biases[:, 1]) if after else (biases, np.zeros_like(biases))
        gates = x[t] @ own + first.reshape(-1)
        more = state @ recurrent + second.reshape(-1)
        u, r = (sigmoid(gates[:, i * UNITS : (i + 1) * UNITS] + more[:, i * UNITS : (i + 1) * UNITS]) for i in (0, 1))
        part = r * more[:, 2 * UNITS :] if after else (r * state) @ recurrent[:, 2 * UNITS :]
        candidate = np.tanh(gates[:, 2 * UNITS :] + part)
        if scores is not None:
            u = u * (1 - scores[:, t : t + 1])
        new = u * state + (1 - u) * candidate
        inside = (t < LENGTHS)[:, None] if scores is not None else np.ones((BATCH, 1), bool)
        rows.append(np.where(inside, new, 0))
        state = np.where(inside, new, state)
    return np.stack(rows), state


@pytest.mark.parametrize("after", [False, True])
def test_gru_and_augru_equal_numpy(after: bool) -> None:
    x, scores = array(TIME, BATCH, INPUTS), np.abs(array(BATCH, TIME)) % 1
    layer = ipu.rnn_ops.PopnnGRU(UNITS, reset_after=after, bias_initializer=tf1.random_normal_initializer(seed=1))
    found = layer(x)
    check(with_gradients(layer), x)
    for one, other in zip(found, gru(layer.get_weights(), x, after=after)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    layer = ipu.rnn_ops.PopnnAUGRU(UNITS, reset_after=after)
    found = layer(x, LENGTHS, scores)
    biases = np.concatenate([np.ones((2, UNITS)), np.zeros((1, UNITS))]).astype(np.float32)
    biases = np.stack([biases, biases], 1) if after else biases
    for one, other in zip(found, gru((layer.kernel.numpy(), biases), x, scores, after)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_training_in_a_compiled_function() -> None:
    """A program of version 1: variables are in the layer's scope, and one step of SGD equals TensorFlow's."""
    x = array(TIME, BATCH, INPUTS)

    def net(x):
        outputs, _ = ipu.rnn_ops.PopnnGRU(UNITS, seed=5, name="rnn")(x)
        loss = tf.reduce_sum(outputs**2)
        return loss, tf1.train.GradientDescentOptimizer(0.1).minimize(loss)

    with graphs() as made:
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            run = Compiled(lambda x: net(x), [x])
        losses = [run()[0] for _ in range(3)]
        assert [v.name for v in tf1.trainable_variables()] == ["rnn/kernel:0", "rnn/biases:0"]
        made.fresh()
        tf1.enable_resource_variables()
        loss, train = net(tf.constant(x))
        made.session.run(tf1.variables_initializer(missing(made.session)))
        wanted = [made.session.run([loss, train])[0] for _ in range(3)]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)


def test_dynamic_rnn_in_a_loop_sees_every_update() -> None:
    """TensorFlow 1 has cells read a cached value of their weights; in a loop of updates they read the weights."""
    data = np.random.default_rng(0).normal(size=(5, BATCH, TIME, INPUTS)).astype(np.float32)

    def net(x):
        cell = tf1.nn.rnn_cell.LSTMCell(UNITS, initializer=tf1.random_normal_initializer(seed=1, stddev=0.3))
        outputs, state = tf1.nn.dynamic_rnn(cell, x, sequence_length=LENGTHS, dtype=tf.float32)
        loss = tf.reduce_sum(outputs**2) + tf.reduce_sum(state.h)
        return loss, tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss)

    with graphs() as made:
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(data))
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def body(x):
            loss, train = net(x)
            with tf.control_dependencies([train]):
                return outfeed.enqueue(tf.identity(loss))

        run = Compiled(lambda: ipu.loops.repeat(5, body, [], infeed), [], [infeed])
        run()
        losses = made.session.run(outfeed.dequeue())
        kinds = [op.type for graph in run.program.ir.all_graphs() for op in graph.ops]
        assert kinds.count("Loop") == 3
        made.fresh()
        tf1.enable_resource_variables()
        holder = tf1.placeholder(tf.float32, data.shape[1:])
        loss, train = net(holder)
        made.session.run(tf1.variables_initializer(missing(made.session)))
        wanted = [made.session.run([loss, train], {holder: x})[0] for x in data]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5, atol=1e-6)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="Only support float16, float32"):
        ipu.rnn_ops.PopnnLSTM(4, dtype=tf.float64)
    with pytest.raises(ValueError, match="'elu' is not supported; allowed: tanh"):
        ipu.rnn_ops.PopnnGRU(4, activation="elu")
    with pytest.raises(ValueError, match="expecting `LSTMStateTuple`"):
        ipu.rnn_ops.PopnnLSTM(4)(array(2, 2, 2), (array(2, 4), array(2, 4)))
