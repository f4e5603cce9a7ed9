"""The convolution planner's estimate of reducing partial sums (PopLibs ``ConvReduce``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ops.vertices import Counts, planned_cast_cycles

from .vertices import ceil

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Partial sums that are reduced in two and in three stages.
_TWO_STAGES, _THREE_STAGES = 16, 125


@lru_cache(maxsize=4096)
def reduce_depths(depth: int) -> tuple[int, ...]:
    """Partial sums added in each stage: one stage below 16, two below 125, otherwise three.

    The depths of the stages are as equal as possible (PopLibs ``lib/poplin/ConvReducePlan.cpp``).
    """
    stages = 3 if depth >= _THREE_STAGES else 2 if depth >= _TWO_STAGES else 1
    left, depths = depth, []
    for goal in (*_stage_goals(depth, stages)[0], 1):
        stage_depth = -(-left // goal)
        if stage_depth > 1:
            depths.append(stage_depth)
        left = -(-left // stage_depth)
    return tuple(depths)


def _stage_goals(depth: int, stages: int) -> tuple[tuple[int, ...], float]:
    """``(partial sums left after each stage but the last, average messages per tile)``."""
    if stages == 1:
        return (), float(depth)
    low = int(float(depth) ** ((stages - 1) / stages))
    plans = []
    # The root itself lies between the two.
    for left in (low, low + 1):
        goals, cost = _stage_goals(left, stages - 1)
        plans.append(((left, *goals), cost + depth / left))
    return plans[0] if plans[0][1] < plans[1][1] else plans[1]


#: Cycles per loop of ConvReduce besides the sums, by bytes of partial sums and result: (single input, several inputs).
_REDUCE_LOOP = {(4, 4): (8, 7), (4, 2): (7, 6), (2, 4): (10, 9), (2, 2): (9, 8)}


def reduce_single_cycles(outputs: Counts, depth: Counts, types: tuple[int, int], chip: Chip) -> Counts:
    """Tile cycles of ConvReduce with all partial sums but the first in one input; whole vectors of outputs only."""
    width = 4 if types[0] == 4 else 8
    loop = 2 * (depth - 1) + _REDUCE_LOOP[types][0]
    return 33 + chip.workers * (20 + loop * ceil(outputs // width, chip.workers))


def reduce_many_cycles(outputs: Counts, depth: Counts, types: tuple[int, int], chip: Chip) -> Counts:
    """Tile cycles of ConvReduce with one input for each partial sum."""
    size, workers, many = types[0], chip.workers, _REDUCE_LOOP[types][1]
    width = 4 if size == 4 else 8
    loops, remainder = outputs // width, outputs % width
    # What is no whole vector takes loops of four, two and one elements.
    loops = loops + (remainder & 1) + (remainder >> 1 & 1) + (remainder >> 2)
    tail = np.where(remainder > 0, 2 * depth + (13 if size == 4 else 11), 3 * depth + many)
    shares = loops // workers
    cycles: Counts = workers * (32 + shares * (3 * depth + many) + np.where(loops > shares * workers, tail, 0))
    return cycles


def _reduce_vertex(outputs: Counts, depth: Counts, types: tuple[int, int], chip: Chip) -> Counts:
    """Tile cycles of one ConvReduce of ``depth`` partial sums to ``outputs`` elements; ``types``: bytes in and out.

    The partial sums are one input where they fit into a sixteenth of the memory in whole elements, otherwise one each.
    """
    size, element = types[0], chip.memory_element_bytes
    moved = ceil((depth - 1) * outputs * size, element) * element
    single = (outputs % (4 if size == 4 else 8) == 0) & (moved * 16 < chip.bytes_per_tile)
    together = reduce_single_cycles(outputs, depth, types, chip)
    return together if single.all() else np.where(single, together, reduce_many_cycles(outputs, depth, types, chip))


@dataclass(frozen=True)
class Reduction:
    """Exchange cycles of later stages, cycles of reducing (or casting) partial sums, temporary bytes, stages."""

    exchange: Counts
    cycles: Counts
    temp_bytes: Counts
    stages: Counts


def reduction(partials: Counts, depths: Counts, size: int, out_size: int, chip: Chip) -> Reduction:
    """The reduction of ``depths`` partial sums of ``partials`` elements on each tile."""
    none = np.zeros_like(partials)
    several = np.flatnonzero(depths > 1)
    # Tiles with a single partial sum have nothing to add but still cast it.
    if size != out_size and len(several) < len(none):
        cycles = planned_cast_cycles(partials, max(size, out_size), chip)
    else:
        cycles = none
    if not len(several):
        return Reduction(none, cycles, none, none)
    if len(several) == len(none):
        return _stages(partials, depths, size, out_size, chip)
    some = _stages(partials[several], depths[several], size, out_size, chip)
    reduced = Reduction(none, cycles.copy(), none.copy(), none.copy())
    reduced.cycles[several], reduced.temp_bytes[several], reduced.stages[several] = (
        some.cycles,
        some.temp_bytes,
        some.stages,
    )
    # Single stages have no exchange of their own, so the zeros stay shared.
    if some.exchange.any():
        reduced = replace(reduced, exchange=none.copy())
        reduced.exchange[several] = some.exchange
    return reduced


def _stages(partials: Counts, depths: Counts, size: int, out_size: int, chip: Chip) -> Reduction:
    """The reduction of several partial sums, in up to three stages (:func:`reduce_depths`)."""
    partial_bytes, none = partials * size, np.zeros_like(partials)
    if depths.max() < _TWO_STAGES:
        cycles = _reduce_vertex(ceil(partials, depths), depths, (size, out_size), chip)
        return Reduction(none, cycles, partial_bytes, np.ones_like(partials))
    values, depth_index = np.unique(depths, return_inverse=True)
    plans = [reduce_depths(int(depth)) for depth in values]
    stages = np.array([len(plan) for plan in plans])[depth_index]
    exchange, cycles, sent, left = none, none, partials, ceil(partials, depths) * depths
    for stage in range(max(len(plan) for plan in plans)):
        fan = np.array([plan[stage] if stage < len(plan) else 1 for plan in plans])[depth_index]
        active = stages > stage
        if stage:
            exchange = exchange + active * ceil(sent * size, chip.exchange_bytes_per_cycle)
        sent, left = ceil(sent, fan), ceil(left, fan)
        final = _reduce_vertex(left, fan, (size, out_size), chip)
        # Only the last stage writes the type of the result; earlier ones keep that of the sums.
        between = final if size == out_size else _reduce_vertex(left, fan, (size, size), chip)
        cycles = cycles + active * np.where(stages == stage + 1, final, between)
    return Reduction(exchange, cycles, partial_bytes, stages)


@lru_cache(maxsize=4096)
def reduction_stages(partials: int, depth: int, size: int, out_size: int, chip: Chip) -> tuple[tuple[int, int], ...]:
    """``(bytes that arrive on a tile, tile cycles)`` of each stage in which ``depth`` partial sums are added up.

    These are the terms that :func:`reduction` adds up. Each stage reads what other tiles wrote in the one before.
    """
    stages, fans, sent, left = [], reduce_depths(depth), partials, -(-partials // depth) * depth
    for number, fan in enumerate(fans, start=1):
        arriving, left = sent * size, -(-left // fan)
        types = (size, out_size if number == len(fans) else size)
        stages.append((arriving, int(_reduce_vertex(np.array([left]), np.array([fan]), types, chip)[0])))
        sent = -(-sent // fan)
    return tuple(stages)


@lru_cache(maxsize=64)
def least_reductions(partial_size: int, out_size: int, chip: Chip) -> Counts:
    """Lower bounds of the cycles of reducing 0, 1, 2 ... (up to the number of tiles) partial sums, for any outputs."""
    depths = np.arange(chip.tiles + 1)
    # Whole vectors of 4 floats or 8 halves have a cheaper vertex, so they may undercut a single output.
    reductions = [
        reduction(np.full_like(depths, n), np.maximum(depths, 1), partial_size, out_size, chip) for n in (1, 4, 8)
    ]
    least: Counts = np.min(
        [stage_reduction.exchange + stage_reduction.cycles for stage_reduction in reductions], axis=0
    )
    return least
