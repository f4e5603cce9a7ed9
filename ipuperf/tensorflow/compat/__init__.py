"""``tensorflow.compat``."""

from . import v1

__all__ = ["v1"]
