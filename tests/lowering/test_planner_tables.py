"""The planner's acceptance: PopLibs' own planner values (an oracle of the estimator, not of silicon), the bounds that
the search cuts by, and the public functions with plain arguments."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest

from ipuperf.ir import FLOAT16, FLOAT64
from ipuperf.lowering import plan_convolution, plan_matmul
from ipuperf.lowering.planner.alternatives import next_best
from ipuperf.lowering.planner.bounds import least_spread
from ipuperf.lowering.planner.candidates import Candidate
from ipuperf.lowering.planner.form import ONCE, Passes, forms
from ipuperf.lowering.planner.kernels import hmac_kernels, kernels
from ipuperf.lowering.planner.plan import ConvolutionPlan
from ipuperf.lowering.planner.splits import candidate_splits, field_grain, split_space, useful_splits
from ipuperf.lowering.planner.terms import least_transform, operand_terms, set_aside, slices_at_least, with_reduction
from ipuperf.lowering.planner.vertex_bounds import least_cycles
from ipuperf.lowering.planner.vertices import vertex_cycles
from ipuperf.machine import load_machine

# -- docs/reference/planner.md 3 and cycles.md 8.2 ---------------------------------------------------------------------

# target, inputs, partials, pass, proportion, groups, m, k, n; then total, and per serial pass compute, exchange,
# reduction, transform; temporary bytes, tiles (None: not listed)
PRODUCTS = [
    ("mk2", "f16", "f32", "nonemm", 0.6, 1, 256, 256, 256, 2387, 917, 922, 531, 17, 5504, 1280),
    ("mk2", "f16", "f32", "nonemm", 0.6, 1, 1024, 1024, 1024, 49748, 31157, 12599, 5766, 226, 71392, 1456),
    ("mk2", "f16", "f32", "nonemm", 0.6, 1, 1, 1024, 1024, 1111, 673, 70, 366, 2, 1816, 1368),
    ("mk2", "f16", "f16", "nonemm", 0.6, 1, 256, 256, 256, 1665, 769, 605, 291, 0, 3328, 1408),
    ("mk2", "f16", "f16", "nonemm", 0.6, 1, 1024, 1024, 1024, 29904, 17873, 9670, 2361, 0, 57344, 1408),
    ("mk2", "f16", "f16", "nonemm", 0.6, 1, 1, 1024, 1024, 1305, 809, 134, 354, 8, 2072, 1368),
    ("mk2", "f32", "f32", "nonemm", 0.6, 1, 256, 256, 256, 3688, 2031, 1210, 417, 30, 6656, 1408),
    ("mk2", "f32", "f32", "nonemm", 0.6, 1, 1024, 1024, 1024, 87738, 61941, 21051, 4290, 456, 136064, 1440),
    ("mk2", "f32", "f32", "nonemm", 0.6, 1, 1, 1024, 1024, 1472, 970, 134, 366, 2, 3608, 1368),
    ("mk1", "f16", "f32", "nonemm", 0.6, 1, 256, 256, 256, 2835, 1373, 910, 534, 18, 5664, 1152),
    ("mk1", "f16", "f32", "nonemm", 0.6, 1, 1024, 1024, 1024, 58926, 38154, 15108, 5664, 0, 93344, 1152),
    ("mk1", "f16", "f32", "nonemm", 0.6, 1, 1, 1024, 1024, 1317, 865, 132, 318, 2, 2576, 1024),
    ("mk1", "f16", "f16", "nonemm", 0.6, 1, 256, 256, 256, 2668, 1224, 848, 576, 20, 5632, 1024),
    ("mk1", "f16", "f16", "nonemm", 0.6, 1, 1024, 1024, 1024, 57292, 40965, 11461, 4866, 0, 68256, 1210),
    ("mk1", "f16", "f16", "nonemm", 0.6, 1, 1, 1024, 1024, 1575, 1001, 259, 306, 9, 3088, 1024),
    ("mk1", "f32", "f32", "nonemm", 0.6, 1, 256, 256, 256, 5709, 3263, 1696, 750, 0, 11264, 1024),
    ("mk1", "f32", "f32", "nonemm", 0.6, 1, 1024, 1024, 1024, 172121, 139919, 22920, 9282, 0, 136512, 1210),
    ("mk1", "f32", "f32", "nonemm", 0.6, 1, 1, 1024, 1024, 1933, 1354, 259, 318, 2, 5136, 1024),
    ("mk2", "f16", "f16", "nonemm", 0.6, 1, 4096, 4096, 4096, 1136690, 221335, 37770, 17334, 0, 344448, 1456),
    ("mk2", "f16", "f16", "nonemm", 0.1, 1, 2048, 2048, 2048, 213337, 8437, 2365, 1320, 0, 56864, 1456),
    ("mk2", "f16", "f16", "nonemm", 0.4, 1, 2048, 2048, 2048, 161496, 110901, 38529, 12066, 0, 237856, 1456),
    ("mk2", "f16", "f16", "nonemm", 0.9, 1, 2048, 2048, 2048, 161496, 110901, 38529, 12066, 0, 237856, 1456),
    ("mk2", "f16", "f32", "fcinf", 0.6, 1, 32, 784, 1024, 2911, 1565, 1007, 339, 0, 7104, 1404),
    ("mk2", "f16", "f16", "fcfwd", 0.6, 1, 384, 1024, 4096, 38908, 21247, 14334, 3327, 0, 95872, 1440),
    ("mk2", "f32", "f32", "fcfwd", 0.6, 1, 64, 784, 128, 2654, 1119, 749, 786, 0, 3840, 1176),
    ("mk2", "f16", "f16", "fcwu", 0.6, 1, 1024, 384, 4096, 47517, 22409, 12695, 5553, 6860, 69568, 1472),
    ("mk2", "f16", "f16", "nonemm", 0.6, 16, 384, 384, 64, 7324, 3939, 1963, 1422, 0, 16384, 1152),
    ("mk2", "f16", "f16", "nonemm", 0.6, 1, 384, 1024, 1024, 13902, 7313, 4969, 1620, 0, 30208, 1452),
    ("mk2", "f16", "f16", "nonemm", 0.6, 1, 384, 4096, 1024, 41994, 24485, 12553, 4956, 0, 76512, 1456),
    ("mk2", "f16", "f16", "nonemm", 0.1, 1, 512, 1024, 30528, 351088, 14335, 4693, 2085, 0, 61312, None),
    ("mk2", "f32", "f32", "nonemm", 0.6, 1, 8, 8, 8, 513, 449, 64, 0, 0, 320, 8),
]  # fmt: skip

# target, inputs, partials, batch, size, channels in, out, groups; total, compute, exchange, reduction, transform,
# zeros, temporary bytes, tiles
CONVOLUTIONS = [
    ("mk2", "f16", "f16", 4, 56, 64, 64, 1, 15046, 10738, 2985, 1323, 0, 0, 16192, 1344),
    ("mk2", "f16", "f16", 4, 28, 128, 128, 1, 14855, 10513, 3223, 1119, 0, 0, 17152, 1280),
    ("mk2", "f16", "f16", 4, 7, 512, 512, 1, 20156, 14754, 3800, 1602, 0, 0, 26496, 1344),
    ("mk2", "f16", "f32", 4, 56, 64, 64, 1, 23575, 16213, 4818, 2337, 207, 0, 27392, 1280),
    ("mk2", "f16", "f32", 4, 28, 128, 128, 1, 23532, 18032, 4119, 1245, 136, 0, 24320, 1280),
    ("mk2", "f16", "f32", 4, 7, 512, 512, 1, 28100, 24108, 2806, 639, 547, 0, 19456, 1408),
    ("mk2", "f32", "f32", 4, 56, 64, 64, 1, 39552, 30872, 5969, 2337, 374, 0, 32384, 1344),
    ("mk2", "f32", "f32", 4, 28, 128, 128, 1, 39911, 31268, 6445, 2001, 197, 0, 34304, 1280),
    ("mk2", "f32", "f32", 4, 7, 512, 512, 1, 43174, 35892, 4750, 2487, 45, 0, 29504, 1408),
    ("mk1", "f16", "f32", 4, 56, 64, 64, 1, 24855, 16213, 5209, 3216, 217, 0, 30976, 1216),
    ("mk2", "f16", "f16", 4, 112, 32, 32, 32, 4963, 2292, 578, 0, 1821, 272, 9088, 1472),
    ("mk2", "f16", "f32", 4, 56, 128, 128, 8, 13112, 9493, 2393, 828, 398, 0, 15360, 1280),
]


def product(row: tuple) -> ConvolutionPlan:
    target, inputs, partials, pass_, proportion, *shape = row[:9]
    return plan_matmul(target, *shape, inputs, partials, pass_, proportion)


def convolution(row: tuple) -> ConvolutionPlan:
    target, inputs, partials, batch, size, channels_in, channels_out, groups = row[:8]
    return plan_convolution(
        target, batch, channels_in, channels_out, size, 3, padding=1, groups=groups, dtype=inputs, partials=partials
    )


@pytest.mark.parametrize("row", PRODUCTS, ids=lambda r: "-".join(map(str, r[:9])))
def test_matrix_product_is_planned_as_by_poplibs(row):
    plan = product(row)
    total, *terms, temp_bytes, tiles = row[9:]
    assert (plan.total, plan.temp_bytes) == (total, temp_bytes)
    assert [plan.compute, plan.exchange, plan.reduce, plan.rearrangement] == terms
    assert tiles in (None, plan.tiles)


@pytest.mark.parametrize("row", CONVOLUTIONS, ids=lambda r: "-".join(map(str, r[:8])))
def test_convolution_is_planned_as_by_poplibs(row):
    plan = convolution(row)
    found = (plan.total, plan.compute, plan.exchange, plan.reduce, plan.rearrangement, plan.tile_transform,
             plan.temp_bytes, plan.tiles)  # fmt: skip
    assert found == row[8:]


def test_errors_over_the_table():
    errors = [abs(product(row).total / row[9] - 1) for row in PRODUCTS]
    errors += [abs(convolution(row).total / row[8] - 1) for row in CONVOLUTIONS]
    assert len(errors) == 43
    assert statistics.median(errors) <= 0.03
    assert np.quantile(errors, 0.9) <= 0.10


def test_worked_example_term_by_term():
    """docs/reference/planner.md 3.5: 1024 cubed in half precision on GC200."""
    plan = plan_matmul("gc200", 1, 1024, 1024, 1024, "f16", "f16")
    assert (plan.field, plan.out_split, plan.in_split, plan.tiles) == ((1, 8), 22, 8, 1408)
    assert plan.exchange_operands == 3910 + 2688
    assert plan.exchange_partials == 3072
    assert (plan.compute, plan.reduce, plan.total) == (17873, 2361, 29904)


# -- the search --------------------------------------------------------------------------------------------------------

SMALL = {
    "product": lambda: plan_matmul("gc200", 1, 24, 40, 36, "f16", "f16"),
    "groups": lambda: plan_matmul("gc2", 6, 10, 12, 20, "f32", "f32"),
    "padded": lambda: plan_matmul("gc200", 1, 5, 7, 33, "f16", "f32"),
    "strided": lambda: plan_convolution("gc200", 2, 6, 20, 9, 3, stride=2, padding=1, partials="f16"),
    "gradient": lambda: plan_convolution("gc200", 2, 6, 10, 8, 3, stride=2, padding=1, pass_="bwd"),
    "layer": lambda: plan_matmul("gc2", 2, 12, 40, 24, "f16", "f32", "fcinf"),
    "update": lambda: plan_convolution("gc2", 2, 6, 10, 8, 3, padding=1, dtype="f32", pass_="wu"),
    "depthwise": lambda: plan_convolution("gc200", 2, 8, 8, 8, 3, padding=1, groups=8, partials="f16"),
    "dilated": lambda: plan_convolution("gc200", 1, 16, 16, 9, 3, stride=2, padding=2, dilation=2),
}


@pytest.mark.parametrize("passes", [ONCE, Passes(2), Passes(2, ahead=True), Passes(3, ahead=True), Passes(inner=2)])
@pytest.mark.parametrize("name", SMALL)
def test_what_the_search_cuts_by_is_never_above_what_a_split_costs(name, passes):
    """For every candidate, worked out in full, of every form with every vertex: bounds below cycles and bytes."""
    request = SMALL[name]().request
    chip, types, seen = request.chip, request.types, 0
    for plain in forms(request.form, types.input):
        found = [*kernels(plain, chip, types.input, types.partial, types.output)]
        found += hmac_kernels(plain, chip, types.input, types.partial, types.output)[:4]
        for kernel in found:
            form = replace(plain, grain=field_grain(plain, kernel, types))
            space = split_space(form, kernel, types, passes, np.inf, chip)
            grid = candidate_splits(space, np.inf, chip) if space else None
            if grid is None:
                continue
            compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
            terms = operand_terms(form, kernel, grid, compute, types, passes, chip)
            terms = with_reduction(terms, kernel, grid, types, passes, chip)
            whole, each = least_cycles(form, kernel, chip)
            moved = least_transform(form, kernel, types, chip)
            candidate = Candidate(whole, each, *moved, form, kernel, slices_at_least(chip))
            assert candidate.least(passes) <= terms["total"].min()
            spread = least_spread(form, kernel, types, passes, chip)
            assert max(spread, space.least.min()) + candidate.moved(passes) <= terms["total"].min()
            assert candidate.least_bytes(passes, request) <= terms["temp_bytes"].min() * (1 + 1e-9)
            held = set_aside(form, kernel, types, passes, chip) + space.held.min()
            assert held <= terms["temp_bytes"].min() * (1 + 1e-9)
            for cycles in np.quantile(terms["total"], [0.1, 0.5]):
                near = candidate_splits(space, cycles, chip)
                kept = 0 if near is None else len(near.tiles)
                assert np.count_nonzero(terms["total"] <= cycles) <= kept <= len(compute)
            limit = np.median(terms["temp_bytes"])
            left = limit - set_aside(form, kernel, types, passes, chip)
            kept = candidate_splits(split_space(form, kernel, types, passes, left, chip), np.inf, chip)
            assert len(kept.tiles) >= np.count_nonzero(terms["temp_bytes"] <= limit)
            seen += len(compute)
    assert seen > 100


def brute_force(plan: ConvolutionPlan) -> int:
    """The least total of every split in one pass that fits."""
    request, best = plan.request, []
    chip, types = request.chip, request.types
    for plain in forms(request.form, types.input):
        found = [*kernels(plain, chip, types.input, types.partial, types.output)]
        for kernel in [*found, *hmac_kernels(plain, chip, types.input, types.partial, types.output)]:
            form = replace(plain, grain=field_grain(plain, kernel, types))
            space = split_space(form, kernel, types, ONCE, np.inf, chip)
            grid = candidate_splits(space, np.inf, chip) if space else None
            if grid is not None:
                compute = vertex_cycles(grid.piece, grid.inner, form, kernel, chip)
                terms = operand_terms(form, kernel, grid, compute, types, ONCE, chip)
                terms = with_reduction(terms, kernel, grid, types, ONCE, chip)
                best.append(terms["total"][terms["temp_bytes"] <= request.limit].min())
    return int(min(best))


@pytest.mark.parametrize("name", SMALL)
def test_the_search_finds_the_best_split_there_is(name):
    plan = SMALL[name]()
    assert plan.total == brute_force(plan)


def test_useful_splits_have_distinct_parts():
    splits = useful_splits(64, 1472)
    parts = [-(-64 // int(s)) for s in splits]
    assert parts == sorted(set(parts), reverse=True)
    assert (parts[0], parts[-1]) == (64, 1)
    assert all(-(-64 // (int(s) - 1)) != part for s, part in zip(splits[1:], parts[1:], strict=True))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 7, 11, 13), (1, 8, 784, 512), (64, 128, 64, 128), (1, 4096, 2, 1)])
def test_never_more_tiles_or_memory_than_there_are(shape):
    chip = load_machine("gc2-1").chip
    plan = plan_matmul(chip, *shape, "f32", "f32")
    assert plan.tiles <= chip.tiles
    assert plan.temp_bytes <= 0.6 * chip.bytes_per_tile


def test_less_memory_never_means_fewer_cycles():
    wide, narrow = (plan_matmul("gc200", 1, 4096, 4096, 4096, partials="f16", amp=amp) for amp in (0.6, 0.1))
    assert narrow.temp_bytes <= 0.1 * load_machine("gc200-1").chip.bytes_per_tile < wide.temp_bytes
    assert narrow.total >= wide.total


def test_what_cannot_fit_still_has_a_plan():
    plan = plan_convolution("gc2", 16, 1024, 1024, 56, 7, padding=3, dtype="f32", partials="f32", amp=0.01)
    assert plan.temp_bytes > 0.01 * load_machine("gc2-1").chip.bytes_per_tile
    assert plan.serial > 1


# -- a plan explains itself --------------------------------------------------------------------------------------------


def test_plan_says_everything():
    plan = plan_convolution("mk2", 4, 64, 64, 56, 3, padding=1, partials="f16")
    values = plan.values()
    assert "request" not in values
    assert (values["total"], values["field"], values["tiles"]) == (15046, [7, 3], 1344)
    for word in ("field (7, 3) batch 4", "compute 10738", "1344 tiles", "total 15046", "16192 bytes"):
        assert word in plan.explain()


def test_the_next_best_plan_is_another_and_no_better():
    plan = plan_matmul("gc200", 1, 1, 1024, 1024, "f16", "f32")
    other = next_best(plan)
    assert plan.vertex == "poplin::ConvPartialHorizontalMac<half,float>"
    assert (other.vertex, other.swapped) != (plan.vertex, plan.swapped)
    assert other.total >= plan.total
    assert next_best(plan) == other


def test_equal_plans_are_planned_once_and_chips_are_known_by_name():
    plan = plan_matmul("gc200", 1, 64, 64, 64)
    assert plan_matmul(load_machine("pod4").chip, 1, 64, 64, 64, FLOAT16) is plan
    assert plan_matmul("mk2", 1, 64, 64, 64, "half", "float") is plan
    assert plan_matmul("pod16", 1, 64, 64, 64, output="f16") is plan
    assert plan_matmul("bow", 1, 64, 64, 64).total == plan.total
    assert plan_matmul("mk1", 1, 64, 64, 64).total > plan.total


def test_axes_of_a_convolution_one_by_one():
    square = plan_convolution("gc200", 2, 8, 8, 16, 3, padding=1)
    assert plan_convolution("gc200", 2, 8, 8, (16, 16), (3, 3), 1, (1, 1)) is square
    assert plan_convolution("gc200", 2, 8, 8, (20,), (3,)).total > 0


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 0}, r"matmul \[1, 0, 8\] x \[1, 8, 8\]: every dimension has to be at least 1"),
        ({"groups": -2}, "every dimension has to be at least 1"),
        ({"k": 2.5}, "k is 2.5; a whole number is needed"),
        ({"n": "8"}, "n is '8'; a whole number is needed"),
        ({"dtype": "f64"}, "dtype is 'f64'; allowed: f16, f32"),
        ({"dtype": FLOAT64}, "dtype is float64; allowed: f16, f32"),
        ({"partials": "bf16"}, "partials is 'bf16' \\(did you mean f16\\?\\); allowed: f16, f32"),
        ({"output": "int8"}, "output is 'int8'; allowed: f16, f32"),
        ({"dtype": "f32", "partials": "f16"}, "partials are float16 for float32 operands"),
        (
            {"pass_": "fwd"},
            "matmul pass is 'fwd' \\(did you mean fcfwd or fcbwd\\?\\); allowed: nonemm, fcinf, fcfwd, fcbwd, fcwu",
        ),
        ({"amp": 1.5}, "availableMemoryProportion is 1.5; allowed: above 0, at most 1"),
        ({"amp": 0.0}, "availableMemoryProportion is 0.0; allowed: above 0, at most 1"),
        ({"amp": float("nan")}, "availableMemoryProportion is nan"),
        (
            {"chip": "gc201"},
            "chip is 'gc201' \\(did you mean gc200 or gc2\\?\\); allowed: gc2, mk1, gc200, mk2, bow, or",
        ),
    ],
)
def test_impossible_products_are_refused(changes, message):
    shape = {"chip": "gc200", "groups": 1, "m": 8, "k": 8, "n": 8} | changes
    with pytest.raises(ValueError, match=message):
        plan_matmul(**shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "every dimension, stride and dilation has to be at least 1"),
        ({"stride": 0}, "every dimension, stride and dilation has to be at least 1"),
        ({"kernel": 12}, "the kernel does not fit into the padded input"),
        ({"padding": -1}, "padding is -1; allowed: 0 and more"),
        ({"groups": 3}, "3 groups have to divide the channels 8 and 8"),
        ({"pass_": "nonemm"}, "convolution pass is 'nonemm'; allowed: fwd, bwd, wu"),
        ({"dtype": "f32", "partials": "f16"}, "partials at least as wide as the inputs"),
        ({"size": (8, 8), "kernel": (3, 3, 3)}, "one for each of 3 spatial axes"),
        ({"amp": -0.1}, "availableMemoryProportion is -0.1"),
    ],
)
def test_impossible_convolutions_are_refused(changes, message):
    shape = {"chip": "gc200", "batch": 1, "channels_in": 8, "channels_out": 8, "size": 8, "kernel": 3} | changes
    with pytest.raises(ValueError, match=message):
        plan_convolution(**shape)
