"""What arguments and options of TensorFlow's interface do: the rows of :mod:`ipuperf.frontends.options`."""

from ipuperf.frontends.options import TENSORFLOW as EFFECTS

__all__ = ["EFFECTS"]
