"""``ipu_tensorflow_addons.keras.layers``: the layers of :mod:`ipuperf.tensorflow.keras.layers`."""

from ...keras.layers import *  # noqa: F403
from ...keras.layers import __all__ as __all__
