"""Loops over lists of tensors are loops on the IPU, forward and backward; loops that data end have a greatest number
of iterations."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
import tf_keras
from graphcases import check


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def kinds(program) -> list[str]:
    return [op.type for op in program.ir.main_graph.ops]


def gradient_of(function, variables):
    def both(*x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = function(*x)
        return loss, tape.gradient(loss, [*x, *variables])

    return tf.function(both)


def recurrent(x, weight):
    states = tf.TensorArray(tf.float32, x.shape[1])
    state = tf.zeros([x.shape[0], x.shape[2]])
    for i in tf.range(x.shape[1]):
        state = tf.tanh(x[:, i] + state @ weight)
        states = states.write(i, state)
    return tf.reduce_sum(states.stack() ** 2)


def test_a_recurrence_is_two_loops() -> None:
    weight = tf.Variable(array(4, 4) * 0.3)
    program = check(gradient_of(lambda x: recurrent(x, weight), [weight]), array(2, 5, 4))
    assert kinds(program).count("Loop") == 2
    assert len(kinds(program)) < 60


MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)


@pytest.mark.heavy
@pytest.mark.parametrize(("layer", "mask"), [("LSTM", None), ("GRU", None), ("SimpleRNN", None), ("LSTM", MASK)])
def test_recurrent_layers_of_keras(layer: str, mask: np.ndarray | None) -> None:
    made, x = getattr(tf_keras.layers, layer)(3, return_sequences=mask is None), array(2, 5, 4)
    made(x)
    program = check(gradient_of(lambda x: tf.reduce_sum(made(x, training=True, mask=mask) ** 2), made.weights), x)
    assert kinds(program).count("Loop") == 2


def test_a_loop_in_a_loop() -> None:
    weight = tf.Variable(array(4, 4) * 0.3)

    def outer(x):
        total = tf.zeros([])
        for k in tf.range(3):
            total += recurrent(x * tf.cast(k + 1, tf.float32), weight)
        return total

    check(gradient_of(outer, [weight]), array(2, 5, 4))


def test_a_list_that_is_read_and_written() -> None:
    def function(x):
        def body(i, rows):
            return i + 1, rows.write(i, rows.read(i - 1) * x[i])

        first = tf.TensorArray(tf.float32, 6, clear_after_read=False).write(0, tf.ones([3]))
        return tf.while_loop(lambda i, rows: i < 6, body, [1, first])[1].stack()

    program = check(tf.function(function), array(6, 3))
    assert kinds(program).count("Loop") == 1


def test_a_list_that_the_loop_only_reads_stays_as_it_is() -> None:
    def function(x):
        rows = tf.TensorArray(tf.float32, 4, clear_after_read=False).unstack(x)
        changed = rows
        total = tf.zeros([3])
        for i in tf.range(4):
            total += rows.read(3 - i)
            changed = changed.write(i, total)
        return rows.stack(), changed.stack()

    check(tf.function(function), array(4, 3))


def test_a_slice_whose_size_the_counter_decides_is_unrolled() -> None:
    def function(x):
        sums = tf.TensorArray(tf.float32, 4)
        for i in tf.range(4):
            sums = sums.write(i, tf.reduce_sum(x[: i + 1]))
        return sums.stack()

    program = check(tf.function(function), array(4, 3))
    assert "Loop" not in kinds(program)


def test_a_loop_that_data_end_runs_at_most_so_often() -> None:
    def function(x):
        return tf.while_loop(
            lambda n, y: tf.reduce_sum(y) < 30.0, lambda n, y: (n + 1, y * 2.0), [0, x], maximum_iterations=12
        )

    for scale in (0.01, 1.0, 100.0):
        program = check(tf.function(function), np.abs(array(3)) * np.float32(scale))
        loops = [op for op in program.ir.main_graph.ops if op.type == "Loop"]
        assert [op.trip_count for op in loops] == [12]


def test_a_loop_that_data_end_over_lists() -> None:
    def function(x):
        def body(i, state, rows):
            return i + 1, state * 2.0, rows.write(i, state)

        rows = tf.TensorArray(tf.float32, 6)
        found = tf.while_loop(
            lambda i, state, rows: tf.logical_and(i < 6, tf.reduce_sum(state) < 9.0), body, [0, x, rows]
        )
        return found[0], found[1], found[2].stack()

    check(tf.function(function), np.abs(array(3)))


def test_the_gradient_of_a_loop_that_data_end_is_refused() -> None:
    def function(x):
        return tf.reduce_sum(
            tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: (y * y + 1.0,), [x], maximum_iterations=4)[0]
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match="test_tf_loop_lists.py.*no fixed length.*tf.range"):
        check(gradient_of(function, []), np.abs(array(3)))
