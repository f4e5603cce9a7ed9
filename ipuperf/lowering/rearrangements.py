"""What the rearrangements of a plan cost, from how the elements lie before and after.

A tensor lies grouped: a run of neighbouring elements of its innermost axis, then the next run. PopLibs moves an operand
to the layout that the vertices want (``lib/poplin/Convolution.cpp`` convolutionPreprocess) in one of three ways:

* The innermost axis stays the same. Whole runs are copied; the atom of the copy is what source and target have in
  common (``lib/poplin/ConvModel.cpp`` addTransformCycleEstimate, the experimental estimate).
* Another axis becomes the innermost one, and both runs are whole grains of 8 bytes. Blocks of source run x target run
  are gathered, transposed by a vertex and scattered (``lib/popops/Rearrange.cpp`` regroupTensor): two copies in whole
  runs and a compute set.
* Another axis, and a run that is no whole grain: copied element by element.

Copies take 587 cycles and 0.44, 3.125 or 5.15 cycles for each byte in atoms of 8, 4 or 2 bytes (``chip.rearrangement``;
the same estimate of PopLibs, a regression over 10,000 tests). At 0.44 that is what exchange (0.25)
and copy (0.125) take together, so the exchange is taken to be included. Only the estimate for the chosen plan is
made here: the planner decides by PopLibs' default estimate.

Assumed of tensors whose producer is not looked at, as PopLibs' planner does: activations and gradients lie by channels
in runs of 16 halves or 8 floats (or what divides their channels), parameters and images as the forward plan wants them.

Simplified: transposing takes no memory of its own beyond the planner's estimate; an axis is expanded in one go (PopLibs
expands part of it where that makes a whole grain of the batch, and transposes less); the operands of a product lie as
planned unless the planner moves them, whatever produced them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ipuperf.ops.vertices import transpose_cycles
from ipuperf.ops.work import Convolution

from .planner.form import Form, view_form
from .planner.plan import ConvolutionPlan
from .planner.terms import near_cycles, needs, padded_elements
from .planner.vertices import grain
from .planner.works import plan_convolution

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: The most channels that are taken for an image.
IMAGE_CHANNELS = 4

#: Passes whose second operand is a parameter, which lies in blocks of output x input channels.
_WITH_PARAMETER = ("fwd", "bwd", "fcfwd", "fcinf")


@dataclass(frozen=True)
class Runs:
    """How elements lie: ``source`` and ``target`` neighbours of the innermost axis; ``turned``: of different axes."""

    source: int
    target: int
    turned: bool = False

    def regrouped(self, size: int) -> bool:
        """Whether blocks are transposed by a vertex: both runs are whole grains of 8 bytes."""
        return self.turned and not self.source % (8 // size) and not self.target % (8 // size)

    def atom(self, size: int) -> int:
        """Bytes that one copy keeps together (8 at most), of elements of ``size`` bytes."""
        if self.regrouped(size):
            return 8
        return math.gcd(8, size * (1 if self.turned else math.gcd(self.source, self.target)))


@dataclass(frozen=True)
class Rearranged:
    """One operand or result that is brought into another layout.

    Attributes:
        name: ``inputs``, ``weights`` or ``result`` of the transformed form.
        elements: in the target layout, padding and expansion included.
        before: elements before an axis is expanded into the channels, in which blocks are transposed.
        size: bytes per element.
        runs: how they lie.
    """

    name: str
    elements: int
    before: int
    size: int
    runs: Runs


#: The phases of a rearrangement in order: blocks are gathered, transposed, everything is put where it is wanted; a
#: result is regrouped on its tiles.
_GATHER, _TRANSPOSE, _COPY, _NEAR = range(4)
_RESULT = 4
"""The first slot of the result's phases, which come after those of the operands."""


@dataclass(frozen=True)
class RearrangementPhase:
    """A step of rearrangement on each of ``tiles``: ``bytes`` arrive in ``exchange`` cycles, then vertices run.

    ``slot``: those of several plans that run at once are one step where they have the same.
    """

    slot: int
    vertex: str
    tiles: int
    bytes: int
    exchange: int
    cycles: int


