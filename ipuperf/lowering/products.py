"""From plans to steps: matrix products and convolutions, alone or several at once.

A plan is a list of steps (:class:`PlanStep`): before its serial passes, in each of them, after them. The steps of plans
that run side by side, each on tiles of its own, are put together where they have the same slot: one exchange and one
compute set of all, that last as long as the slowest tile (PopLibs ``lib/poplin/ConvProgramTree.cpp``: one program tree
for all convolutions of a parallel multi-convolution).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ipuperf.ir import Tensor
from ipuperf.ops import work as w

from . import rearrangements
from .layout import even
from .planner.form import describe
from .planner.multi import PlacedPlan, plan_multi
from .planner.originals import ways
from .planner.plan import ConvolutionPlan, Request
from .planner.works import request_of, request_of_product
from .rearrangements import RearrangementPhase
from .supersteps import Superstepper, lowers, superstep_cycles
from .tilevector import TileVector

#: Slots of the steps of a plan, in order; a rearrangement has several.
_FLIP, _PREPARE, _BROADCAST, _SLICE, _TRANSFORM, _OPERANDS, _ZEROS, _COMPUTE, _PARTIALS, _REDUCE, _UPDATE, _FINISH = (
    range(0, 1200, 100)
)


@dataclass(frozen=True)
class PlanStep:
    """A step of a plan on ``tiles`` tiles from ``start`` on: each receives ``bytes`` in ``exchange`` cycles (none for
    no bytes), then ``vertex`` runs for ``cycles`` (not at all for none).

    ``what``: the exchange's part of the name; ``sent``: see :meth:`~.supersteps.Superstepper.exchange`.
    """

    slot: int
    start: int
    tiles: int
    what: str = ""
    bytes: int = 0
    exchange: int = 0
    sent: int | None = None
    vertex: str = ""
    cycles: int = 0
    flops: int = 0


@dataclass(frozen=True)
class PlannedProduct:
    """A product or convolution with its plan: its operands and result, and its rearrangements (``flip``: of the weights
    of an input gradient, before everything)."""

    placed: PlacedPlan
    operands: Sequence[Tensor]
    result: Tensor
    flops: int
    stages: Sequence[RearrangementPhase]
    flip: Sequence[RearrangementPhase] = ()

    @property
    def plan(self) -> ConvolutionPlan:
        """The plan itself."""
        return self.placed.plan

    def step(self, slot: int, **what: object) -> PlanStep:
        """A step on the plan's tiles."""
        return PlanStep(slot, self.placed.start, self.plan.tiles, **what)  # type: ignore[arg-type]

    def moves(self, slot: int, what: str, stages: Iterable[RearrangementPhase]) -> list[PlanStep]:
        """The steps of a rearrangement."""
        return [
            PlanStep(slot + stage.slot, self.placed.start, stage.tiles, what, stage.bytes, stage.exchange, None,
                     stage.vertex, stage.cycles)
            for stage in stages
        ]  # fmt: skip

    @property
    def cycles(self) -> int:
        """What the phases take when they are lowered."""
        chip = self.plan.request.chip

        def taken(steps: Iterable[PlanStep]) -> int:
            return sum(
                superstep_cycles(chip, step.exchange if step.bytes else None, step.cycles or None) for step in steps
            )

        return taken(self.before()) + self.plan.serial * taken(self.each()) + taken(self.after())

    @property
    def held(self) -> int:
        """Bytes of the operands on a tile, which is what it sends."""
        return -(-sum(tensor.spec.bytes for tensor in self.operands) // self.plan.tiles)

    def before(self) -> list[PlanStep]:
        """The steps before the serial passes (the exchange of ``prepare`` is counted with its copies)."""
        plan = self.plan
        return [
            *self.moves(_FLIP, "flip", self.flip),
            self.step(_PREPARE, vertex="poplin::Transform", cycles=plan.prepare),
            self.step(
                _BROADCAST, what="broadcast", bytes=plan.bytes_broadcast, exchange=plan.broadcast, sent=self.held
            ),
        ]

    def each(self) -> list[PlanStep]:
        """The steps of each serial pass: rearrangement (that of the result with that of the operands), operands and
        zeros in, vertices, partials in, reduction (or cast)."""
        plan = self.plan
        reducing = "poplin::ConvReduce" if plan.reduce_stages else "popops::Cast"
        exchange = plan.exchange_operands
        return [
            self.step(_SLICE, vertex="popops::DynamicSlice1D", cycles=plan.dynamic_slice),
            *self.moves(_TRANSFORM, "transform", self.stages),
            self.step(_OPERANDS, what="operands", bytes=plan.bytes_operands, exchange=exchange, sent=self.held),
            self.step(_ZEROS, what="zeros", bytes=plan.bytes_zeros, exchange=plan.tile_transform),
            self.step(_COMPUTE, vertex=plan.vertex, cycles=plan.compute, flops=self.flops // plan.serial),
            self.step(_PARTIALS, what="partials", bytes=plan.bytes_partials, exchange=plan.exchange_partials),
            self.step(_REDUCE, vertex=reducing, cycles=plan.reduce),
            self.step(_UPDATE, vertex="popops::DynamicUpdateSlice1D", cycles=plan.dynamic_update),
        ]

    def after(self) -> list[PlanStep]:
        """The steps after the serial passes."""
        return [self.step(_FINISH, vertex="popops::Cast", cycles=self.plan.finish)]


def least(request: Request, planned: Callable[[ConvolutionPlan], PlannedProduct]) -> PlannedProduct:
    """The product with the plan of the way whose phases take the fewest cycles (:func:`~.planner.originals.ways`)."""
    found = ways(request)
    way = min(found, key=lambda way: sum(planned(plan).cycles for plan in way)) if len(found) > 1 else found[0]
    return planned(way[0])


@lowers(w.MatMul)
def matmul(stepper: Superstepper, item: w.MatMul) -> None:
    """The planner's phases."""
    op = stepper.op

    def planned(plan: ConvolutionPlan) -> PlannedProduct:
        return PlannedProduct(PlacedPlan(plan), op.inputs, op.outputs[0], item.flops, rearrangements.stages(plan))

    product = least(request_of_product(stepper.chip, item), planned)
    run(stepper, f"MatMul[{item.groups}x{item.m}x{item.k}x{item.n}]", [product])


@lowers(w.Convolution)
def convolution(stepper: Superstepper, item: w.Convolution) -> None:
    """The planner's phases; the weights of an input gradient are transposed and flipped first."""
    op = stepper.op

    def planned(plan: ConvolutionPlan) -> PlannedProduct:
        return _planned(item, PlacedPlan(plan), op.inputs, op.outputs[0])

    run(stepper, f"Convolution[{describe(item)}]", [least(request_of(stepper.chip, item), planned)])


@lowers(w.MultiConvolution)
def multi_convolution(stepper: Superstepper, item: w.MultiConvolution) -> None:
    """The phases of all plans, together where they run side by side, else of one after the other."""
    plans, op = plan_multi(stepper.chip, item), stepper.op
    products = [
        _planned(each, placed, op.inputs[2 * index : 2 * index + 2], op.outputs[index])
        for index, (each, placed) in enumerate(zip(item.convolutions, plans.plans, strict=True))
    ]
    names = [describe(each) for each in item.convolutions]
    if plans.parallel:
        run(stepper, f"MultiConvolution[{'; '.join(names)}]", products)
        return
    for name, product in zip(names, products, strict=True):
        run(stepper, f"Convolution[{name}]", [product])


def _planned(item: w.Convolution, placed: PlacedPlan, operands: Sequence[Tensor], result: Tensor) -> PlannedProduct:
    """A convolution with its plan; the weights of an input gradient are transposed and flipped (PopART
    ConvFlipWeights)."""
    plan = placed.plan
    flip: tuple[RearrangementPhase, ...] = ()
    if item.pass_ == "bwd":
        inner, outer = item.channels_in // item.groups, item.channels_out // item.groups
        elements = item.groups * inner * outer * math.prod(item.kernel_size)
        flip = rearrangements.turned_parameter(elements, (inner, outer), item.input_dtype.size, plan)
    by_batch = rearrangements.laid_by_batch(item, plan.request.chip)
    stages = rearrangements.stages(plan, by_batch=by_batch)
    return PlannedProduct(placed, operands, result, item.flops, stages, flip)


def run(stepper: Superstepper, name: str, products: Sequence[PlannedProduct]) -> None:
    """The phases of products that run at once, with the same number of serial passes; their results lie as planned."""
    phases(stepper, name, products)
    for product in products:
        _settle(stepper, product)


def phases(stepper: Superstepper, name: str, products: Sequence[PlannedProduct]) -> None:
    """The phases alone: what becomes of the results is for the caller to say."""
    out = stepper.out
    out.plans += tuple(product.plan for product in products)
    _together(stepper, name, [step for product in products for step in product.before()])
    once = out.code
    for number in range(products[0].plan.serial):
        _together(stepper, name, [step for product in products for step in product.each()])
        once = out.code if number == 0 else once
    out.code = once  # the serial passes are a loop: their code is there once
    _together(stepper, name, [step for product in products for step in product.after()])
    out.need(_spread(stepper, [(p.placed.start, p.plan.tiles, p.plan.extra_bytes) for p in products]))
    out.low_confidence += [f"{p.plan.vertex} ({stepper.op.type})" for p in products if p.plan.method == "VMAC"]


def arrange_weights(stepper: Superstepper, name: str, product: PlannedProduct) -> None:
    """Bring the second operand of a product to where its passes find it, once for all of them."""
    plan = product.plan
    _together(stepper, name, product.moves(_PREPARE, "weights", rearrangements.of_weights(plan)))


def _settle(stepper: Superstepper, product: PlannedProduct) -> None:
    """Where the result of a product lies."""
    plan, start, elements = product.plan, product.placed.start, product.result.spec.elements
    grain = plan.out_grouping if elements % plan.out_grouping == 0 else 1
    key = ("plan", plan, elements, start) if start else ("plan", plan, elements)
    stepper.layouts[product.result] = even(key, elements, stepper.chip.tiles, plan.tiles, grain, start)


def _together(stepper: Superstepper, name: str, steps: Sequence[PlanStep]) -> None:
    """Exchange and compute set of each slot, in order."""
    for slot in sorted({step.slot for step in steps}):
        now = [step for step in steps if step.slot == slot]
        _exchange(stepper, name, [step for step in now if step.bytes])
        _compute(stepper, [step for step in now if step.cycles])


def _exchange(stepper: Superstepper, name: str, steps: Sequence[PlanStep]) -> None:
    """One exchange; none for no steps."""
    if not steps:
        return
    arriving = _spread(stepper, [(step.start, step.tiles, step.bytes) for step in steps])
    cycles = _spread(stepper, [(step.start, step.tiles, step.exchange) for step in steps])
    sent = [step.sent for step in steps if step.sent is not None]
    most = max(sent) if len(sent) == len(steps) else None
    stepper.exchange(f"{name}/{steps[0].what}", arriving, cycles=cycles, sent=most)


def _compute(stepper: Superstepper, steps: Sequence[PlanStep]) -> None:
    """One compute set, called after the vertex that takes longest; none for no steps."""
    if not steps:
        return
    longest = max(steps, key=lambda step: step.cycles)
    cycles = _spread(stepper, [(step.start, step.tiles, step.cycles) for step in steps])
    stepper.compute(longest.vertex, cycles, flops=sum(step.flops for step in steps))
    for step in steps:
        stepper.need_vertex(step.vertex, step.tiles)


def _spread(stepper: Superstepper, pieces: Sequence[tuple[int, int, int]]) -> TileVector:
    """Values (first tile, tiles, value of each); where they overlap, their sum."""
    tiles = stepper.chip.tiles
    if len(pieces) == 1 and pieces[0][0] == 0:
        return TileVector.uniform(pieces[0][2], tiles, pieces[0][1])
    found = np.zeros(tiles, dtype=np.int64)
    for start, used, value in pieces:
        found[start : start + used] += value
    return TileVector.of(found)
