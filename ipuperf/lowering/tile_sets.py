"""The two tile sets of an IPU: compute tiles, and tiles set aside for I/O.

With n I/O tiles, everything else is laid out and planned on ``tiles - n`` tiles. The I/O tiles are assumed to be the
last ones. Poplar spreads them over the chip, which changes no figure here. A vector over one set counts tiles from 0;
:meth:`TileSets.whole` moves it to its place on the chip.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipuperf.ir import IrError, Tensor
from ipuperf.ir import Op as Operation
from ipuperf.machine import Chip, Machine
from ipuperf.ops.transfers.io_tile_copy import IoTileCopy

from .placement import readers
from .tilevector import TileVector

COMPUTE, IO = "compute", "io"


class TileSets:
    """How the tiles of each IPU are divided.

    Args:
        machine: the machine with all tiles.
        io_tiles: tiles set aside for I/O on each IPU; with 0 there is one set, and ops that ask for I/O tiles run with
            everything else.

    Attributes:
        machines: the machine as each set sees it.

    Raises:
        IrError: fewer than 0 I/O tiles, or no tile left to compute.
    """

    def __init__(self, machine: Machine, io_tiles: int) -> None:
        chip = machine.chip
        if not 0 <= io_tiles < chip.tiles:
            raise IrError(f"num_io_tiles is {io_tiles}, allowed on {chip.name}: 0 to {chip.tiles - 1}")
        self.machine = machine
        self.io_tiles = io_tiles
        self.machines = {COMPUTE: machine}
        if io_tiles:
            self.machines = {COMPUTE: _with(machine, chip.tiles - io_tiles), IO: _with(machine, io_tiles)}
        self._whole: dict[tuple[TileVector, str], TileVector] = {}

    def chip(self, tile_set: str) -> Chip:
        """The chip as a tile set sees it."""
        return self.machines[tile_set].chip

    def of(self, op: Operation) -> str:
        """The set on which an op runs and its results lie (a copy between sets: where it goes).

        Raises:
            IrError: a copy between tile sets without I/O tiles.
        """
        if isinstance(op, IoTileCopy):
            if not self.io_tiles:
                raise IrError(f"{op.where()}: there are no I/O tiles; set num_io_tiles of the Ir")
            return op.destination
        return op.tile_set if self.io_tiles else COMPUTE

    def reading(self, op: Operation, index: int) -> str:
        """The set on which an op reads its input ``index``."""
        return op.source if isinstance(op, IoTileCopy) and index == 0 else self.of(op)

    def user(self, tensor: Tensor) -> str:
        """The set on which a tensor is first read (:func:`.placement.readers`); ``compute`` when nobody reads it."""
        return next((self.reading(op, index) for op, index in readers(tensor)), COMPUTE)

    def whole(self, vector: TileVector, tile_set: str) -> TileVector:
        """A vector over one set as one over all tiles of the IPU."""
        if not self.io_tiles:
            return vector
        key = (vector, tile_set)
        if key not in self._whole:
            other_set = np.zeros(self.chip(IO if tile_set == COMPUTE else COMPUTE).tiles, dtype=np.int64)
            # The I/O tiles are the last ones.
            parts = [vector.dense(), other_set] if tile_set == COMPUTE else [other_set, vector.dense()]
            self._whole[key] = TileVector.of(np.concatenate(parts))
        return self._whole[key]


def _with(machine: Machine, tiles: int) -> Machine:
    return replace(machine, chip=machine.chip.with_tiles(tiles))
