"""A ``tf.function`` that others call: with a tape, without one, and by itself, in any order."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import beside, ipus, same  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.functions import _HOSTS  # noqa: E402

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
