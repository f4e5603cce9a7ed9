"""``tensorflow.python.ipu.keras.losses``."""

from ..layers import CTCLoss

__all__ = ["CTCLoss"]
