"""``tf.keras.ipu.extensions``: the methods that models have inside an ``IPUStrategy``."""

from .methods import FunctionalExtension, ModelExtension, SequentialExtension

__all__ = ["FunctionalExtension", "ModelExtension", "SequentialExtension"]
