"""Layers of pipelined models that read, assign to and read variables: gradients are those of TensorFlow's tapes."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import descend, gradients_of, ipus, same, two_stages  # noqa: E402
from sessions import configure  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.importer import GraphError  # noqa: E402
from ipuperf.tensorflow.python.ipu import ipu_strategy  # noqa: E402
from ipuperf.tensorflow.python.ipu.ops import pipelining_ops  # noqa: E402

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
    return two_stages(pipelined, [Drift(**options)], [keras.layers.Dense(3), Drift(), keras.layers.Dense(2)])


def pipelined(schedule, recomputation, **options):
    model = network(True, **options)
    model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=PARTS)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=PARTS,
        pipeline_schedule=pipelining_ops.PipelineSchedule[schedule],
        recomputation_mode=pipelining_ops.RecomputationMode[recomputation],
    )
    return model


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("schedule", "recomputation"),
    [
        ("Grouped", "Auto"),
        ("Grouped", "RecomputeAndBackpropagateInterleaved"),
        ("Interleaved", "RecomputeThenBackpropagate"),
        ("Interleaved", None),
        ("Sequential", None),
    ],
)
def test_each_backward_has_the_values_of_its_forward(schedule, recomputation):
    cpu = network(False)
    configure(auto_select_ipus=2, allow_recompute=recomputation is not None)
    with ipu_strategy.IPUStrategy().scope():
        model = pipelined(schedule, recomputation or "Auto")
        model.set_weights(cpu.get_weights())
        model.fit(X, Y, batch_size=2, shuffle=False, verbose=0)
    descend(cpu, gradients_of(cpu, X, Y, PARTS), 0.05)
    same(model.get_weights(), cpu.get_weights())


def test_a_trained_variable_is_not_read_after_it_was_assigned():
    with ipus(2):
        model = pipelined("Grouped", "Auto", trainable_scale=True)
        with pytest.raises(GraphError, match=r"assigns to variable '.*scale', which is trained, and reads it"):
            model.fit(X, Y, batch_size=2, verbose=0)
