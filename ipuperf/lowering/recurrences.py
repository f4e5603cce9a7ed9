"""Loops over the time steps of recurrent layers (PopLibs ``lib/popnn/{Rnn,Lstm,Gru}.cpp``)."""

from __future__ import annotations

import math

from ipuperf.ir import Tensor
from ipuperf.ops import work as w

from . import products, rearrangements
from .layout import Layout
from .planner.multi import PlacedPlan
from .planner.works import plan_product
from .supersteps import Superstepper, copy_cycles, lowers, stack


@lowers(w.Recurrence)
def recurrence(stepper: Superstepper, item: w.Recurrence) -> None:
    """The first operand to where its slices lie, the weights to where the products of a gradient find them; then the
    steps, whose code and plans are there once."""
    op, out = stepper.op, stepper.out
    stepper.gathered = True  # the exchanges of the steps bring the operands
    wanted = _laid_out(stepper, op.inputs[0])
    if stepper.layouts[op.inputs[0]].key != wanted.key:
        arriving = wanted.bytes(item.dtype.size)
        stepper.exchange(f"{op.type}/sequence", arriving)
        out.need(arriving)
    for tensor in op.outputs:
        stepper.layouts[tensor] = _laid_out(stepper, tensor)
    planned = [_planned(stepper, item, each) for each in item.products]
    if item.backward:
        for product in planned:
            products.arrange_weights(stepper, f"{op.type}/weights", product)
    for number in range(item.steps):
        before = out.code, out.plans
        _time_step(stepper, item, planned)
        if number:
            out.code, out.plans = before


def _planned(stepper: Superstepper, item: w.Recurrence, own: w.MatMul) -> products.PlannedProduct:
    plan = plan_product(stepper.chip, own)
    stages = rearrangements.stages(plan, arranged=item.backward)
    weights = stepper.op.inputs[item.weights : item.weights + 2]
    return products.PlannedProduct(PlacedPlan(plan), weights, stepper.op.outputs[0], own.flops, stages)


def _time_step(stepper: Superstepper, item: w.Recurrence, planned: list[products.PlannedProduct]) -> None:
    """Slices in; products and vertices, or the other way round; slices out."""
    _copy(stepper, item, item.read)
    if item.rows:
        _rows(stepper, item)
    if not item.backward:
        _products(stepper, item, planned)
    for each in item.vertices:
        elements = stepper.spread(each.elements, item.dtype.size).elements
        stepper.compute(each.vertex, stepper.tile_cycles(each.cycles, elements), flops=each.flops)
    if item.backward:
        _products(stepper, item, planned)
    _copy(stepper, item, item.written)


def _rows(stepper: Superstepper, item: w.Recurrence) -> None:
    """The values of sequences come to the tiles of their units."""
    units = stepper.spread(item.row * item.products[0].m, item.dtype.size).elements
    each = item.rows * item.dtype.size
    stepper.exchange(f"{stepper.op.type}/rows", units.map(lambda values: -(-values // item.row) * each))


def _products(stepper: Superstepper, item: w.Recurrence, planned: list[products.PlannedProduct]) -> None:
    """The products, and their results to where the states lie (``rearrangeUnitsOutputFwd``)."""
    for own, product in zip(item.products, planned, strict=True):
        name = f"{stepper.op.type}[{own.groups}x{own.m}x{own.k}x{own.n}]"
        products.phases(stepper, name, [product])
    elements = sum(own.m * own.n for own in item.products)
    stepper.exchange(f"{stepper.op.type}/sums", stepper.spread(elements, item.dtype.size).bytes(item.dtype.size))
    _copy(stepper, item, elements)


def _copy(stepper: Superstepper, item: w.Recurrence, elements: int) -> None:
    """On-tile copies: slices that are read from sequences or written to them."""
    size = item.dtype.size
    share = stepper.spread(elements, size).bytes(size)
    stepper.compute(f"poplar::Memcpy{size * 8}", copy_cycles(share, stepper.machine))


def _laid_out(stepper: Superstepper, tensor: Tensor) -> Layout:
    """Of a sequence ``(T, ...)``: all time steps lie alike; a state, or a value for each row, lies evenly."""
    time, *rest = tensor.shape
    if len(rest) < 2:
        return stepper.linear(tensor)
    return stack(stepper.spread(math.prod(rest), tensor.dtype.size), (0,), time)
