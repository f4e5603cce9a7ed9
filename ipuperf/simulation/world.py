"""The objects and settings that the IPUs of a simulation share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .instructions import require_countable

if TYPE_CHECKING:
    from ipuperf.machine import Faults, Topology

    from .algorithms import CollectiveSyncs
    from .classes import ReplicaClasses
    from .event_loop import EventLoop
    from .host import HostServer
    from .network import Network
    from .recorder import Recorder


@dataclass(frozen=True)
class Delays:
    """Fixed costs in cycles.

    Attributes:
        external_sync: an external sync.
        collective_syncs: the syncs before a round of a collective.
        remote: the latency of a remote transfer.
        stream: the latency of a stream copy.
        run: the start of a run.
    """

    external_sync: int
    collective_syncs: CollectiveSyncs
    remote: int
    stream: int
    run: int


@dataclass
class World:
    """The objects and settings that the IPU processes of a simulation share.

    Attributes:
        placement: IPU of the machine, by replica and IPU of the replica.
        planned: the links for which collectives are planned, those of a machine without faults.
        faults: what is wrong with the machine.
        clock_hz: the tile clock.
        streams: the number of each (direction, stream).
        most: a run must have fewer cycles than this.
        stride: how many parties a replica has.
        folds: whether loops in steady state are folded.
        classes: replicas that are assumed to do the same (:mod:`.symmetry`).
        looped: whether an iteration of a loop has begun since the folder looked.
        folded: cycles added by folding.
    """

    events: EventLoop
    network: Network
    host: HostServer
    recorder: Recorder
    topology: Topology
    planned: Topology
    faults: Faults
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
        """The replicas for which a simulated replica stands, itself first."""
        return self.classes.members[self.classes.of[replica]]

    def require_countable(self, time: int) -> None:
        """Raise :class:`SimulationError` if this time of the event loop is too large to be counted in true time."""
        require_countable(time + self.folded, "the run", most=self.most)
