"""What the simulation raises."""

from __future__ import annotations


class SimulationError(RuntimeError):
    """A program that cannot be simulated on this machine, or that waits for ever (who waits for what)."""


class Asymmetric(SimulationError):
    """Replicas that were taken to do the same do not; never seen by users (:mod:`.symmetry`)."""
