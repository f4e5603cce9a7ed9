"""A ``tf.function`` that others call: with a tape, without one, and by itself, in any order."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import beside, ipus, same  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.programs.hosting import _HOSTS  # noqa: E402

RNG = np.random.default_rng(4)


def test_a_function_whose_gradient_was_taken_has_no_more_results():
    """TensorFlow appends what the backward pass reads to the outputs of the graph that all calls share."""
    x, weights = RNG.normal(size=(2, 4)).astype("float32"), RNG.normal(size=(4, 3)).astype("float32")
    with ipus(1):
        strategy, w = tf.distribute.get_strategy(), tf.Variable(weights)

        @tf.function(jit_compile=True)
        def layer(x):
            return {"y": tf.tanh(tf.tanh(x @ w) @ tf.transpose(w))}

        @tf.function(jit_compile=True)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(x)["y"])
            return layer(x)["y"], tape.gradient(loss, w)

        @tf.function(jit_compile=True)
        def twice(x):
            return layer(layer(x)["y"])["y"]

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.tanh(x @ w) @ tf.transpose(w)))
        gradient = tape.gradient(loss, w)

        def plain(x):
            return np.tanh(np.tanh(x @ weights) @ weights.T)

        same(strategy.run(step, args=[x]), [plain(x), gradient])
        same(strategy.run(twice, args=[x]), plain(plain(x)))
        same(strategy.run(layer, args=[x]), {"y": plain(x)})
        (alone,) = (host.program for graph, host in _HOSTS.items() if graph.name == "layer")
        assert len(alone.ir.streams("d2h")) == 1


@pytest.mark.heavy
def test_grouped_convolutions_predict_after_training():
    """Keras calls them by a function of their own."""
    x, y = RNG.normal(size=(4, 4, 4, 3)).astype("float32"), RNG.normal(size=(4, 6)).astype("float32")

    def build():
        return keras.Sequential([keras.layers.Conv2D(6, 4, groups=3, input_shape=(4, 4, 3)), keras.layers.Flatten()])

    model, cpu = beside(build, lambda m: m.compile("sgd", "mse"))
    for each in (cpu, model):
        each.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    same(model.get_weights(), cpu.get_weights())
    same(model.predict(x, batch_size=2, verbose=0), cpu.predict(x, batch_size=2, verbose=0))


def test_arguments_that_are_not_given_are_the_functions_defaults():
    one = np.ones(3, "float32")
    with ipus(1):
        strategy, w = tf.distribute.get_strategy(), tf.Variable(2.0)

        @tf.function(jit_compile=True)
        def scaled(x, scale=1.0, training=False, *, bias=0.0):
            if training:
                w.assign_add(1.0)
            return x * scale * w + bias

        @tf.function(jit_compile=True)
        def gathered(x, *more, factor=1.0, **named):
            return x + sum(more) * factor + named.get("z", 0.0)

        same(strategy.run(scaled, [one], {"scale": 2.0}), 4 * one)
        same(strategy.run(scaled, [one]), 2 * one)
        same(scaled(one, training=True), 3 * one)
        same(scaled(x=one, bias=tf.constant(5.0), scale=tf.constant(2.0)), 11 * one)
        same(strategy.run(gathered, [one, one, 2 * one], {"z": one}), 5 * one)
        same(gathered(one, one, factor=4.0), 5 * one)


def test_lengths_that_a_signature_leaves_open_are_those_of_the_arguments():
    with ipus(1):

        @tf.function(jit_compile=True, input_signature=[tf.TensorSpec((None, 2)), tf.TensorSpec(())])
        def signed(x, scale=2.0):
            return tf.reduce_sum(x, 0) * scale * tf.cast(tf.shape(x)[0], tf.float32)

        @tf.function(jit_compile=True, reduce_retracing=True)
        def relaxed(x):
            return tf.reduce_sum(x) * tf.cast(tf.shape(x)[0], tf.float32)

        for rows in (2, 3, 4, 2):
            same(signed(np.ones((rows, 2))), np.full(2, 2.0 * rows**2))
            same(signed(np.ones((rows, 2)), 3), np.full(2, 3.0 * rows**2))
            same(relaxed(np.ones(rows, "float32")), rows**2)
