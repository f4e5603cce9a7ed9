"""Joint plans of fully connected layers: against scalar formulas written out here, against every split there is, and
the choice between planning jointly and pass by pass."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ipuperf.lowering import plan_matmul
from ipuperf.lowering.planner import joint
from ipuperf.lowering.planner.alternatives import layer_cost, next_best
from ipuperf.lowering.planner.form import ONCE, TRAINING, Passes, Types, flatten_field, product_form, swap
from ipuperf.lowering.planner.joint import cheapest_splits, joint_plan, layer_passes
from ipuperf.lowering.planner.kernels import Kernel
from ipuperf.lowering.planner.terms import operand_terms, with_reduction
from ipuperf.lowering.planner.vertices import vertex_cycles
from ipuperf.machine import load_machine

CHIP = load_machine("gc200-1").chip
HALF = Types(2, 2, 2)

#: The vertex of 16 AMP units that takes 16 input and 16 output channels at once.
WIDE = Kernel("AMP", 16, 1, 16, 16, 1, 2, 2)


# -- the estimate ------------------------------------------------------------------------------------------------------


def worker(positions: int, zero: int) -> int:
    """Reference 2.8, 1x1 AMP in half precision on 16 units."""
    known = {1: (33, 32), 2: (42, 41)}
    return (known[positions][zero] if positions in known else (38, 37)[zero] + 4 * (positions - 3)) - 7


def vertex(positions: int, inner: int, outer: int) -> int:
    """Tile cycles for so many positions, groupings of input and of output channels."""
    shares = [(w + 1) * positions // 6 - w * positions // 6 for w in range(6)]
    later, first = (
        max(6 * max(worker(p, zero) for p in shares), 6 * min(worker(p, zero) for p in shares) + 14) for zero in (0, 1)
    )
    loops = (inner - 1) * (15 + outer * (19 + 6 + 64 + later)) + 11 + outer * (18 + 7 + 64 + first)
    return 50 + 6 * (7 + 3 * (inner - 1)) + 13 + loops


def one_pass(positions: int, inner: int, outer: int, sharers: int, receivers: int, depth: int) -> int:
    """A pass on the fullest tile: ``positions``, groupings of channels; weights are shared by ``sharers`` tiles, inputs
    by ``receivers``; ``depth`` partial sums are added (in whole vectors each, little memory)."""
    inputs, weights, sums = positions * inner * 16, inner * outer * 256, positions * outer * 16
    exchange = math.ceil((inputs - inputs // receivers) / 2) + math.ceil((weights - weights // sharers) / 2) + sums // 2
    reduce = 0 if depth == 1 else 33 + 6 * (20 + (2 * (depth - 1) + 9) * math.ceil(sums // depth / 8 / 6))
    return vertex(positions, inner, outer) + exchange + reduce


def layer(m: int, k: int, n: int, field: int, split: int) -> tuple[int, int, int]:
    """Forward, backward and update for channels in multiples of 16, field and input channels split."""
    rows, places, outer = math.ceil(k / 16 / split), math.ceil(n / 16 / field), m // 16
    gradient = math.ceil(n * m * 2 / (field * split))  # bytes rearranged on a tile: element by element, and exchanged
    return (
        one_pass(places * 16, rows, outer, field, 1, split),
        one_pass(rows * 16, places, outer, split, 1, field),
        one_pass(places * 16, outer, rows, field, split, 1) + math.ceil(gradient * 5 / 8) + math.ceil(gradient / 4),
    )


def planned(m: int, k: int, n: int) -> tuple[int, tuple[int, ...]]:
    form = flatten_field(swap(product_form(1, m, k, n, "fcfwd")))
    _, found = cheapest_splits(layer_passes(form, WIDE, CHIP, HALF), ONCE, HALF, np.inf, (np.inf, np.inf), CHIP)
    return found.total, tuple(int(terms["total"][0]) for terms in found.terms)


def test_one_grouping_of_everything_by_hand():
    """16 cubed on one tile: a worker takes 2 or 3 positions, 41 - 7 cycles for 2; the sums are 512 bytes.
    50 + 42 + 13 + 11 + (18 + 7 + 64 + 6 * 34) = 409 and 128 of exchange in each pass, and in the update 320 and 128 for
    rearranging 512 bytes."""
    assert layer(16, 16, 16, 1, 1) == (537, 537, 985)
    assert planned(16, 16, 16) == (2059, (537, 537, 985))


@pytest.mark.parametrize("shape", [(16, 32, 32), (32, 64, 32), (48, 64, 64), (64, 16, 64)])
def test_cheapest_splits_of_small_layers_by_hand(shape):
    m, k, n = shape
    useful = [[s for s in range(1, size // 16 + 1) if math.ceil(size / 16 / math.ceil(size / 16 / s)) == s]
              for size in (n, k)]  # fmt: skip
    every = itertools.product(*useful)
    best = min(sum(layer(m, k, n, field, split)) for field, split in every)
    assert planned(m, k, n)[0] == best


def test_the_joint_plan_is_the_best_of_its_vertices_and_passes():
    form = flatten_field(swap(product_form(2, 24, 40, 72, "fcfwd")))
    every = [
        cheapest_splits(layer_passes(form, kernel, CHIP, HALF), ONCE, HALF, np.inf, (np.inf, np.inf), CHIP)[1].total
        for kernel in (WIDE, Kernel("AMP", 8, 1, 16, 16, 1, 2, 2), Kernel("AMP", 8, 1, 8, 8, 1, 2, 2))
    ]
    found = joint_plan(CHIP, product_form(2, 24, 40, 72, "fcfwd"), HALF, math.inf)
    assert found.total <= min(every)
    assert found.total == sum(int(terms["total"][0]) for terms in found.terms)
    assert found.temp_bytes == max(int(terms["temp_bytes"][0]) for terms in found.terms)
    assert joint_plan(CHIP, product_form(2, 24, 40, 72, "fcfwd"), HALF, math.inf, found.total).total == found.total
    assert joint_plan(CHIP, product_form(2, 24, 40, 72, "fcfwd"), HALF, math.inf, found.total - 1) is None


@pytest.mark.parametrize(
    ("rows", "kernel", "methods"),
    [
        (1, Kernel("HMAC", 0, 1, 2, 1, 1, 2, 2), ["HMAC", "HMAC", "OUTER"]),  # the update of a single row
        (1, Kernel("HMAC", 0, 1, 16, 2, 1, 2, 2), ["HMAC", "HMAC", "AMP"]),  # rows are laid out in pairs
        (1, WIDE, ["AMP", "AMP", "AMP"]),
        (2, Kernel("HMAC", 0, 1, 16, 1, 1, 2, 2), ["HMAC", "HMAC", "AMP"]),
        (2, Kernel("HMAC", 0, 1, 1, 2, 1, 2, 2), ["HMAC", "HMAC", "HMAC"]),
    ],
)
def test_vertices_of_the_three_passes(rows, kernel, methods):
    form = flatten_field(swap(product_form(1, rows, 64, 64, "fcfwd")))
    assert [part.kernel.method for part in layer_passes(form, kernel, CHIP, HALF)] == methods


# -- the choice --------------------------------------------------------------------------------------------------------

#: target, operands, partial sums; m, k, n of the forward pass; groups, proportion.
LAYERS = [
    ("mk2", "f16", "f16", 16, 1024, 4096, 1, 0.6),
    ("mk2", "f16", "f16", 64, 2048, 2048, 1, 0.6),
    ("mk2", "f16", "f16", 384, 1024, 4096, 1, 0.6),
    ("mk2", "f16", "f32", 1, 1024, 1024, 1, 0.6),
    ("mk2", "f16", "f32", 4, 777, 501, 3, 0.6),
    ("mk1", "f32", "f32", 8, 1024, 2048, 1, 0.6),
    ("mk1", "f32", "f32", 3, 1, 5, 1, 0.6),
    ("mk1", "f16", "f32", 1, 1, 1, 1, 0.6),
    ("mk2", "f32", "f32", 64, 784, 128, 1, 0.6),
    ("mk2", "f16", "f16", 128, 2048, 2048, 1, 0.04),
]


def passes(target: str, dtype: str, partials: str, m: int, k: int, n: int, groups: int, amp: float, **more: str):
    sizes = ((m, k, n), (m, n, k), (k, m, n))
    return [plan_matmul(target, groups, *size, dtype, partials, name, amp, **more)
            for size, name in zip(sizes, TRAINING, strict=True)]  # fmt: skip


@pytest.mark.parametrize("row", LAYERS, ids=lambda r: "-".join(map(str, r)))
def test_jointly_only_where_that_is_no_dearer(row):
    plans = passes(*row)
    cost = layer_cost(plans[0])
    assert [layer_cost(plan) for plan in plans] == [cost] * 3
    assert [plan.joint for plan in plans] == [cost.joint] * 3
    alone = [next_best(plan) if plan.joint else plan for plan in plans]
    assert cost.apart == sum(plan.total for plan in alone)
    limit = plans[0].request.limit
    if all(plan.temp_bytes <= limit for plan in alone):
        assert cost.joint == (cost.jointly is not None and cost.jointly <= cost.apart)
    if cost.joint:
        assert sum(plan.total for plan in plans) == cost.jointly
    assert max(plan.tiles for plan in plans) <= plans[0].request.chip.tiles


def test_small_batches_are_planned_jointly_and_large_ones_are_not():
    assert [passes(*row)[0].joint for row in LAYERS[:4]] == [True, True, False, True]


def test_splits_of_the_other_passes_follow_from_the_forward_pass():
    forward, backward, update = passes(*LAYERS[0])
    assert forward.out_split == 1
    assert (backward.field[-1], backward.in_split) == (forward.in_split, forward.field[-1])
    assert (update.field, update.out_split, update.in_split) == (forward.field, forward.in_split, 1)
    assert forward.tiles == backward.tiles == update.tiles
    assert (update.in_grouping, update.out_grouping) == (forward.out_grouping, forward.in_grouping)
    assert forward.rearrangement == backward.rearrangement == 0 < update.rearrangement
    assert next_best(backward).rearrangement > 0
    assert next_best(backward).joint is False


def test_no_joint_plan_for_other_result_types_or_inference():
    assert not passes(*LAYERS[0], output="f32")[0].joint
    plan = plan_matmul("mk2", 1, 16, 1024, 4096, "f16", "f16", "fcinf")
    assert (plan.joint, layer_cost(plan)) == (False, None)
    assert layer_cost(plan_matmul("mk2", 1, 16, 1024, 4096, "f16", "f16")) is None


# -- serial passes -----------------------------------------------------------------------------------------------------


def test_serial_input_channels_add_to_the_sums():
    """512 x 65536 x 512 in little memory: the inner dimension is the one to cut."""
    plan = plan_matmul("mk2", 1, 512, 65536, 512, "f16", "f16", amp=0.05)
    assert plan.serial_inputs
    assert plan.serial > 1
    assert 65536 % plan.serial == 0
    assert plan.finish > 0
    assert plan.broadcast == plan.bytes_broadcast == 0
    terms = [plan.transform_exchange, plan.transform, plan.exchange, plan.tile_transform, plan.compute, plan.reduce,
             plan.dynamic_slice, plan.dynamic_update]  # fmt: skip
    assert plan.total == plan.serial * sum(terms) + plan.finish
    assert "over inputs" in plan.explain()


def test_weights_of_a_fully_connected_layer_are_laid_out_before_serial_passes():
    plain, layer = (plan_matmul("mk2", 1, 4096, 4096, 4096, "f16", "f16", name, 0.3) for name in ("nonemm", "fcinf"))
    assert min(plain.serial, layer.serial) > 1
    assert plain.prepare == 0
    share = -(-4096 * 4096 // layer.tiles)
    assert layer.prepare == -(-share * 2 // 4) + share


@pytest.mark.parametrize("sizes", [(10**7, 10**7, 10**7), (2**40, 2**20, 1)])
def test_products_beyond_whole_numbers_are_refused(sizes):
    with pytest.raises(ValueError, match=r"multiplications; allowed: up to 7\.21e\+16"):
        plan_matmul("mk2", 1, *sizes)


# -- what the search cuts by -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [ONCE, Passes(2), Passes(2, ahead=True)])
@pytest.mark.parametrize(("m", "k", "n"), [(32, 96, 64), (64, 40, 200), (2, 64, 48), (100, 33, 7), (1, 50, 80)])
@pytest.mark.parametrize("types", [HALF, Types(2, 4, 2), Types(4, 4, 4)])
def test_splits_take_no_less_than_what_they_are_cut_by(types, m, k, n, passes):
    form, seen = flatten_field(swap(product_form(2, m, k, n, "fcfwd"))), 0
    for kernel in joint._forward_kernels(form, CHIP, types, np.inf):
        parts = layer_passes(form, kernel, CHIP, types)
        splits = joint._splits(parts[0], passes, CHIP) if parts else None
        if splits is None:
            continue
        least, free = joint._least_of_splits(splits, parts, passes, types, CHIP)
        every = []
        for number, part in enumerate(parts):
            grid = splits.grid(number, part, CHIP)
            compute = vertex_cycles(grid.piece, grid.inner, part.form, part.kernel, CHIP)
            terms = operand_terms(part.form, part.kernel, grid, compute, types, passes, CHIP, part.cut)
            every.append(with_reduction(terms, part.kernel, grid, types, passes, CHIP))
        total = sum(terms["total"] for terms in every)
        assert (least <= total * (1 + 1e-9)).all()
        if passes == ONCE:
            assert (free <= (total - every[-1]["exchange_operands"]) * (1 + 1e-9)).all()
        seen += len(total)
    assert seen > 20 or m < 4  # too few rows for two serial passes


@pytest.mark.parametrize(
    ("groups", "m", "k", "n"), [(1, 8, 24, 40), (1, 64, 1, 300), (900, 16, 16, 32), (3000, 4, 6, 10)]
)
@pytest.mark.parametrize("types", [HALF, Types(2, 4, 2), Types(4, 4, 4)])
def test_least_exchange_is_that_of_the_best_split(types, groups, m, k, n):
    """Of f parts of the outputs and i of the inputs, f i at most tiles / groups, tried in small steps: one part sends
    all sums of a tile and receives nothing, more receive half of their operands. Outputs come in whole groupings."""
    form = flatten_field(swap(product_form(groups, m, k, n, "fcfwd")))
    parts = next(p for kernel in joint._forward_kernels(form, CHIP, types, np.inf)
                 if (p := layer_passes(form, kernel, CHIP, types)))  # fmt: skip
    n = math.ceil(n / parts[0].kernel.in_grouping) * parts[0].kernel.in_grouping
    share, wanted = groups / CHIP.tiles, 0.0
    fields = np.geomspace(1 / CHIP.tiles, CHIP.tiles**2, 20000)
    for part, outer, inner in ((parts[0], n, k), (parts[1], k, n)):
        sums = m * outer * part.kernel.partial_size
        split = (m * inner * types.input / 2 * fields * share + sums / fields).min()
        wanted += min(split, sums * max(1.0, share)) / CHIP.exchange_bytes_per_cycle
    assert joint._least_exchange(parts, types, CHIP) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(("m", "k", "n"), [(16, 16, 16), (16, 1024, 4096), (4, 777, 501), (64, 784, 128), (3, 1, 5)])
@pytest.mark.parametrize("groups", [1, 40, 2000])
def test_no_joint_plan_takes_less_than_what_its_vertices_promise(groups, m, k, n):
    form = flatten_field(swap(product_form(groups, m, k, n, "fcfwd")))
    for kernel in joint._forward_kernels(form, CHIP, HALF, np.inf):
        parts = layer_passes(form, kernel, CHIP, HALF)
        _, found = cheapest_splits(parts, ONCE, HALF, np.inf, (np.inf, np.inf), CHIP) if parts else (0, None)
        assert found is None or joint._least(parts, HALF, CHIP) <= found.total * (1 + 1e-9)
