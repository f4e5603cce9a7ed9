"""``ipu_tensorflow_addons``: layers and optimizers for programs on the IPU, which upstream keeps in a package of its
own."""

from . import keras

__all__ = ["keras"]
