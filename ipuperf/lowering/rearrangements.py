"""The cost of a plan's rearrangements, which follows from how the elements lie before and after.

A tensor lies grouped: a run of neighbouring elements of its innermost axis, then the next run. PopLibs moves an operand
to the layout that the vertices read (``lib/poplin/Convolution.cpp`` convolutionPreprocess) in one of three ways:

* The innermost axis stays the same. Whole runs are copied; the atom of the copy is the greatest common divisor of the
  source and target runs (``lib/poplin/ConvModel.cpp`` addTransformCycleEstimate, the experimental estimate).
* Another axis becomes the innermost one, and both runs are whole grains of 8 bytes. Blocks of source run x target run
  are gathered, transposed by a vertex and scattered (``lib/popops/Rearrange.cpp`` regroupTensor): two copies in whole
  runs and a compute set.
* Another axis becomes the innermost one, but a run is no whole grain. The elements are copied one by one.

Copies take 587 cycles and 0.44, 3.125 or 5.15 cycles for each byte in atoms of 8, 4 or 2 bytes (``chip.rearrangement``;
the same estimate of PopLibs, a regression over 10,000 tests). At 0.44 that is about what exchange (0.25)
and copy (0.125) take together, so the exchange is assumed to be included. This module estimates the chosen plan only;
the planner decides by PopLibs' default estimate.

The producers of tensors are not looked up. As in PopLibs' planner, activations and gradients are assumed to lie by
channels in runs of 16 halves or 8 floats (or what divides their channels), parameters and images as the forward plan
reads them.

Simplifications: Transposing takes no memory beyond the planner's estimate. An axis is expanded in one go; PopLibs
expands part of it where that makes a whole grain of the batch, and transposes less. The operands of a product lie as
planned unless the planner moves them, whatever op made them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ipuperf.machine import Chip
from ipuperf.ops.vertices import transpose_cycles
from ipuperf.ops.work import Convolution

from .planner.form import Form, view_form
from .planner.kernels import grain
from .planner.plan import ConvolutionPlan
from .planner.terms import near_cycles, needs, padded_elements
from .planner.works import plan_convolution

#: The largest number of channels that an image is assumed to have.
IMAGE_CHANNELS = 4

#: Passes whose second operand is a parameter, which lies in blocks of output x input channels.
_WITH_PARAMETER = ("fwd", "bwd", "fcfwd", "fcinf")


@dataclass(frozen=True)
class Runs:
    """Lengths of the runs in which elements lie before (``source``) and after (``target``) a rearrangement.

    ``turned``: the innermost axes of the two layouts are different.
    """

    source: int
    target: int
    turned: bool = False

    def regrouped(self, size: int) -> bool:
        """Whether blocks are transposed by a vertex: both runs are whole grains of 8 bytes."""
        return self.turned and not self.source % (8 // size) and not self.target % (8 // size)

    def atom(self, size: int) -> int:
        """Bytes, 8 at most, that one copy keeps together for elements of ``size`` bytes."""
        if self.regrouped(size):
            return 8
        return math.gcd(8, size * (1 if self.turned else math.gcd(self.source, self.target)))


@dataclass(frozen=True)
class Rearranged:
    """One operand or result that is brought into another layout.

    Attributes:
        name: ``inputs``, ``weights`` or ``result`` of the transformed form.
        elements: elements in the target layout, with padding and expansion.
        transposed_elements: elements before an axis is expanded into the channels; blocks are transposed in this state.
        size: bytes per element.
        runs: runs of the source and target layouts.
    """

    name: str
    elements: int
    transposed_elements: int
    size: int
    runs: Runs


#: The phases of a rearrangement in order: gather blocks, transpose them, copy everything to its target, and regroup a
#: result on its tiles.
_GATHER, _TRANSPOSE, _COPY, _NEAR = range(4)
_RESULT = 4
"""The first slot of the result's phases, which come after those of the operands."""


