"""Syncs in which IPUs that do not communicate wait for the IPUs that do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .base import Place, Step
from .inter_ipu import ipus


@dataclass(frozen=True)
class ExternalSync(Step):
    """IPUs of a replica meet before some of them communicate; every participant has this step at its place.

    It takes no time of its own. The communication that follows has its own sync, and the other IPUs go on.

    Attributes:
        participants: the IPUs that meet, ascending.
    """

    participants: tuple[int, ...]

    def describe(self) -> list[str]:
        """Who meets."""
        return [f"ExternalSync {self.name}: {ipus(self.participants)}"]

    def faults(self, place: Place) -> Iterable[str]:
        """IPUs that do not exist, or a sync in which this IPU takes no part."""
        participants = self.participants
        sound = place.ipu in participants and min(participants) >= 0 and max(participants) < place.ipus
        return () if sound else self._wrong(place)

    def _wrong(self, place: Place) -> Iterator[str]:
        wrong = [ipu for ipu in self.participants if not 0 <= ipu < place.ipus]
        if wrong:
            yield f"{ipus(wrong)} cannot take part, allowed: IPUs 0 to {place.ipus - 1}"
        if place.ipu not in self.participants:
            yield f"it is of {ipus(self.participants)}"
