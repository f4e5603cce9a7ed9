"""The matmul planner against PopLibs' own planner values (an oracle of estimator fidelity, not of silicon)."""

from __future__ import annotations

import statistics

import pytest

from ipuperf.lowering import plan_matmul
from ipuperf.lowering.planner import useful_splits
from ipuperf.machine import load_machine

CHIPS = {"mk1": load_machine("gc2-1").chip, "mk2": load_machine("gc200-1").chip}

# chip, input bytes, partials bytes, output bytes, G, M, K, N, proportion, total cycles, compute cycles
POPLIBS = [
    ("mk2", 2, 4, 2, 1, 256, 256, 256, 0.6, 2387, 917),
    ("mk2", 2, 4, 2, 1, 1024, 1024, 1024, 0.6, 49748, 31157),
    ("mk2", 2, 2, 2, 1, 256, 256, 256, 0.6, 1665, 769),
    ("mk2", 2, 2, 2, 1, 1024, 1024, 1024, 0.6, 29904, 17873),
    ("mk2", 4, 4, 4, 1, 256, 256, 256, 0.6, 3688, 2031),
    ("mk2", 4, 4, 4, 1, 1024, 1024, 1024, 0.6, 87738, 61941),
    ("mk1", 2, 4, 2, 1, 256, 256, 256, 0.6, 2835, 1373),
    ("mk1", 2, 4, 2, 1, 1024, 1024, 1024, 0.6, 58926, 38154),
    ("mk1", 2, 2, 2, 1, 1024, 1024, 1024, 0.6, 57292, 40965),
    ("mk1", 4, 4, 4, 1, 256, 256, 256, 0.6, 5709, 3263),
    ("mk1", 4, 4, 4, 1, 1024, 1024, 1024, 0.6, 172121, 139919),
    ("mk2", 2, 2, 2, 1, 2048, 2048, 2048, 0.9, 161496, 110901),
    ("mk2", 2, 4, 2, 1, 32, 784, 1024, 0.6, 2911, 1565),
    ("mk2", 2, 2, 2, 1, 384, 1024, 4096, 0.6, 38908, 21247),
    ("mk2", 4, 4, 4, 1, 64, 784, 128, 0.6, 2654, 1119),
    ("mk2", 2, 2, 2, 16, 384, 384, 64, 0.6, 7324, 3939),
    ("mk2", 2, 2, 2, 1, 384, 1024, 1024, 0.6, 13902, 7313),
    ("mk2", 2, 2, 2, 1, 384, 4096, 1024, 0.6, 41994, 24485),
]


def _plan(row):
    chip, in_size, partial, out, g, m, k, n, proportion, *_ = row
    return plan_matmul(CHIPS[chip], g, m, k, n, in_size, partial, out, proportion)


@pytest.mark.parametrize("row", POPLIBS, ids=lambda r: f"{r[0]}-{r[1]}-{r[2]}-{r[5]}x{r[6]}x{r[7]}")
def test_total_is_close_to_poplibs(row):
    assert _plan(row).total == pytest.approx(row[-2], rel=0.08)


def test_median_error_over_the_table():
    errors = [abs(_plan(row).total / row[-2] - 1) for row in POPLIBS]
    assert statistics.median(errors) < 0.03


def test_plan_of_256_cubed_half_is_exact():
    plan = plan_matmul(CHIPS["mk2"], 1, 256, 256, 256, 2, 2, 2)
    assert (plan.field, plan.out_split, plan.in_split, plan.units) == (11, 16, 8, 16)
    assert (plan.compute, plan.exchange_operands + plan.exchange_partials, plan.reduce) == (769, 605, 291)


def test_never_uses_more_tiles_or_memory_than_there_are():
    chip = CHIPS["mk2"]
    for shape in [(1, 1, 1, 1), (3, 7, 11, 13), (1, 8, 784, 512), (1, 784, 8, 512), (64, 128, 64, 128)]:
        plan = plan_matmul(chip, *shape, 4, 4, 4)
        assert plan.tiles == plan.groups * plan.field * plan.out_split * plan.in_split <= chip.tiles
        assert plan.temp_bytes <= 0.6 * chip.bytes_per_tile


def test_less_memory_never_means_fewer_cycles():
    chip = CHIPS["mk2"]
    wide, narrow = (plan_matmul(chip, 1, 4096, 4096, 4096, 2, 2, 2, p) for p in (0.6, 0.1))
    assert narrow.temp_bytes <= 0.1 * chip.bytes_per_tile
    assert narrow.temp_bytes < wide.temp_bytes
    assert narrow.total >= wide.total


@pytest.mark.parametrize("shape", [(0, 1, 1, 1), (1, 1, 0, 1)])
def test_empty_dimension_is_refused(shape):
    with pytest.raises(ValueError, match="every dimension has to be at least 1"):
        plan_matmul(CHIPS["mk2"], *shape, 4, 4, 4)


def test_memory_proportion_out_of_range_is_refused():
    with pytest.raises(ValueError, match="availableMemoryProportion is 1.5"):
        plan_matmul(CHIPS["mk2"], 1, 8, 8, 8, 4, 4, 4, 1.5)


def test_useful_splits_have_distinct_parts():
    splits = useful_splits(64, 1472)
    parts = [-(-64 // int(s)) for s in splits]
    assert parts == sorted(set(parts), reverse=True)
    assert parts[0] == 64
    assert parts[-1] == 1
