"""Every value of docs/reference/cycles.md 8.1: PopLibs' own vertex estimates (tile cycles), none of them off by more
than 2 %.

They are an oracle of the estimators' fidelity, not of silicon.
"""

import numpy as np
import pytest

from ipuperf.ir import FLOAT16, FLOAT32
from ipuperf.lowering.planner import reductions as convolution_reductions
from ipuperf.lowering.planner.form import POINT, Axis, Form
from ipuperf.lowering.planner.kernels import Kernel
from ipuperf.lowering.planner.vertices import Piece, inner_cycles, vertex_cycles
from ipuperf.machine import load_machine
from ipuperf.ops import vertices
from ipuperf.ops.selection import gather
from ipuperf.ops.updates.update_vertices import scaled_add_cycles
from ipuperf.ops.vertex_families import FAMILIES, estimate_vertices

CHIPS = {name: load_machine(name).chip for name in ("gc200-1", "gc2-1", "bow-1")}
MK2 = CHIPS["gc200-1"]

# -- vertices of 64, 384, 1000 and 4096 elements -----------------------------------------------------------------------

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
def test_elementwise(make, dtype, in_place, name, expected):
    work = make(name, dtype, 4096, in_place=in_place)
    np.testing.assert_allclose(work.cycles(SIZES, MK2), expected, rtol=0.02)
    assert not work.low_confidence
    assert ("InPlace" in work.vertex) == in_place


#: ScaledAdd with the factor in a tensor; ``apart``: memory-constrained operands (memC=1).
SCALED = {
    "half memC=0": (scaled_add_cycles(FLOAT16, FLOAT16, True), (225, 477, 927, 3249)),
    "half aX+bY": (scaled_add_cycles(FLOAT16, FLOAT16, True, True), (237, 489, 939, 3261)),
    "float memC=1": (scaled_add_cycles(FLOAT32, FLOAT32, True, apart=True), (255, 393, 699, 2247)),
    "half A, float B": (scaled_add_cycles(FLOAT16, FLOAT32, True), (285, 681, 1455, 5325)),
}


@pytest.mark.parametrize("name", SCALED)
def test_scaled_add(name):
    formula, expected = SCALED[name]
    np.testing.assert_allclose(formula(SIZES, MK2), expected, rtol=0.02)


def test_constrained_scaled_add_has_equal_types():
    with pytest.raises(
        ValueError, match="no constrained ScaledAdd for float16 and float32; the types have to be equal"
    ):
        scaled_add_cycles(FLOAT16, FLOAT32, True, apart=True)


def test_cast():
    np.testing.assert_allclose(vertices.cast(FLOAT32, FLOAT16, 1).cycles(SIZES, MK2), (294, 438, 762, 2310), rtol=0.02)


def test_fill():
    """Thread cycles of one worker."""
    np.testing.assert_allclose(vertices.fill_thread(SIZES, FLOAT16), (42, 122, 276, 1050), rtol=0.02)


def test_slices():
    """48 offsets, of which each worker has 8, and slices of 64 ... elements."""
    pulled = gather.multi_slice(FLOAT32, 48, 1).cycles(48 * SIZES, MK2)
    added = gather.multi_update_add(FLOAT16, 48, 100, 1).cycles(100 * SIZES, MK2)
    np.testing.assert_allclose(pulled, (6084, 21444, 51012, 199620), rtol=0.02)
    np.testing.assert_allclose(added, (6510, 29550, 73902, 296814), rtol=0.02)


# -- the 1x1 AMP vertex ------------------------------------------------------------------------------------------------

#: Chip, units, channel groupings, bytes of inputs and partial sums, by column.
AMP = {
    "f16/f16 16 units": ("gc200-1", 16, 16, 16, 2, 2),
    "f16/f32 8 units, 16 channels": ("gc200-1", 8, 16, 16, 2, 4),
    "f16/f32 8 units, 8 channels": ("gc200-1", 8, 16, 8, 2, 4),
    "f32/f32 16 units": ("gc200-1", 16, 8, 16, 4, 4),
    "mk1 f32 8 units, 8 channels": ("gc2-1", 8, 8, 8, 4, 4),
}
#: (positions of each worker, input groups, output groups) -> one value for each column.
AMP_CYCLES = {
    (1, 1, 1): (369, 540, 337, 519, 463),
    (1, 8, 3): (6545, 10754, 5777, 9599, 8759),
    (1, 16, 4): (17163, 28407, 15115, 25179, 23035),
    (4, 1, 1): (423, 648, 391, 705, 577),
    (4, 8, 3): (7841, 13346, 7073, 11039, 9983),
    (4, 16, 4): (20619, 35319, 18571, 28443, 26011),
    (22, 1, 1): (855, 1512, 823, 2433, 1873),
    (22, 8, 3): (18209, 34082, 17441, 34367, 32015),
    (22, 16, 4): (48267, 90615, 46219, 87195, 83035),
    (147, 1, 1): (3855, 7512, 3823, 14433, 10873),
    (147, 8, 3): (90209, 178082, 89441, 196367, 185015),
    (147, 16, 4): (240267, 474615, 238219, 495195, 479035),
}


