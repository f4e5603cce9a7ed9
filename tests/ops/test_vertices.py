"""Properties of the vertex formulas (their values against PopLibs' estimates: ``test_vertex_tables.py``)."""

from functools import partial

import numpy as np
import pytest
from executables import lines
from rows import Golden
from vertices import VERTICES

from ipuperf.ir import BOOL, FLOAT16, FLOAT32, INT32, Ir, TensorSpec
from ipuperf.machine import load_machine
from ipuperf.ops import vertices
from ipuperf.ops.elementwise.functions import Expm1, Log1p, Round
from ipuperf.ops.updates.update_vertices import scaled_add_cycles

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


def test_all_vertices_at_once(golden: Golden) -> None:
    """Lines that run when a module is imported meet this before the tests of single cases (``tests/golden``)."""
    golden([line for case, rows in VERTICES.items() for line in (case, *lines(rows()))])


def test_unknown_combination_says_so():
    assert vertices.unary("TANH", INT32, 1).low_confidence


def test_reduction_agrees_with_elk_fit(mk2):
    """Elk (MICRO'25) fits 0.25 n + 175 cycles to half reductions on one tile."""
    n = np.array([480, 4800, 48000])
    np.testing.assert_allclose(vertices.reduction("ADD", FLOAT16, 1, 1).cycles(n, mk2), 0.25 * n + 175, rtol=0.05)


