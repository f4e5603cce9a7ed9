"""The IPU's Keras layers: values of Keras' layers or of plain TensorFlow, and the same in a program as on the CPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus, same  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.tensorflow.keras import layers, optimizers  # noqa: E402

RNG = np.random.default_rng(3)


def data(*shape):
    return RNG.normal(size=shape).astype("float32")


@pytest.mark.parametrize("after", [False, True])
def test_gru_is_keras_gru(after):
    x, ours, theirs = data(3, 6, 4), layers.GRU(5, reset_after=after), keras.layers.GRU(5, reset_after=after)
    theirs(x)
    ours(x)
    ours.set_weights(theirs.get_weights())
    same(ours(x), theirs(x))
    major = layers.GRU(5, reset_after=after, time_major=True)
    major(x.transpose(1, 0, 2))
    major.set_weights(theirs.get_weights())
    same(major(x.transpose(1, 0, 2)), theirs(x))


@pytest.mark.parametrize("strided", [False, True])
def test_group_normalisation(strided):
    x, layer = data(2, 3, 3, 6), layers.GroupNormalization(2, strided_channel_grouping=strided)
    layer.gamma_initializer, layer.beta_initializer = keras.initializers.Ones(), keras.initializers.Zeros()
    order = [0, 2, 4, 1, 3, 5] if strided else list(range(6))
    groups = x[..., order].reshape(2, 9, 2, 3)
    mean, variance = groups.mean(axis=(1, 3), keepdims=True), groups.var(axis=(1, 3), keepdims=True)
    expected = ((groups - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape)[..., np.argsort(order)]
    same(layer(x), expected)
    first = layers.GroupNorm(2, channels_axis=1, strided_channel_grouping=strided, center=False, scale=False)
    same(first(x.transpose(0, 3, 1, 2)), expected.transpose(0, 3, 1, 2))


def test_instance_and_layer_normalisation():
    x = data(2, 4, 3)
    layer = layers.InstanceNormalization(center=False, scale=False)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    same(layer(x), expected)
    same(layers.LayerNorm()(x), keras.layers.LayerNormalization()(x))
    with pytest.raises(ValueError, match="3 channels is not commensurate with 2 groups"):
        layers.GroupNorm(2)(x)
    with pytest.raises(NotImplementedError, match="does not support gamma_constraint"):
        layers.LayerNorm(gamma_constraint=keras.constraints.NonNeg())


def model():
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8)(inputs)
    x = layers.LSTM(5, return_sequences=True)(x)
    x = layers.LayerNorm()(x)
    x = layers.GRU(4)(x)
    x = layers.SerialDense(6, 2, "kernel_rows", activation="relu")(x)
    x = layers.Dropout(0.0)(layers.AssumeEqualAcrossReplicas()(x))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


@pytest.mark.heavy
def test_training_equals_the_cpu():
    x, y = RNG.integers(0, 11, (16, 6)), data(16, 1)
    with ipus(1):
        ipu = model()
        ipu.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=4)
        first = ipu.get_weights()
        found = ipu.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    cpu = plain(first)
    same(found, cpu.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history)
    same(ipu.get_weights(), cpu.get_weights())


def plain(weights):
    """The model of Keras' own layers."""
    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(11, 8)(inputs)
    x = keras.layers.LSTM(5, return_sequences=True)(x)
    x = keras.layers.LayerNormalization()(x)
    x = keras.layers.GRU(4)(x)
    x = keras.layers.Dense(6, "relu")(x)
    made = keras.Model(inputs, keras.layers.Dense(1)(x))
    made.set_weights(weights)
    made.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    return made


@pytest.mark.heavy
def test_a_sequential_model_learns_the_shape_of_its_input_from_the_data():
    x, y = RNG.integers(0, 11, (16, 6)).astype("int32"), RNG.integers(0, 2, (16, 1))
    with ipus(2):
        embedding, lstm = layers.Embedding(11, 4), layers.LSTM(3, dropout=0.2)
        made = keras.Sequential([embedding, lstm, keras.layers.Dense(1, "sigmoid")])
        made.set_pipelining_options(4)
        made.set_pipeline_stage_assignment([0, 1, 1])
        made.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", steps_per_execution=4)
        assert 0.5 < made.fit(x, y, batch_size=4, verbose=0).history["loss"][0] < 0.9


def test_optimizers_around_others():
    x, y = data(16, 3), data(16, 2)

    def dense(weights=None):
        made = keras.Sequential([keras.layers.Dense(2, input_shape=(3,))])
        if weights is not None:
            made.set_weights(weights)
        return made

    cpu = dense()
    first = cpu.get_weights()
    cpu.compile(keras.optimizers.SGD(0.2, momentum=0.9), "mse")
    cpu.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    with ipus(2):
        ipu = dense(first)
        inner = optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        ipu.compile(optimizers.MapGradientOptimizerInvertedChaining(inner, lambda g, v: 2 * g), "mse")
        ipu.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    same(ipu.get_weights(), cpu.get_weights())
