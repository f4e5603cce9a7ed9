"""Functions of tensors: the vocabulary in which front ends, models and compositions say computations.

Each function makes ops where the program is being written (:attr:`ipuperf.ir.BuildContext.builder`) and takes and gives
tensors of the IR. Names and arguments are PopXL's where PopXL has the function (``popart: python/popxl/ops``); front
ends add their own names, argument rules and types over it.
"""

# ruff: noqa: F401  # what is imported is the package's content
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
