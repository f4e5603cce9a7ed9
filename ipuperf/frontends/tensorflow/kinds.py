"""Kinds of arguments of the functions for TensorFlow's programs, by their annotations (:mod:`ipuperf.kinds`).

What becomes a tensor, a data set or a type of elements, TensorFlow says itself.
"""

from ipuperf.kinds import ANYTHING, WHOLE, Kinds

checked_kinds = Kinds(
    {"int": WHOLE, **dict.fromkeys(("Tensor", "Dataset", "DType", "Variable", "ndarray"), ANYTHING)}
).checked
