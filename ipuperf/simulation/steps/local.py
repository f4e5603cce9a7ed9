"""Phases and internal syncs: the tiles of one IPU."""

from __future__ import annotations

import numpy as np

from ipuperf.lowering.steps import Phase, Sync

from ..kinds import LocalKind, StepRow, simulates


@simulates(Phase)
class PhaseKind(LocalKind[Phase]):
    """Each tile is busy for its own cycles."""

    @classmethod
    def programs(cls, step: Phase) -> tuple[str, ...]:
        """The type for a compute set or for an exchange."""
        return ("OnTileExecute" if step.kind == "compute" else "DoExchange",)

    @classmethod
    def row(cls, step: Phase, tiles: int, first_tile: int) -> StepRow:
        """The trace's row, from the cycles of the tiles."""
        cycles = step.cycles
        longest = cycles.max
        slowest = cycles.argmax + first_tile if longest else -1
        mean = cycles.total / tiles
        return (step.kind, longest, mean, cycles.active, slowest, step.bytes_in, step.bytes_out, step.flops)

    @classmethod
    def tile_cycles(cls, step: Phase, tiles: int) -> np.ndarray:
        """The cycles of the phase. Tiles beyond its vector do nothing."""
        cycles = np.zeros(tiles, dtype=np.int64)
        cycles[: step.cycles.tiles] = step.cycles.dense()
        return cycles


@simulates(Sync)
class SyncKind(LocalKind[Sync]):
    """All tiles meet, and the sync takes its cycles."""

    types = ("Sync",)

    @classmethod
    def row(cls, step: Sync, tiles: int, first_tile: int) -> StepRow:
        """The trace's row: all tiles take equally long."""
        return ("sync", step.cycles, float(step.cycles), tiles, -1, 0, 0, 0)
