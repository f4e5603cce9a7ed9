"""``tf.math``: element-wise functions, reductions, the matrix product."""

from .functions import argmax, argmin, divide, log_softmax, matmul, softmax
from .library import MATH

globals().update(MATH)

__all__ = ["argmax", "argmin", "divide", "log_softmax", "matmul", "softmax", *sorted(MATH)]
