"""Stands for a library in C++: the product of both inputs, times the attributes."""

from collections.abc import Sequence

import tensorflow as tf


def Build(inputs: Sequence[tf.Tensor], attributes: str) -> list[tf.Tensor]:
    return [inputs[0] * inputs[1] * float(attributes)]
