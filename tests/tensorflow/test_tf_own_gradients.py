"""Keras optimizers that compute gradients in a way of the program's own: with accumulation, and in pipelines."""

import contextlib

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import beside, ipus, same  # noqa: E402
from tensorflow import keras  # noqa: E402

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(8, 4)).astype("float32"), RNG.normal(size=(8, 2)).astype("float32")


class Twice(keras.optimizers.legacy.SGD):
    def _compute_gradients(self, *args, **kwargs):
        return [(2 * g, v) for g, v in super()._compute_gradients(*args, **kwargs)]


class Larger(keras.optimizers.legacy.SGD):
    def _transform_loss(self, loss):
        return 3 * loss

    def _transform_unaggregated_gradients(self, pairs):
        return [(tf.identity(g), v) for g, v in pairs]


class Newer(keras.optimizers.experimental.SGD):
    def compute_gradients(self, loss, variables, tape=None):
        return [(2 * g, v) for g, v in super().compute_gradients(loss, variables, tape)]


class Graph(keras.optimizers.legacy.SGD):
    """Upstream's accumulation asks for gradients by this method, which Keras' own training does not call."""

    def get_gradients(self, loss, params):
        return [2 * g for g in super().get_gradients(loss, params)]


def scaled():
    return keras.mixed_precision.LossScaleOptimizer(Twice(0.05), dynamic=False, initial_scale=8.0)


def network(stages=False):
    inputs = keras.Input((4,))
    with keras.ipu.PipelineStage(0) if stages else contextlib.nullcontext():
        x = keras.layers.Dense(3, "tanh")(inputs)
    with keras.ipu.PipelineStage(1) if stages else contextlib.nullcontext():
        return keras.Model(inputs, keras.layers.Dense(2)(x))


@pytest.mark.parametrize("make", [Twice, Larger, Newer, Graph, scaled])
def test_accumulation_calls_what_the_optimizer_has(make):
    def compiled(model, accumulated=False):
        optimizer = Twice(0.05) if make is Graph and not accumulated else make() if make is scaled else make(0.05)
        options = {"steps_per_execution": 4} if accumulated else {}
        model.compile(optimizer, lambda y, p: tf.reduce_mean((y - p) ** 2, -1) * (1 if accumulated else 4), **options)
        if accumulated:
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)

    model, cpu = beside(network, compiled, accumulated=True)
    model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
    cpu.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    same(model.get_weights(), cpu.get_weights())


@pytest.mark.parametrize(
    ("make", "method"), [(Twice, "_compute_gradients"), (Larger, "_transform_loss"), (Newer, "compute_gradients")]
)
def test_pipelines_cannot(make, method):
    with ipus(2):
        model = network(stages=True)
        model.compile(make(0.05), "mse", steps_per_execution=4)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        with pytest.raises(NotImplementedError, match=f"{make.__name__}' has a {method} of its own, which pipelines"):
            model.fit(X, Y, batch_size=2, verbose=0)
