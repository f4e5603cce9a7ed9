"""A better figure takes no longer than the preset: the estimates of two plans may change places, time may not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf.ir import FLOAT16, FLOAT32
from ipuperf.lowering import lower
from ipuperf.lowering.estimates import answer, plan_text, plan_values
from ipuperf.lowering.planner.originals import _UNREAD
from ipuperf.lowering.planner.works import plan_product
from ipuperf.lowering.products import program_cycles
from ipuperf.machine import Machine, load_machine, load_scaled
from ipuperf.ops.work import MatMul
from ipuperf.popxl import ops
from ipuperf.simulation import simulate

HALF, FLOAT = popxl.float16, popxl.float32
SMALL, LARGE = ((4, 8, 28, 28), (16, 8, 5, 5), FLOAT), ((1, 64, 56, 56), (16, 64, 7, 7), FLOAT)


def program(shape: tuple[int, ...], weights: tuple[int, ...], dtype: popxl.dtype) -> popxl.Ir:
    """A product of two variables, or a convolution of one that keeps the field."""
    ir = popxl.Ir()
    with ir.main_graph:
        x, w = (popxl.variable(np.zeros(size, dtype.as_numpy())) for size in (shape, weights))
        ops.matmul(x, w) if len(shape) == 2 else ops.conv(x, w, padding=(weights[-1] // 2,) * 4)
    return ir


def cycles(ir: popxl.Ir, machine: Machine) -> int:
    return int(simulate(lower(ir._ir, machine), machine).table("runs")["dur"].iloc[0])


@pytest.mark.parametrize(
    ("shape", "weights", "dtype"),
    [
        ((512, 1024), (1024, 1024), HALF),
        ((547, 1893), (1893, 28), FLOAT),
        SMALL,
        ((8, 64, 56, 56), (64, 64, 3, 3), HALF),
    ],
)
def test_an_estimate_names_the_cycles_of_a_program(shape, weights, dtype) -> None:
    """Its second line is what the simulation charges for the same op."""
    machine = load_machine("gc200-1")
    lowered = lower(program(shape, weights, dtype)._ir, machine)
    (plan,) = (plan for plans in lowered.plans.values() for plan in plans)
    charged = int(simulate(lowered, machine).operations_by_ipu()["cycles"].sum())
    assert program_cycles(plan) == charged
    assert plan_values(plan)["program"] == answer(plan)["program"] == charged
    assert f"in a program: {charged:,} cycles" in plan_text(plan)


@pytest.mark.parametrize(
    ("shape", "weights", "dtype", "figure"),
    [
        ((4, 1692), (1692, 100), HALF, "chip.tiles"),
        (*SMALL, "chip.tiles"),
        (*SMALL, "chip.amp_units_f32_f32"),
        (*LARGE, "chip.amp_units_f32_f32"),
        ((1628, 19), (19, 68), FLOAT, "chip.exchange_rate"),
        ((547, 1893), (1893, 28), FLOAT, "chip.weight_load_rate"),
    ],
)
def test_a_better_figure_is_never_slower(shape, weights, dtype, figure) -> None:
    ir = program(shape, weights, dtype)
    before = cycles(ir, load_machine("gc200-1"))
    assert all(cycles(ir, load_scaled("gc200-1", {figure: factor})) <= before for factor in (1.5, 2.0))


@pytest.mark.parametrize(
    ("shape", "weights", "dtype", "figure"),
    [((158, 522), (522, 39), FLOAT, "chip.amp_units_f32_f32"), ((154, 164), (164, 330), HALF, "chip.tiles")],
)
def test_more_of_a_better_figure_is_never_slower(shape, weights, dtype, figure) -> None:
    """Also between two chips of which neither is a preset, and where a factor lies between two rungs."""
    ir = program(shape, weights, dtype)
    taken = [cycles(ir, load_scaled("gc200-1", {figure: factor})) for factor in (1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0)]
    assert taken == sorted(taken, reverse=True)


@pytest.mark.parametrize(
    "work",
    [
        MatMul(1, 128, 768, 384, FLOAT16, FLOAT16, FLOAT16, "fcfwd"),
        MatMul(1, 16, 2048, 2048, FLOAT16, FLOAT16, FLOAT32, "fcinf", 0.05),
    ],
    ids=lambda work: work.pass_,
)
def test_the_search_never_reads_some_figures(work: MatMul) -> None:
    """Chips that differ in these alone share their plans, so each by itself must leave the plan as it is."""
    chip = load_machine("gc200-1").chip
    chip = replace(chip, tiles=97)
    plan = plan_product(chip, work)
    for name in _UNREAD:
        figure = getattr(chip, name)
        if name == "rearrangement":
            other = replace(figure, setup_cycles=figure.setup_cycles + 1000, cycles_per_byte_of_8=9.0)
        elif name == "code":
            other = replace(figure, instruction_bytes=100, vertex_bytes=10_000)
        else:
            other = 3 * figure
        changed = plan_product(replace(chip, **{name: other}), work)
        assert replace(changed, request=plan.request) == plan, name


def test_presets_have_no_original_and_changed_chips_have_theirs(tmp_path: Path) -> None:
    preset = load_machine("pod4").chip
    changed = load_scaled("pod4", {"chip.exchange_rate": 2.0}).chip
    assert preset.original is None
    assert changed.original == preset
    assert changed.with_tiles(100).original.tiles == 100
    file = tmp_path / "mine.toml"
    text = 'extends = "pod4"\n[chip]\ntiles = {{ value = {}, unit = "count", source = "a guess", kind = "assumed" }}\n'
    for tiles, original in ((preset.tiles, None), (2000, preset)):
        file.write_text(text.format(tiles))
        assert load_machine(file).chip.original == original
