"""Loops over the time steps of recurrent layers (PopLibs ``lib/popnn/{Rnn,Lstm,Gru}.cpp``).

Simplified: the result of a step's product travels to where the vertices run (popnn gives the product's result and the
state the same tiles where it can); the products' weights are rearranged in each step as its plan has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ipuperf.ir import Tensor
from ipuperf.ops import work as w

from . import products, rearrangements
from .layout import Layout
from .planner.multi import PlacedPlan
from .planner.works import plan_product
from .supersteps import Superstepper, copy_cycles, lowers, stack


@lowers(w.Recurrence)
def recurrence(stepper: Superstepper, item: w.Recurrence) -> None:
    """The first operand to where its slices lie; then the steps, whose code and plan are there once."""
    op, out = stepper.op, stepper.out
    stepper.gathered = True  # the exchanges of the steps bring the operands
    first, wanted = op.inputs[0], _sliced(stepper, op.inputs[0])
    if stepper.layouts[first].key != wanted.key:
        arriving = wanted.bytes(item.dtype.size)
        stepper.exchange(f"{op.type}/sequence", arriving)
        out.need(arriving)
    for tensor in op.outputs:
        stepper.layouts[tensor] = _sliced(stepper, tensor) if len(tensor.shape) == 3 else stepper.linear(tensor)
    plan = plan_product(stepper.chip, item.product)
    product = products.PlannedProduct(
        PlacedPlan(plan), op.inputs[:2], op.outputs[0], item.product.flops, rearrangements.stages(plan)
    )
    for number in range(item.steps):
        before = out.code, out.plans
        _time_step(stepper, item, product)
        if number:
            out.code, out.plans = before


def _time_step(stepper: Superstepper, item: w.Recurrence, product: products.PlannedProduct) -> None:
    """Slices in; the product and the vertices, or the other way round; slices out."""
    _copy(stepper, item, item.read)
    run: list[Callable[[], None]] = [lambda: _product(stepper, item, product), lambda: _vertices(stepper, item)]
    for part in reversed(run) if item.backward else run:
        part()
    _copy(stepper, item, item.written)


def _product(stepper: Superstepper, item: w.Recurrence, product: products.PlannedProduct) -> None:
    own = item.product
    products.phases(stepper, f"{stepper.op.type}[{own.groups}x{own.m}x{own.k}x{own.n}]", [product])
    elements, size = own.m * own.n, own.output_dtype.size
    stepper.exchange(f"{stepper.op.type}/sums", stepper.spread(elements, size).bytes(size))


def _vertices(stepper: Superstepper, item: w.Recurrence) -> None:
    for each in item.vertices:
        elements = stepper.spread(each.elements, item.dtype.size).elements
        stepper.compute(each.vertex, stepper.tile_cycles(each.cycles, elements), flops=each.flops)


def _copy(stepper: Superstepper, item: w.Recurrence, elements: int) -> None:
    """Slices are read from sequences, or written to them, on their tiles."""
    size = item.dtype.size
    share = stepper.spread(elements, size).bytes(size)
    stepper.compute(f"poplar::Memcpy{size * 8}", copy_cycles(share, stepper.machine))


def _sliced(stepper: Superstepper, sequence: Tensor) -> Layout:
    """Of a sequence ``(T, ...)``: all time steps lie alike."""
    time, *rest = sequence.shape
    return stack(stepper.spread(math.prod(rest), sequence.dtype.size), (0,), time)
