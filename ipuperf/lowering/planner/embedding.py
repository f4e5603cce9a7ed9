"""Plans of lookups and of updates of a table by indices.

As PopLibs plans them (``docs/reference/planner.md`` 7; ``lib/popops/DynamicSlice.cpp`` constructModel): the tiles form
a grid of groups x parts of the indices x parts of the table's rows x parts of its columns; of all grids that use no
more tiles than there are and whose temporary memory fits, the one with the fewest estimated cycles is taken.

* A part of the *indices* works on its own copy of its piece of the table, which is broadcast to it (a lookup) or whose
  sums are reduced over the parts (an update).
  What is written, not combined, leaves nothing to reduce: its indices are not split.
* A part of the *rows* finds only what lies in it: a lookup selects among the candidates of all parts in a second stage,
  an update sees the slices for all parts.

The estimates are PopLibs', with what biases them: a table that is not spread over all tiles is charged as if it had to
be brought there, and indices are uniformly distributed. What the chosen plan takes, :mod:`ipuperf.lowering.lookups`
says phase by phase.

Simplified: of plans with equal estimates that on the fewest tiles is taken (PopLibs takes the first of its solver); the
plan is for a lookup or for an update, never for both with one layout of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ops import vertices
from ipuperf.ops.gather import multi_slice_cycles, multi_update_cycles
from ipuperf.ops.update_vertices import scaled_add_cycles
from ipuperf.ops.vertices import ceil_div
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
        groups, indices, rows, columns: what the fullest tile has of each.
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
        """Elements of the table that lie on a tile: a piece lies spread over the parts of the indices."""
        return -(-self.piece // self.index_split)


def splits(count: int, most: int) -> np.ndarray:
    """Numbers of parts of ``count``, up to ``most``, of which none can be left out with parts of the same size."""
    found, parts = [], 1
    while parts <= min(count, most):
        size = -(-count // parts)
        found.append(-(-count // size))
        if size == 1:
            break
        parts = -(-count // (size - 1))
    return np.array([n for n in found if n <= most], dtype=np.int64)


def strided_reduce(outputs: np.ndarray, partials: np.ndarray, size: int, chip: Chip) -> np.ndarray:
    """Tile cycles of StridedReduce vertices that add up ``partials`` of each of ``outputs`` sums of ``size`` bytes, the
    sums split over the workers in vectors (``docs/reference/cycles.md`` 5.1)."""
    vectors = ceil_div(ceil_div(outputs, chip.vector_width(size)), chip.workers)
    return chip.workers * (16 + vectors * (3 + 3 + (8 if size == 2 else 5) + partials - 1))


@dataclass(frozen=True)
class _Grids:
    """All grids at once: arrays of one length."""

    item: Lookup
    chip: Chip
    groups: np.ndarray
    indices: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    index_split: np.ndarray
    row_split: np.ndarray

    def exchange(self, size: np.ndarray) -> np.ndarray:
        """Cycles in which a tile receives ``size`` bytes."""
        return ceil_div(size, self.chip.exchange_bytes_per_cycle)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.item.dtype.size

    @property
    def surplus(self) -> np.ndarray:
        """Bytes that a tile has of the table beyond an even spread over all tiles."""
        grain = _grain(self.item)
        grains = -(-self.item.width // grain) * self.item.entries * self.item.groups
        even = -(-grains // self.chip.tiles) * grain * self.size
        return np.maximum(self.rows * self.columns * self.groups * self.size - even, 0)


def _grain(item: Lookup) -> int:
    """Elements of a slice that stay together: 8 bytes."""
    return min(item.width, max(1, 8 // item.dtype.size))


def _hits(indices: np.ndarray, rows: np.ndarray, entries: int) -> np.ndarray:
    """Of ``indices``, how many are expected in ``rows`` of ``entries``, rounded up."""
    return np.minimum(indices, np.ceil(indices * (rows / entries)).astype(np.int64))


def _lookup_estimates(grids: _Grids) -> tuple[np.ndarray, np.ndarray]:
    """Cycles and temporary bytes of a lookup."""
    item, workers, size = grids.item, grids.chip.workers, grids.size
    split, divided = grids.index_split > 1, grids.row_split > 1
    second = ceil_div(grids.indices, grids.row_split)
    grains = ceil_div(grids.columns, _grain(item))
    table = np.maximum(split * grids.rows * grids.columns * grids.groups * size, grids.surplus)
    arriving = grids.row_split * second * grids.columns * grids.groups * size

    def stage(part: np.ndarray, indices: np.ndarray) -> np.ndarray:
        mine = ceil_div(indices, workers)
        hits = _hits(mine, grids.rows, item.entries)
        return grids.groups * multi_slice_cycles(part, hits, mine - hits, size, workers)

    cycles = grids.exchange(table) + stage(grids.columns, grids.indices)
    cycles = cycles + divided * (grids.exchange(arriving) + stage(grains, second))
    first = divided * grids.indices * grids.columns * grids.groups * size
    memory = np.maximum(
        table + first + grids.indices * grids.groups * 4, first + divided * arriving + second * grids.groups * 4
    )
    return cycles, memory


def update_cycles(
    item: TableUpdate, columns: np.ndarray, found: np.ndarray, passed: np.ndarray, workers: int
) -> np.ndarray:
    """Tile cycles of the vertices of an update; those that only write are MultiUpdate vertices, which cost what those
    of a lookup do (PerformanceEstimation.cpp)."""
    cycles = multi_slice_cycles if item.operation == "NONE" else multi_update_cycles
    return cycles(columns, found, passed, item.dtype.size, workers)


def combined_cycles(item: TableUpdate, elements: np.ndarray, chip: Chip, *, apart: bool) -> np.ndarray:
    """Tile cycles in which reduced partial tables get into the table: a scaled addition, or the operation itself;
    what is written has no partial tables.

    ``apart``: table and sums lie in different memory elements. PopLibs' planner counts on that ("optimistically", says
    DynamicSlice.cpp), but nothing makes them lie so: its scaledAddTo is asked for without ``optimizeForSpeed``.
    """
    if item.operation == "ADD":
        return scaled_add_cycles(item.dtype, item.dtype, True, apart=apart)(elements, chip)
    if item.operation == "NONE":
        return np.zeros_like(elements)
    return vertices.binary(COMBINED_BY[item.operation], item.dtype, 1).cycles(elements, chip)


def _update_estimates(grids: _Grids) -> tuple[np.ndarray, np.ndarray]:
    """Cycles and temporary bytes of an update."""
    item, chip, size = grids.item, grids.chip, grids.size
    assert isinstance(item, TableUpdate)
    split, divided = grids.index_split > 1, grids.row_split > 1
    sums = grids.rows * grids.columns * grids.groups
    slices = divided * grids.indices * grids.columns * size
    hits = _hits(grids.indices, ceil_div(grids.rows, chip.workers), item.entries)
    update = update_cycles(item, grids.columns, hits, grids.indices - hits, chip.workers)
    outputs = ceil_div(sums, grids.index_split)
    reduced = outputs * grids.index_split
    reduction = strided_reduce(outputs, grids.index_split, size, chip)
    added = combined_cycles(item, outputs, chip, apart=True)
    cycles = 2 * grids.exchange(grids.surplus) + grids.exchange(grids.groups * slices) + grids.groups * update
    filled = vertices.fill(item.dtype, 1).cycles(sums, chip)
    cycles = cycles + split * (filled + grids.exchange(reduced * size) + reduction + added)
    partials = split * sums * size
    memory = grids.surplus + np.maximum(grids.groups * (slices + grids.indices * 4) + partials, 2 * partials)
    return cycles, memory


def _grids(chip: Chip, item: Lookup) -> tuple[_Grids, np.ndarray]:
    """All grids of at most all tiles, and the split of the columns of each."""
    grain = _grain(item)
    grains = -(-item.width // grain)
    written = isinstance(item, TableUpdate) and item.operation == "NONE"
    axes = (
        splits(item.groups, chip.tiles),
        splits(item.indices, 1 if written else chip.tiles),
        splits(item.entries, min(chip.tiles, -(-item.entries // LEAST_ROWS))),
        splits(grains, chip.tiles),
    )
    group, index, row, column = (axis.reshape(-1) for axis in np.meshgrid(*axes, indexing="ij"))
    fits = group * index * row * column <= chip.tiles
    group, index, row, column = group[fits], index[fits], row[fits], column[fits]
    columns = np.minimum(-(-grains // column) * grain, item.width)
    parts = (-(-item.groups // group), -(-item.indices // index), -(-item.entries // row), columns)
    return _Grids(item, chip, *parts, index, row), column


@lru_cache(maxsize=1024)
def plan_lookup(chip: Chip, item: Lookup) -> EmbeddingPlan:
    """The cheapest plan of a lookup or an update on ``chip``; when no plan's temporary memory fits into
    ``available_memory_proportion`` of a tile, the cheapest of all, as PopLibs does.

    Raises:
        ValueError: a dimension below 1 or a proportion outside (0, 1].
    """
    if min(item.entries, item.width, item.indices, item.groups) < 1:
        raise ValueError(
            f"a table of {item.entries} x {item.width} with {item.indices} indices in {item.groups} groups has no "
            "plan; every number has to be at least 1"
        )
    if not 0 < item.available_memory_proportion <= 1:
        raise ValueError(
            f"availableMemoryProportion is {item.available_memory_proportion}; allowed: above 0, at most 1"
        )
    grids, column = _grids(chip, item)
    cycles, memory = (_update_estimates if isinstance(item, TableUpdate) else _lookup_estimates)(grids)
    fitting = memory <= item.available_memory_proportion * chip.bytes_per_tile
    if not fitting.any():
        fitting[:] = True
    group = -(-item.groups // grids.groups)
    tiles = group * grids.index_split * grids.row_split * column
    best = np.lexsort((tiles, cycles, ~fitting))[0]
    numbers = (
        group, grids.index_split, grids.row_split, column,
        grids.groups, grids.indices, grids.rows, grids.columns, cycles, memory,
    )  # fmt: skip
    return EmbeddingPlan(*(int(each[best]) for each in numbers))
