"""What the import refuses: one error with the op's name, its type, the user's line and what would help."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import GraphPlace, Program, traced
from tensorflow.python.framework.func_graph import func_graph_from_py_func

from ipuperf import ir
from ipuperf.tensorflow.importer import GraphError, captured_values, import_graph, marker

X = np.ones((3, 4), np.float32)


def error_of(function, *arguments: np.ndarray) -> str:
    with pytest.raises(GraphError) as found:
        Program(function, arguments)
    assert isinstance(found.value, tf.errors.InvalidArgumentError)
    return str(found.value)


def test_an_op_without_counterpart_is_named_with_its_line() -> None:
    message = error_of(lambda x: tf.linalg.qr(x @ tf.transpose(x), name="factor"), X)  # this line
    with open(__file__, encoding="utf-8") as file:
        line = next(number for number, text in enumerate(file, 1) if "# this line" in text)
    assert f"{__file__}:{line}: op 'factor' (Qr)" in message
    assert "no counterpart on the IPU" in message
    assert "docs/reference/tensorflow-operations.md" in message
    assert "on the host" in message


def printed(x: tf.Tensor) -> tf.Tensor:
    tf.print("x is", x)
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: tf.strings.as_string(x), "no strings"),
        (lambda x: tf.sparse.to_dense(tf.sparse.from_dense(x)), "fixed shapes"),
        (lambda x: tf.raw_ops.Print(input=x, data=[x]), "print_tensor"),
        (printed, "print_tensor"),
        (lambda x: tf.raw_ops.VariableV2(shape=[2], dtype=tf.float32) + x[0, 0], "resource variable"),
    ],
)
def test_an_error_says_what_would_help(function, words: str) -> None:
    assert words in error_of(function, X)


def test_the_shapes_of_the_arguments_count_not_those_of_the_trace() -> None:
    graph = func_graph_from_py_func(
        "program", lambda x: x * tf.cast(tf.shape(x)[0], x.dtype), [tf.TensorSpec([None, 4])], {}
    )
    place = GraphPlace(ir.Ir().main_graph)
    with ir.CONTEXT.building(place):
        (found,) = import_graph(graph, [place.data("x", X)], place)
    assert found.shape == (3, 4)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: tf.where(x > 0), "number of positions depends on data"),
        (lambda x: tf.boolean_mask(x, x > 0), "fixed shapes"),
        (lambda x: tf.reshape(x, [tf.cast(x[0, 0], tf.int32), -1]), "the shape is computed on the IPU"),
        (lambda x: tf.unique(tf.cast(x[0], tf.int32))[0], "how many different numbers"),
        (lambda x: tf.fill([tf.cast(x[0, 0], tf.int32)], 1.0), "the shape is computed on the IPU"),
    ],
)
def test_a_shape_that_depends_on_data(function, words: str) -> None:
    assert words in error_of(function, X)


def test_a_callback_of_the_host() -> None:
    message = error_of(lambda x: tf.numpy_function(np.sin, [x], tf.float32), X)
    assert "(PyFunc)" in message
    assert "Dataset.map" in message
    assert "Dataset.map" in error_of(lambda x: tf.py_function(lambda a: a, [x], tf.float32), X)


def test_types_that_the_ipu_does_not_have() -> None:
    assert "float64" in error_of(lambda x: tf.cast(x, tf.float64) * 2.0, X)
    assert "bfloat16" in error_of(lambda x: tf.cast(x, tf.bfloat16) * 2.0, X)
    assert "does not fit into int32" in error_of(lambda x: tf.cast(x, tf.int64) + 2**40, X)


def test_a_tensor_of_a_graph_around() -> None:
    with tf.Graph().as_default():
        outside = tf.compat.v1.placeholder(tf.float32, [3, 4])
        graph = traced(lambda x: x + outside, X)
    with pytest.raises(GraphError, match="of a graph around it.*pass it as an argument"):
        captured_values(graph)


def test_an_eager_tensor_from_outside_is_a_constant() -> None:
    outside = tf.range(40.0)
    np.testing.assert_array_equal(Program(lambda x: x[0, 0] + outside, [X]).run()[0], np.arange(40.0) + 1)


class Doubled:
    """The meaning of a marker of the tests."""

    def build(self, importer, inputs):
        return [inputs[0] + inputs[0]]


def test_a_marker_is_what_its_meaning_builds() -> None:
    def function(x):
        gradient = lambda op, dy: 2.0 * dy  # noqa: E731
        with tf.GradientTape() as tape:
            tape.watch(x)
            (y,) = marker("doubled", Doubled(), [x], [tf.TensorSpec([3, 4])], effect=False, gradient=gradient)
            loss = tf.reduce_sum(y * y)
        return y, tape.gradient(loss, x)

    value, gradient = Program(function, [X]).run()
    np.testing.assert_array_equal(value, 2 * X)
    np.testing.assert_array_equal(gradient, 8 * X)


def test_a_marker_run_by_tensorflow_is_one_error() -> None:
    function = tf.function(lambda x: marker("doubled", Doubled(), [x], [tf.TensorSpec([3, 4])]))
    with pytest.raises(tf.errors.UnknownError, match="doubled exists only in programs of the IPU"):
        function(tf.constant(X))


def test_a_marker_with_an_effect_stays() -> None:
    seen = []

    class Noted:
        def build(self, importer, inputs):
            seen.append(inputs[0].shape)
            return []

    def function(x):
        marker("noted", Noted(), [x], [])
        return x * 1.0

    Program(function, [X])
    assert seen == [(3, 4)]


# -- random numbers ----------------------------------------------------------------------------------------------------

NUMBERS = np.zeros(20_000, np.float32)


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda n: tf.random.uniform([n], 2.0, 4.0), 3.0, 2 / 12**0.5),
        (lambda n: tf.random.normal([n], 1.0, 2.0), 1.0, 2.0),
        (lambda n: tf.random.truncated_normal([n]), 0.0, 0.8796),
        (lambda n: tf.cast(tf.random.uniform([n], 0, 5, tf.int32), tf.float32), 2.0, 2**0.5),
        (lambda n: tf.random.stateless_uniform([n], [1, 2]), 0.5, 12**-0.5),
        (lambda n: tf.random.stateless_normal([n], [1, 2]), 0.0, 1.0),
        (lambda n: tf.random.stateless_truncated_normal([n], [1, 2]), 0.0, 0.8796),
        (lambda n: tf.cast(tf.random.stateless_uniform([n], [1, 2], 0, 5, tf.int32), tf.float32), 2.0, 2**0.5),
        (lambda n: tf.cast(tf.random.categorical(tf.zeros([1, 4]), n)[0], tf.float32), 1.5, 1.25**0.5),
    ],
)
def test_random_numbers_have_their_distribution(draw, mean: float, deviation: float) -> None:
    (found,) = Program(lambda x: x + draw(len(NUMBERS)), [NUMBERS]).run()
    assert abs(found.mean() - mean) < 4 * deviation / len(NUMBERS) ** 0.5
    assert abs(found.std() / deviation - 1) < 0.03


def test_stateful_numbers_change_from_run_to_run_and_stateless_ones_do_not() -> None:
    def function(x):
        return x + tf.random.normal([5]), x + tf.random.normal([5]), x + tf.random.stateless_normal([5], [3, 4])

    program = Program(function, [np.zeros(5, np.float32)])
    first, second = program.run(), program.run()
    assert not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[2], second[2])


def test_dropout_and_its_gradient_drop_the_same() -> None:
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.dropout(x, 0.3)
        return y, tape.gradient(y, x)

    value, gradient = Program(function, [NUMBERS + 1]).run()
    np.testing.assert_allclose(value, gradient, rtol=1e-6)
    assert abs((value == 0).mean() - 0.3) < 0.02
    np.testing.assert_allclose(value[value != 0], 1 / 0.7, rtol=1e-6)


def test_a_generator_draws_others_each_time() -> None:
    generator = tf.random.Generator.from_seed(1)
    program = Program(lambda x: x + generator.normal([5]), [np.zeros(5, np.float32)])
    assert not np.array_equal(program.run()[0], program.run()[0])
