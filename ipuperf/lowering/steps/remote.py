"""Transfers between Streaming Memory and an IPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .base import Place, Step, traffic

if TYPE_CHECKING:
    from .sync_groups import SyncGroups


@dataclass(frozen=True)
class RemoteTransfer(Step):
    """``bytes`` per replica between Streaming Memory and this IPU; ``direction`` is ``load`` or ``store``.

    ``wire_bytes`` are the bytes that the DDR really moves; pieces below the smallest efficient access are rounded up.
    """

    direction: str
    bytes: int
    wire_bytes: int
    buffer_id: int

    choices = (("direction", ("load", "store")),)
    counts = ("bytes", "wire_bytes")

    def amounts(self) -> Iterator[tuple[str, int]]:
        """A transfer of the bytes that the DDR moves."""
        return traffic(f"remote {self.direction}", self.wire_bytes)

    def meets(self, ipu: int, syncs: SyncGroups) -> tuple[int, ...]:
        """Those that stand during host I/O too (PopART user guide, "Sync patterns")."""
        return syncs.standing(ipu)

    def faults(self, place: Place) -> Iterator[str]:
        """A machine without Streaming Memory raises :class:`~ipuperf.machine.MachineError`."""
        yield from super().faults(place)
        place.machine.ipu_machine.require_streaming_memory()
