"""Properties of the vertex formulas (their values against PopLibs' estimates: ``test_vertex_tables.py``)."""

from __future__ import annotations

import numpy as np
import pytest

from ipuperf.ir import BOOL, FLOAT16, FLOAT32, INT32
from ipuperf.ops import vertices

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
