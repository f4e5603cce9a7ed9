"""``add_loss`` and ``add_metric`` of pipelined Keras models equal Keras' own on the CPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus, same, stage  # noqa: E402
from tensorflow import keras  # noqa: E402

RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(8, 4)).astype("float32"), RNG.normal(size=(8, 2)).astype("float32")
PARTS = 4


def functional(pipelined, factor):
    inputs = keras.Input((4,))
    with stage(0, pipelined):
        hidden = keras.layers.Dense(3, "tanh")(inputs)
    with stage(1, pipelined):
        outputs = keras.layers.Dense(2)(hidden)
    model = keras.Model(inputs, outputs)
    model.add_loss(factor * tf.reduce_mean(tf.abs(hidden)))
    model.add_loss(factor * tf.reduce_mean(outputs * hidden[:, :2]))
    model.add_metric(hidden, name="hidden", aggregation="mean")
    return model


def nested(pipelined, factor):
    inputs = keras.Input((4,))
    with stage(0, pipelined):
        hidden = keras.layers.Dense(3, "tanh")(inputs)
    inner = keras.Model(inputs, hidden)
    inner.add_loss(factor * tf.reduce_mean(hidden**2))
    inputs = keras.Input((4,))
    hidden = inner(inputs)
    with stage(1, pipelined):
        return keras.Model(inputs, keras.layers.Dense(2)(hidden))


def sequential(pipelined, factor):
    model = keras.Sequential([keras.layers.Dense(3, "tanh", input_shape=(4,)), keras.layers.Dense(2)])
    if pipelined:
        model.set_pipeline_stage_assignment([0, 1])
    model.add_loss(factor * tf.reduce_mean(tf.abs(model.layers[0].output)))
    return model


@pytest.mark.heavy
@pytest.mark.parametrize("build", [functional, nested, sequential])
def test_additions_belong_to_the_stage_of_their_operands(build):
    cpu = build(False, PARTS)
    cpu.compile("sgd", lambda y, p: PARTS * tf.reduce_mean((y - p) ** 2, -1))
    first = cpu.get_weights()
    expected = cpu.fit(X, Y, batch_size=8, verbose=0).history
    predictions = cpu.predict(X, verbose=0)
    with ipus(2):
        model = build(True, 1)
        model.set_weights(first)
        model.compile("sgd", "mse", steps_per_execution=PARTS)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=PARTS)
        history = model.fit(X, Y, batch_size=2, shuffle=False, verbose=0).history
        same(model.get_weights(), cpu.get_weights())
        same(np.multiply(history.pop("loss"), PARTS), expected.pop("loss"))
        same(history, expected)
        same(model.predict(X, batch_size=2, verbose=0), predictions)


def test_a_function_of_weights_belongs_to_no_stage():
    with ipus(2):
        model = functional(True, 1)
        model.add_loss(lambda: tf.reduce_sum(model.trainable_variables[0] ** 2))
        model.compile("sgd", "mse", steps_per_execution=PARTS)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=PARTS)
        with pytest.raises(RuntimeError, match="belongs to no pipeline stage: add it to the layer"):
            model.fit(X, Y, batch_size=2, verbose=0)
