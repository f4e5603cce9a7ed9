"""Loops over the time steps of recurrent layers (PopLibs ``lib/popnn/{Rnn,Lstm,Gru}.cpp``).

A step's slices lie in grains of up to 16 elements of a sequence, spread over the tiles of a shard; all steps of a shard
lie alike, and successive shards have tiles of their own (``createMultiDynamicSliceTensor``), which the loop passes
through one after the other.
"""

from __future__ import annotations

import math

import numpy as np

from ipuperf.ir import Tensor
from ipuperf.machine import Chip
from ipuperf.ops import work as w

from . import products, rearrangements
from .layout import Layout, even
from .planner.multi import PlacedPlan
from .planner.plan import ConvolutionPlan
from .planner.works import request_of_product
from .supersteps import Superstepper, copy_cycles, lowers, stack
from .tilevector import TileVector

_GRAIN = 16
"""Most elements of a sequence that lie together (``getNumGrains``)."""
_OPERANDS = 0.1
"""Share of a tile's memory that the sequences of a shard may take before there are more shards (``getNumShards``)."""
_SHARDS_APART = 15
"""Most shards that have code of their own; more share it (``limitShardingWithoutCodeReuse``)."""


class StepSlices:
    """Where the slices of a recurrence lie.

    Attributes:
        inputs, state: a slice of inputs, and of a state, in the first shard.
        shards: how many there are.
        steps: of a shard, the last of which may have fewer.
    """

    def __init__(self, chip: Chip, item: w.Recurrence) -> None:
        self._chip, self._item = chip, item
        self.inputs, self.state = (_slice(chip, item, wide) for wide in (item.inputs, item.units))
        self._tiles = max(self.inputs.elements.active, self.state.elements.active)
        size = item.dtype.size
        most = -(-item.steps // -(-item.steps // (chip.tiles // self._tiles)))
        taken = item.steps * size * (self.inputs.elements.max + self.state.elements.max * (1 + item.kept))
        self.shards = min(most, max(1, math.ceil(taken / (_OPERANDS * chip.bytes_per_tile))))
        self.steps = -(-item.steps // self.shards)

    def of(self, inputs: int, states: int, shard: int = 0) -> TileVector:
        """Elements of so many slices of each kind in a shard."""
        found = inputs * self.inputs.elements.dense() + states * self.state.elements.dense()
        return TileVector.of(np.roll(found, shard * self._tiles))

    def sequence(self, tensor: Tensor, of_inputs: bool) -> Layout:
        """Of a sequence ``(T, B, ...)`` of inputs, or of several states."""
        item, chip = self._item, self._chip
        number = 1 if of_inputs else tensor.shape[2] // item.units
        kind, elements = (self.inputs, self.of(1, 0)) if of_inputs else (self.state, self.of(0, number))
        if self.shards == 1:
            return stack(Layout(("slices", number, kind), elements), (0,), item.steps)
        found = np.zeros(chip.tiles, dtype=np.int64)
        for shard in range(self.shards):
            steps = min(self.steps, item.steps - shard * self.steps)
            found += steps * np.roll(elements.dense(), shard * self._tiles)
        return Layout(("shards", item.steps, self.shards, self._tiles, number, kind), TileVector.of(found))


def _slice(chip: Chip, item: w.Recurrence, wide: int) -> Layout:
    grain = math.gcd(_GRAIN, wide)
    grains = item.batch * wide // grain
    used = -(-grains // -(-grains // chip.tiles))
    return even(("slice", item.batch, wide), item.batch * wide, chip.tiles, used, grain)


@lowers(w.Recurrence)
def recurrence(stepper: Superstepper, item: w.Recurrence) -> None:
    """The first operand to where its slices lie, the weights to where the products of a gradient find them; then the
    steps, whose code is there once for each shard, and whose plans once."""
    op, out, slices = stepper.op, stepper.out, StepSlices(stepper.chip, item)
    stepper.gathered = True  # the exchanges of the steps bring the operands
    wanted = _layout(stepper, slices, op.inputs[0], not item.backward)
    if stepper.layouts[op.inputs[0]].key != wanted.key:
        arriving = wanted.bytes(item.dtype.size)
        stepper.exchange(f"{op.type}/sequence", arriving)
        out.need(arriving)
    for number, tensor in enumerate(op.outputs):
        stepper.layouts[tensor] = _layout(stepper, slices, tensor, item.backward and number == 0)
    planned = [_planned(stepper, item, each) for each in item.products]
    if item.backward:
        for product in planned:
            products.arrange_weights(stepper, f"{op.type}/weights", product)
    for shard in range(slices.shards):
        _shard(stepper, item, slices, planned, shard)


def _layout(stepper: Superstepper, slices: StepSlices, tensor: Tensor, of_inputs: bool) -> Layout:
    """Of a sequence; of a state, or of a value for each step and sequence of the batch."""
    return slices.sequence(tensor, of_inputs) if len(tensor.shape) == 3 else stepper.linear(tensor)


def _shard(
    stepper: Superstepper, item: w.Recurrence, slices: StepSlices, planned: list[products.PlannedProduct], shard: int
) -> None:
    """The states from the shard before, and the steps of this one, which are all alike."""
    out = stepper.out
    before = out.code, out.plans
    if shard:
        states = slices.of(0, 1, shard).times(item.dtype.size)
        stepper.exchange(f"{stepper.op.type}/shard", states)
    first = len(out.steps)
    _time_step(stepper, item, slices, planned, shard)
    once = out.steps[first:]
    out.steps += once * (min(slices.steps, item.steps - shard * slices.steps) - 1)
    if shard:
        out.code, out.plans = (before[0] if slices.shards > _SHARDS_APART else out.code), before[1]


def _planned(stepper: Superstepper, item: w.Recurrence, own: w.MatMul) -> products.PlannedProduct:
    weights = stepper.op.inputs[item.weights : item.weights + 2]

    def planned(plan: ConvolutionPlan) -> products.PlannedProduct:
        stages = rearrangements.stages(plan, arranged=item.backward)
        return products.PlannedProduct(PlacedPlan(plan), weights, stepper.op.outputs[0], own.flops, stages)

    return products.least(request_of_product(stepper.chip, own), planned)


def _time_step(
    stepper: Superstepper, item: w.Recurrence, slices: StepSlices, planned: list[products.PlannedProduct], shard: int
) -> None:
    """Slices in; products and vertices, or the other way round; slices out."""
    _copy(stepper, item, slices.of(*item.read, shard))
    if item.rows:
        each = item.rows * item.dtype.size
        units = slices.of(0, 1, shard)
        stepper.exchange(f"{stepper.op.type}/rows", units.map(lambda values: -(-values // item.units) * each))
    if not item.backward:
        _products(stepper, item, slices, planned, shard)
    for vertices in item.vertices:
        number, rest = divmod(vertices.elements, item.batch * item.units)
        elements = slices.of(0, number, shard)
        if rest:  # a value for each sequence
            elements = stepper.spread(vertices.elements, item.dtype.size).elements
        stepper.compute(vertices.vertex, stepper.tile_cycles(vertices.cycles, elements), flops=vertices.flops)
    if item.backward:
        _products(stepper, item, slices, planned, shard)
    _copy(stepper, item, slices.of(*item.written, shard))


def _products(
    stepper: Superstepper, item: w.Recurrence, slices: StepSlices, planned: list[products.PlannedProduct], shard: int
) -> None:
    """The products, and their results to where inputs and states lie (``rearrangeUnitsOutputFwd``)."""
    for own, product in zip(item.products, planned, strict=True):
        name = f"{stepper.op.type}[{own.groups}x{own.m}x{own.k}x{own.n}]"
        products.phases(stepper, name, [product])
    found = slices.of(*item.results, shard)
    stepper.exchange(f"{stepper.op.type}/sums", found.times(item.dtype.size))
    _copy(stepper, item, found)


def _copy(stepper: Superstepper, item: w.Recurrence, elements: TileVector) -> None:
    """On-tile copies: slices that are read from sequences or written to them."""
    size = item.dtype.size
    stepper.compute(f"poplar::Memcpy{size * 8}", copy_cycles(elements.times(size), stepper.machine))
