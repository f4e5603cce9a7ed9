"""``ipu_tensorflow_addons.keras``: optimizers, and the layers of :mod:`ipuperf.tensorflow.keras.layers`."""

from ...keras import layers
from . import optimizers

__all__ = ["layers", "optimizers"]
