"""The convolution planner: against scalar restatements of its parts, and its lowering to phases (its totals against
PopLibs' values: ``test_planner_tables.py``)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ipuperf import ir, ops
from ipuperf.ir import FLOAT16, FLOAT32, TensorSpec, Variable
from ipuperf.lowering import Phase, Sync, lower
from ipuperf.lowering.planner.form import (
    POINT,
    Axis,
    Form,
    _without_late_dilation,
    expand,
    flatten_field,
    form_of,
    forms,
    swap,
)
from ipuperf.lowering.planner.kernels import Kernel
from ipuperf.lowering.planner.multi import PlacedPlan
from ipuperf.lowering.planner.reductions import reduce_depths, reduction, reduction_stages
from ipuperf.lowering.planner.terms import _whole_operands
from ipuperf.lowering.planner.vertices import _spans, inner_cycles
from ipuperf.lowering.planner.works import plan_convolution, request_of_product
from ipuperf.lowering.products import PlannedProduct, least
from ipuperf.lowering.rearrangements import stages
from ipuperf.machine import load_machine
from ipuperf.ops.work import Convolution

CHIPS = {"mk1": load_machine("gc2-1").chip, "mk2": load_machine("gc200-1").chip}
GC200 = load_machine("gc200-1")


def convolution(batch=4, inner=8, outer=8, size=(16, 16), kernel=(3, 3), pad=1, stride=1, dilation=1, groups=1,
                dtype=FLOAT32, partials=None, pass_="fwd", proportion=0.6):  # fmt: skip
    axes = len(size)
    return Convolution(batch, inner, outer, size, kernel, (stride,) * axes, ((pad, pad),) * axes, (dilation,) * axes,
                       groups, dtype, dtype, partials or dtype, pass_, proportion)  # fmt: skip


# -- parts against scalar restatements ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "rows", "width", "step"), [(1, 1, 3, 1), (2, 5, 7, 1), (3, 4, 19, 2), (1, 1, 152, 1)]
)
def test_workers_share_a_piece_in_consecutive_row_parts(batch, rows, width, step):
    axes = (Axis(rows, 3, rows), Axis(width, 3, width * step, input_dilation=step))
    form = Form(batch, 1, 8, 8, axes, "fwd")
    first, middle, last, whole = _spans(np.array([batch]), (np.array([rows]), np.array([width * step])), form, 6)
    total = batch * rows * width
    for worker in range(6):
        begin, end = worker * total // 6, (worker + 1) * total // 6
        wanted: dict[int, int] = {}
        for element in range(begin, end):
            wanted[element // width] = wanted.get(element // width, 0) + 1
        found = [int(first[worker, 0]), *[int(whole[worker, 0])] * int(middle[worker, 0]), int(last[worker, 0])]
        assert [n for n in found if n] == list(wanted.values())


@pytest.mark.parametrize("depth", [1, 2, 15, 16, 49, 64, 124, 125, 343, 1000])
def test_reduction_stages_add_up_everything(depth):
    depths = reduce_depths(depth)
    assert len(depths) == (0 if depth == 1 else 1 if depth < 16 else 2 if depth < 125 else 3)
    left = depth
    for fan in depths:
        left = -(-left // fan)
    assert left == 1


@pytest.mark.parametrize("sizes", [(4, 4), (4, 2), (2, 2)])
def test_stages_of_a_reduction_add_up_to_the_planner_s_terms(sizes):
    """Each stage after the first has an exchange of what is left."""
    chip, rng = CHIPS["mk2"], np.random.default_rng(0)
    for partials, depth in zip(rng.integers(1, 20_000, 200).tolist(), rng.integers(2, 1472, 200).tolist(), strict=True):
        whole = reduction(np.array([partials]), np.array([depth]), *sizes, chip)
        parts = reduction_stages(partials, depth, *sizes, chip)
        assert len(parts) == whole.stages[0]
        assert sum(cycles for _, cycles in parts) == whole.cycles[0]
        assert parts[0][0] == partials * sizes[0]
        assert sum(-(-arriving // 4) for arriving, _ in parts[1:]) == whole.exchange[0]


def macs(form):
    return form.batch * form.groups * form.in_channels * form.out_channels * math.prod(
        a.output * a.kernel for a in form.axes
    )  # fmt: skip


def test_input_channels_that_hold_the_kernel_keep_the_work():
    form = form_of(convolution(2, 3, 5, (12, 10), (5, 3), pad=0))
    for dims in [(0,), (1,), (0, 1)]:
        assert macs(flatten_field(expand(form, dims))) == macs(form)
    flat = flatten_field(expand(form, (0, 1)))
    assert flat.one_by_one
    assert (flat.in_channels, flat.axes[-1].output, flat.out_channels) == (3 * 5 * 3, 2 * 8 * 8, 5)


def test_exchanged_operands_have_the_same_result():
    form = form_of(convolution(2, 3, 5, (12, 10), (5, 3), pad=0))
    turned = swap(form)
    assert (turned.batch, turned.out_channels) == (5, 2)
    assert [a.output for a in turned.axes] == [8, 8]
    assert [(a.size, a.kernel) for a in turned.axes] == [(5, 12), (3, 10)]


@pytest.mark.parametrize(
    "axis",
    [
        Axis(12, 5, 8),
        Axis(12, 3, 12, padding=2),
        Axis(9, 3, 5, stride=2, padding=2),
        Axis(9, 3, 10, kernel_dilation=2, padding=5),
        Axis(5, 2, 11, input_dilation=2, padding=3),
        Axis(7, 3, 5, stride=2, kernel_dilation=3, input_dilation=2, padding=2),
    ],
)
def test_exchanged_operands_slide_over_as_many_places(axis):
    """The padded, dilated input slides over the dilated kernel: the two overlap in as many places as before."""
    (turned,) = swap(Form(1, 1, 1, 1, (axis,), "fwd")).axes
    window = (axis.size - 1) * axis.input_dilation + 1 + axis.padding
    room = (turned.size - 1) * turned.input_dilation + 1 + turned.padding
    assert (room - window) // turned.stride + 1 == turned.output == axis.output


@pytest.mark.parametrize(("stride", "dilation", "pad"), [(1, 1, 0), (2, 1, 1), (1, 2, 2), (3, 1, 0)])
def test_gradients_are_convolutions_with_the_right_sizes(stride, dilation, pad):
    shape = {"size": (15, 17), "kernel": (3, 3), "stride": stride, "dilation": dilation, "pad": pad}
    out = convolution(**shape).output_size
    back = form_of(convolution(4, 6, 10, pass_="bwd", **shape))
    assert (back.batch, back.in_channels, back.out_channels) == (4, 10, 6)
    update = form_of(convolution(4, 6, 10, pass_="wu", **shape))
    assert (update.batch, update.in_channels, update.out_channels) == (6, 4, 10)
    for n, o, b, u in zip((15, 17), out, back.axes, update.axes, strict=True):
        assert (b.size, b.kernel, b.output, b.input_dilation, b.kernel_dilation) == (o, 3, n, stride, dilation)
        assert (o - 1) * b.input_dilation + 1 + b.padding - 2 * dilation == n
        assert (u.size, u.kernel, u.output, u.stride, u.kernel_dilation) == (n, o, 3, dilation, stride)


def test_a_single_kernel_element_is_dilated_late():
    late = Axis(7, 1, 13, input_dilation=2)
    kept = [dataclasses.replace(late, **change) for change in ({"kernel": 2}, {"stride": 2}, {"padding": 1})]
    for axis, wanted in [(late, Axis(7, 1, 7)), (Axis(7, 1, 7), Axis(7, 1, 7)), *[(axis, axis) for axis in kept]]:
        assert _without_late_dilation(Form(1, 1, 8, 8, (axis, axis), "bwd")).axes == (wanted, wanted)


def test_operands_are_filled_up_to_whole_groupings():
    """5 x 7 elements, 2 of a batch, 20 channels in 2 x 16, 3 groups; weights of 3 x 3, 32 x 48 and 3 groups."""
    form = Form(2, 3, 20, 40, (Axis(5, 3, 3), Axis(7, 3, 5)), "fwd")
    assert _whole_operands(form, KERNELS[0]) == (35 * 2 * 32 * 3, 9 * 32 * 48 * 3)


def test_reads_of_a_piece():
    axis = Axis(size=32, kernel=3, output=16, stride=2, padding=1)
    assert axis.reads(np.array([1, 4, 16]), np.array([3, 3, 3])).tolist() == [3, 9, 32]
    dilated = Axis(size=16, kernel=3, output=32, input_dilation=2, padding=3)
    assert dilated.reads(np.array([1, 4, 32]), np.array([3, 3, 3])).tolist() == [2, 3, 16]


def test_one_dimension_becomes_two():
    assert form_of(convolution(size=(16,), kernel=(3,))).axes[0] == POINT


KERNELS = [
    Kernel("AMP", 16, 1, 16, 16, 1, 2, 2),
    Kernel("SLIC", 4, 1, 4, 4, 1, 2, 2),
    Kernel("HMAC", 0, 1, 6, 2, 1, 2, 2),
    Kernel("VMAC", 0, 4, 1, 1, 1, 2, 2),
    Kernel("OUTER", 0, 1, 1, 4, 1, 2, 2),
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.method)
def test_a_piece_in_space_takes_as_long_as_its_planes_on_top_of_each_other(kernel):
    """Workers share rows, wherever these come from: depth x height x width is as (depth height) x width."""
    one, axis = np.array([1, 1]), Axis(16, 3, 14)
    depth, height, width = np.array([3, 1]), np.array([5, 7]), np.array([9, 4])
    flat, deep = (Form(2, 4, 16, 16, (axis,) * axes, "fwd") for axes in (2, 3))
    planes = inner_cycles(one, (depth * height, width), flat, kernel, GC200.chip)
    assert inner_cycles(one, (depth, height, width), deep, kernel, GC200.chip).tolist() == planes.tolist()
    batch = inner_cycles(depth, (height, width), flat, kernel, GC200.chip)
    assert batch.tolist() == planes.tolist()


@pytest.mark.parametrize(
    ("rows", "width", "positions", "pieces"), [(6, 4, 4, 1), (3, 5, 3, 1), (1, 1, 1, 1), (4, 7, 6, 1), (7, 9, 11, 2)]
)
def test_rows_of_dot_products_are_shared_by_hand(rows, width, positions, pieces):
    """6 workers take whole rows, then equal parts of the rest: two thirds of 7 are 2 x 3 positions, a row and a sixth
    of 9 are 9 + 2. A piece of a row is 19 cycles, a position 7 and a dot product of two output channels.

    Six halves: 3 x 2 + 1 + 4 cycles, vectors of 2 because 4 does not divide 6: + 2 + 3 x 2 = 19.
    """
    form, kernel = Form(2, 1, 6, 2, (Axis(16, 3, 14), Axis(16, 3, 14)), "fwd"), KERNELS[2]
    found = inner_cycles(np.array([1]), (np.array([rows]), np.array([width])), form, kernel, GC200.chip)
    assert found.tolist() == [[6 * (16 + 19 * pieces + (7 + 19) * positions)]]


# -- any plan ----------------------------------------------------------------------------------------------------------

SHAPES = [
    convolution(40, 1, 10, (28, 28), (5, 5), pad=0),
    convolution(40, 10, 20, (12, 12), (5, 5), pad=0, pass_="bwd"),
    convolution(40, 10, 20, (12, 12), (5, 5), pad=0, pass_="wu"),
    convolution(2, 3, 16, (30, 30), (7, 7), pad=3, stride=2, dtype=FLOAT16, pass_="wu"),
    convolution(2, 16, 32, (14, 14), (1, 1), pad=0, stride=2, dtype=FLOAT16, partials=FLOAT32, pass_="bwd"),
    convolution(2, 8, 8, (20,), (3,), dtype=FLOAT16),
    convolution(1, 4, 8, (6, 6, 6), (3, 3, 3)),
    convolution(2, 8, 8, (16, 16), groups=8, dtype=FLOAT16, partials=FLOAT32),
    convolution(1, 1, 1, (1, 1), (1, 1), pad=0),
]


@pytest.mark.parametrize("item", SHAPES, ids=lambda c: f"{c.batch}x{c.channels_in}-{len(c.input_size)}d-{c.pass_}")
@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_plan_stays_within_the_chip_and_adds_up(item, chip):
    plan = plan_convolution(chip, item)
    splits = math.prod(plan.field) * plan.batch * plan.groups * math.prod(plan.kernel) * plan.out_split * plan.in_split
    assert plan.tiles == splits <= chip.tiles
    assert plan.temp_bytes <= 0.6 * chip.bytes_per_tile
    terms = (plan.transform_exchange, plan.transform, plan.exchange_operands, plan.tile_transform, plan.compute,
             plan.exchange_partials, plan.reduce, plan.dynamic_slice, plan.dynamic_update)  # fmt: skip
    assert plan.total == plan.serial * sum(terms) + plan.broadcast
    assert min(terms) >= 0
    assert item.flops / 2 <= plan.compute * plan.serial * plan.tiles * 64
    assert plan_convolution(chip, item) is plan
    assert f"total {plan.total}" in plan.explain()


def test_all_transformed_forms_cover_the_outputs():
    form = form_of(convolution(40, 10, 20, (12, 12), (5, 5), pad=0))
    found = forms(form, 4)
    assert len(found) == len(set(found)) == 8
    for changed in found:
        outputs = changed.batch * changed.out_channels * math.prod(a.output for a in changed.axes)
        assert outputs == 40 * 20 * 8 * 8


def test_less_memory_means_serial_passes_and_more_cycles():
    wide = plan_convolution(GC200.chip, convolution(4, 64, 64, (56, 56), dtype=FLOAT16))
    narrow = plan_convolution(GC200.chip, convolution(4, 64, 64, (56, 56), dtype=FLOAT16, proportion=0.01))
    assert (wide.serial, narrow.serial > 1) == (1, True)
    assert narrow.temp_bytes <= 0.01 * GC200.chip.bytes_per_tile < wide.temp_bytes
    assert narrow.total > wide.total


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pass_": "sideways"}, "convolution pass is 'sideways'; allowed: fwd, bwd, wu"),
        ({"channels_in": 0}, "every dimension, stride and dilation has to be at least 1"),
        ({"kernel_size": (30, 30)}, "the kernel does not fit into the padded input"),
        ({"groups": 3}, "3 groups have to divide the channels 8 and 8"),
        ({"available_memory_proportion": 1.5}, "availableMemoryProportion is 1.5; allowed: above 0, at most 1"),
        ({"partials_dtype": FLOAT16}, "partials float16 and result float32 are not possible"),
    ],
)
def test_impossible_convolutions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        plan_convolution(GC200.chip, dataclasses.replace(convolution(), **changes))


# -- lowering ----------------------------------------------------------------------------------------------------------


def variable(program, name, shape, dtype=FLOAT32):
    graph = program.main_graph
    tensor = Variable(
        graph.tensor_id(name), TensorSpec(shape, dtype), graph, np.zeros(shape, dtype.numpy), program.grouping()
    )
    graph.add(tensor)
    return tensor


def lowered(op, shapes, **attributes):
    """The phases of one op on variables of these shapes, and the op's plan."""
    program = ir.Ir()
    operands = [variable(program, name, shape) for name, shape in zip("ab", shapes, strict=True)]
    made = program.main_graph.create(op, operands, ["y"], **attributes)
    plan = plan_convolution(GC200.chip, made.work()[0])
    return [s for s in lower(program, GC200).walk() if isinstance(s, Phase)], plan


