"""Arguments and options of TensorFlow's interface: their kinds, and what they do (:mod:`ipuperf.frontends.options`).

What becomes a tensor, a data set or a type of elements, TensorFlow says itself.
"""

from ipuperf.base.kinds import ANYTHING, WHOLE, Kinds
from ipuperf.frontends.options import TENSORFLOW as EFFECTS

checked_kinds = Kinds(
    {"int": WHOLE, **dict.fromkeys(("Tensor", "Dataset", "DType", "Variable", "ndarray"), ANYTHING)}
).checked
"""Decorator: arguments must be of the kinds that their annotations say; its arguments name those left out."""

__all__ = ["EFFECTS", "checked_kinds"]
