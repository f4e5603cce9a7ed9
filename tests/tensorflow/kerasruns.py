"""Keras models on simulated IPUs beside the same models on the CPU, as tests of this room use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
from sessions import configure

from ipuperf.tensorflow.python.ipu import ipu_strategy


@contextmanager
def ipus(count: int) -> Iterator[None]:
    """The scope of a strategy for ``count`` IPUs."""
    configure(auto_select_ipus=count)
    with ipu_strategy.IPUStrategy().scope():
        yield


def stage(number: int, pipelined: bool = True) -> AbstractContextManager[Any]:
    """A block of a pipeline stage, or none."""
    return tf.keras.ipu.PipelineStage(number) if pipelined else nullcontext()


def two_stages(pipelined: bool, first: Sequence[Any] = (), second: Sequence[Any] = ()) -> Any:
    """A perceptron of four inputs: a dense layer and ``first`` in stage 0, ``second`` in stage 1 (default: a dense
    layer of two)."""
    inputs = tf.keras.Input((4,))
    with stage(0, pipelined):
        x = tf.keras.layers.Dense(3, "tanh")(inputs)
        for layer in first:
            x = layer(x)
    with stage(1, pipelined):
        for layer in second or [tf.keras.layers.Dense(2)]:
            x = layer(x)
    return tf.keras.Model(inputs, x)


def gradients_of(model: Any, x: Any, y: Any, parts: int) -> list[list[np.ndarray]]:
    """Gradients of the mean squared error of each part of the data, by TensorFlow's tape."""
    found = []
    for some, targets in zip(np.split(x, parts), np.split(y, parts)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(some, training=True) - targets) ** 2)
        found.append([gradient.numpy() for gradient in tape.gradient(loss, model.trainable_variables)])
    return found


def descend(model: Any, gradients: list[list[np.ndarray]], rate: float) -> None:
    """One step by the sum of the parts' gradients."""
    for variable, parts in zip(model.trainable_variables, zip(*gradients, strict=True), strict=True):
        variable.assign_sub(rate * sum(parts))


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