@dataclass(frozen=True)
class RearrangementPhase:
    """A step of rearrangement: on each of ``tiles``, ``bytes`` arrive in ``exchange`` cycles, then vertices run.

    When several plans run at once, their phases with the same ``slot`` become one step.
    """

    slot: int
    vertex: str
    tiles: int
    bytes: int
    exchange: int
    cycles: int


def copy_cycles(atoms: dict[int, int], chip: Chip) -> tuple[int, int]:
    """``(exchange cycles, on-tile copy cycles)`` for the bytes that arrive on a tile, by size of the atom.

    Their sum is the fitted model (``chip.rearrangement``). The exchange takes the cycles of its bytes; the copies take
    the rest.
    """
    total = sum(atoms.values())
    if not total:
        return 0, 0
    # Rounded up: a cycle that is partly used is spent.
    exchange = -(-total // chip.exchange_bytes_per_cycle)
    return exchange, max(0, chip.rearrangement.cycles(atoms) - exchange)


@dataclass(frozen=True)
class Blocks:
    """``total`` blocks of ``rows`` x ``columns`` elements to transpose, ``on_fullest_tile`` of them on one tile."""

    total: int
    on_fullest_tile: int
    rows: int
    columns: int


def blocks(elements: int, runs: Runs, size: int, chip: Chip) -> Blocks:
    """Blocks of whole runs, spread over all tiles.

    Where there are fewer blocks than tiles they are cut, but no side gets below 8 bytes
    (``lib/popops/Rearrange.cpp`` updateGroupingInternal).
    """
    grain_elements = 8 // size
    rows, columns = runs.target, runs.source
    count, spare = -(-elements // (rows * columns)), rows * columns // grain_elements**2
    # The largest cut that divides a block and still gives no tile two pieces.
    factor = max((cut for cut in range(1, spare + 1) if spare % cut == 0 and count * cut <= chip.tiles), default=1)
    across = math.gcd(factor, columns // grain_elements)
    down = math.gcd(factor // across, rows // grain_elements)
    rows, columns = rows // down, columns // across
    total = -(-elements // (rows * columns))
    return Blocks(total, -(-total // chip.tiles), rows, columns)


def laid_by_batch(work: Convolution, chip: Chip) -> bool:
    """Whether the activations of ``work`` lie by batch: they do in an image that the forward plan takes as weights.

    A tensor from the host is allocated as the forward plan reads it (``lib/poplin/Convolution.cpp`` createInputImpl,
    which allocates weights where operands are exchanged; PopART ``ConvOpx::createInput``). Whether a tensor comes from
    the host is not looked up: one with up to four channels (grey, colour, transparency) is taken for an image.
    """
    if work.pass_ == "bwd" or work.channels_in > IMAGE_CHANNELS:
        return False
    return plan_convolution(chip, replace(work, pass_="fwd")).swapped


def _operand_runs(plan: ConvolutionPlan, view: Form, name: str, *, by_batch: bool) -> Runs:
    """Runs of an operand, as it lies and as the vertices read it.

    ``view`` is the form with its operands exchanged but nothing else changed.
    """
    unit, full = plan.unit, grain(plan.unit.in_size)
    target = math.gcd(unit.in_grouping, view.in_channels)
    neighbours = view.batch if name == "inputs" else view.out_channels
    by_batch = by_batch and name == ("weights" if plan.swapped else "inputs")
    if by_batch and plan.pass_ == "wu":
        return Runs(math.gcd(view.in_channels, full), target)
    if by_batch or _turned(plan, name):
        # With one channel in each group, the neighbours are channels of other groups.
        if neighbours == 1:
            neighbours = view.groups
            if unit.in_grouping == 1:
                return Runs(math.gcd(neighbours, full), math.gcd(neighbours, unit.group_grouping))
        return Runs(
            math.gcd(neighbours, full), target if _whole(target, unit.in_size) else unit.in_grouping, turned=True
        )
    run = target * math.gcd(unit.group_grouping, view.groups)
    # A parameter lies in blocks of output x input channels, so its runs go on over both.
    if name == "weights" and not plan.swapped and plan.pass_ in _WITH_PARAMETER:
        run *= math.gcd(unit.out_grouping, -(-view.out_channels // plan.serial))
    return Runs(run, run)


def _whole(run: int, size: int) -> bool:
    return run * size % 8 == 0


def _turned(plan: ConvolutionPlan, name: str) -> bool:
    """Whether an operand's innermost axis is not the one that is summed over.

    A weight update sums over the batch (or the rows), but both operands lie by channels. The weights of ``fcbwd`` lie
    by its output channels; they are the ``inputs`` when operands are exchanged.
    """
    if plan.pass_ == "fcbwd":
        return (name == "inputs") == plan.swapped
    return plan.pass_ in ("wu", "fcwu")


def _result_runs(plan: ConvolutionPlan, view: Form) -> Runs:
    """Runs of the result: it lies by output channels of the view, and goes to channels or to the parameter's layout."""
    unit = plan.unit
    full = grain(unit.in_size)
    source = math.gcd(unit.out_grouping, -(-view.out_channels // plan.serial))
    turned = plan.swapped != (plan.pass_ == "wu" or view.is_product)
    if turned:
        return Runs(source, math.gcd(view.batch, full), turned=True)
    return Runs(source, source)


def moves_both(plan: ConvolutionPlan) -> bool:
    """Whether both operands are rearranged, though PopLibs' planner counts on one: in the weight update of a layer.

    ``lib/poplin/Convolution.cpp`` says that of every weight update (weightRearrangementIsExpensive). What serial passes
    cut out was laid out before them.
    """
    return plan.pass_ == "fcwu" and not plan.prepare and not needs(plan.form, plan.unit).weights


def unplanned_bytes(plan: ConvolutionPlan) -> int:
    """Bytes of the second operand on each tile where it is rearranged and the planner does not count on it."""
    if not moves_both(plan):
        return 0
    weights = next(tensor for tensor in rearranged(plan) if tensor.name == "weights")
    return -(-weights.elements // plan.tiles) * weights.size


def rearranged(plan: ConvolutionPlan, *, by_batch: bool = False, passes: int = 1) -> tuple[Rearranged, ...]:
    """The tensors that the plan moves between tiles: inputs and weights before its vertices run, the result after.

    A serial pass first cuts out its channels, and moves those alone (``lib/poplin/Convolution.cpp`` convolutionImpl).

    ``by_batch``: the activations lie by batch (:func:`laid_by_batch`), not by channels. ``passes``: of how many serial
    passes the tensors are.
    """
    types, form = plan.request.types, plan.form
    view, need = view_form(plan.request.form, plan.swapped), needs(form, plan.unit)
    inputs, weights, outputs = padded_elements(form, plan.unit)
    weights = -(-weights * passes // plan.serial)
    if plan.serial_inputs:
        inputs = -(-inputs * passes // plan.serial)
    else:
        outputs = -(-outputs * passes // plan.serial)
    unexpanded_elements = view.groups * view.batch * view.in_channels * math.prod(axis.whole for axis in view.axes)
    # Blocks of whole grains are transposed before an axis is expanded, while there are fewer elements.
    transposed_first = _whole(math.gcd(plan.unit.in_grouping, view.in_channels), types.input)
    tensors = []
    if need.inputs:
        runs = _operand_runs(plan, view, "inputs", by_batch=by_batch)
        tensors.append(
            Rearranged(
                "inputs", inputs, min(unexpanded_elements, inputs) if transposed_first else inputs, types.input, runs
            )
        )
    if need.weights or moves_both(plan):
        runs = _operand_runs(plan, view, "weights", by_batch=by_batch)
        tensors.append(Rearranged("weights", weights, weights, types.input, runs))
    if need.result:
        tensors.append(Rearranged("result", outputs, outputs, types.output, _result_runs(plan, view)))
    return tuple(tensors)


def stages(plan: ConvolutionPlan, *, by_batch: bool = False, arranged: bool = False) -> tuple[RearrangementPhase, ...]:
    """The steps of all rearrangements of one serial pass: of both operands together, then of the result.

    ``arranged``: the second operand already lies as the plan reads it (:func:`of_weights`). A result that is only
    regrouped on its tiles keeps the planner's default estimate.
    """
    moved = rearranged(plan, by_batch=by_batch)
    results = tuple(tensor for tensor in moved if tensor.name == "result")
    operands = tuple(
        tensor for tensor in moved if tensor.name == "inputs" or (tensor.name == "weights" and not arranged)
    )
    phases = (*_steps(operands, plan), *_steps(results, plan, _RESULT))
    request = plan.request
    regrouping_cycles = near_cycles(plan.form, plan.unit, request.types, plan.tiles, request.chip)
    return (
        (*phases, RearrangementPhase(_RESULT + _NEAR, "poplin::Transform", plan.tiles, 0, 0, regrouping_cycles))
        if regrouping_cycles
        else phases
    )


def of_weights(plan: ConvolutionPlan) -> tuple[RearrangementPhase, ...]:
    """The steps that bring the second operand to where all serial passes read it (``preArrangeMatMulRHS``)."""
    moved = rearranged(plan, passes=plan.serial)
    return _steps(tuple(tensor for tensor in moved if tensor.name == "weights"), plan)


def turned_parameter(
    elements: int, channels: tuple[int, int], size: int, plan: ConvolutionPlan
) -> tuple[RearrangementPhase, ...]:
    """The steps that exchange the two ``channels`` axes of a parameter, for the gradient of the input.

    ``channels`` are inputs and outputs of the forward convolution; the other one becomes the innermost axis
    (``poplin::weightsTransposeChansFlipXY``). The flip of the kernel adds no cost.
    """
    full = grain(size)
    runs = Runs(math.gcd(channels[0], full), math.gcd(channels[1], full), turned=True)
    return _steps((Rearranged("weights", elements, elements, size, runs),), plan)


def _steps(tensors: tuple[Rearranged, ...], plan: ConvolutionPlan, slot: int = 0) -> tuple[RearrangementPhase, ...]:
    """The steps that gather blocks, transpose them and copy all tensors to their targets, without those not needed.

    ``slot`` is the slot of the first step.
    """
    chip = plan.request.chip
    copied: dict[int, int] = {}
    gathered = turning = tiles = 0
    for tensor in tensors:
        share, atom = -(-tensor.elements // plan.tiles) * tensor.size, tensor.runs.atom(tensor.size)
        copied[atom] = copied.get(atom, 0) + share
        if tensor.runs.regrouped(tensor.size):
            cut = blocks(tensor.transposed_elements, tensor.runs, tensor.size, chip)
            gathered += cut.on_fullest_tile * cut.rows * cut.columns * tensor.size
            turning += transpose_cycles(cut.on_fullest_tile, cut.rows, cut.columns, tensor.size, chip)
            tiles = max(tiles, min(cut.total, chip.tiles))
    phases = []
    # Gathered blocks are whole runs, so they move in the largest atoms, of 8 bytes.
    if gathered:
        cost = gathered, *copy_cycles({8: gathered}, chip)
        phases.append(RearrangementPhase(slot + _GATHER, "poplin::Transform", tiles, *cost))
        phases.append(RearrangementPhase(slot + _TRANSPOSE, "popops::Transpose", tiles, 0, 0, turning))
    if copied:
        cost = sum(copied.values()), *copy_cycles(copied, chip)
        phases.append(RearrangementPhase(slot + _COPY, "poplin::Transform", plan.tiles, *cost))
    return tuple(phases)
