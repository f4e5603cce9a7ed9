"""Variables that a pipeline's stage changes and reads, with recomputation: gradients of what the forward had."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.python.ipu import config, ipu_strategy  # noqa: E402
from ipuperf.tensorflow.python.ipu.ops import pipelining_ops  # noqa: E402

L = keras.layers
RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(16, 4)).astype("float32"), RNG.normal(size=(16, 2)).astype("float32")


class Scaled(L.Layer):
    """Products with a running mean of the inputs, that of before this batch or with it."""

    def __init__(self, behind):
        super().__init__()
        self.behind = behind

    def build(self, shape):
        self.mean = self.add_weight(name="mean", shape=(shape[-1],), initializer="ones", trainable=False)

    def call(self, x, training=False):
        before = tf.identity(self.mean)
        if training:
            self.mean.assign(self.mean * 0.5 + tf.reduce_mean(tf.stop_gradient(x), 0))
        return tf.tanh(x * (before if self.behind else self.mean))


def build(behind):
    return keras.Sequential([keras.Input((4,)), L.Dense(5), Scaled(behind), L.Dense(5, "tanh"), L.Dense(2)])


def on_cpu(model):
    """Two weight updates of four batches each."""
    optimizer = keras.optimizers.SGD(0.1)
    for _ in range(2):
        total = [tf.zeros_like(v) for v in model.trainable_variables]
        for i in range(0, 16, 4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(X[i : i + 4], training=True) - Y[i : i + 4])) / 4
            gradients = tape.gradient(loss, model.trainable_variables)
            total = [a + b for a, b in zip(total, gradients, strict=True)]
        optimizer.apply_gradients(zip(total, model.trainable_variables, strict=True))
    return model.get_weights()


@pytest.mark.parametrize(
    ("behind", "schedule", "recomputation"),
    [
        (True, "Grouped", "RecomputeAndBackpropagateInterleaved"),
        (False, "Interleaved", "RecomputeThenBackpropagate"),
    ],
)
def test_gradients_in_pipelines(behind, schedule, recomputation):
    cpu = build(behind)
    weights = cpu.get_weights()
    expected = on_cpu(cpu)
    settings = config.IPUConfig()
    settings.auto_select_ipus = 2
    settings.allow_recompute = True
    settings.configure_ipu_system()
    with ipu_strategy.IPUStrategy().scope():
        model = build(behind)
        model.set_weights(weights)
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4,
            gradient_accumulation_reduction_method="mean",
            pipeline_schedule=pipelining_ops.PipelineSchedule[schedule],
            recomputation_mode=pipelining_ops.RecomputationMode[recomputation],
        )
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=4)
        model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
