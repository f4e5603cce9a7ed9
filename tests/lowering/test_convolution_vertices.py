"""Which vertices there are for a convolution, and the outer loops of the rarer ones, by hand.

The formulas are PopLibs' (``lib/poplin/PerformanceEstimation.hpp``, ``ConvPlan.cpp`` getConvVertex...Candidates).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ipuperf.lowering.planner.form import POINT, Axis, Form
from ipuperf.lowering.planner.kernels import Kernel, amp_kernels, kernels
from ipuperf.lowering.planner.vertex_bounds import start_cycles
from ipuperf.lowering.planner.vertices import Piece, inner_cycles, vertex_cycles
from ipuperf.machine import load_machine

CHIP = load_machine("gc200-1").chip
SQUARE = Form(2, 32, 32, 32, (Axis(16, 3, 14), Axis(16, 3, 14)), "fwd")


@pytest.mark.parametrize(
    ("machine", "sizes", "wanted"),
    [
        # Units, input and output channels, kernel rows: 16 input channels of half floats fill the units, 8 take two
        # kernel rows at once and 4 take four. 8 of 16 units hold half as many coefficients, but for whole inputs.
        ("gc200-1", (2, 2), "16 16 16 1, 16 8 16 2, 16 4 16 4, 8 16 8 1, 8 8 8 1, 8 4 8 2"),
        ("gc200-1", (2, 4), "8 16 8 1, 8 16 16 1, 8 8 8 2, 8 8 16 2, 8 4 8 4, 8 4 16 4"),
        ("gc200-1", (4, 4), "16 8 16 1, 16 4 16 2, 16 2 16 4, 8 8 8 1, 8 4 8 1, 8 2 8 2"),
        ("gc2-1", (4, 4), "8 8 8 1, 8 4 8 2, 8 2 8 4"),
    ],
)
def test_amp_vertices(machine, sizes, wanted):
    found = amp_kernels(load_machine(machine).chip, *sizes)
    assert {k.method for k in found} == {"AMP"}
    assert ", ".join(f"{k.units} {k.in_grouping} {k.out_grouping} {k.height}" for k in found) == wanted


def methods(form, in_size=2, partial_size=2, out_size=2):
    return {k.method for k in kernels(form, CHIP, in_size, partial_size, out_size)}


def test_which_convolutions_the_mac_vertices_can_do():
    assert methods(SQUARE) == {"AMP", "SLIC", "VMAC"}
    assert methods(SQUARE, 4, 4, 4) == {"AMP"}, "half floats only"
    assert methods(replace(SQUARE, swapped=True)) == {"AMP"}
    assert methods(replace(SQUARE, axes=(Axis(16, 3, 12, kernel_dilation=2),) * 2)) == {"AMP"}
    assert methods(replace(SQUARE, axes=(Axis(16, 3, 5, stride=3),) * 2)) == {"AMP", "VMAC"}
    assert {k.group_grouping for k in kernels(replace(SQUARE, groups=8), CHIP, 2, 2, 2)} == {1, 2, 4, 8}
    assert {k.group_grouping for k in kernels(SQUARE, CHIP, 2, 4, 4)} == {1, 2, 4}


def test_outer_products_have_one_input_channel_and_no_wider_sums():
    flat = Form(1, 1, 1, 32, (POINT, Axis(64, 1, 64)), "nonemm")
    assert "OUTER" in methods(flat)
    assert "OUTER" in methods(flat, 2, 4, 2), "sums in float32 of results in half precision are not needed"
    assert "OUTER" not in methods(flat, 2, 4, 4)
    assert "OUTER" not in methods(replace(flat, in_channels=2))
    assert "OUTER" not in methods(replace(flat, batch=2))


def outer_loops(kernel, inner, groups, in_groups, window):
    """Tile cycles around inner loops that take so long."""
    one, window = np.array([1]), tuple(np.array([k]) for k in window)
    piece = Piece(one, (one, one), window, np.array([groups]), np.array([in_groups]), one)
    return int(vertex_cycles(piece, np.array(inner)[:, None], SQUARE, kernel, CHIP)[0])


@pytest.mark.parametrize(
    ("units", "grouping", "groups", "window", "wanted"),
    [
        # 28 + 15 + 1, load, 4 + 16 + 1 and a first block of 130: loads of 18 + 16, 21 + 12 x 6 + 16, 21 + 10 x 6 + 16
        (4, 1, 1, (1, 4), 45 + 34 + 20 + 130),
        (4, 2, 1, (1, 4), 45 + 109 + 20 + 130),
        (4, 4, 1, (1, 3), 45 + 97 + 20 + 130),
        # two or four strides, each with a load of 21 + 11 x 6 + 16 and 21; body 15 + 8
        (4, 8, 1, (1, 4), 53 + 2 * 124 + 6 + 1 + 15 + 130),
        (4, 16, 1, (1, 4), 53 + 4 * 124 + 3 * 6 + 1 + 15 + 130),
        # 3 rows are 3 blocks, later ones of 100 cycles; 2 groups
        (4, 4, 2, (3, 4), 28 + 2 * 15 + 6 + 1 + 3 * 117 + 2 * 6 + 1 + 2 * (130 + 2 * 100)),
        (4, 8, 2, (3, 4), 28 + 2 * 23 + 6 + 1 + 3 * 270 + 2 * 6 + 1 + 2 * (130 + 2 * 100 * 2)),
        # two chains and half sums: 25 + 12, no 4
        (2, 4, 1, (1, 4), 25 + 12 + 1 + 97 + 16 + 1 + 130),
    ],
)
def test_slic_blocks(units, grouping, groups, window, wanted):
    kernel = Kernel("SLIC", units, grouping, 4, 4, 1, 2, 2)
    assert outer_loops(kernel, [100, 130], groups, 1, window) == wanted


def test_vertical_macs_share_positions():
    """14 positions, 6 workers: each has 2 whole ones and a third."""
    found = inner_cycles(np.array([2]), (np.array([1]), np.array([7])), SQUARE, VERTICAL, CHIP)
    assert found[:, 0].tolist() == [2, 1, 3, 14]


VERTICAL = Kernel("VMAC", 0, 4, 1, 1, 1, 2, 4)


@pytest.mark.parametrize(
    ("grouping", "partial_size", "groups", "in_groups", "wanted"),
    [
        # a row of 5 takes 15 + 2 x 4, a third of it 15 + 2; 3 rows; clearing 4 + 56 / 2; merging 9 + 19 x 10 / 4
        (4, 4, 2, 2, 76 + 2 * (6 * (32 + 56) + 32 + 2 * (24 + 6 * (19 + 3 * (2 * 23 + 17))))),
        # half sums: 13 + 2 x 4; clearing 4 + 56 / 4; merging 10 + 12 x 10 / 4
        (4, 2, 1, 1, 76 + 6 * (18 + 40) + 32 + 24 + 6 * (18 + 3 * (2 * 21 + 15))),
        # 8 groups at once: 25 + 3 x 4; clearing 4 + 112 / 4; merging 10 + 12 x 19 / 8; 16: twice
        (8, 2, 1, 1, 76 + 6 * (32 + 38) + 32 + 24 + 6 * (13 + 3 * (2 * 37 + 28))),
        (16, 2, 1, 1, 76 + 6 * (60 + 38) + 32 + 24 + 6 * (25 + 2 * 3 * (2 * 37 + 28))),
    ],
)
def test_vertical_macs(grouping, partial_size, groups, in_groups, wanted):
    kernel = replace(VERTICAL, group_grouping=grouping, partial_size=partial_size)
    assert outer_loops(kernel, [2, 1, 3, 14], groups, in_groups, (3, 5)) == wanted


@pytest.mark.parametrize(
    ("grouping", "size", "each", "row"),
    [(4, 2, 10, 10 + 10), (16, 2, 10, 6 + 1), (14, 2, 10, 10 + 35), (2, 4, 11, 10 + 4), (8, 4, 11, 6 + 1)],
)
def test_outer_products(grouping, size, each, row):
    """3 positions of a worker; a short row, or one of no whole vectors, takes 2.5 (float: 2) cycles an element."""
    kernel = Kernel("OUTER", 0, 1, 1, grouping, 1, size, size)
    assert outer_loops(kernel, [3], 2, 1, (1, 1)) == 6 * (25 + 2 * (each + 3 * row))


def test_a_dot_product_vertex_starts_in_109_cycles():
    assert start_cycles(SQUARE, Kernel("HMAC", 0, 1, 4, 2, 1, 2, 2), CHIP) == 55 + 6 * 9
