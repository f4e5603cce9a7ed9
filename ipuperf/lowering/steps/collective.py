"""Collectives between replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .base import Place, Step, traffic

if TYPE_CHECKING:
    from .sync_groups import SyncGroups

RING_PAIR = "bidirectional_ring_pair"
MEET_IN_MIDDLE = "meet_in_middle_ring"
HIERARCHICAL = "hierarchical"
BROADCAST = "broadcast"
METHODS = ("auto", RING_PAIR, MEET_IN_MIDDLE, HIERARCHICAL, BROADCAST)
"""Values of :attr:`Collective.method`."""


@dataclass(frozen=True)
class Collective(Step):
    """A collective of ``bytes`` (whole tensor of one replica) in replica groups, as rounds of sends.

    Attributes:
        kind: ``all_reduce``, ``reduce_scatter`` or ``all_gather``.
        bytes: unsharded bytes on one replica.
        groups: members (replica numbers) of each group.
        reduce_cycles: cycles to add one received chunk of ``bytes / group size`` on the tiles (0 for a gather).
        method: ``auto``, or one of the algorithms of :mod:`ipuperf.simulation.algorithms`.
    """

    kind: str
    bytes: int
    groups: tuple[tuple[int, ...], ...]
    reduce_cycles: int
    method: str = "auto"

    choices = (("kind", ("all_reduce", "reduce_scatter", "all_gather")), ("method", METHODS))
    counts = ("bytes", "reduce_cycles")

    def amounts(self) -> Iterator[tuple[str, int]]:
        """One transfer, by the size of the replica groups."""
        return traffic(f"{self.kind} of {len(self.groups[0])} replicas", self.bytes)

    def meets(self, ipu: int, syncs: SyncGroups) -> tuple[int, ...]:
        """All IPUs, under every sync pattern."""
        # A collective in groups of one replica moves nothing, so nobody waits for it.
        return syncs.everyone if len(self.groups[0]) > 1 else ()

    def faults(self, place: Place) -> Iterator[str]:
        """Groups that do not contain each replica exactly once."""
        yield from super().faults(place)
        if sorted(member for group in self.groups for member in group) != list(range(place.replicas)):
            yield f"the groups {self.groups} must hold each of the replicas 0 to {place.replicas - 1} exactly once"
