"""Vertex formulas against the PopLibs estimates of cost-model.md 6.3 (tile cycles for 64, 384, 1000, 4096 elements)."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf.ir import BOOL, FLOAT16, FLOAT32, INT32
from ipuperf.ops import vertices

SIZES = np.array([64, 384, 1000, 4096])

UNARY_F16 = {
    "RELU": (176, 410, 878, 3200),
    "EXPONENT": (290, 602, 1226, 4322),
    "TANH": (194, 506, 1130, 4226),
    "SIGMOID": (230, 698, 1634, 6278),
    "GELU_ERF": (1178, 6266, 16154, 65690),
    "SQRT": (536, 2330, 5918, 23720),
    "RSQRT": (464, 1946, 4910, 19616),
    "NEGATE": (158, 314, 626, 2174),
    "SQUARE": (158, 314, 626, 2174),
    "INVERSE": (392, 1562, 3902, 15512),
    "LOGARITHM": (194, 506, 1130, 4226),
}
UNARY_IN_PLACE_F32 = {
    "RELU": (422, 734, 1358, 4454),
    "EXPONENT": (566, 1502, 3374, 12662),
    "TANH": (710, 2270, 5390, 20870),
    "SIGMOID": (710, 2270, 5390, 20870),
    "GELU_ERF": (1802, 8798, 22394, 90506),
    "SQRT": (710, 2270, 5390, 20870),
    "RSQRT": (638, 1886, 4382, 16766),
    "NEGATE": (458, 926, 1862, 6506),
    "SQUARE": (422, 734, 1358, 4454),
    "INVERSE": (566, 1502, 3374, 12662),
    "LOGARITHM": (854, 3038, 7406, 29078),
}
BINARY_F16 = {
    "ADD": (221, 455, 923, 3245),
    "MULTIPLY": (221, 455, 923, 3245),
    "DIVIDE": (545, 2183, 5459, 21713),
    "MAXIMUM": (239, 551, 1175, 4271),
}
SCALAR_F16 = {
    "ADD": (167, 323, 635, 2183),
    "MULTIPLY": (167, 323, 635, 2183),
    "DIVIDE": (419, 1667, 4163, 16547),
    "MAXIMUM": (185, 419, 887, 3209),
}
BINARY_IN_PLACE_F32 = {
    "ADD": (467, 935, 1871, 6515),
    "MULTIPLY": (467, 935, 1871, 6515),
    "DIVIDE": (719, 2279, 5399, 20879),
    "MAXIMUM": (503, 1127, 2375, 8567),
}
SCALAR_IN_PLACE_F32 = {
    "ADD": (203, 515, 1139, 4235),
    "MULTIPLY": (203, 515, 1139, 4235),
    "DIVIDE": (347, 1283, 3155, 12443),
    "MAXIMUM": (239, 707, 1643, 6287),
}
TABLES = [
    (vertices.unary, FLOAT16, False, UNARY_F16),
    (vertices.unary, FLOAT32, True, UNARY_IN_PLACE_F32),
    (vertices.binary, FLOAT16, False, BINARY_F16),
    (vertices.broadcast_scalar, FLOAT16, False, SCALAR_F16),
    (vertices.binary, FLOAT32, True, BINARY_IN_PLACE_F32),
    (vertices.broadcast_scalar, FLOAT32, True, SCALAR_IN_PLACE_F32),
]
ROWS = [(make, dtype, in_place, name, row) for make, dtype, in_place, table in TABLES for name, row in table.items()]


@pytest.mark.parametrize(("make", "dtype", "in_place", "name", "expected"), ROWS)
def test_estimates(mk2, make, dtype, in_place, name, expected):
    work = make(name, dtype, 4096, in_place=in_place)
    np.testing.assert_allclose(work.cycles(SIZES, mk2), expected, rtol=0.02)
    assert not work.low_confidence
    assert ("InPlace" in work.vertex) == in_place


def test_cast_estimates(mk2):
    np.testing.assert_allclose(vertices.cast(FLOAT32, FLOAT16, 1).cycles(SIZES, mk2), (294, 438, 762, 2310), rtol=0.02)


def test_fill_estimates():
    np.testing.assert_array_equal(vertices.fill_thread(SIZES, FLOAT16), (42, 122, 276, 1050))


EVERY = [
    vertices.unary("EXPONENT", FLOAT32, 1),
    vertices.unary("SIGNUM", INT32, 1),
    vertices.binary("GREATER_THAN", FLOAT16, 1),
    vertices.binary("DIVIDE", INT32, 1, in_place=True),
    vertices.broadcast_scalar("POWER", FLOAT32, 1),
    vertices.broadcast_outer("ADD", FLOAT32, 1, 10),
    vertices.broadcast_inner("ADD", FLOAT32, 1, 512),
    vertices.broadcast_inner("ADD", FLOAT16, 1, 512),
    vertices.broadcast_inner("MULTIPLY", FLOAT16, 1, 512),
    vertices.broadcast_inner("MULTIPLY", FLOAT16, 1, 5),
    vertices.select(FLOAT32, 1),
    vertices.clamp(FLOAT16, 1),
    vertices.non_linearity("GELU", FLOAT32, 1, 8),
    vertices.non_linearity_grad("GELU", FLOAT16, 1, 14),
    vertices.cast(INT32, FLOAT32, 1),
    vertices.fill(FLOAT32, 1),
    vertices.fill(BOOL, 1),
    vertices.one_hot(FLOAT32, 8, 10),
    vertices.reduction("ADD", FLOAT16, 64, 1),
    vertices.reduction("MUL", FLOAT32, 64, 1),
]


@pytest.mark.parametrize("work", EVERY, ids=lambda w: w.vertex)
def test_cycles_are_whole_zero_for_nothing_and_grow(mk2, work):
    cycles = work.cycles(np.array([0, 1, 600, 6000, 600000]), mk2)
    assert cycles.dtype == np.int64
    assert cycles[0] == 0
    assert (cycles[1:] > 0).all()
    assert (np.diff(cycles[2:]) > 0).all()


def test_unknown_combination_says_so():
    assert vertices.unary("TANH", INT32, 1).low_confidence


def test_reduction_agrees_with_elk_fit(mk2):
    """Elk (MICRO'25) fits 0.25 n + 175 cycles to half reductions on one tile."""
    n = np.array([480, 4800, 48000])
    np.testing.assert_allclose(vertices.reduction("ADD", FLOAT16, 1, 1).cycles(n, mk2), 0.25 * n + 175, rtol=0.05)