#: Tile cycles for 100 elements (17 on each of 6 workers: 9 vectors of float, 5 of half), by hand from the formulas in
#: the docstrings, and operations for each element.
BY_HAND = [
    (partial(vertices.unary, "CEIL", FLOAT32, 1), 6 * (17 + 6 * 9) + 20, 1),
    (partial(vertices.unary, "CEIL", FLOAT16, 1), 6 * (17 + 6 * 5) + 20, 1),
    (partial(vertices.unary, "FLOOR", FLOAT32, 1), 6 * (17 + 6 * 9) + 20, 1),
    (partial(vertices.unary, "FLOOR", FLOAT16, 1), 6 * (17 + 6 * 5) + 20, 1),
    (partial(vertices.unary, "EXPONENT", FLOAT32, 1), 6 * (33 + 6 * 9) + 20, 1),
    (partial(vertices.unary, "SIGNUM", INT32, 1, flops=3), 6 * (17 + 9 * 17) + 20, 3),
    (partial(vertices.unary, "IS_NAN", FLOAT16, 1), 6 * (17 + 7 * 5) + 20, 1),
    (partial(vertices.unary, "SIN", FLOAT32, 1), 6 * (17 + 2304 * 17) + 20, 1),
    (partial(vertices.unary, "ABSOLUTE", FLOAT32, 1, in_place=True), 6 * (55 + 5 * 9) + 20, 1),
    (partial(vertices.binary, "GREATER_THAN", FLOAT16, 1), 6 * (26 + 9 * 5) + 11, 1),
    (partial(vertices.binary, "EQUAL", BOOL, 1), 6 * (29 + 6 * 5) + 11, 1),
    (partial(vertices.binary, "REMAINDER", FLOAT16, 1), 6 * (26 + 300 * 5) + 11, 1),
    (partial(vertices.binary, "POWER", FLOAT16, 1, flops=4), 6 * (26 + 325 * 17) + 11, 4),
    (partial(vertices.binary, "DIVIDE", INT32, 1, in_place=True), 6 * (58 + 277 * 17) + 11, 1),
    (partial(vertices.broadcast_scalar, "REMAINDER", FLOAT32, 1), 6 * (20 + 93 * 9) + 11, 1),
    (partial(vertices.broadcast_scalar, "REMAINDER", FLOAT16, 1), 6 * (20 + 225 * 5) + 11, 1),
    (partial(vertices.broadcast_scalar, "POWER", FLOAT32, 1, flops=2), 6 * (20 + 312 * 17) + 11, 2),
    (partial(vertices.broadcast_scalar, "VARIANCE_TO_INV_STD_DEV", FLOAT16, 1), 6 * (20 + 24 * 5) + 11, 1),
    (partial(vertices.broadcast_scalar, "INV_STD_DEV_TO_VARIANCE", FLOAT32, 1), 6 * (20 + 11 * 9) + 11, 1),
    (partial(vertices.broadcast_scalar, "GREATER_THAN", FLOAT32, 1), 6 * (20 + 14 * 5) + 11, 1),  # the binary loop
    # 10 rows of 10 are 2 a worker; 20 rows of 5 are 4, which are no whole vectors; a part of a row of 1,000
    (partial(vertices.broadcast_outer, "ADD", FLOAT32, 1, 10), 6 * (15 + 2 * (7 + 2 * 5)) + 11, 1),
    (partial(vertices.broadcast_outer, "ADD", FLOAT16, 1, 5, flops=2), 6 * (15 + 4 * (25 + 2 * 2)) + 11, 2),
    # a row by all workers: 17 elements, 9 vectors; 25 rows of 4 are 5 a worker; 9 pieces of 12 by all: 2, 1 vector
    (partial(vertices.broadcast_outer, "ADD", FLOAT32, 1, 1000), 6 * (15 + 7 + 2 * 9) + 11, 1),
    (partial(vertices.broadcast_outer, "ADD", FLOAT32, 1, 4), 6 * (15 + 5 * (7 + 2 * 2)) + 11, 1),
    (partial(vertices.broadcast_outer, "ADD", FLOAT32, 1, 1000, piece=12), 6 * (15 + 9 * (7 + 2)) + 11, 1),
    # 7 fragments of 16 are 2 a worker, 9 of 12 are 2; 5 halves are no vectors: 200 bytes are copied, 8 a cycle; sums of
    # floats copy 400 bytes in atoms of 8, or of 4 where the vector is odd
    (partial(vertices.broadcast_inner, "ADD", FLOAT32, 1, 512, flops=2), 6 * (29 + 3 * 9) + 11 + 587 + 176, 2),
    (partial(vertices.broadcast_inner, "ADD", FLOAT32, 1, 5, in_place=True), 6 * (58 + 3 * 9) + 11 + 587 + 1250, 1),
    (partial(vertices.broadcast_inner, "ADD", FLOAT16, 1, 512), 6 * (37 + 2 * (13 + 2 * 2)) + 12, 1),
    (partial(vertices.broadcast_inner, "ADD", FLOAT16, 1, 12), 6 * (34 + 3 * (11 + 2)) + 12, 1),
    (partial(vertices.broadcast_inner, "MULTIPLY", FLOAT16, 1, 512), 6 * (34 + 4 * (9 + 2)) + 12, 1),
    (partial(vertices.broadcast_inner, "MULTIPLY", FLOAT16, 1, 5), 6 * (26 + 5 * 3) + 11 + 120 + 25, 1),
    (partial(vertices.select, FLOAT32, 1), 6 * (6 + 5 * 17) + 11, 0),
    (partial(vertices.clamp, FLOAT32, 1), 6 * (6 + 2 * 9) + 11, 2),
    (partial(vertices.clamp, FLOAT16, 1), 6 * (6 + 2 * 5) + 11, 2),
    (partial(vertices.non_linearity, "GELU", FLOAT32, 1, 8), 6 * (26 + 2 * 10 + 8 * 10) + 9, 8),
    (partial(vertices.non_linearity, "SWISH", FLOAT16, 1, 5), 6 * (26 + 2 * 5 + 4 * 5) + 9, 5),
    (partial(vertices.non_linearity_grad, "GELU", FLOAT16, 1, 14), 6 * (24 + 4 * 5) + 9, 14),
    (partial(vertices.non_linearity_grad, "SWISH", FLOAT32, 1, 9), 6 * (24 + 8 * 15) + 9, 9),
    (partial(vertices.cast, INT32, FLOAT32, 1), 6 * (37 + 17) + 12, 0),
    (partial(vertices.cast, FLOAT32, FLOAT16, 1), 6 * (37 + 2 * 4 + 6) + 12, 0),
    (partial(vertices.fill, FLOAT32, 1), 6 * (23 + 9), 0),
    (partial(vertices.fill, FLOAT16, 1), 6 * (26 + 4), 0),
    (partial(vertices.fill, BOOL, 1), 6 * (28 + 5), 0),
    (partial(vertices.one_hot, FLOAT32, 8, 10), 11 + 74 * 10, 0),
]


