"""What the IPUs of a simulation share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .instructions import require_countable

if TYPE_CHECKING:
    from ipuperf.machine import Topology

    from .algorithms import CollectiveSyncs
    from .classes import ReplicaClasses
    from .event_loop import EventLoop
    from .host import HostServer
    from .network import Network
    from .recorder import Recorder


@dataclass(frozen=True)
class Delays:
    """Fixed costs in cycles: external sync, syncs before a round of a collective, latency of a remote transfer and of a
    stream copy, start of a run."""

    external_sync: int
    collective_syncs: CollectiveSyncs
    remote: int
    stream: int
    run: int


@dataclass
class World:
    """What the IPU processes of a simulation share.

    Attributes:
        placement: IPU of the machine by replica and IPU of the replica.
        clock_hz: of the tiles.
        streams: number of each (direction, stream).
        most: cycles that a run must not reach.
        stride: parties of a replica.
        folds: loops in steady state are folded.
        classes: replicas that are taken to do the same (:mod:`.symmetry`).
        looped: set whenever an iteration of a loop begins.
        folded: cycles added by folding.
    """

    events: EventLoop
    network: Network
    host: HostServer
    recorder: Recorder
    topology: Topology
    placement: tuple[tuple[int, ...], ...]
    clock_hz: int
    delays: Delays
    streams: dict[tuple[str, str], int]
    most: int
    stride: int
    folds: bool
    classes: ReplicaClasses
    looped: bool = False
    folded: int = 0

    def alike(self, replica: int) -> tuple[int, ...]:
        """The replicas for which a simulated one stands, itself first."""
        return self.classes.members[self.classes.of[replica]]

    def require_countable(self, time: int) -> None:
        """Raise :class:`SimulationError` unless this moment of the event loop can be told in true time."""
        require_countable(time + self.folded, "the run", most=self.most)
