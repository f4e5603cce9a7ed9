"""Traced arrays against NumPy."""

import numpy as np
import pytest

import ipuperf.tensorflow as tf
from ipuperf.tensorflow.python import ipu

rng = np.random.default_rng(7)
X = rng.normal(size=(3, 4)).astype(np.float32)
Y = rng.normal(size=(3, 4)).astype(np.float32)
W = rng.normal(size=(4, 2)).astype(np.float32)
P = np.abs(X) + 0.5
K = np.array([[5, -7, 3, 9]], np.int32)


def run(function, *arguments):
    return ipu.ipu_compiler.compile(function, list(arguments)).run()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + y * 2 - 1,
        lambda x, y: (x / y) ** 2,
        lambda x, y: 3 - x,
        lambda x, y: 1 / (abs(y) + 1),
        lambda x, y: x > y,
        lambda x, y: (x >= y) & (x < 0.5),
        lambda x, y: x != y,
        lambda x, y: -x,
        lambda x, y: x.reshape(2, 6).T,
        lambda x, y: x.reshape((4, -1)).sum(1),
        lambda x, y: x.mean() + y.max(0, keepdims=True),
        lambda x, y: x[1],
        lambda x, y: x[:, 1:3][..., ::-1],
        lambda x, y: x[None, -1, 0:2],
        lambda x, y: x[2, 3],
        lambda x, y: x[:, None, 1][..., None],
        lambda x, y: x[None, ...] + y[:],
        lambda x, y: np.exp(x) + np.tanh(y),
        lambda x, y: np.matmul(x, y.T),
        lambda x, y: np.concatenate([x, y], 1),
        lambda x, y: np.stack([x, y]),
        lambda x, y: np.where(x > 0, x, y),
        lambda x, y: np.minimum(x, y) + np.maximum(x, 0.1),
        lambda x, y: np.sum(x, axis=0) - np.mean(y, axis=0),
        lambda x, y: np.argmax(x, 1),
        lambda x, y: np.square(x) @ np.transpose(y),
        lambda x, y: x % 0.3,
        lambda x, y: (x * 10) // 3,
    ],
)
def test_operators_and_numpy_functions(function):
    expected = np.asarray(function(X, Y))
    found = run(function, X, Y)
    assert found.shape == expected.shape
    assert found.dtype == (expected.dtype if expected.dtype != np.int64 else np.int32)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_integers_divide_and_take_remainders_as_python_does():
    quotient, remainder, true = run(lambda k: (k // 4, k % 4, k / 4), K)
    np.testing.assert_array_equal(quotient, K // 4)
    np.testing.assert_array_equal(remainder, K % 4)
    np.testing.assert_allclose(true, K / 4)


def test_functions_of_nn_and_math():
    labels = np.array([1, 0, 3], np.int32)

    def function(x, p, w):
        return {
            "log": tf.math.log(p),
            "rsqrt": tf.math.rsqrt(p),
            "softmax": tf.nn.softmax(x),
            "log_softmax": tf.nn.log_softmax(x),
            "xent": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x),
            "sigmoid": tf.sigmoid(x),
            "relu": tf.nn.relu(x),
            "matmul": tf.matmul(w, x, transpose_a=True, transpose_b=True),
            "one_hot": tf.one_hot(labels, 4),
            "split": tf.split(x, [1, 3], 1)[1],
            "norm": tf.nn.layer_norm(x, epsilon=1e-5),
            "rows": tf.nn.embedding_lookup(x, labels[:2]),
            "clip": tf.clip_by_value(x, -0.3, 0.4),
            "cast": tf.cast(x, tf.float16),
        }

    found = run(function, X, P, W)
    shifted = X - X.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    centred = X - X.mean(-1, keepdims=True)
    expected = {
        "log": np.log(P),
        "rsqrt": 1 / np.sqrt(P),
        "softmax": np.exp(log_p),
        "log_softmax": log_p,
        "xent": -log_p[np.arange(3), labels],
        "sigmoid": 1 / (1 + np.exp(-X)),
        "relu": np.maximum(X, 0),
        "matmul": W.T @ X.T,
        "one_hot": np.eye(4)[labels],
        "split": X[:, 1:],
        "norm": centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5),
        "rows": X[labels[:2]],
        "clip": np.clip(X, -0.3, 0.4),
        "cast": X.astype(np.float16),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert found["cast"].dtype == np.float16


def test_conv2d_and_pools_in_both_layouts():
    image = rng.normal(size=(2, 5, 6, 3)).astype(np.float32)
    filters = rng.normal(size=(3, 3, 3, 4)).astype(np.float32)
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = np.zeros((2, 5, 6, 4), np.float32)
    for i in range(3):
        for j in range(3):
            expected += padded[:, i : i + 5, j : j + 6] @ filters[i, j]

    def function(x, w):
        same = tf.nn.conv2d(x, w, 1, "SAME")
        first = tf.nn.conv2d(tf.transpose(x, [0, 3, 1, 2]), w, [1, 1, 1, 1], "SAME", "NCHW")
        return same, first, tf.nn.max_pool(x, 2, 2, "SAME"), tf.nn.avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID")

    same, first, largest, mean = run(function, image, filters)
    np.testing.assert_allclose(same, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(first, expected.transpose(0, 3, 1, 2), rtol=1e-4, atol=1e-4)
    assert largest.shape == (2, 3, 3, 3)
    np.testing.assert_array_equal(largest[:, 0, 0], image[:, :2, :2].max((1, 2)))
    np.testing.assert_allclose(mean[:, 1, 2], image[:, 2:4, 4:6].mean((1, 2)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x + np.ones(4, np.float16), "have different types; cast one"),
        (lambda x: bool(x.sum() > 0), "truth of traced array"),
        (lambda x: x[5], "index 5 of 'arg0': axis 0 has 3 elements"),
        (lambda x: x[:, :, 0], "3 indices for 2 axes"),
        (lambda x: x[x], "use gather"),
        (lambda x: np.linalg.inv(x), "not available for traced arrays"),
        (lambda x: np.cbrt(x), "np.cbrt is not available for traced arrays"),
        (lambda x: np.add.reduce(x), "np.add.reduce is not available"),
        (lambda x: np.asarray(x), "has no value while the program is built"),
        (lambda x: tf.cast(x, "complex64"), "not an element type of the IPU"),
        (lambda x: tf.split(x, 3, 1), "along axis 1: 3 does not divide 4 elements"),
        (lambda x: tf.subtract(x), r"sub\(x, y\): missing a required argument: 'y'"),
        (lambda x: tf.nn.softmax(x, axes=1), r"softmax\(logits, axis=-1\): got an unexpected keyword argument 'axes'"),
        (lambda x: tf.argmax(x, 0) + 0.5, "a fraction does not fit an integer type"),
    ],
)
def test_errors_name_the_array_and_the_remedy(function, message):
    with pytest.raises((TypeError, IndexError, ValueError), match=message):
        run(function, X)


def test_ops_outside_a_program_are_refused():
    with pytest.raises(RuntimeError, match="no IPU program is being traced"):
        tf.nn.relu(X)


def test_an_array_of_another_program_is_refused():
    kept = []
    run(lambda x: kept.append(x) or x, X)
    with pytest.raises(ValueError, match="pass it as an argument"):
        run(lambda x: x + kept[0], X)


def test_variable_scopes_follow_tensorflow_1():
    with tf.variable_scope("a"), tf.variable_scope("b"):
        w = tf.get_variable("w", (2, 3))
    assert w.name == "a/b/w:0"
    assert w.trainable
    with pytest.raises(ValueError, match="Variable a/b/w already exists, disallowed"), tf.variable_scope("a/b"):
        tf.get_variable("w", (2, 3))
    with tf.variable_scope("a/b", reuse=True):
        assert tf.get_variable("w", (2, 3)) is w
        with pytest.raises(ValueError, match=r"specified shape \(3,\) and found shape \(2, 3\)"):
            tf.get_variable("w", (3,))
        with pytest.raises(ValueError, match="Variable a/b/v does not exist"):
            tf.get_variable("v", (3,))
    with tf.variable_scope("a/b", reuse=tf.AUTO_REUSE):
        assert tf.get_variable("w") is w
        v = tf.get_variable("v", (3,), initializer=tf.constant_initializer(2.0), trainable=False)
    assert [x.op_name for x in tf.global_variables()] == ["a/b/w", "a/b/v"]
    assert tf.trainable_variables() == [w]
    np.testing.assert_array_equal(v.numpy(), [2, 2, 2])
    with pytest.raises(ValueError, match="must be fully defined"):
        tf.get_variable("u")
    tf.reset_default_graph()
    assert tf.global_variables() == []


def test_initialisers_are_keyed_by_seed_and_name():
    def draw(seed, name):
        tf.reset_default_graph()
        tf.set_random_seed(seed)
        return tf.get_variable(name, (50, 50)).numpy()

    first = draw(1, "w")
    np.testing.assert_array_equal(first, draw(1, "w"))
    assert not np.array_equal(first, draw(2, "w"))
    assert not np.array_equal(first, draw(1, "v"))
    assert np.abs(first).max() <= np.sqrt(6 / 100)


def test_variables_are_shared_by_programs_and_the_host():
    counter = tf.Variable(np.float32(1), name="counter")
    add = ipu.ipu_compiler.compile(lambda: counter.assign_add(2.0) and None)
    double = ipu.ipu_compiler.compile(lambda: counter.assign(counter * 2.0))
    add.run()
    double.run()
    add.run()
    assert counter.numpy() == 8
    counter.assign(0.5)
    double.run()
    assert counter.numpy() == 1
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run([counter, counter])[1] == 1
    with pytest.raises(ValueError, match=r"has shape \(\); a value of shape \(2,\)"):
        counter.assign([1.0, 2.0])


def test_gradients_and_the_tape():
    def function(x, w):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.matmul(x, w)))
        dx, dw = tape.gradient(loss, [x, w])
        return dx, dw, tf.gradients(loss, [w])[0]

    dx, dw, again = run(function, X, W)
    slope = 1 - np.tanh(X @ W) ** 2
    np.testing.assert_allclose(dx, slope @ W.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dw, X.T @ slope, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(again, dw, rtol=1e-6)


def test_gradients_of_compositions_that_name_their_ops():
    """``%`` and ``**`` write their gradients as formulas with named parts."""
    slopes = run(lambda x, p: tf.gradients(tf.reduce_sum(x % 0.7 + p**2.5), [x, p]), X, P)
    np.testing.assert_array_equal(slopes[0], np.ones_like(X))
    np.testing.assert_allclose(slopes[1], 2.5 * P**1.5, rtol=1e-5)


def test_results_are_called_as_the_program_says():
    found = []
    run(lambda x, y: found.append(tf.add(x=x, y=y, name="total")) or found[0], X, Y)
    assert found[0].name == "total"
