"""The import of TensorFlow's graphs: values equal TensorFlow on the CPU."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import check

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_a_layer_with_variables() -> None:
    weight, bias = tf.Variable(array(3, 4)), tf.Variable(array(4))

    @tf.function
    def activation(x):
        return tf.nn.relu(x) + 1.0

    def layer(x):
        y = activation(x @ weight + bias)
        bias.assign_sub(tf.ones([4]))
        return y, bias + 0.0

    check(layer, array(2, 3))


def test_a_value_read_before_its_variable_changes() -> None:
    variable = tf.Variable(array(3))

    def function(x):
        before = variable.read_value()
        variable.assign_add(x)
        return before * 2.0, variable * 2.0

    check(function, array(3))


# -- control flow ------------------------------------------------------------------------------------------------------


def test_a_conditional_on_data() -> None:
    variable = tf.Variable(array(3))

    def function(x):
        def then():
            variable.assign_add(x)
            return x * 2.0, variable + 0.0

        return tf.cond(tf.reduce_sum(x) > 0, then, lambda: (x - 1.0, x))

    for sign in (1.0, -1.0):
        check(function, sign * np.abs(array(3)))


def test_a_conditional_on_what_is_known() -> None:
    check(lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: x * 2.0, lambda: x - 1.0), array(3))


def test_a_counted_loop() -> None:
    variable = tf.Variable(array(3))

    @tf.function
    def function(x):
        total = tf.zeros([3])
        for i in tf.range(2, 9, 2):
            variable.assign_add(x)
            total += variable * tf.cast(i, tf.float32)
            x = x * 0.5
        return total, x, i

    program = check(function, array(3))
    assert [op.type for op in program.ir.main_graph.ops].count("Loop") == 1


def test_a_loop_whose_counter_doubles() -> None:
    check(lambda x: tf.while_loop(lambda i, y: i < 20, lambda i, y: (i * 2, y + 1.0), [tf.constant(1), x]), array(2))


def test_a_loop_that_exchanges_its_variables() -> None:
    def function(x, y):
        return tf.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a), [0, x, y])[1:]

    check(function, array(2), array(2))


def test_a_loop_that_depends_on_data_is_refused() -> None:
    function = tf.function(lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9.0, lambda y: (y * 2.0,), [x]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="depends on data.*tf.range"):
        check(function, np.abs(array(2)))


def test_the_gradient_of_a_loop() -> None:
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(4):
                y = y * tf.sin(y) + x
        return tape.gradient(y, x)

    check(tf.function(function), array(3))


def test_a_conditional_in_a_loop() -> None:
    def body(i, y):
        return i + 1, tf.cond(tf.reduce_sum(y) > 0, lambda: y * 0.5, lambda: y - 1.0)

    check(tf.function(lambda x: tf.while_loop(lambda i, y: i < 3, body, [0, x])[1]), array(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.map_fn(lambda row: row * 2.0 + 1.0, x),
        lambda x: tf.vectorized_map(lambda row: tf.reduce_sum(row * row), x),
        lambda x: tf.scan(lambda total, row: total + row, x),
        lambda x: tf.foldl(lambda total, row: total * row, x),
    ],
)
def test_functions_over_rows(function) -> None:
    check(tf.function(function), array(3, 4))


def test_second_derivatives() -> None:
    def function(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tf.tanh(x) ** 3)
            first = inner.gradient(y, x)
        return outer.gradient(first, x)

    check(function, array(3, 4))