@pytest.mark.parametrize("shape", AMP_CYCLES, ids=str)
@pytest.mark.parametrize("column", range(len(AMP)), ids=list(AMP))
def test_convolution_partial_1x1(column, shape):
    machine, units, inner, outer, in_size, partial_size = list(AMP.values())[column]
    chip, (positions, in_groups, out_groups) = CHIPS[machine], shape
    field = chip.workers * positions
    form = Form(1, 1, inner * in_groups, outer * out_groups, (POINT, Axis(field, 1, field)), "nonemm")
    kernel = Kernel("AMP", units, 1, inner, outer, 1, in_size, partial_size)
    one, whole = np.array([1]), (np.array([1]), np.array([field]))
    piece = Piece(one, whole, (one, one), one, np.array([in_groups]), np.array([out_groups]))
    (cycles,) = vertex_cycles(piece, inner_cycles(one, whole, form, kernel, chip), form, kernel, chip)
    assert cycles == pytest.approx(AMP_CYCLES[shape][column], rel=0.02)


# -- ConvReduce --------------------------------------------------------------------------------------------------------

#: (outputs, partial sums) -> f32 to f32, f32 to f16, f16 to f16 with an input for each; f32 with a single input.
REDUCE_CYCLES = {
    (24, 2): (270, 264, 276, 225),
    (24, 8): (378, 372, 384, 297),
    (24, 26): (702, 696, 708, 513),
    (96, 2): (504, 480, 360, 441),
    (96, 8): (936, 912, 576, 729),
    (96, 26): (2232, 2208, 1224, 1593),
    (384, 2): (1440, 1344, 864, 1305),
    (384, 8): (3168, 3072, 1728, 2457),
    (384, 26): (8352, 8256, 4320, 5913),
    (1000, 2): (3468, 3216, 1956, 3177),
    (1000, 8): (8004, 7752, 4224, 6201),
    (1000, 26): (21612, 21360, 11028, 15273),
}


@pytest.mark.parametrize("shape", REDUCE_CYCLES, ids=str)
def test_convolution_reduce(shape):
    """The single-input estimator counts the partial sums besides the first, which the planner hands it one fewer."""
    outputs, depth = np.array([shape[0]]), np.array([shape[1]])
    found = [
        convolution_reductions.reduce_many_cycles(outputs, depth, types, MK2)[0] for types in ((4, 4), (4, 2), (2, 2))
    ]
    found.append(convolution_reductions.reduce_single_cycles(outputs, depth + 1, (4, 4), MK2)[0])
    np.testing.assert_allclose(found, REDUCE_CYCLES[shape], rtol=0.02)


# -- families ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_growing_estimates(family, chip, dtype):
    found = estimate_vertices(family, dtype, [0, 48, 4800, 480000], chip)
    assert found
    for each in found:
        assert each.cycles[0] == 0
        assert list(each.cycles) == sorted(set(each.cycles)), each.vertex


def test_a_part_of_a_vertex_type_is_enough():
    found = {v.vertex: v for v in estimate_vertices("relu,", FLOAT16, [64, 4096], MK2)}
    assert set(found) == {
        "popops::UnaryOp1D<RELU,half>",
        "popops::UnaryOp1DInPlace<RELU,half>",
        "popnn::NonLinearityGrad1D<RELU,half>",
    }
    assert found["popops::UnaryOp1D<RELU,half>"].cycles == (176, 3200)
    assert not found["popops::UnaryOp1D<RELU,half>"].low_confidence
    assert estimate_vertices("uniform", FLOAT32, [1], MK2)[0].low_confidence


@pytest.mark.parametrize(
    ("name", "elements", "message"),
    [
        (
            "UnaryOp2D",
            [64],
            "vertex is 'UnaryOp2D', which is none for float16 .did you mean UnaryOp1D.*families: ",
        ),
        ("", [64], "vertex is ''"),
        ("relu", [], r"elements is \[\]; allowed: one or more numbers of at least 0"),
        ("relu", [64, -1], r"elements is \[64, -1\]"),
    ],
)
def test_unknown_vertices_are_refused(name, elements, message):
    with pytest.raises(ValueError, match=message):
        estimate_vertices(name, FLOAT16, elements, MK2)
