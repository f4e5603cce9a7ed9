"""Reductions over tiles: how partial results travel to where the sums are needed.

The stages are those of PopLibs (``docs/reference/cycles.md`` 5.2). First every tile reduces its own elements. With more
than 64 partials per output (77 where most tiles are sources), an intermediate stage reduces them to about the square
root. The last stage runs at the destination, or balanced over all tiles with a second exchange, whichever is cheaper by
PopLibs' own estimate (``lib/popops/reduction/ReductionPlan.cpp:90-200``).

Simplification: the number of outputs for which a tile has partials follows from the run of neighbouring elements that
go into one output. The operand is assumed to lie row by row, or by channels in groupings where the work says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ipuperf.machine import Chip
from ipuperf.ops.work import Reduction

from .layout import linear
from .tilevector import TileVector

PARTIAL_BYTES = 4
INTERMEDIATE_PARTIALS = 64
BALANCED_GRAIN = 8


@dataclass(frozen=True)
class ReductionStage:
    """One stage: the partials that each tile receives and then reduces.

    ``last_copy``: bytes that a balanced stage then sends to the destination; None where the sums are already there.
    """

    partials: TileVector
    last_copy: TileVector | None = None

    @property
    def arriving(self) -> TileVector:
        """Bytes of partials that arrive on each tile."""
        return TileVector(self.partials.stops, tuple(v * PARTIAL_BYTES for v in self.partials.values))


def has_intermediate_stage(fan_in: int, sources: int, chip: Chip) -> bool:
    """Whether ``fan_in`` partials of each output, on ``sources`` tiles in all, need more than one stage.

    The rule is that of ``calculateNextStep`` in ``lib/popops/reduction``.
    """
    # On 1,472 tiles: fewer than 77 partials, with more than three quarters of the tiles as sources.
    few = fan_in**2 < 4 * chip.tiles and 4 * sources > 3 * chip.tiles
    return fan_in > INTERMEDIATE_PARTIALS and not few


def intermediate_groups(fan_in: int) -> int:
    """Number of partials of each output after an intermediate stage."""
    return math.isqrt(fan_in - 1) + 1


def plan_reduction(source: TileVector, work: Reduction, chip: Chip) -> list[ReductionStage]:
    """The stages that follow the one on the operand's own tiles.

    There are none when every output is complete there, or without elements.

    Args:
        source: elements of the operand per tile.
        work: the reduction.
        chip: the chip.
    """
    if not work.inputs:
        return []
    outputs = max(1, work.outputs)
    sources = source.active
    per_tile = max(1, source.max)
    # Elements of one run go into the same output, so a tile has partials of as many outputs as runs.
    outputs_per_tile = min(outputs, work.together * -(-per_tile // (work.run * work.together)))
    fan_in = -(-sources * outputs_per_tile // outputs)
    if fan_in <= 1 or sources <= 1:
        return []
    stages = []
    if has_intermediate_stage(fan_in, sources, chip):
        groups = intermediate_groups(fan_in)
        pieces = outputs * groups
        tiles = min(chip.tiles, pieces)
        stages.append(ReductionStage(TileVector.uniform(-(-pieces // tiles) * -(-fan_in // groups), chip.tiles, tiles)))
        fan_in = groups
    stages.append(_last(outputs, fan_in, chip))
    return stages


def _last(outputs: int, fan_in: int, chip: Chip) -> ReductionStage:
    """The last stage: at the destination or balanced, whichever PopLibs' estimate says is cheaper."""
    width = chip.vector_width(PARTIAL_BYTES)
    destination = linear(outputs, PARTIAL_BYTES, width, chip.tiles).elements
    grains = -(-outputs // BALANCED_GRAIN)
    tiles = min(chip.tiles, grains)
    outputs_per_tile = min(outputs, -(-grains // tiles) * BALANCED_GRAIN)
    rate = chip.exchange_bytes_per_cycle

    def cost(elements: int) -> int:
        return -(-elements * fan_in * PARTIAL_BYTES // rate) + fan_in * -(-elements // width) + chip.sync_cycles

    balanced = cost(outputs_per_tile) + -(-destination.max * PARTIAL_BYTES // rate) + chip.sync_cycles
    # Balanced over all tiles pays only where it makes up for the second exchange.
    if cost(destination.max) <= balanced:
        return ReductionStage(TileVector(destination.stops, tuple(v * fan_in for v in destination.values)))
    copy = TileVector(destination.stops, tuple(v * PARTIAL_BYTES for v in destination.values))
    return ReductionStage(TileVector.uniform(outputs_per_tile * fan_in, chip.tiles, tiles), copy)
