"""Comparisons other than Equal and Greater.

Their cycle tables are here: PopLibs ``lib/popops/popopsCycleEstimators.hpp``, ``binaryOpPerfInfo`` and
``broadcastOpPerfInfo`` (cycles per 4 elements and worker).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ipuperf.ir import DType

from .. import vertices
from ..work import Vertices, Work
from .arithmetic import Binary

#: Cycles per 4 elements of BinaryOp1D, by operation and kind of type.
COMPARISON: Mapping[str, Mapping[str, int]] = {
    "LESS_THAN": {"float": 14, "half": 9, "int": 22, "bool": 28},
    "LESS_THAN_EQUAL": {"float": 14, "half": 9, "int": 26, "bool": 28},
    "GREATER_THAN_EQUAL": {"float": 14, "half": 9, "int": 26, "bool": 28},
    "NOT_EQUAL": {"float": 20, "half": 11, "int": 22, "bool": 5},
}

#: Cycles per 4 elements of BroadcastScalar1D, by operation and kind of type.
COMPARISON_WITH_SCALAR: Mapping[str, Mapping[str, int]] = {
    "LESS_THAN": {"float": 12, "half": 8, "int": 16, "bool": 16},
    "LESS_THAN_EQUAL": {"float": 12, "half": 8, "int": 20, "bool": 16},
    "GREATER_THAN_EQUAL": {"float": 12, "half": 8, "int": 20, "bool": 12},
    "NOT_EQUAL": {"float": 18, "half": 10, "int": 16, "bool": 4},
}


def comparison(name: str, dtype: DType, elements: int, *, scalar: bool) -> Vertices:
    """BinaryOp1D ``W * (29 + loop) + 11`` (26 for half), or BroadcastScalar1D ``W * (20 + loop) + 11``."""
    kind = vertices.kind(dtype)
    rate = (COMPARISON_WITH_SCALAR if scalar else COMPARISON)[name][kind]
    fixed = 20 if scalar else (26 if kind == "half" else 29)
    vertex = f"popops::{'BroadcastScalar1D' if scalar else 'BinaryOp1D'}<{name},{vertices.poplar_type(dtype)}>"
    cycles = vertices.tile_cycles(lambda m, chip: fixed + rate * vertices.ceil_div(m, 4), 11)
    return Vertices(vertex, elements, cycles, elements)


class _Comparison(Binary):
    """Base: a bool result of two operands of the same type, whatever that is."""

    flat = True
    comparison = True
    allowed = "any"

    def work(self) -> list[Work]:
        """One compute set. Only the broadcast of a single element has a vertex of its own; any other runs the plain
        vertex."""
        lhs, rhs = self.inputs
        elements = self.outputs[0].spec.elements
        counts = sorted((math.prod(lhs.shape), math.prod(rhs.shape)))
        scalar = counts[0] == 1 and counts[1] == elements and elements > 1
        return [comparison(self.vertex, lhs.dtype, elements, scalar=scalar)]


class Less(_Comparison):
    """``lhs < rhs``."""

    operator = "less"
    ufunc = np.less
    vertex = "LESS_THAN"


class LessEqual(_Comparison):
    """``lhs <= rhs``."""

    type = "LessOrEqual"
    operator = "less_equal"
    ufunc = np.less_equal
    vertex = "LESS_THAN_EQUAL"


class GreaterEqual(_Comparison):
    """``lhs >= rhs``."""

    type = "GreaterOrEqual"
    operator = "greater_equal"
    ufunc = np.greater_equal
    vertex = "GREATER_THAN_EQUAL"


class NotEqual(_Comparison):
    """``lhs != rhs`` (for bool operands the exclusive or)."""

    ufunc = np.not_equal
    vertex = "NOT_EQUAL"