def test_forward_phases_follow_the_plan():
    phases, plan = lowered(ops.Conv, [(40, 10, 12, 12), (20, 10, 5, 5)])
    names = [p.name.rsplit("/", 1)[-1] if p.kind == "exchange" else p.vertex for p in phases]
    moving = [name for stage in stages(plan) for name in (["transform"] if stage.bytes else []) + [stage.vertex]]
    assert names == [*moving, "operands", plan.vertex, "partials", "poplin::ConvReduce"]
    assert sum(p.flops for p in phases) == 2 * 40 * 20 * 64 * 250
    setup = GC200.chip.exchange_setup_cycles * sum(p.kind == "exchange" for p in phases)
    charged = sum(stage.exchange + stage.cycles for stage in stages(plan))
    assert sum(p.slowest for p in phases) == plan.total - plan.rearrangement + charged + setup
    assert all(p.cycles.active <= plan.tiles for p in phases[len(moving) :])


@pytest.mark.parametrize("tiles", [8, 1472])
def test_a_product_costs_what_its_steps_take_when_lowered(tiles):
    """The way of PopLibs' plans is chosen by this sum."""
    machine = dataclasses.replace(GC200, chip=GC200.chip.with_tiles(tiles))
    for (m, k), (_, n) in ([(40, 1000), (1000, 200)], [(4, 1692), (1692, 100)]):
        program = ir.Ir()
        a, b = variable(program, "a", (m, k)), variable(program, "b", (k, n))
        op = program.main_graph.create(ops.MatMul, [a, b], ["y"])

        def planned(plan, op=op):
            return PlannedProduct(PlacedPlan(plan), op.inputs, op.outputs[0], 0, stages(plan))

        product = least(request_of_product(machine.chip, op.work()[0]), planned)
        steps = list(lower(program, machine).walk())
        syncs = sum(isinstance(step, Sync) for step in steps) * machine.chip.sync_cycles
        assert product.cycles == syncs + sum(step.duration for step in steps if isinstance(step, Phase))


