"""What rearrangements cost: figures worked out by hand from PopLibs' formulas, and who moves how in each pass."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT16, FLOAT32, TensorSpec
from ipuperf.lowering import Phase, lower
from ipuperf.lowering.planner.works import plan_convolution, plan_product
from ipuperf.lowering.rearrangements import (
    Runs,
    blocks,
    copy_cycles,
    laid_by_batch,
    rearranged,
    stages,
    turned_parameter,
    unplanned_bytes,
)
from ipuperf.machine import load_machine
from ipuperf.ops.vertices import transpose_cycles
from ipuperf.ops.work import Convolution, MatMul

GC200 = load_machine("gc200-1")
CHIP = GC200.chip


def convolution(batch, inner, outer, size, kernel=1, pad=0, stride=1, dtype=FLOAT16, pass_="fwd", groups=1):
    return Convolution(batch, inner, outer, (size, size), (kernel, kernel), (stride, stride), ((pad, pad),) * 2, (1, 1),
                       groups, dtype, dtype, dtype, pass_)  # fmt: skip


def by_name(plan, **options):
    return {each.name: each for each in rearranged(plan, **options)}


# -- prices ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("atoms", "whole"),
    [
        ({8: 2048}, 587 + 902),  # 0.44 cycles per byte
        ({4: 1024}, 587 + 3200),  # 3.125
        ({2: 1024}, 587 + 5271),  # 5.147
        ({8: 2048, 4: 1024, 2: 512}, 587 + 902 + 3200 + 2635),  # the fixed cycles once
    ],
)
def test_copies_by_atom(atoms, whole):
    exchange, copy = copy_cycles(atoms, CHIP)
    assert exchange == sum(atoms.values()) // 4
    assert exchange + copy == whole


def test_no_bytes_cost_nothing():
    assert copy_cycles({}, CHIP) == (0, 0)
    assert sum(copy_cycles({1: 300}, CHIP)) - 587 == sum(copy_cycles({2: 600}, CHIP)) - 587  # as many atoms
    assert transpose_cycles(0, 16, 16, 2, CHIP) == 0


def test_the_exchange_is_never_less_than_its_bytes_take():
    assert copy_cycles({8: 1}, CHIP) == (1, 586)
    assert copy_cycles({8: 4_000_000}, CHIP) == (1_000_000, 587 + 451 * 4_000_000 // 1024 - 1_000_000)


@pytest.mark.parametrize(
    ("count", "rows", "columns", "size", "cycles"),
    [
        (6, 4, 4, 2, 7 + 6 * 29),  # one block for each worker
        (7, 4, 4, 2, 7 + 6 * 37),  # two for the first: 17 + 20 + 4 * 0
        (30, 4, 4, 2, 7 + 6 * 49),  # five
        (6, 16, 4, 2, 7 + 6 * (27 + 15 + 20 + 8)),
        (1, 16, 16, 2, 7 + 6 * (29 + 18 + 4 * (12 + 8))),
        (12, 16, 16, 2, 7 + 6 * (29 + 2 * 98)),
        (6, 2, 2, 4, 6 * (27 + 11 + 6)),
        (7, 8, 8, 4, 6 * (27 + 2 * (11 + 4 * 15))),
    ],
)
def test_transposition_vertices(count, rows, columns, size, cycles):
    assert transpose_cycles(count, rows, columns, size, CHIP) == cycles


def test_blocks_are_cut_until_every_tile_has_one():
    many = blocks(1472 * 3 * 256, Runs(16, 16, turned=True), 2, CHIP)
    assert dataclasses.astuple(many) == (1472 * 3, 3, 16, 16)
    few = blocks(100 * 256, Runs(16, 16, turned=True), 2, CHIP)  # 100 blocks; cut in 8: 800 tiles
    assert dataclasses.astuple(few) == (800, 1, 8, 4)
    least = blocks(256, Runs(16, 16, turned=True), 2, CHIP)
    assert dataclasses.astuple(least) == (16, 1, 4, 4)
    floats = blocks(64, Runs(8, 8, turned=True), 4, CHIP)
    assert dataclasses.astuple(floats) == (16, 1, 2, 2)


@pytest.mark.parametrize(
    ("runs", "size", "atom", "regrouped"),
    [
        (Runs(16, 16), 2, 8, False),
        (Runs(16, 4), 2, 8, False),
        (Runs(6, 16), 2, 4, False),  # two halves in common
        (Runs(3, 16), 2, 2, False),
        (Runs(10, 8), 4, 8, False),
        (Runs(1, 8), 4, 4, False),
        (Runs(16, 4, turned=True), 2, 8, True),
        (Runs(6, 16, turned=True), 2, 2, False),  # six halves are no whole grains
        (Runs(2, 8, turned=True), 4, 8, True),
        (Runs(1, 8, turned=True), 4, 4, False),
    ],
)
def test_atoms(runs, size, atom, regrouped):
    assert (runs.atom(size), runs.regrouped(size)) == (atom, regrouped)


# -- who moves how -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pass_", ["fwd", "bwd"])
def test_whole_groups_of_channels_stay_where_they_are(pass_):
    plan = plan_convolution(CHIP, convolution(2, 64, 64, 56, 3, 1, pass_=pass_))
    assert (plan.in_grouping, plan.out_grouping, plan.expanded) == (16, 16, ())
    assert rearranged(plan) == stages(plan) == ()


def test_channels_in_groups_of_16_move_in_whole_runs_when_an_axis_is_expanded():
    plan = plan_convolution(CHIP, convolution(20, 512, 512, 7, 3, 1))
    assert (plan.swapped, plan.expanded, plan.in_grouping) == (False, (1,), 16)
    found = by_name(plan)
    assert found["inputs"].elements == 3 * 20 * 7 * 7 * 512  # three kernel columns in the channels
    assert found["inputs"].runs == Runs(16, 16)
    assert found["weights"].runs == Runs(256, 256)  # blocks of 16 x 16
    share = sum(math.ceil(each.elements / plan.tiles) * 2 for each in found.values())
    (stage,) = stages(plan)
    assert stage.bytes == share
    assert stage.exchange + stage.cycles == 587 + 451 * share // 1024


def test_three_channels_move_one_by_one():
    plan = plan_convolution(CHIP, convolution(20, 3, 64, 224, 7, 3, 2))
    found = by_name(plan)
    assert (plan.swapped, found["inputs"].runs, found["inputs"].runs.atom(2)) == (False, Runs(1, 1), 2)
    assert found["weights"].runs.atom(2) == 8  # as the forward plan wants them: 16 output channels together
    (stage,) = stages(plan)
    one, together = (math.ceil(found[name].elements / plan.tiles) * 2 for name in ("inputs", "weights"))
    assert stage.exchange + stage.cycles == 587 + 5271 * one // 1024 + 451 * together // 1024


def test_a_weight_update_transposes_blocks():
    plan = plan_convolution(CHIP, convolution(20, 128, 512, 28, pass_="wu"))
    assert (plan.swapped, plan.expanded) == (False, (0, 1))
    found = by_name(plan)
    assert {name: each.runs for name, each in found.items()} == {
        "inputs": Runs(16, 4, turned=True),  # 16 channels by what 16 and the batch of 20 have in common
        "weights": Runs(16, 4, turned=True),
        "result": Runs(16, 16, turned=True),  # by output channels; the parameter lies by input channels
    }
    gather, turn, scatter, *result = stages(plan)
    elements = (20 * 28 * 28 * 128, 20 * 28 * 28 * 512)
    each = [math.ceil(n / 64 / CHIP.tiles) for n in elements]
    assert gather.bytes == sum(each) * 64 * 2
    assert turn.cycles == sum(7 + 6 * (29 + math.ceil(n / 6) * (18 + 12 + 4 * 2)) for n in each)
    assert (gather.vertex, turn.vertex, scatter.vertex) == (
        "poplin::Transform",
        "popops::Transpose",
        "poplin::Transform",
    )
    assert [stage.vertex for stage in result] == [gather.vertex, turn.vertex, scatter.vertex]


def test_the_update_of_a_layer_moves_both_operands():
    work = MatMul(32, 512, 512, 64, FLOAT16, FLOAT16, FLOAT16, "fcwu", 0.2)
    plan = plan_product(CHIP, work)
    assert (plan.swapped, plan.serial) == (True, 1)
    moved = by_name(plan)
    # Both lie by channels, and the sum goes over the rows.
    assert moved["inputs"].runs == moved["weights"].runs == Runs(16, 16, turned=True)
    assert moved["weights"].elements == 32 * 512 * 512
    assert unplanned_bytes(plan) == math.ceil(32 * 512 * 512 / plan.tiles) * 2
    forward = plan_product(CHIP, dataclasses.replace(work, pass_="fcfwd"))
    assert (rearranged(forward), unplanned_bytes(forward)) == ((), 0)


def test_a_serial_pass_moves_what_it_cuts_out():
    work = MatMul(1, 1024, 1024, 4096, FLOAT16, FLOAT16, FLOAT16, "fcwu", 0.02)
    plan = plan_product(CHIP, work)
    assert plan.serial > 1
    assert (plan.swapped, plan.serial_inputs) == (True, False)  # passes over the rows
    one, whole = by_name(plan), by_name(plan, passes=plan.serial)
    assert one["inputs"] == whole["inputs"]  # every pass needs all columns
    assert plan.prepare > 0
    assert "weights" not in one  # laid out before the passes
    assert whole["result"].elements == 1024 * 4096 == one["result"].elements * plan.serial


def test_blocks_are_transposed_before_an_axis_is_expanded():
    plan = plan_convolution(CHIP, convolution(20, 512, 512, 7, 3, 1, pass_="wu"))
    inputs = by_name(plan)["inputs"]
    assert plan.expanded
    assert inputs.elements > inputs.transposed_elements == 20 * 7 * 7 * 512
    odd = plan_convolution(CHIP, convolution(18, 512, 512, 7, 3, 1, pass_="wu"))  # 2 halves: not before, but after
    inputs = by_name(odd)["inputs"]
    assert odd.expanded
    assert inputs.transposed_elements == inputs.elements
    assert inputs.runs.regrouped(2)


def test_an_update_with_few_channels_moves_single_elements():
    plan = plan_convolution(CHIP, convolution(20, 3, 64, 224, 7, 3, 2, pass_="wu"))
    found = by_name(plan)
    assert not plan.swapped
    assert (found["inputs"].runs.source, found["inputs"].runs.atom(2)) == (1, 2)
    assert found["weights"].runs.regrouped(2)


def test_a_depthwise_update_moves_the_channels_of_neighbouring_groups_together():
    plan = plan_convolution(CHIP, convolution(4, 144, 144, 56, 3, 1, pass_="wu", groups=144))
    assert plan.vertex.startswith("VerticalMac") or plan.group_grouping > 1
    runs = by_name(plan)["inputs"].runs
    assert not runs.turned
    assert runs.atom(2) == 8


def test_an_image_lies_by_batch_where_the_forward_plan_takes_it_as_weights():
    item = convolution(40, 1, 10, 28, 5, dtype=FLOAT32)
    plan = plan_convolution(CHIP, item)
    assert plan.swapped
    assert laid_by_batch(item, CHIP)
    runs = by_name(plan, by_batch=True)["weights"].runs
    assert (runs, runs.regrouped(4)) == (Runs(8, 8, turned=True), True)
    assert by_name(plan)["weights"].runs == Runs(1, 1)
    update = dataclasses.replace(item, pass_="wu")
    assert laid_by_batch(update, CHIP)
    plan = plan_convolution(CHIP, update)
    name = "weights" if plan.swapped else "inputs"
    assert by_name(plan, by_batch=True)[name].runs == Runs(8, 8)  # the batch is what is summed over
    assert by_name(plan)[name].runs.turned


@pytest.mark.parametrize(
    "item",
    [
        convolution(40, 1, 10, 28, 5, dtype=FLOAT32, pass_="bwd"),
        convolution(40, 10, 20, 12, 5, dtype=FLOAT32),  # exchanged, but no image
        convolution(20, 3, 64, 224, 7, 3, 2),  # not exchanged
        convolution(4, 64, 64, 14, 3, 1, groups=64),  # one channel in each of many groups
    ],
)
def test_other_activations_lie_by_channels(item):
    assert not laid_by_batch(item, CHIP)


def test_the_result_of_exchanged_operands_is_transposed():
    plan = plan_convolution(CHIP, convolution(40, 10, 20, 12, 5, dtype=FLOAT32))
    assert plan.swapped
    assert by_name(plan)["result"].runs == Runs(8, 4, turned=True)  # 8 of the batch to 4 of 20 channels


@pytest.mark.parametrize("pass_", ["nonemm", "fcinf", "fcfwd"])
def test_products_as_planned_move_nothing(pass_):
    plan = plan_product(CHIP, MatMul(1, 384, 1024, 1024, FLOAT16, FLOAT16, FLOAT16, pass_))
    assert plan.swapped
    assert stages(plan) == ()


def test_the_weights_of_a_fully_connected_backward_pass_are_transposed():
    plan = plan_product(CHIP, MatMul(1, 384, 1024, 1024, FLOAT16, FLOAT16, FLOAT16, "fcbwd"))
    (weights,) = rearranged(plan)
    assert (plan.swapped, weights.name, weights.runs) == (True, "inputs", Runs(16, 16, turned=True))
    gather, turn, scatter = stages(plan)  # 4096 blocks: 3 on a tile
    assert (gather.tiles, gather.bytes, gather.exchange + gather.cycles) == (1472, 1536, 587 + 451 * 1536 // 1024)
    assert (turn.bytes, turn.cycles) == (0, 7 + 6 * (29 + 18 + 4 * 20))
    share = math.ceil(1024 * 1024 / plan.tiles) * 2
    assert (scatter.tiles, scatter.bytes) == (plan.tiles, share)


def test_the_gradient_of_fully_connected_weights_lies_as_the_weights():
    plan = plan_product(CHIP, MatMul(1, 1024, 384, 1024, FLOAT16, FLOAT16, FLOAT16, "fcwu"))
    assert plan.swapped
    assert {each.name: each.runs for each in rearranged(plan)} == {
        "inputs": Runs(16, 16, turned=True),
        "weights": Runs(16, 16, turned=True),
        "result": Runs(16, 16),
    }


def test_turned_weights():
    plan = plan_convolution(CHIP, convolution(2, 64, 128, 56, 3, 1, pass_="bwd"))
    gather, turn, scatter = turned_parameter(9 * 64 * 128, (64, 128), 2, plan)  # 288 blocks, cut in 4: 1152 of 16 x 4
    assert (gather.tiles, gather.bytes) == (1152, 16 * 4 * 2)
    assert turn.cycles == 7 + 6 * (27 + 15 + 20 + 4 * 2)
    assert scatter.bytes == math.ceil(9 * 64 * 128 / plan.tiles) * 2
    # 6 blocks on each tile, of 16 outputs x 8 inputs: 4 x 2 blocks of 4 x 4
    _, turn, _ = turned_parameter(6 * 1472 * 16 * 8, (8, 16), 2, plan)
    assert turn.cycles == 7 + 6 * (29 + 18 + 4 * 12)
    (single,) = turned_parameter(25 * 10 * 3, (3, 10), 4, plan)
    assert single.exchange + single.cycles == 587 + 3200 * 4 // 1024


# -- phases ------------------------------------------------------------------------------------------------------------


def test_phases_of_a_weight_update():
    program = ir.Ir()
    graph, shape = program.main_graph, (4, 32, 8, 8)
    operands = [
        ir.Variable(graph.tensor_id(name), TensorSpec(shape, FLOAT16), graph, np.zeros(shape, np.float16),
                    program.grouping())
        for name in "gx"
    ]  # fmt: skip
    for tensor in operands:
        graph.add(tensor)
    made = graph.create(ops.ConvWeightGrad, operands, ["dw"], kernel_size=(1, 1))
    wanted = stages(plan_convolution(CHIP, made.work()[0]))
    phases = [step for step in lower(program, GC200).walk() if isinstance(step, Phase)]
    moved = [phase for phase in phases if phase.name.endswith("/transform")]
    assert [phase.bytes_in for phase in moved] == [stage.bytes * stage.tiles for stage in wanted if stage.bytes]
    vertices = [p for p in phases if p.vertex in ("poplin::Transform", "popops::Transpose")]
    assert [p.slowest for p in vertices] == [stage.cycles for stage in wanted if stage.cycles]
