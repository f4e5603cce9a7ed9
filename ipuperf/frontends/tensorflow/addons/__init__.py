"""``ipu_tensorflow_addons``: layers and optimizers for programs on the IPU, which upstream keeps in a package of its
own."""

from . import keras, v1
from .v1 import layers

__all__ = ["keras", "layers", "v1"]
