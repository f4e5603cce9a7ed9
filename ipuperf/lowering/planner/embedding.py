"""Plans of lookups and of updates of a table by indices.

The method is that of PopLibs (``docs/reference/planner.md`` 7; ``lib/popops/DynamicSlice.cpp`` constructModel). The
tiles form a grid of groups x parts of the indices x parts of the table's rows x parts of its columns. The plan is the
grid with the fewest estimated cycles, of all grids with no more tiles than the chip and whose memory fits.

* A part of the *indices* works on its own copy of its piece of the table. A lookup broadcasts that piece; an update
  reduces its sums over the parts. An update that only writes has nothing to reduce, so its indices are not split.
* A part of the *rows* finds only indices of its own rows. A lookup selects among the candidates of all parts in a
  second stage; an update sees the slices for all parts.

The estimates are PopLibs', with their biases: a table that is not spread over all tiles is charged as if it had to be
brought there, and indices are uniformly distributed. :mod:`ipuperf.lowering.lookups` gives the cycles of the chosen
plan phase by phase.

Simplifications: Of plans with equal estimates, the one on the fewest tiles is chosen (PopLibs takes the first of its
solver). A plan is for a lookup or for an update, never for both with one layout of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ops import vertices
from ipuperf.ops.selection.gather import multi_slice_cycles, multi_update_cycles
from ipuperf.ops.updates.update_vertices import scaled_add_cycles
from ipuperf.ops.vertices import Counts, ceil_div
from ipuperf.ops.work import Lookup, TableUpdate

if TYPE_CHECKING:
    from ipuperf.machine import Chip

#: Element-wise operations by the operation of an update.
COMBINED_BY = {"MAX": "MAXIMUM", "MUL": "MULTIPLY"}

#: PopLibs does not split a table so far that a tile has fewer rows.
LEAST_ROWS = 2


@dataclass(frozen=True)
class EmbeddingPlan:
    """How a lookup or an update is split over the tiles.

    Attributes:
        group_split, index_split, row_split, column_split: parts of groups, indices, rows of the table and columns.
        groups, indices, rows, columns: number of each on the fullest tile.
        cycles: PopLibs' estimate, by which the plan was chosen.
        temporary_bytes: PopLibs' estimate of temporary memory on a tile.
    """

    group_split: int
    index_split: int
    row_split: int
    column_split: int
    groups: int
    indices: int
    rows: int
    columns: int
    cycles: int
    temporary_bytes: int

    @property
    def tiles(self) -> int:
        """Tiles that take part."""
        return self.group_split * self.index_split * self.row_split * self.column_split

    @property
    def second_indices(self) -> int:
        """Indices that a tile has in the second stage of a lookup."""
        return -(-self.indices // self.row_split)

    @property
    def piece(self) -> int:
        """Elements of the table that the vertices of a tile work on."""
        return self.groups * self.rows * self.columns

    @property
    def stored(self) -> int:
        """Elements of the table that lie on a tile; the parts of the indices share the elements of a piece."""
        return -(-self.piece // self.index_split)


def splits(count: int, most: int) -> Counts:
    """Useful numbers of parts of ``count``, up to ``most``: for each size of a part, the smallest number."""
    part_counts, parts = [], 1
    while parts <= min(count, most):
        size = -(-count // parts)
        part_counts.append(-(-count // size))
        if size == 1:
            break
        # The next number of parts whose size is smaller.
        parts = -(-count // (size - 1))
    return np.array([n for n in part_counts if n <= most], dtype=np.int64)


def strided_reduce(outputs: Counts, partials: Counts, size: int, chip: Chip) -> Counts:
    """Tile cycles of StridedReduce vertices that add up ``partials`` of each of ``outputs`` sums of ``size`` bytes.

    The sums are split over the workers in vectors (``docs/reference/cycles.md`` 5.1).
    """
    vectors = ceil_div(ceil_div(outputs, chip.vector_width(size)), chip.workers)
    return chip.workers * (16 + vectors * (3 + 3 + (8 if size == 2 else 5) + partials - 1))


@dataclass(frozen=True)
class _Grids:
    """All grids at once: arrays of one length."""

    work: Lookup
    chip: Chip
    groups: Counts
    indices: Counts
    rows: Counts
    columns: Counts
    index_split: Counts
    row_split: Counts

    def exchange(self, size: Counts) -> Counts:
        """Cycles in which a tile receives ``size`` bytes."""
        return ceil_div(size, self.chip.exchange_bytes_per_cycle)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.work.dtype.size

    @property
    def surplus(self) -> Counts:
        """Bytes that a tile has of the table beyond an even spread over all tiles."""
        # A bias of PopLibs' estimate, not traffic (``docs/reference/planner.md`` 7).
        grain = _grain(self.work)
        grains = -(-self.work.width // grain) * self.work.entries * self.work.groups
        even = -(-grains // self.chip.tiles) * grain * self.size
        surplus: Counts = np.maximum(self.rows * self.columns * self.groups * self.size - even, 0)
        return surplus


def _grain(work: Lookup) -> int:
    """Elements of a slice that stay together: 8 bytes."""
    return min(work.width, max(1, 8 // work.dtype.size))


def _hits(indices: Counts, rows: Counts, entries: int) -> Counts:
    """Expected number of ``indices`` in ``rows`` of ``entries``, rounded up."""
    return np.minimum(indices, np.ceil(indices * (rows / entries)).astype(np.int64))


def _lookup_estimates(grids: _Grids) -> tuple[Counts, Counts]:
    """Cycles and temporary bytes of a lookup."""
    work, workers, size = grids.work, grids.chip.workers, grids.size
    split, divided = grids.index_split > 1, grids.row_split > 1
    second_indices = ceil_div(grids.indices, grids.row_split)
    grains = ceil_div(grids.columns, _grain(work))
    # Split indices need a copy of the whole piece; otherwise only what exceeds an even spread arrives.
    table = np.maximum(split * grids.rows * grids.columns * grids.groups * size, grids.surplus)
    arriving = grids.row_split * second_indices * grids.columns * grids.groups * size

    def stage(part: Counts, indices: Counts) -> Counts:
        mine = ceil_div(indices, workers)
        hits = _hits(mine, grids.rows, work.entries)
        # Indices outside the rows of a tile are read and skipped, which costs cycles too.
        return grids.groups * multi_slice_cycles(part, hits, mine - hits, size, workers)

    cycles = grids.exchange(table) + stage(grids.columns, grids.indices)
    cycles = cycles + divided * (grids.exchange(arriving) + stage(grains, second_indices))
    first_stage_bytes = divided * grids.indices * grids.columns * grids.groups * size
    # The stages follow each other, so the larger one counts. An index takes 4 bytes.
    memory = np.maximum(
        table + first_stage_bytes + grids.indices * grids.groups * 4,
        first_stage_bytes + divided * arriving + second_indices * grids.groups * 4,
    )
    return cycles, memory


def update_cycles(work: TableUpdate, columns: Counts, hits: Counts, passed: Counts, workers: int) -> Counts:
    """Tile cycles of the vertices of an update.

    Updates that only write use MultiUpdate vertices, which cost as much as those of a lookup
    (PerformanceEstimation.cpp).
    """
    cycles = multi_slice_cycles if work.operation == "NONE" else multi_update_cycles
    return cycles(columns, hits, passed, work.dtype.size, workers)


def combined_cycles(work: TableUpdate, elements: Counts, chip: Chip, *, apart: bool) -> Counts:
    """Tile cycles of combining reduced partial tables with the table, by a scaled addition or the operation itself.

    An update that only writes has no partial tables.

    ``apart``: table and sums lie in different memory elements. PopLibs' planner counts on that ("optimistically", says
    DynamicSlice.cpp), but nothing makes them lie so: its scaledAddTo is asked for without ``optimizeForSpeed``.
    """
    if work.operation == "ADD":
        return scaled_add_cycles(work.dtype, work.dtype, True, apart=apart)(elements, chip)
    if work.operation == "NONE":
        return np.zeros_like(elements)
    return vertices.binary(COMBINED_BY[work.operation], work.dtype, 1).cycles(elements, chip)


def _update_estimates(grids: _Grids) -> tuple[Counts, Counts]:
    """Cycles and temporary bytes of an update."""
    work, chip, size = grids.work, grids.chip, grids.size
    assert isinstance(work, TableUpdate)
    split, divided = grids.index_split > 1, grids.row_split > 1
    sums = grids.rows * grids.columns * grids.groups
    slices = divided * grids.indices * grids.columns * size
    # The workers share the rows, and each of them looks at every index.
    hits = _hits(grids.indices, ceil_div(grids.rows, chip.workers), work.entries)
    update = update_cycles(work, grids.columns, hits, grids.indices - hits, chip.workers)
    outputs = ceil_div(sums, grids.index_split)
    # A tile receives its share of the sums from every part of the indices.
    reduced = outputs * grids.index_split
    reduction = strided_reduce(outputs, grids.index_split, size, chip)
    added = combined_cycles(work, outputs, chip, apart=True)
    # The surplus travels to the tile and back.
    cycles = 2 * grids.exchange(grids.surplus) + grids.exchange(grids.groups * slices) + grids.groups * update
    filled = vertices.fill(work.dtype, 1).cycles(sums, chip)
    cycles = cycles + split * (filled + grids.exchange(reduced * size) + reduction + added)
    partials = split * sums * size
    memory = grids.surplus + np.maximum(grids.groups * (slices + grids.indices * 4) + partials, 2 * partials)
    return cycles, memory


def _grids(chip: Chip, work: Lookup) -> tuple[_Grids, Counts]:
    """All grids of at most all tiles, and the split of the columns of each."""
    grain = _grain(work)
    grains = -(-work.width // grain)
    written = isinstance(work, TableUpdate) and work.operation == "NONE"
    axes = (
        splits(work.groups, chip.tiles),
        splits(work.indices, 1 if written else chip.tiles),
        splits(work.entries, min(chip.tiles, -(-work.entries // LEAST_ROWS))),
        splits(grains, chip.tiles),
    )
    group, index, row, column = (axis.reshape(-1) for axis in np.meshgrid(*axes, indexing="ij"))
    fits = group * index * row * column <= chip.tiles
    group, index, row, column = group[fits], index[fits], row[fits], column[fits]
    columns = np.minimum(-(-grains // column) * grain, work.width)
    parts = (-(-work.groups // group), -(-work.indices // index), -(-work.entries // row), columns)
    return _Grids(work, chip, *parts, index, row), column


@lru_cache(maxsize=1024)
def plan_lookup(chip: Chip, work: Lookup) -> EmbeddingPlan:
    """The cheapest plan of a lookup or an update on ``chip`` that fits.

    When no plan's temporary memory fits into ``available_memory_proportion`` of a tile, it is the cheapest of all, as
    in PopLibs.

    Raises:
        ValueError: a dimension below 1 or a proportion outside (0, 1].
    """
    if min(work.entries, work.width, work.indices, work.groups) < 1:
        raise ValueError(
            f"a table of {work.entries} x {work.width} with {work.indices} indices in {work.groups} groups has no "
            "plan; every number has to be at least 1"
        )
    if not 0 < work.available_memory_proportion <= 1:
        raise ValueError(
            f"availableMemoryProportion is {work.available_memory_proportion}; allowed: above 0, at most 1"
        )
    grids, column = _grids(chip, work)
    cycles, memory = (_update_estimates if isinstance(work, TableUpdate) else _lookup_estimates)(grids)
    fitting = memory <= work.available_memory_proportion * chip.bytes_per_tile
    if not fitting.any():
        fitting[:] = True
    group = -(-work.groups // grids.groups)
    tiles = group * grids.index_split * grids.row_split * column
    # Grids that fit come first, then few cycles, then few tiles.
    best = np.lexsort((tiles, cycles, ~fitting))[0]
    numbers = (
        group,
        grids.index_split,
        grids.row_split,
        column,
        grids.groups,
        grids.indices,
        grids.rows,
        grids.columns,
        cycles,
        memory,
    )
    return EmbeddingPlan(*(int(values[best]) for values in numbers))
