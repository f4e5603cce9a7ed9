"""Keras models on simulated IPUs beside the same models on the CPU, as tests use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from ipuperf.tensorflow.python.ipu import config, ipu_strategy


@contextmanager
def ipus(count: int) -> Iterator[None]:
    """The scope of a strategy for ``count`` IPUs."""
    settings = config.IPUConfig()
    settings.auto_select_ipus = count
    settings.configure_ipu_system()
    with ipu_strategy.IPUStrategy().scope():
        yield


def same(actual: Any, expected: Any) -> None:
    """Equal structures of arrays, to float32."""
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6)


def beside(build: Callable[[], Any], compiled: Callable[..., Any], count: int = 1, **options: Any) -> tuple[Any, Any]:
    """A model for ``count`` IPUs, and one for the CPU with the same weights.

    ``compiled(model, **options)`` compiles the first, ``compiled(model)`` the second, which runs op by op: the same
    numbers, without the seconds that TensorFlow takes to turn what is run once into a graph. Weights are those of one
    seed: both sums of float32 have the same rounding each time.
    """
    tf.keras.utils.set_random_seed(1)
    cpu = build()
    compiled(cpu)
    cpu.run_eagerly = True
    with ipus(count):
        model = build()
        model.set_weights(cpu.get_weights())
        compiled(model, **options)
    return model, cpu
