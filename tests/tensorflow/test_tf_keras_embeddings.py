"""``fit`` sums gradients over replicas, as upstream does by an op of tensors, so optimizers see dense gradients of
embeddings: those of a product with one-hot rows on the CPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from kerasruns import ipus, same  # noqa: E402
from tensorflow import keras  # noqa: E402

L = keras.layers
RNG = np.random.default_rng(5)
WORDS = RNG.integers(0, 5, (12, 3)).astype("float32")
WORDS[4:8] += 5  # rows that other batches do not have
TARGETS = RNG.normal(size=(12, 2)).astype("float32")
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
    history = model.fit(WORDS, TARGETS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_see_dense_gradients(optimizer):
    expected = trained(OneHotRows(), optimizer, run_eagerly=True)
    with ipus(1):
        found = trained(L.Embedding(12, 4), optimizer)
    same(found, expected)
