"""From plans to steps: matrix products and convolutions, alone or several at once.

1. Work becomes a request, and the planner finds a plan for it (:mod:`.planner`). Where there are several ways, the one
   whose steps take the fewest cycles is chosen (:func:`least`).
2. A plan becomes a list of steps (:class:`PlanStep`), before its serial passes, in each pass and after them.
3. Several plans may run side by side, each on its own tiles. Their steps of the same slot then share one exchange and
   one compute set, which last as long as the slowest tile (:func:`phases`). PopLibs does the same
   (``lib/poplin/ConvProgramTree.cpp``: one program tree for all convolutions of a parallel multi-convolution).
4. The result lies where the plan leaves it (:func:`run`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from ipuperf.ir import Tensor
from ipuperf.ops import work as w

from . import rearrangements
from .layout import even
from .planner.form import describe
from .planner.halos import halo_bytes
from .planner.multi import PlacedPlan, plan_multi
from .planner.originals import ways
from .planner.plan import ConvolutionPlan, Request
from .planner.reductions import reduction_stages
from .planner.works import request_of, request_of_product
from .rearrangements import RearrangementPhase
from .supersteps import Superstepper, lowers, superstep_cycles
from .tilevector import TileVector


class Slot(Enum):
    """What a step of a plan is for, in the order in which the steps run."""

    FLIP = auto()  # rearrange the weights of an input gradient
    PREPARE = auto()  # lay out the weights for the serial passes
    BROADCAST = auto()  # bring operands to the tiles once for all passes
    SLICE = auto()  # cut out the operands of a pass
    TRANSFORM = auto()  # rearrange operands and result
    OPERANDS = auto()  # bring operands to the tiles
    ZEROS = auto()  # bring zeros that fill up the operands
    COMPUTE = auto()  # the vertices of the product
    REDUCE = auto()  # bring partial sums together and add them up, stage by stage, or cast them
    UPDATE = auto()  # write or add the result of a pass
    FINISH = auto()  # cast the sums of all passes


@dataclass(frozen=True)
class PlanStep:
    """A step of a plan on ``tiles`` tiles, the first of which is ``start``.

    Each tile receives ``bytes`` in ``exchange`` cycles; without bytes there is no exchange. Then ``vertex`` runs for
    ``cycles``; without cycles there is no compute set. ``phase`` counts the steps of one slot; only a rearrangement has
    several. ``payload`` names what the exchange moves, ``sent`` is that of :meth:`~.supersteps.Superstepper.exchange`.
    """

    slot: Slot
    start: int
    tiles: int
    payload: str = ""
    bytes: int = 0
    exchange: int = 0
    sent: int | None = None
    vertex: str = ""
    cycles: int = 0
    flops: int = 0
    phase: int = 0


@dataclass(frozen=True)
class PlannedProduct:
    """A product or convolution with its plan, operands, result and rearrangements.

    ``flip`` rearranges the weights of an input gradient; it comes before all other steps. ``result`` is None where a
    plan is only priced.
    """

    placed: PlacedPlan
    operands: Sequence[Tensor]
    result: Tensor | None
    flops: int
    stages: Sequence[RearrangementPhase]
    flip: Sequence[RearrangementPhase] = ()

    @property
    def plan(self) -> ConvolutionPlan:
        """The plan, without the tiles it is placed on."""
        return self.placed.plan

    def step(self, slot: Slot, **fields: Any) -> PlanStep:
        """A step on the plan's tiles."""
        return PlanStep(slot, self.placed.start, self.plan.tiles, **fields)

    def moves(self, slot: Slot, payload: str, stages: Iterable[RearrangementPhase]) -> list[PlanStep]:
        """The steps of a rearrangement."""
        return [
            PlanStep(
                slot,
                self.placed.start,
                stage.tiles,
                payload,
                stage.bytes,
                stage.exchange,
                vertex=stage.vertex,
                cycles=stage.cycles,
                phase=stage.slot,
            )
            for stage in stages
        ]

    @property
    def cycles(self) -> int:
        """Cycles that the phases take once they are lowered."""
        chip = self.plan.request.chip

        def steps_cycles(steps: Iterable[PlanStep]) -> int:
            return sum(
                superstep_cycles(chip, step.exchange if step.bytes else None, step.cycles or None) for step in steps
            )

        return (
            steps_cycles(self.steps_before())
            + self.plan.serial * steps_cycles(self.steps_per_pass())
            + steps_cycles(self.steps_after())
        )

    @cached_property
    def halo(self) -> int:
        """Bytes of inputs that arrive from tiles with other parts of the field."""
        return halo_bytes(self.plan)

    def _arriving(self, size: int, exchange: int, *, halo: bool) -> dict[str, int]:
        """Bytes and cycles of an exchange of operands, that of inputs with their ``halo``."""
        plan, more = self.plan, self.halo * halo
        # Two tiles with the same inputs receive them at twice the rate, as the planner has it.
        rate = plan.request.chip.exchange_bytes_per_cycle * (2 - plan.out_split % 2)
        return {"bytes": size + more, "exchange": exchange - (-more // rate)}

    @property
    def _once(self) -> bool:
        """Whether inputs arrive before all passes."""
        # Passes over output channels whose inputs arrive anew are so rare that plans do not tell them.
        return self.plan.serial > 1 and not self.plan.serial_inputs

    @property
    def extra_bytes(self) -> int:
        """Bytes on each tile besides operands and result.

        A second operand that is rearranged though the planner does not count on it is there twice while it moves. Then
        the new one takes the place of the old one (a simplification, where something else reads that later).
        """
        return max(
            self.plan.extra_bytes + self.halo, self.plan.bytes_transform + rearrangements.unplanned_bytes(self.plan)
        )

    @property
    def operand_bytes(self) -> int:
        """Bytes of the operands on each tile; a tile sends all of them."""
        return -(-sum(tensor.spec.bytes for tensor in self.operands) // self.plan.tiles)

    def steps_before(self) -> list[PlanStep]:
        """The steps before the serial passes. The cycles of ``prepare`` already contain its exchange."""
        plan = self.plan
        return [
            *self.moves(Slot.FLIP, "flip", self.flip),
            self.step(Slot.PREPARE, vertex="poplin::Transform", cycles=plan.prepare),
            self.step(
                Slot.BROADCAST,
                payload="broadcast",
                sent=self.operand_bytes,
                **self._arriving(plan.bytes_broadcast, plan.broadcast, halo=self._once),
            ),
        ]

    def steps_per_pass(self) -> list[PlanStep]:
        """The steps of one serial pass, in the order in which they run.

        The rearrangement of the result is listed with that of the operands.
        """
        plan = self.plan
        operands = self._arriving(plan.bytes_operands, plan.exchange_operands, halo=not self._once)
        return [
            self.step(Slot.SLICE, vertex="popops::DynamicSlice1D", cycles=plan.dynamic_slice),
            *self.moves(Slot.TRANSFORM, "transform", self.stages),
            self.step(Slot.OPERANDS, payload="operands", sent=self.operand_bytes, **operands),
            self.step(Slot.ZEROS, payload="zeros", bytes=plan.bytes_zeros, exchange=plan.tile_transform),
            self.step(Slot.COMPUTE, vertex=plan.vertex, cycles=plan.compute, flops=self.flops // plan.serial),
            *self._reduction(),
            self.step(Slot.UPDATE, vertex="popops::DynamicUpdateSlice1D", cycles=plan.dynamic_update),
        ]

    def _reduction(self) -> list[PlanStep]:
        """The stages of the reduction between tiles; without one, the partial sums are only cast."""
        plan = self.plan
        if plan.reduce_stages <= 1:
            vertex = "poplin::ConvReduce" if plan.reduce_stages else "popops::Cast"
            terms = {"bytes": plan.bytes_partials, "exchange": plan.exchange_partials, "cycles": plan.reduce}
            return [self.step(Slot.REDUCE, payload="partials", vertex=vertex, **terms)]
        size, rate = plan.unit.partial_size, plan.request.chip.exchange_bytes_per_cycle
        depth, partials = plan.in_split * math.prod(plan.kernel), plan.bytes_partials // size
        stages = reduction_stages(partials, depth, size, plan.request.types.output, plan.request.chip)
        return [
            self.step(
                Slot.REDUCE, payload="partials", bytes=arriving, exchange=-(-arriving // rate),
                vertex="poplin::ConvReduce", cycles=cycles, phase=number,
            )
            for number, (arriving, cycles) in enumerate(stages)
        ]  # fmt: skip

    def steps_after(self) -> list[PlanStep]:
        """The steps after the serial passes."""
        return [self.step(Slot.FINISH, vertex="popops::Cast", cycles=self.plan.finish)]


def least(request: Request, planned: Callable[[ConvolutionPlan], PlannedProduct]) -> PlannedProduct:
    """The product with the plan whose phases take the fewest cycles.

    The plans to choose from are those of :func:`~.planner.originals.ways`.
    """
    # One way needs no comparison, so its phases are not worked out twice.
    plans_by_way = ways(request)
    way = (
        min(plans_by_way, key=lambda way: sum(planned(plan).cycles for plan in way))
        if len(plans_by_way) > 1
        else plans_by_way[0]
    )
    return planned(way[0])


@lowers(w.MatMul)
def matmul(stepper: Superstepper, work: w.MatMul) -> None:
    """Append the phases of the plan."""
    op = stepper.op

    def planned(plan: ConvolutionPlan) -> PlannedProduct:
        return PlannedProduct(PlacedPlan(plan), op.inputs, op.outputs[0], work.flops, rearrangements.stages(plan))

    product = least(request_of_product(stepper.chip, work), planned)
    run(stepper, f"MatMul[{work.groups}x{work.m}x{work.k}x{work.n}]", [product])


@lowers(w.Convolution)
def convolution(stepper: Superstepper, work: w.Convolution) -> None:
    """Append the phases of the plan; the weights of an input gradient are first transposed and flipped."""
    op = stepper.op

    def planned(plan: ConvolutionPlan) -> PlannedProduct:
        return _planned(work, PlacedPlan(plan), op.inputs, op.outputs[0])

    run(stepper, f"Convolution[{describe(work)}]", [least(request_of(stepper.chip, work), planned)])


@lowers(w.MultiConvolution)
def multi_convolution(stepper: Superstepper, work: w.MultiConvolution) -> None:
    """Append the phases of all plans, merged where the plans run side by side, otherwise one plan after the other."""
    plans, op = plan_multi(stepper.chip, work), stepper.op
    products = [
        # The op's inputs are pairs: the data and the weights of each convolution.
        _planned(convolution_work, placed, op.inputs[2 * index : 2 * index + 2], op.outputs[index])
        for index, (convolution_work, placed) in enumerate(zip(work.convolutions, plans.plans, strict=True))
    ]
    names = [describe(convolution_work) for convolution_work in work.convolutions]
    if plans.parallel:
        run(stepper, f"MultiConvolution[{'; '.join(names)}]", products)
        return
    for name, product in zip(names, products, strict=True):
        run(stepper, f"Convolution[{name}]", [product])


def _planned(work: w.Convolution, placed: PlacedPlan, operands: Sequence[Tensor], result: Tensor) -> PlannedProduct:
    """A convolution with its plan and rearrangements.

    The weights of an input gradient are transposed and flipped, as by PopART's ConvFlipWeights.
    """
    plan = placed.plan
    flip: tuple[RearrangementPhase, ...] = ()
    if work.pass_ == "bwd":
        channels = (work.channels_in // work.groups, work.channels_out // work.groups)
        flip = _turned(plan, channels, work.groups, work.kernel_size, work.input_dtype.size)
    by_batch = rearrangements.laid_by_batch(work, plan.request.chip)
    stages = rearrangements.stages(plan, by_batch=by_batch)
    return PlannedProduct(placed, operands, result, work.flops, stages, flip)


def _turned(
    plan: ConvolutionPlan, channels: tuple[int, int], groups: int, kernel: Sequence[int], size: int
) -> tuple[RearrangementPhase, ...]:
    """The steps that turn the parameter of an input gradient.

    ``channels`` are inputs and outputs of a group in the forward pass, ``size`` is the bytes of an element.
    """
    elements = groups * math.prod(channels) * math.prod(kernel)
    return rearrangements.turned_parameter(elements, channels, size, plan)


def program_cycles(plan: ConvolutionPlan) -> int:
    """The cycles that programs are charged for a plan: its estimate, rearrangements by what moves, sync and launch.

    Operands lie as other products leave them. Simplification: an image from the host may lie otherwise.
    """
    form = plan.request.form
    flip: tuple[RearrangementPhase, ...] = ()
    if form.pass_ == "bwd":
        # The form has the channels of the gradient, the parameter those of the forward pass.
        channels, kernel = (form.out_channels, form.in_channels), [axis.kernel for axis in form.axes]
        flip = _turned(plan, channels, form.groups, kernel, plan.request.types.input)
    # Without tensors a product has cycles all the same.
    steps = PlannedProduct(PlacedPlan(plan), (), None, 0, rearrangements.stages(plan), flip)
    return steps.cycles


def run(stepper: Superstepper, name: str, products: Sequence[PlannedProduct]) -> None:
    """Append the phases of products that run at once, and lay out their results as planned.

    All products have the same number of serial passes.
    """
    phases(stepper, name, products)
    for product in products:
        if product.result is not None:
            _settle(stepper, product, product.result)


def phases(stepper: Superstepper, name: str, products: Sequence[PlannedProduct]) -> None:
    """Append the phases alone; the caller lays out the results."""
    out = stepper.out
    out.plans += tuple(product.plan for product in products)
    _together(stepper, name, [step for product in products for step in product.steps_before()])
    begin = len(out.steps)
    # The passes are a loop on the device: they are the same steps, and only the code of one takes memory.
    _together(stepper, name, [step for product in products for step in product.steps_per_pass()])
    out.steps += out.steps[begin:] * (products[0].plan.serial - 1)
    _together(stepper, name, [step for product in products for step in product.steps_after()])
    out.need(_spread(stepper, [(p.placed.start, p.plan.tiles, p.extra_bytes) for p in products]))
    # The cycles of VMAC vertices have no primary source.
    out.low_confidence += [f"{p.plan.vertex} ({stepper.op.type})" for p in products if p.plan.method == "VMAC"]


def arrange_weights(stepper: Superstepper, name: str, product: PlannedProduct) -> None:
    """Bring the second operand of a product to the tiles where all its serial passes read it."""
    plan = product.plan
    _together(stepper, name, product.moves(Slot.PREPARE, "weights", rearrangements.of_weights(plan)))


def _settle(stepper: Superstepper, product: PlannedProduct, result: Tensor) -> None:
    """Lay out the result of a product where its plan leaves it."""
    plan, start, elements = product.plan, product.placed.start, result.spec.elements
    # Groups of output channels stay whole only where they divide the result.
    grain = plan.out_grouping if elements % plan.out_grouping == 0 else 1
    key = ("plan", plan, elements, start) if start else ("plan", plan, elements)
    stepper.layouts[result] = even(key, elements, stepper.chip.tiles, plan.tiles, grain, start)


def _turn(step: PlanStep) -> tuple[int, int]:
    return step.slot.value, step.phase


def _together(stepper: Superstepper, name: str, steps: Sequence[PlanStep]) -> None:
    """Append one exchange and one compute set for each slot and phase, in their order."""
    # The sort is stable, so the steps of a slot keep the order of their products.
    for _, together in groupby(sorted(steps, key=_turn), key=_turn):
        slot_steps = list(together)
        _exchange(stepper, name, [step for step in slot_steps if step.bytes])
        _compute(stepper, [step for step in slot_steps if step.cycles])


def _exchange(stepper: Superstepper, name: str, steps: Sequence[PlanStep]) -> None:
    """Append one exchange for all ``steps``, if there are any."""
    if not steps:
        return
    arriving = _spread(stepper, [(step.start, step.tiles, step.bytes) for step in steps])
    cycles = _spread(stepper, [(step.start, step.tiles, step.exchange) for step in steps])
    sent = [step.sent for step in steps if step.sent is not None]
    # One step that does not know what it sends leaves the size of the exchange code to the default.
    sent_bytes = max(sent) if len(sent) == len(steps) else None
    stepper.exchange(f"{name}/{steps[0].payload}", arriving, cycles=cycles, sent=sent_bytes)


def _compute(stepper: Superstepper, steps: Sequence[PlanStep]) -> None:
    """Append one compute set, named after the vertex that takes longest, if there are ``steps``."""
    if not steps:
        return
    longest = max(steps, key=lambda step: step.cycles)
    cycles = _spread(stepper, [(step.start, step.tiles, step.cycles) for step in steps])
    stepper.compute(longest.vertex, cycles, flops=sum(step.flops for step in steps))
    # The compute set has one name, but the code of every vertex in it takes memory.
    for step in steps:
        stepper.need_vertex(step.vertex, step.tiles)


def _spread(stepper: Superstepper, pieces: Sequence[tuple[int, int, int]]) -> TileVector:
    """A vector over tiles from ``(first tile, tiles, value on each of them)``; where pieces overlap, values add up."""
    tiles = stepper.chip.tiles
    # Most products stand alone from tile 0 on; they need no dense vector.
    if len(pieces) == 1 and pieces[0][0] == 0:
        return TileVector.uniform(pieces[0][2], tiles, pieces[0][1])
    values = np.zeros(tiles, dtype=np.int64)
    for start, used, value in pieces:
        values[start : start + used] += value
    return TileVector.of(values)
