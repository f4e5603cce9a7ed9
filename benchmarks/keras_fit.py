"""Speed of ``fit`` on the simulated IPU against TensorFlow's own on the CPU: the CNN of the vendor's Keras tutorial.

CPU seconds of one thread for each step of 64 images, in turns in one process, compiling left out. MNIST where it is
found (``IPUPERF_DATA``), else noise: the time does not depend on the values.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from bounds import Row

import ipuperf

BATCH, STEPS = 64, 30
NAME = "fit, MNIST CNN, a step"
BOUNDS = {NAME: 2.8}


def images() -> tuple[np.ndarray, np.ndarray]:
    """``(n, 28, 28, 1)`` and one-hot ``(n, 10)``."""
    from ipuperf.datasets import find_mnist, load_mnist

    count = BATCH * STEPS
    if find_mnist() is None:
        generator = np.random.default_rng(0)
        x, labels = generator.integers(0, 256, (count, 28, 28)), generator.integers(0, 10, count)
    else:
        x, labels = (array[:count] for array in load_mnist(train=True))
    return (x[..., None] / 255).astype(np.float32), np.eye(10, dtype=np.float32)[labels]


def network(keras: Any, **options: Any) -> Any:
    """Two convolutions with pooling, dropout, one dense layer, compiled."""
    model = keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
            keras.layers.MaxPooling2D(2),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("sgd", "categorical_crossentropy", metrics=["accuracy"], **options)
    return model


def measure(repeats: int) -> tuple[float, float]:
    """Median CPU seconds of a step here and in TensorFlow."""
    ipuperf.install()
    import tensorflow as tf
    from tensorflow.python.ipu import config, ipu_strategy

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    settings = config.IPUConfig()
    settings.auto_select_ipus = 1
    settings.configure_ipu_system()
    x, y = images()
    with ipu_strategy.IPUStrategy().scope():
        ours = network(tf.keras, steps_per_execution=STEPS)
    theirs = network(tf.keras)
    times: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(repeats + 1):
        for i, model in enumerate((ours, theirs)):
            start = time.process_time()
            model.fit(x, y, batch_size=BATCH, verbose=0)
            times[i].append((time.process_time() - start) / STEPS)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def rows(repeats: int) -> list[Row]:
    """One row."""
    seconds, reference = measure(min(repeats, 5))
    return [Row(NAME, seconds, "TensorFlow on one thread", reference)]
