"""The power of two with which a tensor loses least as 8-bit floats (custom op of popxl-addons:
``popxl_addons/ops/fp8_mse_scale``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ir import INT32, DType, TensorSpec, float8
from ipuperf.ir.attributes import DTYPE, Attribute

from .. import vertices
from ..custom import CustomOp
from ..selection.histogram import compare_with_levels
from ..work import Vertices, Work

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Scales that are tried.
SCALES = range(-31, 32)
#: Exponents of the histogram that upstream's op makes, and the compute sets of one round of its loops over them.
BINS, SETS = 254, 6


def least_error_scale(values: np.ndarray, kind: DType) -> tuple[float, int]:
    """The least mean square error of casting ``values * 2**scale`` to ``kind`` and back, and its scale. Of equally
    good scales it is the one in the middle. Values that are too large saturate."""
    exact = values.astype(np.float64)
    errors = {}
    for scale in SCALES:
        cast = float8.decoded(float8.encoded(exact, kind, scale), kind).astype(np.float64)
        errors[scale] = float(np.mean(np.square(np.ldexp(cast, -scale) - exact)))
    # Several scales may lose nothing at all.
    least = min(errors.values())
    best = [scale for scale, error in errors.items() if error == least]
    return least, best[len(best) // 2]


class Fp8Scale(CustomOp):
    """The ``log2_scale`` (int32) of :func:`least_error_scale` for the operand; attribute ``data_type``: the 8-bit
    float.

    Upstream estimates the errors from a histogram of exponents, so its scale may differ. The cost is upstream's. No
    gradient.
    """

    data_type = Attribute(DTYPE)

    def infer(self) -> list[TensorSpec]:
        """One number."""
        self.floating(self.inputs[0])
        return [TensorSpec((), INT32)]

    def value(self, *operands: np.ndarray) -> np.ndarray:
        """Try all scales with the cast itself."""
        return np.asarray(least_error_scale(operands[0], self.data_type)[1], np.int32)

    def work(self) -> Sequence[Work]:
        """The histogram, then loops on one tile over scales and exponents (``fp8_mse_scale_impl.cpp``)."""
        t = self.inputs[0].spec
        return [
            vertices.unary("ABSOLUTE", t.dtype, t.elements),
            compare_with_levels(t, BINS),
            vertices.reduction("ADD", INT32, t.elements, BINS + 1),
            _loops(),
        ]


def _loops() -> Vertices:
    """The loops over scales and exponents. Each round slices twice, compares twice and adds twice on a single
    element: six compute sets of one worker. Each has the vertex of a binary operation and a launch of about 100
    cycles. It is an estimate with low confidence."""
    addition_cycles = vertices.binary("ADD", INT32, 1).cycles

    def cycles(elements: vertices.Counts, chip: Chip) -> vertices.Counts:
        return len(SCALES) * BINS * SETS * (100 + addition_cycles(elements, chip)) * (np.asarray(elements) > 0)

    return Vertices("Fp8Scale/loops", 1, cycles, low_confidence=True)
