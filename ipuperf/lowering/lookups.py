"""Lookups and updates of tables by indices: the phases of their plans (:mod:`.planner.embedding`).

Vertices and exchanges are those of PopLibs' ``lib/popops/DynamicSlice.cpp`` (multiSlicePlanned,
generatePlannedMultiUpdateOp). The planner counts with expected numbers; the phases wait for the slowest worker of the
chip, so here the most indices count that one worker is expected to find among uniformly distributed ones.

Simplified: the table lies as its plan wants it, as the op that makes its layout (PopART gives lookups the first right
to), also where another op made it; slices come and results lie as planned; groups are spread, not told apart.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ipuperf.ir import INT32
from ipuperf.ops import vertices
from ipuperf.ops import work as w
from ipuperf.ops.gather import multi_slice_cycles

from .layout import Layout, even
from .planner.embedding import (
    COMBINED_BY,
    EmbeddingPlan,
    combined_cycles,
    plan_lookup,
    strided_reduce,
    update_cycles,
)
from .reductions import has_intermediate_stage, intermediate_groups
from .supersteps import Superstepper, lowers
from .tilevector import TileVector

#: Bytes of an index on the device.
INDEX_BYTES = 4

#: Indices that lie on one tile at least (popops createIndicesTensor).
LEAST_INDICES = 32

#: From so many parts of the rows on, the slices of an update are rearranged before they are broadcast.
REARRANGED_SPLIT = 4


@lru_cache(maxsize=4096)
def most_hits(indices: int, share: float, workers: int) -> int:
    """The most of ``indices`` that one of ``workers`` finds in its ``share`` of the rows: the median of the greatest of
    as many independent binomial numbers."""
    if share >= 1 or indices == 0:
        return indices
    allowed = 1 - 0.5 ** (1 / workers)
    log_share, log_rest = math.log(share), math.log1p(-share)
    below = 0.0
    for hits in range(indices):
        ways = math.lgamma(indices + 1) - math.lgamma(hits + 1) - math.lgamma(indices - hits + 1)
        below += math.exp(ways + hits * log_share + (indices - hits) * log_rest)
        if 1 - below <= allowed:
            return hits
    return indices


class _Planned:
    """One work with its plan, on the way to its phases."""

    def __init__(self, stepper: Superstepper, item: w.Lookup, plan: EmbeddingPlan) -> None:
        self.stepper, self.item, self.plan = stepper, item, plan
        self.name = f"{stepper.op.type}[{item.groups}x{item.entries}x{item.width}, {item.indices} indices]"
        self.size, self.chip = item.dtype.size, stepper.chip
        stepper.gathered = True  # the exchanges of the plan bring the operands

    def on_tiles(self, value: int, tiles: int | None = None) -> TileVector:
        """``value`` on each tile of the plan."""
        return TileVector.uniform(value, self.chip.tiles, tiles or self.plan.tiles)

    def holds(self, elements: int, indices: int) -> None:
        """Each tile has so many elements and indices beside the operands and the result."""
        size = elements * self.size + indices * INDEX_BYTES
        self.stepper.out.need(self.on_tiles(self.plan.groups * size))

    def exchange(self, what: str, size: int) -> None:
        """Each tile receives ``size`` bytes."""
        self.stepper.exchange(f"{self.name}/{what}", self.on_tiles(size))

    def compute(self, vertex: str, cycles: int, flops: int = 0) -> None:
        """Vertices on each tile of the plan."""
        self.stepper.compute(vertex, self.on_tiles(cycles), flops=flops)

    def slices(self, indices: int, found: int, passed: int) -> None:
        """A compute set of MultiSlice vertices, ``indices`` on a tile."""
        if indices:
            columns = np.array(self.plan.columns)
            cycles = multi_slice_cycles(columns, np.array(found), np.array(passed), self.size, self.chip.workers)
            name = f"popops::MultiSlice<{vertices.poplar_type(self.item.dtype)}>"
            self.compute(name, self.plan.groups * int(cycles))

    def elementwise(self, item: w.Vertices, elements: int) -> None:
        """A compute set of ``elements`` on each tile."""
        self.compute(item.vertex, int(item.cycles(np.array([elements]), self.chip)[0]))

    def layout(self, kind: str, elements: int, grain: int) -> Layout:
        """A tensor that lies as the plan wants it."""
        key = (kind, self.plan, elements)
        return even(key, elements, self.chip.tiles, self.plan.tiles, grain if elements % grain == 0 else 1)


@lowers(w.Lookup)
def lookup(stepper: Superstepper, item: w.Lookup) -> None:
    """Indices (and the table, where parts of the indices share it) to the tiles, slices; with parts of the rows the
    candidates' positions, an exchange of candidates, and the slices again."""
    plan = plan_lookup(stepper.chip, item)
    planned, workers = _Planned(stepper, item, plan), stepper.chip.workers
    table = plan.piece * planned.size if plan.index_split > 1 else 0
    planned.exchange("indices", plan.groups * plan.indices * INDEX_BYTES + table)
    each = -(-plan.indices // workers)
    drawn = plan.group_split * plan.index_split * plan.row_split * workers
    found = most_hits(each, plan.rows / item.entries, drawn)
    planned.slices(plan.indices, found, each - found)
    divided = plan.row_split > 1
    table = plan.rows * plan.columns if plan.index_split > 1 else 0
    planned.holds(table + divided * plan.indices * plan.columns, plan.indices)
    if divided:
        _candidates(planned)
    if stepper.op.outputs and stepper.op.outputs[0] not in stepper.layouts:
        elements = stepper.op.outputs[0].spec.elements
        stepper.layouts[stepper.op.outputs[0]] = planned.layout("slices", elements, plan.columns)


def _candidates(planned: _Planned) -> None:
    """The second stage: which part has the row (a division and two more operations for each index, where the indices
    lie), then the slices among the candidates of all parts."""
    plan, chip, total = planned.plan, planned.chip, planned.item.indices * planned.item.groups
    lying = min(total, max(LEAST_INDICES, -(-total // chip.tiles)))
    numbered = vertices.fill(INT32, plan.second_indices)
    planned.elementwise(numbered, min(lying, plan.second_indices))
    planned.exchange("positions", 2 * lying * INDEX_BYTES)
    each = -(-lying // chip.workers)
    planned.compute("popops::map<unsigned int>", chip.workers * (20 + each * (chip.division_cycles + 2 * 3)))
    second = plan.second_indices
    bytes_in = plan.row_split * second * plan.columns * planned.size + second * INDEX_BYTES
    planned.exchange("candidates", plan.groups * bytes_in)
    planned.holds((plan.indices + plan.row_split * second) * plan.columns, second)
    planned.slices(second, -(-second // chip.workers), 0)


@lowers(w.TableUpdate)
def update(stepper: Superstepper, item: w.TableUpdate) -> None:
    """A result that is filled; slices and indices to the tiles; updates; with parts of the indices partial tables that
    are cleared, reduced and added."""
    chip = stepper.chip
    plan = plan_lookup(chip, item)
    planned, workers = _Planned(stepper, item, plan), chip.workers
    if item.cleared:
        planned.elementwise(vertices.fill(item.dtype, 1), plan.stored)
    if plan.row_split >= REARRANGED_SPLIT:
        planned.exchange("rearranged slices", plan.groups * plan.second_indices * plan.columns * planned.size)
    if plan.index_split > 1:
        planned.elementwise(vertices.fill(item.dtype, 1), plan.piece)
    slices = plan.columns * planned.size if plan.row_split > 1 else 0
    planned.exchange("indices", plan.groups * plan.indices * (INDEX_BYTES + slices))
    share = -(-plan.rows // workers) / item.entries
    drawn = plan.group_split * plan.index_split * plan.row_split * workers
    found = most_hits(plan.indices, share, drawn)
    columns, passed = np.array(plan.columns), np.array(plan.indices - found)
    cycles = plan.groups * int(update_cycles(item, columns, np.array(found), passed, workers))
    planned.compute(_vertex(item), cycles, item.flops)
    partials = plan.rows * plan.columns if plan.index_split > 1 else 0
    planned.holds((plan.row_split > 1) * plan.indices * plan.columns + partials, plan.indices)
    if plan.index_split > 1:
        planned.holds(2 * partials, 0)
        _partials(planned, item)
    op = stepper.op
    if op.outputs and op.outputs[0] not in stepper.layouts and not op.aliases():
        elements = op.outputs[0].spec.elements
        stepper.layouts[op.outputs[0]] = planned.layout("table", elements, plan.columns)


def _vertex(item: w.TableUpdate) -> str:
    """The vertex that updates: only sums have a scale."""
    kind = vertices.poplar_type(item.dtype)
    if item.operation == "NONE":
        return f"popops::MultiUpdate<{kind}>"
    return f"popops::{'Scaled' if item.operation == 'ADD' else ''}MultiUpdateOp<{kind},{item.operation}>"


def _reduced(planned: _Planned, item: w.TableUpdate, sums: int, fan_in: int) -> None:
    """A stage of a reduction: each tile adds up ``fan_in`` partials of each of ``sums``."""
    planned.exchange("partials", sums * fan_in * planned.size)
    cycles = strided_reduce(np.array(sums), np.array(fan_in), planned.size, planned.chip)
    planned.compute(f"popops::Reduce<{item.operation},{vertices.poplar_type(item.dtype)}>", int(cycles))


def _partials(planned: _Planned, item: w.TableUpdate) -> None:
    """The partial tables of the parts of the indices, reduced and combined with the table."""
    plan, chip, kind = planned.plan, planned.chip, vertices.poplar_type(item.dtype)
    fan_in = plan.index_split
    if has_intermediate_stage(fan_in, plan.tiles, chip):
        groups = intermediate_groups(fan_in)
        sums = plan.piece * (plan.tiles // fan_in) * groups
        _reduced(planned, item, -(-sums // chip.tiles), -(-fan_in // groups))
        fan_in = groups
    _reduced(planned, item, plan.stored, fan_in)
    combined = combined_cycles(item, np.array([plan.stored]), chip, apart=False)
    name = (
        f"ScaledAddSupervisor<{kind}>"
        if item.operation == "ADD"
        else f"BinaryOp1D<{COMBINED_BY[item.operation]},{kind}>"
    )
    planned.compute(f"popops::{name}", int(combined[0]))
