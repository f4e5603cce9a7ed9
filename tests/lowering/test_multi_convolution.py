"""Several convolutions as one op: planned side by side or one after the other, and the phases that follow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.lowering import lower
from ipuperf.lowering.planner.multi import plan_multi
from ipuperf.lowering.planner.works import plan_convolution
from ipuperf.lowering.steps import Phase
from ipuperf.machine import load_machine
from ipuperf.ops.products.multi_conv import multi_conv_of
from ipuperf.ops.work import Convolution, MultiConvolution

MACHINE = load_machine("gc200-1")
CHIP = MACHINE.chip


def convolution(channels: tuple[int, int], size: int, kernel: int = 3, **more: object) -> Convolution:
    pad = ((kernel // 2, kernel // 2),) * 2
    fields = (4, *channels, (size, size), (kernel, kernel), (1, 1), pad, (1, 1), 1, ir.FLOAT16, ir.FLOAT16, ir.FLOAT16)
    return replace(Convolution(*fields), **more)


SMALL, LARGE, LARGEST = convolution((32, 32), 14), convolution((64, 64), 14), convolution((64, 64), 28)


def work(*convolutions: Convolution, plan: str = "parallel", reserved: int = 50, off: float = 0.1) -> MultiConvolution:
    return MultiConvolution(convolutions, plan, reserved, off)


def ranges(multi: MultiConvolution) -> list[range]:
    found = plan_multi(CHIP, multi)
    assert found.parallel
    return [range(p.start, p.start + p.plan.tiles) for p in found.plans]


@pytest.mark.parametrize("pass_", ["fwd", "bwd", "wu"])
def test_side_by_side_no_two_share_a_tile(pass_: str) -> None:
    every = [replace(item, pass_=pass_) for item in (SMALL, LARGEST, LARGE)]
    tiles = ranges(work(*every))
    assert sum(map(len, tiles)) == len(set().union(*tiles))
    assert max(max(own) for own in tiles) < CHIP.tiles
    assert tiles[1].start == 0, "the largest is planned first"


def test_the_largest_gives_way_by_the_back_off() -> None:
    fastest = plan_convolution(replace(CHIP, tiles=CHIP.tiles - 50), LARGEST).total
    used = []
    for off in (0.0, 0.3, 1.0):
        first, _ = plan_multi(CHIP, work(LARGEST, LARGE, off=off)).plans
        assert first.plan.total <= fastest * (1 + off)
        used.append(first.plan.tiles)
    assert used[0] > used[1] > used[2]


def test_tiles_are_kept_for_the_others() -> None:
    largest, _, _ = ranges(work(LARGEST, LARGE, SMALL, reserved=400, off=0.0))
    assert len(largest) <= CHIP.tiles - 2 * 400
    crowd = ranges(work(*[SMALL] * 4, reserved=400))
    assert max(len(own) for own in crowd if own.start == 0) <= CHIP.tiles // 4, "when there are too few: as many each"


def test_where_there_is_room_the_others_are_no_slower_than_the_largest() -> None:
    largest, small = plan_multi(CHIP, work(LARGEST, SMALL, off=1.0)).plans
    assert small.plan.total <= largest.plan.total


def test_serial_plans_are_those_of_the_convolutions_alone() -> None:
    found = plan_multi(CHIP, work(LARGE, SMALL, plan="serial"))
    assert not found.parallel
    assert [p.plan for p in found.plans] == [plan_convolution(CHIP, item) for item in (LARGE, SMALL)]
    assert [p.start for p in found.plans] == [0, 0]


def test_without_a_tile_for_each_they_run_one_after_the_other() -> None:
    chip = replace(CHIP, tiles=2)
    assert not plan_multi(chip, work(SMALL, SMALL, SMALL)).parallel


def test_all_have_as_many_serial_passes_as_the_largest() -> None:
    tight = [replace(item, available_memory_proportion=0.02) for item in (convolution((256, 256), 28), LARGEST)]
    found = plan_multi(CHIP, work(*tight, off=1.0))
    assert not found.parallel or len({p.plan.serial for p in found.plans}) == 1


def program(plan_type: str, **planning: object) -> tuple[ir.Ir, list[Phase]]:
    made = ir.Ir()
    graph, convs = made.main_graph, []

    def variable(*shape: int) -> ir.Tensor:
        spec, data = ir.TensorSpec(shape, ir.FLOAT32), np.zeros(shape, np.float32)
        return graph.add(ir.Variable(graph.tensor_id("v"), spec, graph, data, made.grouping()))

    for channels in (32, 64):
        operands = [variable(2, channels, 14, 14), variable(channels, channels, 3, 3)]
        convs.append(graph.create(ops.Conv, operands, ["y"], padding=1))
    if plan_type:
        multi_conv_of(convs, plan_type=plan_type, **planning)
    lowered = lower(made, MACHINE)
    return made, [step for step in lowered.ipus[0].steps if isinstance(step, Phase)]


def test_phases_side_by_side_are_one_exchange_and_one_compute_set() -> None:
    _, alone = program("")
    _, serial = program("serial")
    _, parallel = program("parallel", cycle_back_off=0.4)
    assert [(p.kind, p.cycles) for p in serial] == [(p.kind, p.cycles) for p in alone]
    assert len(parallel) < len(serial)
    vertex = max((p for p in parallel if p.kind == "compute"), key=lambda p: p.flops)
    assert vertex.flops == sum(p.flops for p in alone), "the vertices of both run in one compute set"
    assert len(set(vertex.cycles.dense().tolist()) - {0}) == 2, "each on tiles of its own"
    assert sum(p.cycles.max for p in parallel) < sum(p.cycles.max for p in serial)
