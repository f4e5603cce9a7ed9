"""PopDist for PopART's session options."""

from __future__ import annotations

from ipuperf.frontends.popart import SessionOptions

from . import replicas_of_one_process


def configureSessionOptions(options: SessionOptions) -> None:
    """Make all replicas of all instances replicas of this process."""
    replicas = replicas_of_one_process("popdist.popart.configureSessionOptions")
    options.enableReplicatedGraphs = replicas > 1
    options.replicatedGraphCount = replicas


__all__ = ["configureSessionOptions"]
