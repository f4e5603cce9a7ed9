"""Steps on the tiles of one IPU: the parts of supersteps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ipuperf.machine import Chip

from ..tilevector import TileVector
from .base import Cost, LocalStep, Place

KINDS = ("compute", "exchange")
"""Values of :attr:`Phase.kind`."""


@dataclass(frozen=True)
class Phase(LocalStep):
    """One phase of a superstep on all tiles of an IPU.

    Attributes:
        kind: ``compute`` or ``exchange``.
        cycles: per tile; the phase lasts as long as its slowest tile.
        bytes_in, bytes_out: received and sent over the internal exchange in all (exchange phases).
        flops: floating-point operations in all (compute phases).
        vertex: vertex type (compute phases).
        launch: the part of ``cycles`` in which a tile that has vertices launches them (compute phases).
    """

    kind: str
    cycles: TileVector
    bytes_in: int = 0
    bytes_out: int = 0
    flops: int = 0
    vertex: str = ""
    launch: int = 0

    choices = (("kind", KINDS),)
    counts = ("bytes_in", "bytes_out", "flops")

    @property
    def slowest(self) -> int:
        """Cycles of the slowest tile after its launch, for its vertices or for the data that arrive there."""
        return self.cycles.max - self.launch

    @property
    def duration(self) -> int:
        """Cycles of its slowest tile."""
        return self.cycles.max

    @property
    def tiles(self) -> int:
        """Number of tiles of ``cycles``."""
        return self.cycles.tiles

    @property
    def cost(self) -> Cost:
        """As a value to add up."""
        return Cost(self.cycles.max, self.bytes_in, self.bytes_out, self.flops)

    def describe(self) -> list[str]:
        """The slowest tile and how many are busy."""
        return [f"{self.kind} {self.name}: {self.cycles.max} cycles, {self.cycles.active} tiles"]

    def faults(self, place: Place) -> Iterable[str]:
        """More tiles than the chip has, or negative cycles."""
        chip, cycles = place.machine.chip, self.cycles
        # Nearly all phases are sound, so the cheap test of all conditions comes first.
        fits = cycles.tiles <= chip.tiles and cycles.min >= 0 and self.kind in KINDS
        sound = fits and self.bytes_in >= 0 and self.bytes_out >= 0 and self.flops >= 0
        return () if sound else self._wrong(chip, place)

    def _wrong(self, chip: Chip, place: Place) -> Iterator[str]:
        yield from super().faults(place)
        if self.cycles.tiles > chip.tiles:
            yield f"{self.cycles.tiles} tiles, {chip.name} has {chip.tiles}"
        if self.cycles.min < 0:
            yield f"{self.cycles.min} cycles on a tile"


@dataclass(frozen=True)
class Sync(LocalStep):
    """Internal sync: every tile of the IPU waits for the others, for ``cycles``."""

    cycles: int

    @property
    def duration(self) -> int:
        """Its cycles."""
        return self.cycles

    @property
    def cost(self) -> Cost:
        """As a value to add up."""
        return Cost(self.cycles)

    def faults(self, place: Place) -> Iterable[str]:
        """Negative cycles."""
        return () if self.cycles >= 0 else (f"{self.cycles} cycles",)