def test_input_gradient_flips_the_weights_first():
    grad, weights = (40, 20, 8, 8), (20, 10, 5, 5)
    phases, plan = lowered(ops.ConvInputGrad, [grad, weights], input_size=(12, 12))
    assert [p.vertex or p.name.rsplit("/", 1)[-1] for p in phases[:2]] == ["flip", "poplin::Transform"]
    assert plan.pass_ == "bwd"
    assert phases[0].bytes_in >= 20 * 10 * 25 * 4
    assert plan.compute in {p.slowest for p in phases}


def test_weight_gradient_and_training_step_are_lowered():
    phases, plan = lowered(ops.ConvWeightGrad, [(40, 20, 8, 8), (40, 10, 12, 12)], kernel_size=(5, 5))
    assert plan.pass_ == "wu"
    assert sum(p.flops for p in phases) == 2 * 40 * 20 * 64 * 250


def test_serial_passes_repeat_the_phases():
    phases, plan = lowered(ops.Conv, [(4, 32, 56, 56), (32, 32, 3, 3)], padding=1, available_memory_proportion=0.01)
    assert plan.serial > 1
    assert [p.vertex for p in phases].count(plan.vertex) == plan.serial
    assert [p.vertex for p in phases].count("popops::DynamicUpdateSlice1D") == plan.serial
