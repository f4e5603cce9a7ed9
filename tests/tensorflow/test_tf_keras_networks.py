"""Layers of Keras, replicas, metrics and accumulation on the simulated IPU: three steps of ``fit`` equal the CPU's."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import beside, ipus, same  # noqa: E402
from tensorflow import keras  # noqa: E402

L = keras.layers
RNG = np.random.default_rng(3)
WORDS = RNG.integers(0, 11, (12, 3))
SERIES = RNG.normal(size=(12, 3, 8)).astype("float32")
IMAGES = RNG.normal(size=(12, 8, 8, 3)).astype("float32")
TARGETS = RNG.normal(size=(12, 2)).astype("float32")
QUIET = {"shuffle": False, "verbose": 0}

NETWORKS = {
    "lstm": (SERIES, lambda: [L.LSTM(3, unit_forget_bias=False, activation="relu")]),
    "gru": (SERIES, lambda: [L.GRU(3, reset_after=False)]),
    "simple rnn, backwards": (SERIES, lambda: [L.SimpleRNN(4, go_backwards=True)]),
    "bidirectional": (SERIES, lambda: [L.Bidirectional(L.LSTM(3, return_sequences=True)), L.GRU(2)]),
    "embedding": (WORDS, lambda: [L.Embedding(11, 4), L.GlobalAveragePooling1D()]),
    "masked": (WORDS, lambda: [L.Embedding(11, 4, mask_zero=True), L.LSTM(3)]),
    "time distributed": (SERIES, lambda: [L.TimeDistributed(L.Dense(3, "relu")), L.Flatten()]),
    "convolution": (IMAGES, lambda: [L.Conv2D(4, 3, activation="relu", padding="same"), L.MaxPool2D(), L.Flatten()]),
    "strides": (IMAGES, lambda: [L.Conv2D(4, 3, strides=2, use_bias=False), L.AveragePooling2D(2, 1), L.Flatten()]),
    "depthwise": (IMAGES, lambda: [L.DepthwiseConv2D(3), L.SeparableConv2D(4, 3), L.GlobalMaxPooling2D()]),
    "transposed": (IMAGES, lambda: [L.Conv2DTranspose(2, 3, strides=2, padding="same"), L.Flatten()]),
    "dilated": (SERIES, lambda: [L.Conv1D(4, 2, dilation_rate=2, padding="causal"), L.Flatten()]),
    "batch norm": (IMAGES, lambda: [L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Flatten()]),
    "batch norm of features": (SERIES, lambda: [L.Flatten(), L.Dense(6), L.BatchNormalization(momentum=0.5)]),
    "layer norm": (SERIES, lambda: [L.LayerNormalization(), L.Dense(3, "gelu"), L.Flatten()]),
}


def network(name):
    data, layers = NETWORKS[name]
    return lambda: keras.Sequential([keras.Input(data.shape[1:]), *layers(), L.Dense(2)])


@pytest.mark.heavy
@pytest.mark.parametrize("name", NETWORKS)
def test_layers(name):
    data = NETWORKS[name][0]

    def compiled(model, **options):
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", **options)

    model, cpu = beside(network(name), compiled, steps_per_execution=3)
    expected = cpu.fit(data, TARGETS, batch_size=4, **QUIET).history
    same(model.fit(data, TARGETS, batch_size=4, **QUIET).history, expected)
    same(model.get_weights(), cpu.get_weights())
    same(model.predict(data, batch_size=4, verbose=0), cpu.predict(data, batch_size=4, verbose=0))


def attention():
    inputs = keras.Input((3, 8))
    x = L.Add()([inputs, L.MultiHeadAttention(2, 3)(inputs, inputs)])
    x = L.Concatenate()([L.LayerNormalization()(x), L.Dense(2)(inputs)])
    return keras.Model(inputs, L.Dense(2)(L.GlobalAveragePooling1D()(x)))


@pytest.mark.heavy
def test_attention():
    def compiled(model, **options):
        model.compile(keras.optimizers.legacy.Adam(0.01, epsilon=1e-3), "mae", **options)

    model, cpu = beside(attention, compiled, steps_per_execution=3)
    expected = cpu.fit(SERIES, TARGETS, batch_size=4, **QUIET).history
    same(model.fit(SERIES, TARGETS, batch_size=4, **QUIET).history, expected)
    same(model.get_weights(), cpu.get_weights())


def dense():
    return keras.Sequential([keras.Input((24,)), L.Dense(5, "tanh"), L.Dense(2)])


@pytest.mark.heavy
@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_replicas_and_accumulation(replicas, accumulation):
    """The gradients of all replicas are added up, those of the micro-batches averaged: a larger batch."""
    drawn = np.random.default_rng(8).normal(size=(48, 26)).astype("float32")
    x, y = drawn[:, :24], drawn[:, 24:]

    def compiled(model, factor=replicas, **options):
        def loss(wanted, found):
            return factor * tf.reduce_mean(tf.square(wanted - found), axis=-1)

        model.compile(keras.optimizers.SGD(0.01, momentum=0.5), loss, metrics=["mae"], **options)

    model, cpu = beside(dense, compiled, replicas, factor=1, steps_per_execution=2)
    model.set_gradient_accumulation_options(accumulation, "mean")
    model.set_metrics_options(mean_over_replicas=True)
    expected = cpu.fit(x, y, batch_size=2 * replicas * accumulation, **QUIET).history
    found = model.fit(x, y, batch_size=2, **QUIET).history
    same(model.get_weights(), cpu.get_weights())
    if accumulation == 1:
        same(found["mae"], expected["mae"])
    same(model.predict(x, batch_size=2, verbose=0), cpu.predict(x, verbose=0))


METRICS = {
    "binary": (
        lambda: [
            keras.metrics.BinaryAccuracy(),
            keras.metrics.Precision(),
            keras.metrics.Recall(),
            keras.metrics.AUC(),
        ],
        "binary_crossentropy",
        lambda: RNG.integers(0, 2, (12, 2)).astype("float32"),
    ),
    "numbers": (
        lambda: [keras.metrics.RootMeanSquaredError(), keras.metrics.MeanAbsoluteError(), "mape", "cosine_similarity"],
        "huber",
        lambda: TARGETS,
    ),
    "classes": (
        lambda: [
            "accuracy",
            keras.metrics.SparseTopKCategoricalAccuracy(1),
            keras.metrics.SparseCategoricalCrossentropy(),
        ],
        "sparse_categorical_crossentropy",
        lambda: RNG.integers(0, 2, 12),
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", METRICS)
def test_metrics_of_fit_and_evaluate(name):
    metrics, loss, targets = METRICS[name]
    x, y = SERIES.reshape(12, 24), targets()

    def build():
        return keras.Sequential([keras.Input((24,)), L.Dense(2, None if name == "numbers" else "softmax")])

    def compiled(model, **options):
        model.compile("sgd", loss, metrics=metrics(), **options)

    model, cpu = beside(build, compiled, steps_per_execution=3)
    options = {"batch_size": 4, "epochs": 2, "validation_data": (x, y), **QUIET}
    expected = cpu.fit(x, y, **options).history
    found = model.fit(x, y, **options).history
    same(list(found.values()), list(expected.values()))
    same(model.evaluate(x, y, batch_size=4, verbose=0), cpu.evaluate(x, y, batch_size=4, verbose=0))


# -- embeddings --------------------------------------------------------------------------------------------------------

ROWS = RNG.integers(0, 5, (12, 3)).astype("float32")
ROWS[4:8] += 5  # rows that other batches do not have
WEIGHTS = [RNG.normal(size=shape).astype("float32") for shape in ((12, 4), (12, 2), (2,))]
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.legacy.Adam(0.1),
    "nadam": lambda: keras.optimizers.legacy.Nadam(0.1),
    "rmsprop": lambda: keras.optimizers.legacy.RMSprop(0.05, momentum=0.9, centered=True),
    "ftrl": lambda: keras.optimizers.legacy.Ftrl(0.1),
}


class OneHotRows(L.Layer):
    """An embedding whose gradient is dense on the CPU, too."""

    def build(self, shape):
        self.rows = self.add_weight(name="rows", shape=(12, 4))

    def call(self, x):
        return tf.one_hot(tf.cast(x, tf.int32), 12) @ self.rows


def trained(layer, optimizer, **options):
    model = keras.Sequential([keras.Input((3,)), layer, L.Flatten(), L.Dense(2)])
    model.set_weights(WEIGHTS)
    model.compile(OPTIMIZERS[optimizer](), "mse", **options)
    history = model.fit(ROWS, TARGETS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


@pytest.mark.heavy
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_see_dense_gradients(optimizer):
    """``fit`` sums gradients over replicas, as upstream does by an op of tensors: those of embeddings are dense."""
    expected = trained(OneHotRows(), optimizer, run_eagerly=True)
    with ipus(1):
        found = trained(L.Embedding(12, 4), optimizer)
    same(found, expected)
