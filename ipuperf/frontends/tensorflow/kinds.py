"""Kinds of arguments of the functions for TensorFlow's programs, by their annotations (:mod:`ipuperf.kinds`).

What becomes a tensor, a data set or a type of elements, TensorFlow says itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ipuperf.kinds import ANYTHING, WHOLE, Kinds, checked

P = ParamSpec("P")
R = TypeVar("R")
_KINDS = Kinds({"int": WHOLE, **dict.fromkeys(("Tensor", "Dataset", "DType", "Variable", "ndarray"), ANYTHING)})


def checked_kinds(*own: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of functions and constructors: arguments must be of the kinds that their annotations say, those aside
    that are the function's ``own`` to check."""
    return checked(_KINDS, own)
