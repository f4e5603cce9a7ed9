"""``ipu_tensorflow_addons.keras``."""

from . import layers, optimizers

__all__ = ["layers", "optimizers"]
