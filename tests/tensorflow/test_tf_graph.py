"""The import of TensorFlow's graphs: values equal TensorFlow on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import check

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_a_layer_with_variables() -> None:
    weight, bias = tf.Variable(array(3, 4)), tf.Variable(array(4))

    @tf.function
    def activation(x):
        return tf.nn.relu(x) + 1.0

    def layer(x):
        y = activation(x @ weight + bias)
        bias.assign_sub(tf.ones([4]))
        return y, bias + 0.0

    check(layer, array(2, 3), variables=[weight, bias])


def test_a_value_read_before_its_variable_changes() -> None:
    variable = tf.Variable(array(3))

    def function(x):
        before = variable.read_value()
        variable.assign_add(x)
        return before * 2.0, variable * 2.0

    check(function, array(3), variables=[variable])
