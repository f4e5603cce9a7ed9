"""Tile mapping: which tile holds how many elements of a tensor.

``linear`` is the mapping that PopLibs calls linear (``lib/poputil/TileMapping.cpp``): grains of one vector, at least
128 bytes on a tile, tiles filled evenly. Layouts are compared by ``key``. Equal keys mean that equal elements lie on
equal tiles, so an element-wise op needs no exchange. Different keys mean that everything moves. The exact overlap of
two different mappings is not worked out, a simplification that can only over-count exchange.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from ipuperf.ir import Graph, Tensor, data_of
from ipuperf.machine import Chip

from .tilevector import TileVector

MIN_BYTES_PER_TILE = 128


@dataclass(frozen=True)
class Layout:
    """Elements per tile of one tensor, with an identity.

    Attributes:
        key: equal for tensors whose elements lie alike.
        elements: elements per tile.
        distinct: for a view that repeats elements, the shape of the repeated tensor, aligned to the view's axes.
    """

    key: Hashable
    elements: TileVector = field(compare=False)
    distinct: tuple[int, ...] | None = None

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    def __hash__(self) -> int:
        return self._hash

    @property
    def total(self) -> int:
        """Elements in all."""
        return self.elements.total

    def bytes(self, size: int) -> TileVector:
        """Bytes per tile for elements of ``size`` bytes."""
        return self.elements.times(size)


def distinct_elements(shape: Sequence[int], whole: Sequence[int], count: np.ndarray) -> np.ndarray:
    """Number of elements of a tensor of ``shape``, broadcast to ``whole``, that ``count`` neighbours in ``whole`` read.

    ``count`` is a vector; neighbours are taken row by row. A tensor that does not broadcast is read one by one. The
    answer is never more than all elements.
    """
    padded = (1,) * (len(whole) - len(shape)) + tuple(shape)
    total = math.prod(padded)
    if len(padded) != len(whole) or any(
        size not in (1, whole_size) for size, whole_size in zip(padded, whole, strict=True)
    ):
        distinct: np.ndarray = np.minimum(count, total)
        return distinct
    if 0 in whole:
        return np.zeros_like(count)
    # Elements read, and neighbours covered, by the innermost axes so far.
    read: np.ndarray = np.minimum(count, 1)
    span = 1
    for size, whole_size in zip(reversed(padded), reversed(whole), strict=True):
        # A repeated axis reads the same elements again, so it only widens the span.
        if size == whole_size:
            read = read * np.minimum(whole_size, np.maximum(1, -(-count // span)))
        span *= whole_size
    return read


def spread(units: int, tiles: int) -> np.ndarray:
    """``units`` over ``tiles`` as evenly as whole units allow: tile t gets ``floor((t+1)u/t) - floor(tu/t)``."""
    edges = (np.arange(tiles + 1, dtype=np.int64) * units) // tiles
    return np.diff(edges)


@lru_cache(maxsize=4096)
def linear(elements: int, size: int, vector_width: int, tiles: int) -> Layout:
    """The linear mapping of ``elements`` elements of ``size`` bytes on ``tiles`` tiles."""
    if elements == 0:
        return Layout(("linear", 0, size), TileVector((tiles,), (0,)))
    grains = -(-elements // vector_width)
    # PopLibs puts no fewer than so many bytes on a tile, so small tensors use few tiles.
    min_grains = max(1, -(-MIN_BYTES_PER_TILE // size) // vector_width)
    # The formula is that of ``docs/reference/memory.md`` 1.
    per_tile = max(-(-grains // tiles), -(-grains // max(1, grains // min_grains)))
    used = -(-grains // per_tile)
    counts = np.zeros(tiles, dtype=np.int64)
    counts[:used] = spread(grains, used) * vector_width
    # The last grain may be partly empty.
    counts[used - 1] -= grains * vector_width - elements
    return Layout(("linear", elements, size), TileVector.of(np.maximum(counts, 0)))


@lru_cache(maxsize=1024)
def even(key: Hashable, elements: int, tiles: int, used: int, grain: int, start: int = 0) -> Layout:
    """``elements`` in grains of ``grain``, spread over ``used`` tiles from ``start`` on.

    This is the mapping of an operand or result of a matrix product.
    """
    grains = -(-elements // grain)
    used = max(1, min(used, tiles, grains))
    counts = np.zeros(tiles, dtype=np.int64)
    counts[:used] = spread(grains, used) * grain
    excess = grains * grain - elements
    tile = used - 1
    # The last grain may be partly empty; the surplus is taken off the last tiles.
    while excess > 0 and tile >= 0:
        cut = min(excess, int(counts[tile]))
        counts[tile] -= cut
        excess -= cut
        tile -= 1
    return Layout(key, TileVector.of(np.roll(counts, start)))


class DataLayouts:
    """Layouts of variables, constants and streams, and of results with a wished layout.

    Args:
        chip: the chip as the compute tiles see it.
        parameters: operands of products.
        wishes: layouts that stashes and buffers should have, by owner of the storage.
    """

    def __init__(self, chip: Chip, parameters: set[Tensor], wishes: Mapping[Tensor, Layout]) -> None:
        self._chip = chip
        self._parameters = parameters
        self.wishes = wishes

    def add_to(self, layouts: dict[Tensor, Layout], graph: Graph) -> None:
        """Lay out the data of ``graph`` in ``layouts``."""
        # Results of Init get their wished layout before their op is lowered.
        layouts.update({tensor: layout for tensor, layout in self.wishes.items() if tensor.graph is graph})
        for tensor in data_of(graph):
            layouts[tensor] = self._layout(tensor)

    def _layout(self, tensor: Tensor) -> Layout:
        if tensor in self.wishes:
            return self.wishes[tensor]
        elements, size, tiles = tensor.spec.elements, tensor.dtype.size, self._chip.tiles
        # Small parameters lie linearly, as there is less than one element for each tile.
        if tensor in self._parameters and elements >= tiles:
            return even(("parameter", elements, size), elements, tiles, tiles, 8)
        return self.linear(elements, size)

    def linear(self, elements: int, size: int) -> Layout:
        """Linear mapping of ``elements`` elements of ``size`` bytes."""
        return linear(elements, size, self._chip.vector_width(size), self._chip.tiles)
