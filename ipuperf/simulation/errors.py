"""Exceptions of the simulation."""

from __future__ import annotations

from collections.abc import Collection, Sequence


class SimulationError(RuntimeError):
    """A program cannot be simulated on this machine, or waits for ever; the message then says who waits for what."""


class Asymmetric(SimulationError):
    """Replicas that were assumed to do the same do not. Users never see this error (:mod:`.symmetry`).

    Attributes:
        apart: sets of replicas that did the same. Replicas of different sets, or of none, did not.
    """

    def __init__(self, reason: str, apart: Sequence[Collection[int]] = ()) -> None:
        super().__init__(reason)
        self.apart = apart
