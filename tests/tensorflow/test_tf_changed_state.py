"""Layers of pipelined models that read, assign to and read variables: gradients are those of TensorFlow's tapes."""

import contextlib

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import same  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.importer import GraphError  # noqa: E402
from ipuperf.tensorflow.python import ipu  # noqa: E402

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(16, 4)).astype("float32"), RNG.normal(size=(16, 2)).astype("float32")
PARTS = 8


class Drift(keras.layers.Layer):
    """A scale that follows the activations; no gradient flows through its assignment."""

    def __init__(self, trainable_scale=False):
        super().__init__()
        self.trainable_scale = trainable_scale

    def build(self, shape):
        self.scale = self.add_weight("scale", (shape[-1],), initializer="ones", trainable=self.trainable_scale)

    def call(self, x, training=None):
        before = x * self.scale
        if training:
            self.scale.assign(0.9 * self.scale + 0.3 * tf.reduce_mean(x, 0))
        return before + tf.sin(x * self.scale)


def network(pipelined, **options):
    def stage(number):
        return keras.ipu.PipelineStage(number) if pipelined else contextlib.nullcontext()

    inputs = keras.Input((4,))
    with stage(0):
        x = Drift(**options)(keras.layers.Dense(3, "tanh")(inputs))
    with stage(1):
        return keras.Model(inputs, keras.layers.Dense(2)(Drift()(keras.layers.Dense(3)(x))))


@contextlib.contextmanager
def two_ipus(recompute):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus, config.allow_recompute = 2, recompute
    config.configure_ipu_system()
    with ipu.ipu_strategy.IPUStrategy().scope():
        yield


def pipelined(model, schedule):
    model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=PARTS)
    schedule = getattr(ipu.pipelining_ops.PipelineSchedule, schedule)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=PARTS, pipeline_schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "recompute"),
    [("Grouped", True), ("Interleaved", False), ("Sequential", False)],
)
def test_each_backward_has_the_values_of_its_forward(schedule, recompute):
    cpu = network(False)
    first, trained = cpu.get_weights(), cpu.trainable_variables
    sums = [np.zeros(v.shape, np.float32) for v in trained]
    for x, y in zip(np.split(X, PARTS), np.split(Y, PARTS)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((cpu(x, training=True) - y) ** 2)
        sums = [total + g for total, g in zip(sums, tape.gradient(loss, trained))]
    for variable, total in zip(trained, sums):
        variable.assign_sub(0.05 * total)
    with two_ipus(recompute):
        model = network(True)
        model.set_weights(first)
        pipelined(model, schedule)
        model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
        same(model.get_weights(), cpu.get_weights())


def test_a_trained_variable_is_not_read_after_it_was_assigned():
    with two_ipus(False):
        model = network(True, trainable_scale=True)
        pipelined(model, "Grouped")
        with pytest.raises(GraphError, match=r"assigns to variable '.*scale', which is trained, and reads it"):
            model.fit(X, Y, batch_size=2, verbose=0)
