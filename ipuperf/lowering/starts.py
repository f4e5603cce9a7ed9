"""On which tile a linear mapping begins.

PopLibs begins every mapping at tile 0. PopART turns it: each mapping begins on the tile after the last one of the
previous mapping, and wraps around (``popart:willow/src/popx/linearmapper.cpp``). The TensorFlow backend does the same
(``MapTensorLinearly`` of ``driver/tools/mapping_helper.cc``). Otherwise the biases, norms and counters of a network,
which take a few tiles each, would all lie on the first tiles. Products are not turned: their plans begin at tile 0
(``enableConvDithering`` of PopLibs is off by default).

Simplifications: Only memory per tile takes the turn into account, and only for variables and buffers, the vertices that
work on them with their code, and the copies of them that calls make. Results of ops are counted from tile 0. Times are
those of tensors that all begin at tile 0.
"""

from __future__ import annotations

import numpy as np

from ipuperf.ir import Tensor

from .layout import Layout
from .places import Places
from .tilevector import TileVector


class LinearStarts:
    """First tiles of linear mappings, in the order in which :meth:`give` is called.

    Args:
        places: which tensors share storage, and on which IPU they lie.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._first: dict[Tensor, int] = {}
        self._next: dict[tuple[int | None, int], int] = {}

    def give(self, tensor: Tensor, layout: Layout) -> int:
        """The first tile of ``tensor``, which lies as ``layout``.

        It is the next free tile; 0 for a tensor that takes all tiles or is not laid out linearly.
        """
        tiles, used = layout.elements.tiles, layout.elements.active
        if used in (0, tiles) or not _linear(layout):
            return 0
        owner = self._places.owner(tensor)
        if owner not in self._first:
            # Each IPU and tile set counts on its own.
            counter = (self._places.homes.get(owner), tiles)
            self._first[owner] = self._next.get(counter, 0)
            self._next[counter] = (self._first[owner] + used) % tiles
        return self._first[owner]

    def of(self, tensor: Tensor) -> int:
        """The first tile of ``tensor``, or of the tensor whose storage it shares; 0 if none was given."""
        return self._first.get(self._places.owner(tensor), 0)


def _linear(layout: Layout) -> bool:
    """Whether a layout is the linear mapping, or a stack of slices that are."""
    key = layout.key
    while isinstance(key, tuple) and key[0] == "stacked":
        key = key[3].key
    return isinstance(key, tuple) and key[0] == "linear"


def turned(vector: TileVector, start: int) -> TileVector:
    """``vector`` turned so that its first tile is tile ``start``; the end wraps around."""
    if not start:
        return vector
    stops, values, cut = vector.run_stops, vector.run_values, vector.tiles - start
    # The run with the last tile before the cut, and the run with the first tile after it.
    run_before_cut, run_after_cut = stops.searchsorted((cut, cut + 1))
    ahead = np.minimum(stops[: run_before_cut + 1], cut) + start
    return TileVector(
        np.concatenate((stops[run_after_cut:] - cut, ahead)),
        np.concatenate((values[run_after_cut:], values[: run_before_cut + 1])),
    ).merged()
