"""What the simulation raises."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class SimulationError(RuntimeError):
    """A program that cannot be simulated on this machine, or that waits for ever (who waits for what)."""


class Asymmetric(SimulationError):
    """Replicas that were taken to do the same do not; never seen by users (:mod:`.symmetry`).

    Attributes:
        apart: sets of replicas that did the same; those of different sets, or of none, did not.
    """

    def __init__(self, reason: str, apart: Sequence[Collection[int]] = ()) -> None:
        super().__init__(reason)
        self.apart = apart