def copy_cycles(atoms: dict[int, int], chip: Chip) -> tuple[int, int]:
    """(exchange cycles, cycles of the on-tile copies) for the bytes that arrive on a tile, by atom.

    The sum is the fitted model (``chip.rearrangement``); of it, the exchange takes what its bytes take.
    """
    total = sum(atoms.values())
    if not total:
        return 0, 0
    exchange = -(-total // chip.exchange_bytes_per_cycle)
    return exchange, max(0, chip.rearrangement.cycles(atoms) - exchange)


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``rows`` x ``columns`` elements to be transposed: ``total`` of them, ``each`` on the fullest tile."""

    total: int
    each: int
    rows: int
    columns: int


def blocks(elements: int, runs: Runs, size: int, chip: Chip) -> Blocks:
    """Blocks of whole runs, cut smaller (not below 8 bytes a side) while there are fewer than tiles
    (``lib/popops/Rearrange.cpp`` updateGroupingInternal), spread over all tiles."""
    least = 8 // size
    rows, columns = runs.target, runs.source
    count, spare = -(-elements // (rows * columns)), rows * columns // least**2
    factor = max((x for x in range(1, spare + 1) if spare % x == 0 and count * x <= chip.tiles), default=1)
    across = math.gcd(factor, columns // least)
    down = math.gcd(factor // across, rows // least)
    rows, columns = rows // down, columns // across
    total = -(-elements // (rows * columns))
    return Blocks(total, -(-total // chip.tiles), rows, columns)


def laid_by_batch(item: Convolution, chip: Chip) -> bool:
    """Whether the activations of ``item`` lie by batch: they do in an image that the forward plan takes as weights.

    A tensor from the host is allocated as the forward plan wants it (``lib/poplin/Convolution.cpp`` createInputImpl,
    which allocates weights where operands are exchanged; PopART ``ConvOpx::createInput``). What comes from the host is
    not looked up: up to four channels (grey, colour, transparency) are taken for an image.
    """
    if item.pass_ == "bwd" or item.channels_in > IMAGE_CHANNELS:
        return False
    return plan_convolution(chip, replace(item, pass_="fwd")).swapped


def _operand_runs(plan: ConvolutionPlan, view: Form, name: str, *, by_batch: bool) -> Runs:
    """How an operand lies and has to lie; ``view``: the form with its operands exchanged but nothing else changed."""
    unit, full = plan.unit, grain(plan.unit.in_size)
    target = math.gcd(unit.in_grouping, view.in_channels)
    own = view.batch if name == "inputs" else view.out_channels
    by_batch = by_batch and name == ("weights" if plan.swapped else "inputs")
    if by_batch and plan.pass_ == "wu":
        return Runs(math.gcd(view.in_channels, full), target)
    if by_batch or _turned(plan, name):
        if own == 1:  # one channel in each group: neighbours are those of other groups
            own = view.groups
            if unit.in_grouping == 1:
                return Runs(math.gcd(own, full), math.gcd(own, unit.group_grouping))
        return Runs(math.gcd(own, full), target if _whole(target, unit.in_size) else unit.in_grouping, turned=True)
    run = target * math.gcd(unit.group_grouping, view.groups)
    if name == "weights" and not plan.swapped and plan.pass_ in _WITH_PARAMETER:
        run *= math.gcd(unit.out_grouping, -(-view.out_channels // plan.serial))
    return Runs(run, run)


def _whole(run: int, size: int) -> bool:
    return run * size % 8 == 0


def _turned(plan: ConvolutionPlan, name: str) -> bool:
    """Whether an operand's innermost axis is not the one that is summed over.

    A weight update sums over the batch (or the rows), both operands lie by channels. The weights of ``fcbwd`` lie by
    the channels that are its outputs; they are the ``inputs`` when operands are exchanged.
    """
    if plan.pass_ == "fcbwd":
        return (name == "inputs") == plan.swapped
    return plan.pass_ in ("wu", "fcwu")


def _result_runs(plan: ConvolutionPlan, view: Form) -> Runs:
    """How the result lies (by output channels of the view) and is wanted: by channels, or as the parameter."""
    unit = plan.unit
    full = grain(unit.in_size)
    source = math.gcd(unit.out_grouping, -(-view.out_channels // plan.serial))
    turned = plan.swapped != (plan.pass_ == "wu" or view.is_product)
    if turned:
        return Runs(source, math.gcd(view.batch, full), turned=True)
    return Runs(source, source)


def rearranged(plan: ConvolutionPlan, *, by_batch: bool = False) -> tuple[Rearranged, ...]:
    """What the plan moves between tiles before its vertices run (inputs, weights), and after (result).

    ``by_batch``: the activations lie by batch (:func:`laid_by_batch`), not by channels.
    """
    types, form = plan.request.types, plan.form
    view, need = view_form(plan.request.form, plan.swapped), needs(form, plan.unit)
    inputs, weights, outputs = padded_elements(form, plan.unit)
    before = view.groups * view.batch * view.in_channels * math.prod(axis.whole for axis in view.axes)
    early = _whole(math.gcd(plan.unit.in_grouping, view.in_channels), types.input)
    found = []
    if need.inputs:
        runs = _operand_runs(plan, view, "inputs", by_batch=by_batch)
        found.append(Rearranged("inputs", inputs, min(before, inputs) if early else inputs, types.input, runs))
    if need.weights:
        runs = _operand_runs(plan, view, "weights", by_batch=by_batch)
        found.append(Rearranged("weights", weights, weights, types.input, runs))
    if need.result:
        found.append(Rearranged("result", outputs, outputs, types.output, _result_runs(plan, view)))
    return tuple(found)


def stages(plan: ConvolutionPlan, *, by_batch: bool = False, arranged: bool = False) -> tuple[RearrangementPhase, ...]:
    """The steps of all rearrangements of one serial pass: those of both operands together, then those of the result.
    ``arranged``: the second operand lies as the plan wants it (:func:`of_weights`).

    A result that is only regrouped on its tiles keeps the planner's default estimate.
    """
    moved = rearranged(plan, by_batch=by_batch)
    results = tuple(each for each in moved if each.name == "result")
    operands = tuple(each for each in moved if each.name == "inputs" or (each.name == "weights" and not arranged))
    found = (*_steps(operands, plan), *_steps(results, plan, _RESULT))
    request = plan.request
    near = near_cycles(plan.form, plan.unit, request.types, plan.tiles, request.chip)
    return (*found, RearrangementPhase(_RESULT + _NEAR, "poplin::Transform", plan.tiles, 0, 0, near)) if near else found


def of_weights(plan: ConvolutionPlan) -> tuple[RearrangementPhase, ...]:
    """The steps of bringing the second operand to where all serial passes find it (``preArrangeMatMulRHS``)."""
    return _steps(tuple(each for each in rearranged(plan) if each.name == "weights"), plan)


def turned_parameter(
    elements: int, channels: tuple[int, int], size: int, plan: ConvolutionPlan
) -> tuple[RearrangementPhase, ...]:
    """The steps of giving a parameter the other of its ``channels`` (inputs, outputs of the forward convolution) as the
    innermost axis, for the gradient of the input (``poplin::weightsTransposeChansFlipXY``; the flip of the kernel costs
    nothing more)."""
    full = grain(size)
    runs = Runs(math.gcd(channels[0], full), math.gcd(channels[1], full), turned=True)
    return _steps((Rearranged("weights", elements, elements, size, runs),), plan)


def _steps(moved: tuple[Rearranged, ...], plan: ConvolutionPlan, slot: int = 0) -> tuple[RearrangementPhase, ...]:
    """Gather blocks, transpose them, copy everything to where it is wanted; what does not apply is left out. ``slot``:
    that of the first."""
    chip = plan.request.chip
    copied: dict[int, int] = {}
    gathered = turning = tiles = 0
    for each in moved:
        share, atom = -(-each.elements // plan.tiles) * each.size, each.runs.atom(each.size)
        copied[atom] = copied.get(atom, 0) + share
        if each.runs.regrouped(each.size):
            cut = blocks(each.before, each.runs, each.size, chip)
            gathered += cut.each * cut.rows * cut.columns * each.size
            turning += transpose_cycles(cut.each, cut.rows, cut.columns, each.size, chip)
            tiles = max(tiles, min(cut.total, chip.tiles))
    found = []
    if gathered:
        cost = gathered, *copy_cycles({8: gathered}, chip)
        found.append(RearrangementPhase(slot + _GATHER, "poplin::Transform", tiles, *cost))
        found.append(RearrangementPhase(slot + _TRANSPOSE, "popops::Transpose", tiles, 0, 0, turning))
    if copied:
        cost = sum(copied.values()), *copy_cycles(copied, chip)
        found.append(RearrangementPhase(slot + _COPY, "poplin::Transform", plan.tiles, *cost))
    return tuple(found)
