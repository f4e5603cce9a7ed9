"""What happened, as it happened: plain lists in the time of the event loop, made into tables at the end.

Folding (:mod:`.folding`) copies and shifts rows by their ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .instructions import Stretch


@dataclass(frozen=True)
class Label:
    """What a transfer is for: its kind in the trace and the op."""

    kind: str
    op_id: int


class Ran(NamedTuple):
    """A stretch executed by an IPU, from ``start``, counted back from its end; ``stream`` and ``batch`` say which slice
    of which host load came last (-1: none), ``loop`` and ``iteration`` the innermost loop (index of its instruction)
    and its trip (-1: none)."""

    stretch: Stretch
    start: int
    epoch: int
    stream: int
    batch: int
    loop: int
    iteration: int


class Flight(NamedTuple):
    """A send over the network: whose it is, ids of the links of its route, what it occupies, and the IPU (machine
    number) that asked for it."""

    owner: tuple[int, ...]
    links: tuple[int, ...]
    resources: tuple[int, ...]
    ipu: int


class Transferred(NamedTuple):
    """Sends that began and ended together: bytes of each (``size``), and what their owners begin with (``owner``)."""

    start: int
    dur: int
    owner: tuple[int, ...]
    flights: tuple[Flight, ...]
    size: int
    label: Label


class LineKey(NamedTuple):
    """What a host server does for a stream: prepare, complete, accept or handle its slices."""

    server: int
    stream: int
    work: str


class HostEvent(NamedTuple):
    """What the host does for one slice of a stream, of all replicas of a server."""

    start: int
    dur: int
    line: LineKey


class Recorder:
    """Collects the rows of a simulation of ``processes`` IPU processes."""

    def __init__(self, processes: int) -> None:
        self.stretches: list[list[Ran]] = [[] for _ in range(processes)]
        self.transfers: list[Transferred] = []
        self.host: list[HostEvent] = []
        self.epoch = 0  # folds made

    def ran(self, process: int, row: Ran) -> None:
        """Process number ``process`` executes a stretch (which may begin ahead of the present time)."""
        self.stretches[process].append(row)

    def transfer(self, row: Transferred) -> None:
        """A flow ended."""
        self.transfers.append(row)

    def host_event(self, start: int, dur: int, line: LineKey) -> None:
        """The host works on a slice from ``start`` on."""
        self.host.append(HostEvent(start, dur, line))