@pytest.mark.parametrize(("make", "cycles", "flops"), BY_HAND)
def test_cycles_by_hand(mk2, make, cycles, flops):
    work = make()
    assert work.cycles(np.array([100]), mk2).tolist() == [cycles]
    assert work.flops == flops * (80 if "OneHot" in work.vertex else 1)


@pytest.mark.parametrize(("n", "mixed", "plain"), [(1, 11, 5), (2, 9, 12), (3, 16, 18)])
def test_scaled_additions_of_less_than_a_vector(mk2, n, mixed, plain):
    """51 + 6 for the factor + 6 for the rest; then one of six workers has the rest: half A with float B 4, of two and
    more 5, of an odd number 7; half alone 5, 7 and for three of them 6."""
    assert scaled_add_cycles(FLOAT16, FLOAT32, True)(np.array([n]), mk2) == 63 + 6 * (16 + 3 + 1 + mixed)
    assert scaled_add_cycles(FLOAT16, FLOAT16, True)(np.array([n]), mk2) == 63 + 6 * (15 + 2 + 1 + plain + 1)


def test_scaled_additions_of_whole_vectors(mk2):
    """1, 6 and 7 vectors: 9 for the first of a worker, 5 for each more, and 1 when all workers have as many."""
    found = scaled_add_cycles(FLOAT16, FLOAT32, True)(np.array([4, 24, 28]), mk2)
    assert found.tolist() == [57 + 6 * (16 + 9 + 3), 57 + 6 * (16 + 9 + 3 + 1), 57 + 6 * (16 + 14 + 3)]


@pytest.mark.parametrize(
    ("name", "dtype", "cycles", "flops"),
    [
        ("ADD", FLOAT16, 6 * (30 + 5), 1),
        ("MUL", FLOAT32, 6 * (27 + 2 * 9), 1),
        ("SQUARE_ADD", FLOAT32, 6 * (27 + 9), 2),
    ],
)
def test_reductions_by_hand(mk2, name, dtype, cycles, flops):
    work = vertices.reduction(name, dtype, 100, 4)
    assert (work.cycles(np.array([100]), mk2).tolist(), work.flops) == ([cycles], 100 * flops)


def test_the_planner_expects_a_cast_of_the_wider_vectors():
    """12 elements of a tile are 2 for each of 6 workers: one vector of floats, 6 (26 + 1); 7 are 2 as well. A vector of
    halves holds four. The vertex itself takes 12 + 6 (37 + 6)."""
    chip = load_machine("gc200-1").chip
    count = np.array([12, 7, 13, 96])
    assert vertices.planned_cast_cycles(count, 4, chip).tolist() == [162, 162, 168, 6 * (26 + 8)]
    assert vertices.planned_cast_cycles(count, 2, chip).tolist() == [162, 162, 162, 6 * (26 + 4)]
    assert vertices.cast(FLOAT32, FLOAT16, 12).cycles(count[:1], chip).tolist() == [270]


@pytest.mark.parametrize(
    ("op", "dtype", "loop"),
    [
        (Log1p, FLOAT32, 184 * 10),  # vectors of two: 10 for the 20 elements of a worker
        (Log1p, FLOAT16, 184 * 5),
        (Expm1, FLOAT32, 8 * 20),  # one element at a time
        (Expm1, FLOAT16, 9 * 5),
        (Round, FLOAT32, 6 * 10),
        (Round, FLOAT16, 6 * 5),
    ],
)
def test_functions_whose_loop_stands_in_the_table(op, dtype, loop):
    """PopLibs' UnaryOp1D: W (17 + loop) + 20, a natural loop with 4 cycles of overhead; 120 elements, W = 6."""
    graph = Ir().main_graph
    (work,) = graph.create(op, [graph.intermediate(TensorSpec((120,), dtype), "x")], ["y"]).work()
    assert work == vertices.unary(op.vertex, dtype, 120)
    assert work.cycles(np.array([120]), load_machine("gc200-1").chip).tolist() == [6 * (17 + loop) + 20]
    assert not work.low_confidence
