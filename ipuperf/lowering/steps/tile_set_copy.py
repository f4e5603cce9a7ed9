"""Copies between the two tile sets of an IPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .base import ON_TILES, Place, Step


@dataclass(frozen=True)
class TileSetCopy(Step):
    """One exchange between the compute tiles and the I/O tiles of the IPU, in which both take part.

    The tile set that comes first waits for the other. Then both have a sync of ``sync`` cycles and an exchange of
    ``cycles``. ``destination`` is ``io`` or ``compute``.
    """

    destination: str
    bytes: int
    sync: int
    cycles: int

    choices = (("destination", ("compute", "io")),)
    counts = ("bytes", "sync")
    io_tiles = True

    def amounts(self) -> Iterator[tuple[str, int]]:
        """Its cycles, without the time in which the tile sets wait for each other."""
        yield ON_TILES, self.sync + self.cycles

    def faults(self, place: Place) -> Iterator[str]:
        """Negative cycles."""
        yield from super().faults(place)
        if self.cycles < 0:
            yield f"{self.cycles} cycles"
