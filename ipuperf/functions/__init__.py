"""Functions of tensors: the vocabulary in which front ends, models and compositions write computations.

Each function makes its ops where the program is being written (:attr:`ipuperf.ir.BuildContext.builder`). It takes and
gives tensors of the IR. Names and arguments are PopXL's where PopXL has the function (``popart: python/popxl/ops``);
front ends add their own names, argument rules and types.
"""

# ruff: noqa: F401  # the imports are the package's content
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
