"""Lookups and updates of tables by indices: the phases of their plans (:mod:`.planner.embedding`).

Vertices and exchanges are those of PopLibs' ``lib/popops/DynamicSlice.cpp`` (multiSlicePlanned,
generatePlannedMultiUpdateOp). The planner uses expected numbers of indices. The phases wait for the slowest worker of
the chip, so they use the largest number that one worker is expected to find among uniformly distributed indices.

Simplifications: The table lies as its plan reads it, even where another op made it (PopART lets lookups choose the
layout first). Slices arrive and results lie as planned. Groups are spread over the tiles without telling them apart.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ipuperf.ir import INT32
from ipuperf.ops import vertices
from ipuperf.ops import work as w
from ipuperf.ops.selection.gather import multi_slice_cycles

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

#: The smallest number of indices on one tile (popops createIndicesTensor).
LEAST_INDICES = 32

#: Cycles of an operation on an index in a generated vertex (assumed).
MAP_CYCLES = 3

#: With at least so many parts of the rows, the slices of an update are rearranged before they are broadcast.
REARRANGED_SPLIT = 4


@lru_cache(maxsize=4096)
def most_hits(indices: int, share: float, workers: int) -> int:
    """The largest number of ``indices`` that one of ``workers`` finds in its ``share`` of the rows.

    It is the median of the maximum of as many independent binomial numbers.
    """
    if share >= 1 or indices == 0:
        return indices
    # All workers stay below a bound in half of all cases if each one exceeds it this rarely.
    allowed = 1 - 0.5 ** (1 / workers)
    log_share, log_others = math.log(share), math.log1p(-share)
    below = 0.0
    for hits in range(indices):
        # In logarithms, as the numbers of ways are too large for floats.
        log_ways = math.lgamma(indices + 1) - math.lgamma(hits + 1) - math.lgamma(indices - hits + 1)
        below += math.exp(log_ways + hits * log_share + (indices - hits) * log_others)
        if 1 - below <= allowed:
            return hits
    return indices


class _Planned:
    """A lookup or update with its plan; its methods append the phases."""

    def __init__(self, stepper: Superstepper, work: w.Lookup, plan: EmbeddingPlan) -> None:
        self.stepper, self.work, self.plan = stepper, work, plan
        self.name = f"{stepper.op.type}[{work.groups}x{work.entries}x{work.width}, {work.indices} indices]"
        self.size, self.chip = work.dtype.size, stepper.chip
        stepper.gathered = True  # the exchanges of the plan bring the operands

    def on_tiles(self, value: int, tiles: int | None = None) -> TileVector:
        """``value`` on each tile of the plan, or on ``tiles`` tiles."""
        return TileVector.uniform(value, self.chip.tiles, tiles or self.plan.tiles)

    def holds(self, elements: int, indices: int) -> None:
        """Note temporary memory of ``elements`` and ``indices`` per group on each tile."""
        size = elements * self.size + indices * INDEX_BYTES
        self.stepper.out.need(self.on_tiles(self.plan.groups * size))

    def exchange(self, payload: str, size: int) -> None:
        """Append an exchange in which each tile receives ``size`` bytes."""
        self.stepper.exchange(f"{self.name}/{payload}", self.on_tiles(size))

    def compute(self, vertex: str, cycles: int, flops: int = 0) -> None:
        """Append a compute set with vertices on each tile of the plan."""
        self.stepper.compute(vertex, self.on_tiles(cycles), flops=flops)

    def slices(self, indices: int, hits: int, passed: int) -> None:
        """Append a compute set of MultiSlice vertices with ``indices`` on a tile, if there are any.

        The slowest worker finds ``hits`` indices in its rows, and does not find ``passed``.
        """
        if indices:
            columns = np.array(self.plan.columns)
            cycles = multi_slice_cycles(columns, np.array(hits), np.array(passed), self.size, self.chip.workers)
            name = f"popops::MultiSlice<{vertices.poplar_type(self.work.dtype)}>"
            self.compute(name, self.plan.groups * int(cycles))

    def elementwise(self, work: w.Vertices, elements: int) -> None:
        """Append a compute set of ``elements`` on each tile."""
        self.compute(work.vertex, int(work.cycles(np.array([elements]), self.chip)[0]))

    def layout(self, kind: str, elements: int, grain: int) -> Layout:
        """The layout of a tensor that is spread over the tiles of the plan."""
        key = (kind, self.plan, elements)
        return even(key, elements, self.chip.tiles, self.plan.tiles, grain if elements % grain == 0 else 1)


@lowers(w.Lookup)
def lookup(stepper: Superstepper, work: w.Lookup) -> None:
    """Append the phases of a lookup.

    The indices go to the tiles, and the table too where parts of the indices share it; then slices are cut. With parts
    of the rows the slices are candidates, and a second stage selects among them.
    """
    plan = plan_lookup(stepper.chip, work)
    planned, workers = _Planned(stepper, work, plan), stepper.chip.workers
    # Several parts of the indices work on copies of a piece of the table, which has to be brought to them.
    table = plan.piece * planned.size if plan.index_split > 1 else 0
    planned.exchange("indices", plan.groups * plan.indices * INDEX_BYTES + table)
    indices_per_worker = -(-plan.indices // workers)
    workers_in_all = plan.group_split * plan.index_split * plan.row_split * workers
    hits = most_hits(indices_per_worker, plan.rows / work.entries, workers_in_all)
    planned.slices(plan.indices, hits, indices_per_worker - hits)
    divided = plan.row_split > 1
    table = plan.rows * plan.columns if plan.index_split > 1 else 0
    planned.holds(table + divided * plan.indices * plan.columns, plan.indices)
    if divided:
        _candidates(planned)
    if stepper.op.outputs and stepper.op.outputs[0] not in stepper.layouts:
        elements = stepper.op.outputs[0].spec.elements
        stepper.layouts[stepper.op.outputs[0]] = planned.layout("slices", elements, plan.columns)


def _candidates(planned: _Planned) -> None:
    """Append the second stage: find the part with the row of each index, then slice the candidates of all parts.

    Finding the part takes a division and two more operations for each index, on the tiles where the indices lie. The
    divisor, the rows of a part, is a constant of the generated vertex (``lib/popops/DynamicSlice.cpp``
    multiSlicePlanned), so its compiler shifts by a power of two.
    """
    plan, chip, total = planned.plan, planned.chip, planned.work.indices * planned.work.groups
    indices_on_tile = min(total, max(LEAST_INDICES, -(-total // chip.tiles)))
    numbered = vertices.fill(INT32, plan.second_indices)
    planned.elementwise(numbered, min(indices_on_tile, plan.second_indices))
    planned.exchange("positions", 2 * indices_on_tile * INDEX_BYTES)
    indices_per_worker = -(-indices_on_tile // chip.workers)
    power_of_two = plan.rows & (plan.rows - 1) == 0
    division = MAP_CYCLES if power_of_two else chip.division_cycles
    planned.compute("popops::map<unsigned int>", chip.workers * (20 + indices_per_worker * (division + 2 * MAP_CYCLES)))
    stage_indices = plan.second_indices
    bytes_in = plan.row_split * stage_indices * plan.columns * planned.size + stage_indices * INDEX_BYTES
    planned.exchange("candidates", plan.groups * bytes_in)
    planned.holds((plan.indices + plan.row_split * stage_indices) * plan.columns, stage_indices)
    # Every index finds its row here, as the candidates are already selected by part.
    planned.slices(stage_indices, -(-stage_indices // chip.workers), 0)


@lowers(w.TableUpdate)
def update(stepper: Superstepper, work: w.TableUpdate) -> None:
    """Append the phases of an update.

    The result is filled or copied, slices and indices go to the tiles, and vertices update. With parts of the indices
    there are partial tables, which are cleared, reduced and added.
    """
    chip = stepper.chip
    plan = plan_lookup(chip, work)
    planned, workers = _Planned(stepper, work, plan), chip.workers
    if work.cleared:
        planned.elementwise(vertices.fill(work.dtype, 1), plan.stored)
    if work.copied:
        _copied(planned)
    if plan.row_split >= REARRANGED_SPLIT:
        planned.exchange("rearranged slices", plan.groups * plan.second_indices * plan.columns * planned.size)
    if plan.index_split > 1:
        planned.elementwise(vertices.fill(work.dtype, 1), plan.piece)
    slices = plan.columns * planned.size if plan.row_split > 1 else 0
    planned.exchange("indices", plan.groups * plan.indices * (INDEX_BYTES + slices))
    share = -(-plan.rows // workers) / work.entries
    workers_in_all = plan.group_split * plan.index_split * plan.row_split * workers
    hits = most_hits(plan.indices, share, workers_in_all)
    columns, passed = np.array(plan.columns), np.array(plan.indices - hits)
    cycles = plan.groups * int(update_cycles(work, columns, np.array(hits), passed, workers))
    planned.compute(_vertex(work), cycles, work.flops)
    partials = plan.rows * plan.columns if plan.index_split > 1 else 0
    planned.holds((plan.row_split > 1) * plan.indices * plan.columns + partials, plan.indices)
    if plan.index_split > 1:
        # The reduction holds the partial tables of the tile and those that arrive.
        planned.holds(2 * partials, 0)
        _partials(planned, work)
    op = stepper.op
    if op.outputs and op.outputs[0] not in stepper.layouts and not op.aliases():
        elements = op.outputs[0].spec.elements
        stepper.layouts[op.outputs[0]] = planned.layout("table", elements, plan.columns)


def _copied(planned: _Planned) -> None:
    """Append the copy of a table that lies row by row to where the plan has it.

    With parts of the columns, what a tile needs are short pieces of rows on others. These gather them first, word by
    word, as a tile sends to another what lies in one piece. (The way back takes an exchange alone: pieces are put apart
    as they arrive.) Nobody else creates the operand's layout: PopART's scatter makes those of data and indices only
    (``popart: willow/src/popx/op/scatterreducex.cpp``).
    """
    plan, chip = planned.plan, planned.chip
    size = plan.stored * planned.size
    rate = chip.strided_copy_cycles_per_byte if plan.column_split > 1 else 1 / chip.memcpy_bytes_per_cycle
    name = f"poplar::{'StridedCopy' if plan.column_split > 1 else 'Memcpy'}{8 * planned.size}"
    planned.exchange("initial values", size)
    planned.compute(name, chip.copy_setup_cycles + math.ceil(size * rate))


def _vertex(work: w.TableUpdate) -> str:
    """The vertex of an update; only sums have a scale."""
    kind = vertices.poplar_type(work.dtype)
    if work.operation == "NONE":
        return f"popops::MultiUpdate<{kind}>"
    return f"popops::{'Scaled' if work.operation == 'ADD' else ''}MultiUpdateOp<{kind},{work.operation}>"


def _reduced(planned: _Planned, work: w.TableUpdate, sums: int, fan_in: int) -> None:
    """Append a stage of a reduction: each tile adds up ``fan_in`` partials of each of ``sums``."""
    planned.exchange("partials", sums * fan_in * planned.size)
    cycles = strided_reduce(np.array(sums), np.array(fan_in), planned.size, planned.chip)
    planned.compute(f"popops::Reduce<{work.operation},{vertices.poplar_type(work.dtype)}>", int(cycles))


def _partials(planned: _Planned, work: w.TableUpdate) -> None:
    """Append the phases that reduce the partial tables and combine them with the table."""
    plan, chip, kind = planned.plan, planned.chip, vertices.poplar_type(work.dtype)
    fan_in = plan.index_split
    # The planner's estimate leaves this stage out (``docs/reference/planner.md`` 7).
    if has_intermediate_stage(fan_in, plan.tiles, chip):
        groups = intermediate_groups(fan_in)
        sums = plan.piece * (plan.tiles // fan_in) * groups
        _reduced(planned, work, -(-sums // chip.tiles), -(-fan_in // groups))
        fan_in = groups
    _reduced(planned, work, plan.stored, fan_in)
    # Nothing places table and sums in different memory elements, whatever the planner counts on.
    combined = combined_cycles(work, np.array([plan.stored]), chip, apart=False)
    name = (
        f"ScaledAddSupervisor<{kind}>"
        if work.operation == "ADD"
        else f"BinaryOp1D<{COMBINED_BY[work.operation]},{kind}>"
    )
    planned.compute(f"popops::{name}", int(combined[0]))
