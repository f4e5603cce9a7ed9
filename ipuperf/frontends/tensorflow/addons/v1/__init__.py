"""``ipu_tensorflow_addons.v1``: what is for TensorFlow 1."""

from . import layers

__all__ = ["layers"]
