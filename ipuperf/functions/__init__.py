"""Functions of tensors: the vocabulary in which front ends, models and compositions write computations.

Each function makes its ops where the program is being written (:attr:`ipuperf.ir.BuildContext.builder`). It takes and
gives tensors of the IR. Names and arguments are PopXL's where PopXL has the function (``popart: python/popxl/ops``);
front ends add their own names, argument rules and types.
"""

from . import (
    activations,
    arithmetic,
    arranging,
    elementary,
    losses,
    networks,
    products,
    random,
    reductions,
    selection,
    shapes,
    updates,
)
from .making import constant, make, make_all

__all__ = [
    "activations",
    "arithmetic",
    "arranging",
    "constant",
    "elementary",
    "losses",
    "make",
    "make_all",
    "networks",
    "products",
    "random",
    "reductions",
    "selection",
    "shapes",
    "updates",
]
