"""``tf.custom_gradient`` in pipeline stages, which ipuperf differentiates: gradients are the program's own."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import descend, gradients_of, ipus, same, two_stages  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.importer import GraphError  # noqa: E402
from ipuperf.tensorflow.python import ipu  # noqa: E402

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(8, 4)).astype("float32"), RNG.normal(size=(8, 2)).astype("float32")
PARTS = 4


@tf.custom_gradient
def quantised(x):
    return tf.round(4 * x) / 4, lambda dy: 2 * dy


@tf.custom_gradient
def limited(x):
    """A gradient that is not linear."""
    return tf.identity(x), lambda dy: tf.clip_by_value(dy, -0.02, 0.02)


@tf.custom_gradient
def product(x, y):
    slope = tf.sin(x)  # of the forward, but for the gradient only
    return x * y, lambda dy: (dy * y + slope * 0.1, 3 * dy * x)


@tf.custom_gradient
def pair(x):
    return (2 * x, 3 * x), lambda dy, dz: dy + dz


class Layer(keras.layers.Layer):
    """The product with a weight, whose gradient is doubled, in ``recompute_grad``."""

    def build(self, shape):
        self.w = self.add_weight("w", (shape[-1], shape[-1]))

    def call(self, x):
        @tf.custom_gradient
        def doubled(x):
            def gradient(dy, variables=None):
                return dy @ tf.transpose(self.w), [2 * tf.transpose(x) @ dy for _ in variables]

            return x @ self.w, gradient

        return tf.recompute_grad(lambda x: tf.tanh(x))(doubled(x))


class InFunction(keras.layers.Layer):
    @tf.function
    def call(self, x):
        for _ in tf.range(2):
            x = limited(quantised(x) * 2)
        return x


def called(function):
    return lambda: keras.layers.Lambda(function)


class Overridden(keras.layers.Layer):
    """As ``quantised``, in a graph by the gradient of another op instead of an op's own."""

    def call(self, x):
        if tf.executing_eagerly():
            return quantised(x)
        with tf.compat.v1.get_default_graph().gradient_override_map({"Round": "Identity"}):
            y = tf.round(4 * x) / 4
        return y + (x - tf.stop_gradient(x))


CASES = {
    "straight through": called(quantised),
    "not linear": called(limited),
    "two arguments": called(lambda x: product(x, tf.tanh(x))),
    "variables": Layer,
    "in a function": InFunction,
    "overridden": Overridden,
}


def network(make, pipelined):
    return two_stages(pipelined, [make()], [make(), keras.layers.Dense(2)])


def pipelined(model):
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=PARTS)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=PARTS)


@pytest.mark.heavy
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_programs(case):
    cpu = network(CASES[case], False)
    with ipus(2):
        model = network(CASES[case], True)
        model.set_weights(cpu.get_weights())
        pipelined(model)
        model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
    descend(cpu, gradients_of(cpu, X, Y, PARTS), 0.1)
    same(model.get_weights(), cpu.get_weights())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: sum(pair(x)), "has one result"),
        (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: limited(x), lambda: x), r"in no branch of a tf\.cond"),
    ],
)
def test_gradients_that_are_refused(function, message):
    with ipus(2):
        model = network(called(function), True)
        pipelined(model)
        with pytest.raises(GraphError, match=message):
            model.fit(X, Y, batch_size=2, verbose=0)


def test_loops_of_the_ipu_have_none():
    """An error, not a gradient that is missing."""
    with ipus(1):
        w = tf.Variable(np.eye(4, dtype=np.float32))

        @tf.function(jit_compile=True)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(ipu.loops.repeat(2, lambda x: tf.tanh(x @ w), [x]))
            return tape.gradient(loss, w)

        with pytest.raises(NotImplementedError, match=r"loops\.repeat has no gradient: .* use tf\.while_loop"):
            tf.distribute.get_strategy().run(step, args=[X])
