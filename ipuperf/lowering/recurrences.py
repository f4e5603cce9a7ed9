"""Loops over the time steps of recurrent layers (PopLibs ``lib/popnn/{Rnn,Lstm,Gru}.cpp``).

The slices of a step lie in grains of up to 16 elements of a sequence, spread over the tiles of a shard. All steps of a
shard lie on the same tiles, and successive shards on different ones (``createMultiDynamicSliceTensor``). The loop goes
through the shards one after the other.
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
"""Largest number of elements of a sequence that lie together (``getNumGrains``)."""
_OPERANDS = 0.1
"""Share of a tile's memory that the sequences of a shard may take, which sets the shards (``getNumShards``)."""
_SHARDS_APART = 15
"""Up to so many shards have code of their own; more shards share it (``limitShardingWithoutCodeReuse``)."""


class StepSlices:
    """Where the slices of a recurrence lie.

    Attributes:
        inputs, state: layout of a slice of the inputs, and of a state, in the first shard.
        shards: number of shards.
        steps: time steps of a shard; the last shard may have fewer.
    """

    def __init__(self, chip: Chip, recurrence_work: w.Recurrence) -> None:
        self._chip, self._recurrence = chip, recurrence_work
        self.inputs, self.state = (
            _slice(chip, recurrence_work, width) for width in (recurrence_work.inputs, recurrence_work.units)
        )
        self._tiles = max(self.inputs.elements.active, self.state.elements.active)
        size = recurrence_work.dtype.size
        # As many shards as have tiles of their own, and none of them empty.
        shard_limit = -(-recurrence_work.steps // -(-recurrence_work.steps // (chip.tiles // self._tiles)))
        sequence_bytes = (
            recurrence_work.steps
            * size
            * (self.inputs.elements.max + self.state.elements.max * (1 + recurrence_work.kept))
        )
        self.shards = min(shard_limit, max(1, math.ceil(sequence_bytes / (_OPERANDS * chip.bytes_per_tile))))
        self.steps = -(-recurrence_work.steps // self.shards)

    def of(self, inputs: int, states: int, shard: int = 0) -> TileVector:
        """Elements per tile of ``inputs`` and ``states`` slices in a shard."""
        elements = inputs * self.inputs.elements.dense() + states * self.state.elements.dense()
        return TileVector.of(np.roll(elements, shard * self._tiles))

    def sequence(self, tensor: Tensor, of_inputs: bool) -> Layout:
        """Layout of a sequence ``(T, B, ...)`` of inputs or of several states."""
        recurrence_work, chip = self._recurrence, self._chip
        # A tensor may hold several states of a step, such as the gates of an LSTM.
        number = 1 if of_inputs else tensor.shape[2] // recurrence_work.units
        kind, elements = (self.inputs, self.of(1, 0)) if of_inputs else (self.state, self.of(0, number))
        if self.shards == 1:
            return stack(Layout(("slices", number, kind), elements), (0,), recurrence_work.steps)
        element_counts = np.zeros(chip.tiles, dtype=np.int64)
        for shard in range(self.shards):
            steps = min(self.steps, recurrence_work.steps - shard * self.steps)
            element_counts += steps * np.roll(elements.dense(), shard * self._tiles)
        return Layout(
            ("shards", recurrence_work.steps, self.shards, self._tiles, number, kind), TileVector.of(element_counts)
        )


def _slice(chip: Chip, recurrence_work: w.Recurrence, width: int) -> Layout:
    grain = math.gcd(_GRAIN, width)
    grains = recurrence_work.batch * width // grain
    used = -(-grains // -(-grains // chip.tiles))
    return even(("slice", recurrence_work.batch, width), recurrence_work.batch * width, chip.tiles, used, grain)


@lowers(w.Recurrence)
def recurrence(stepper: Superstepper, work: w.Recurrence) -> None:
    """Bring the operands to where the steps find them, then append the steps of all shards.

    The first operand goes to where its slices lie, the weights to where the products of a gradient read them. The code
    of the steps exists once for each shard, their plans once.
    """
    op, out, slices = stepper.op, stepper.out, StepSlices(stepper.chip, work)
    stepper.gathered = True  # the exchanges of the steps bring the operands
    sequence_layout = _layout(stepper, slices, op.inputs[0], not work.backward)
    if stepper.layouts[op.inputs[0]].key != sequence_layout.key:
        arriving = sequence_layout.bytes(work.dtype.size)
        stepper.exchange(f"{op.type}/sequence", arriving)
        out.need(arriving)
    for number, tensor in enumerate(op.outputs):
        stepper.layouts[tensor] = _layout(stepper, slices, tensor, work.backward and number == 0)
    planned = [_planned(stepper, work, matmul) for matmul in work.products]
    if work.backward:
        for product in planned:
            products.arrange_weights(stepper, f"{op.type}/weights", product)
    for shard in range(slices.shards):
        _shard(stepper, work, slices, planned, shard)


def _layout(stepper: Superstepper, slices: StepSlices, tensor: Tensor, of_inputs: bool) -> Layout:
    """Layout of a sequence; or of a state, or of one value for each step and sequence of the batch."""
    return slices.sequence(tensor, of_inputs) if len(tensor.shape) == 3 else stepper.linear(tensor)


def _shard(
    stepper: Superstepper, work: w.Recurrence, slices: StepSlices, planned: list[products.PlannedProduct], shard: int
) -> None:
    """Append the move of the states from the previous shard, then the equal steps of this shard."""
    out = stepper.out
    earlier_code_and_plans = out.code, out.plans
    if shard:
        states = slices.of(0, 1, shard).times(work.dtype.size)
        stepper.exchange(f"{stepper.op.type}/shard", states)
    begin = len(out.steps)
    _time_step(stepper, work, slices, planned, shard)
    time_step = out.steps[begin:]
    # All time steps of a shard are the same, so one is lowered and repeated.
    out.steps += time_step * (min(slices.steps, work.steps - shard * slices.steps) - 1)
    if shard:
        # All shards share the plans of the first one. With many shards they share its code too.
        out.code, out.plans = (
            (earlier_code_and_plans[0] if slices.shards > _SHARDS_APART else out.code),
            earlier_code_and_plans[1],
        )


def _planned(stepper: Superstepper, work: w.Recurrence, matmul: w.MatMul) -> products.PlannedProduct:
    weights = stepper.op.inputs[work.weights : work.weights + 2]

    def planned(plan: ConvolutionPlan) -> products.PlannedProduct:
        stages = rearrangements.stages(plan, arranged=work.backward)
        return products.PlannedProduct(PlacedPlan(plan), weights, stepper.op.outputs[0], matmul.flops, stages)

    return products.least(request_of_product(stepper.chip, matmul), planned)


def _time_step(
    stepper: Superstepper, work: w.Recurrence, slices: StepSlices, planned: list[products.PlannedProduct], shard: int
) -> None:
    """Append one time step: slices in, products and vertices, slices out.

    Backwards, the vertices come before the products.
    """
    _copy(stepper, work, slices.of(*work.read, shard))
    # Values that a sequence has once in a step go to all tiles of its state.
    if work.rows:
        row_bytes = work.rows * work.dtype.size
        units = slices.of(0, 1, shard)
        stepper.exchange(f"{stepper.op.type}/rows", units.map(lambda values: -(-values // work.units) * row_bytes))
    if not work.backward:
        _products(stepper, work, slices, planned, shard)
    for vertices in work.vertices:
        # Vertices may work on several states of a step at once.
        number, remainder = divmod(vertices.elements, work.batch * work.units)
        elements = slices.of(0, number, shard)
        # Elements that are no multiple of a state are one value for each sequence.
        if remainder:
            elements = stepper.spread(vertices.elements, work.dtype.size).elements
        stepper.compute(vertices.vertex, stepper.tile_cycles(vertices.cycles, elements), flops=vertices.flops)
    if work.backward:
        _products(stepper, work, slices, planned, shard)
    _copy(stepper, work, slices.of(*work.written, shard))


def _products(
    stepper: Superstepper, work: w.Recurrence, slices: StepSlices, planned: list[products.PlannedProduct], shard: int
) -> None:
    """Append the products, and the move of their results to where inputs and states lie.

    PopLibs does it in ``rearrangeUnitsOutputFwd``.
    """
    for matmul, product in zip(work.products, planned, strict=True):
        name = f"{stepper.op.type}[{matmul.groups}x{matmul.m}x{matmul.k}x{matmul.n}]"
        products.phases(stepper, name, [product])
    result_elements = slices.of(*work.results, shard)
    stepper.exchange(f"{stepper.op.type}/sums", result_elements.times(work.dtype.size))
    _copy(stepper, work, result_elements)


def _copy(stepper: Superstepper, work: w.Recurrence, elements: TileVector) -> None:
    """Append on-tile copies of slices that are read from sequences or written to them."""
    size = work.dtype.size
    stepper.compute(f"poplar::Memcpy{size * 8}", copy_cycles(elements.times(size), stepper.machine))
