"""What the planner's search cuts by, against the least of all real splits of a tile's share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ipuperf.ir import FLOAT16, FLOAT32
from ipuperf.lowering.planner.bounds import least_bytes, least_spread
from ipuperf.lowering.planner.candidates import Candidate, serial_counts
from ipuperf.lowering.planner.form import ONCE, Passes, Types, flatten_field, product_form, swap
from ipuperf.lowering.planner.kernels import Kernel
from ipuperf.lowering.planner.plan import Request
from ipuperf.lowering.planner.splits import _pairs, split_space
from ipuperf.lowering.planner.terms import slices_at_least
from ipuperf.machine import load_machine
from ipuperf.ops.selection.dynamic import planned_slice_cycles
from ipuperf.ops.vertices import binary

CHIP = load_machine("gc200-1").chip
HALF = Types(2, 2, 2)
WIDE = Kernel("AMP", 16, 1, 16, 16, 1, 2, 2)
CUBE = flatten_field(swap(product_form(1, 1024, 1024, 1024)))


def least_of_shares(products, weights, inputs, sums):
    """The least of weights i o + inputs p i + sums p o for so many products p i o, in steps of half a percent."""
    p, o = np.meshgrid(*[np.geomspace(0.1, 1e5, 1400)] * 2, sparse=True)
    i = products / (p * o)
    return float((weights * i * o + inputs * p * i + sums * p * o).min())


@pytest.mark.parametrize(
    ("passes", "count", "inputs", "sums"),
    [(ONCE, 1, 1, 1), (Passes(2), 2, 2, 1), (Passes(2, ahead=True), 2, 1, 1), (Passes(inner=2), 2, 1, 2)],
)
def test_no_share_of_a_product_takes_less(passes, count, inputs, sums):
    """1024 cubed in half precision: 1/64 cycle a product; 4 bytes arrive in a cycle, but inputs of two tiles at once.

    A grouping of 16 x 16 coefficients: 64 to load them, 3, 112 when 23 positions take 204 and not 4 each, and 18 + 3
    around; the vertex starts in 73. Of the weights a part p / P is there, of the inputs a part o / O.
    """
    products = 1024**3 / CHIP.tiles
    present = 0.5 / 1024 + 0.25 * inputs / 1024
    moved = least_of_shares(products, 0.5 + (64 + 3 + 112 + 21) / 256, 0.25 * inputs, 0.5 * sums)
    wanted = products * (1 / 64 - present) + moved + 73 * count
    assert least_spread(CUBE, WIDE, HALF, passes, CHIP) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(("m", "k", "n"), [(1024, 1024, 1024), (30, 1000, 50)])
@pytest.mark.parametrize("groups", [1, 3])
def test_no_share_of_a_product_holds_less(groups, m, k, n):
    """Rows become output channels; both kinds of channels come in whole groupings of 16."""
    form = flatten_field(swap(product_form(groups, m, k, n)))
    inner, outer = -(-k // 16) * 16, -(-m // 16) * 16
    wanted = least_of_shares(groups * outer * inner * n / 1472, 2, 2, 2)
    assert least_bytes(form, WIDE, HALF, ONCE, 1472) == pytest.approx(wanted, rel=1e-4)


def test_passes_over_input_channels_hold_two_copies_of_the_sums():
    form = flatten_field(swap(product_form(1, 4096, 4, 4096)))
    candidate = Candidate(0.0, 0.0, 0, 0, 0, 0, form, WIDE, 0)
    found = [candidate.least_bytes(passes, Request(CHIP, form, HALF, 0.6)) for passes in (Passes(inner=2), Passes(2))]
    assert found[0] == 2 * 4096 * 4096 * 2 // 1472 > found[1]


@pytest.mark.parametrize("slack", [1.0, 1.2, 2.0, 50.0])
def test_pairs_of_splits_are_those_of_every_pair_there_is(slack):
    """Rows of field splits with rows of channel splits: all that fit on the chip and may take so many cycles."""
    form = flatten_field(swap(product_form(1, 96, 80, 112)))
    space = split_space(form, WIDE, HALF, ONCE, np.inf, CHIP)
    fields, channels = space.fields, space.channels.rows
    taken = np.outer(fields.positions, space.work) + np.outer(fields.reads, space.arrive)
    taken += np.outer(fields.sent, space.moved) + space.fixed
    there = np.outer(fields.rows.used, channels.used) <= CHIP.tiles
    cycles = slack * taken[there].min()
    wanted = np.argwhere(there & (taken <= cycles * (1 + 1e-9)))
    found = np.stack(_pairs(space, cycles, CHIP), axis=1)
    assert sorted(map(tuple, found)) == sorted(map(tuple, wanted))
    assert len(found) > 0


@pytest.mark.parametrize(
    ("channels", "counts"),
    [(1, []), (2, [2]), (7, [7]), (12, [2, 3, 6, 12]), (60, [2, 3, 5, 10, 15, 30, 60]), (64, [2, 4, 8, 16, 32, 64]),
     (2048, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])],
)  # fmt: skip
def test_serial_passes_that_are_tried_grow_by_half(channels, counts):
    assert serial_counts(channels) == counts


@pytest.mark.parametrize("workers", [1, 2, 4, 6, 12])
def test_slices_of_a_serial_pass_take_no_less_on_any_chip(workers):
    """A slice, and a second one or an addition in place, of any few elements of either type."""
    chip = replace(CHIP, workers=workers)
    few = np.arange(1, 9)
    for dtype in (FLOAT16, FLOAT32):
        cut = planned_slice_cycles(few, dtype.size, chip).min()
        added = binary("ADD", dtype, 1, in_place=True).cycles(few, chip).min()
        assert slices_at_least(chip) <= cut + min(cut, added)
    assert slices_at_least(CHIP) == 25 + 6 * 63 + 11 + 6 * 61
