"""What is computed from a variable before it changes is not changed with it, also where the op changes nothing."""

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from kerasruns import ipus

NOTHING: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "itself": lambda v: v,
    "times one": lambda v: v * 1.0,
    "plus zero": lambda v: v + 0.0,
    "minus zero": lambda v: v - 0.0,
    "by one": lambda v: v / 1.0,
    "power": lambda v: tf.pow(v, 1.0),
    "pad": lambda v: tf.pad(v, [[0, 0], [0, 0]]),
    "tile": lambda v: tf.tile(v, [1, 1]),
    "broadcast": lambda v: tf.broadcast_to(v, [2, 2]),
    "strided slice": lambda v: v[:],
    "slice": lambda v: tf.slice(v, [0, 0], [2, 2]),
    "roll": lambda v: tf.roll(v, 0, 0),
    "cast": lambda v: tf.cast(v, tf.float32),
    "reshape": lambda v: tf.reshape(v, [2, 2]),
    "reshaped": lambda v: tf.reshape(v, [4]),
    "squeeze": lambda v: tf.squeeze(v[None], 0),
    "expanded": lambda v: tf.expand_dims(v, 0),
    "transposed": tf.transpose,
    "transposed twice": lambda v: tf.transpose(tf.transpose(v)),
    "identity": tf.identity,
    "concat": lambda v: tf.concat([v], 0),
    "split": lambda v: tf.split(v, 1)[0],
    "stop": lambda v: tf.stop_gradient(v * 1.0),
    "reverse": lambda v: tf.reverse(v, []),
    "sum of none": lambda v: tf.reduce_sum(v, axis=[]),
    "function": tf.function(lambda v: v),
    "condition": lambda v: tf.cond(tf.reduce_sum(v) > 0, lambda: v, lambda: v + 0.0),
    "add n": lambda v: tf.add_n([v]),
    "gather": lambda v: tf.gather(v, [0, 1]),
    "diagonal part": lambda v: tf.linalg.band_part(v, -1, -1),
    "clipped": lambda v: tf.maximum(v, -np.inf),
}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=list(NOTHING))
def test_a_value_from_before_an_assignment(nothing: Callable[[tf.Tensor], tf.Tensor]) -> None:
    start = np.array([[1, 2], [3, 4]], np.float32)
    with ipus(1):
        variable = tf.Variable(start)

        @tf.function
        def step():
            before = nothing(variable.read_value())
            variable.assign(variable * 2 + 1)
            return before * 3, nothing(variable.read_value())

        found, after = tf.distribute.get_strategy().run(step)
        np.testing.assert_allclose(found, nothing(tf.constant(start)) * 3)
        np.testing.assert_allclose(after, nothing(tf.constant(start * 2 + 1)))
        np.testing.assert_allclose(variable, start * 2 + 1)
