"""What happened, as it happened: columns in the time of the event loop, made into tables at the end.

Folding (:mod:`.folding`) copies and shifts rows by their ends. A row is a few numbers in an array that grows, not an
object; what comes again and again is a template, and the row says which.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Label:
    """What a transfer is for: its kind in the trace and the op."""

    kind: str
    op_id: int


class Flight(NamedTuple):
    """A send over the network: whose it is, ids of the links of its route, what it occupies, and the IPU (machine
    number) that asked for it."""

    owner: tuple[int, ...]
    links: tuple[int, ...]
    resources: tuple[int, ...]
    ipu: int


class TransferTemplate(NamedTuple):
    """Sends of one size: what their owners begin with (``owner``), and bytes of each (``size``)."""

    owner: tuple[int, ...]
    flights: tuple[Flight, ...]
    size: int
    label: Label


class LineKey(NamedTuple):
    """What a host server does for a stream: prepare, complete, accept or handle its slices."""

    server: int
    stream: int
    work: str


class RunBefore(NamedTuple):
    """A run of the engine that comes before the simulated one and was simulated by itself: its name and what it
    takes."""

    name: str
    cycles: int


class HostEvent(NamedTuple):
    """What the host does for one slice of a stream, of all replicas of a server."""

    start: int
    dur: int
    line: LineKey


class Rows:
    """Rows of integers, column by column at the end; ``pack`` now and then saves memory.

    >>> rows = Rows("start", "dur")
    >>> rows.add((3, 4))
    >>> rows.add((7, 1))
    >>> len(rows), rows.columns()["dur"].tolist()
    (2, [4, 1])
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._fresh: list[int] = []  # four times as fast to append to as the array
        self._packed = array("q")
        self.add = self._fresh.extend
        """Append a row."""

    def __len__(self) -> int:
        return (len(self._packed) + len(self._fresh)) // len(self._names)

    def pack(self) -> None:
        """Keep the rows as plain numbers of eight bytes."""
        self._packed.fromlist(self._fresh)
        self._fresh.clear()

    def columns(self) -> dict[str, np.ndarray]:
        """The columns, ``int64``."""
        self.pack()
        numbers = np.array(self._packed, dtype=np.int64).reshape(-1, len(self._names))
        return dict(zip(self._names, np.ascontiguousarray(numbers.T), strict=True))


EXECUTED = ("stretch", "start", "context")
"""Columns of what an IPU executed: number of the stretch, its start, counted back from its end, and the number of its
:data:`COUNTERS`."""

COUNTERS = ("epoch", "stream", "batch", "loop", "iteration")
"""How far an IPU has counted: folds made before; ``stream`` and ``batch`` say which slice of which host load came last
(-1: none), ``loop`` and ``iteration`` the innermost loop (index of its instruction) and its trip (-1: none)."""


class Recorder:
    """Collects the rows of a simulation of ``processes`` IPU processes.

    Attributes:
        stretches: the rows of each process (:data:`EXECUTED`); one may begin ahead of the present time.
        counters: the counters of all processes (:data:`COUNTERS`).
        transfers: those that ended: which of the ``batches`` (numbers of ``templates`` that begin and end together),
            start and duration.
        epoch: folds made.
    """

    def __init__(self, processes: int) -> None:
        self.stretches = [Rows(*EXECUTED) for _ in range(processes)]
        self.counters = Rows(*COUNTERS)
        self._contexts = 0
        self.transfers = Rows("batch", "start", "dur")
        self.templates: list[TransferTemplate] = []
        self.batches: list[tuple[int, ...]] = []
        self.host: list[HostEvent] = []
        self.epoch = 0

    def context(self, counters: tuple[int, int, int, int, int]) -> int:
        """The number of these counters."""
        self.counters.add(counters)
        self._contexts += 1
        return self._contexts - 1

    def pack(self) -> None:
        """Keep what was recorded in little memory."""
        for rows in (*self.stretches, self.counters, self.transfers):
            rows.pack()

    def together(self, templates: tuple[int, ...]) -> int:
        """The number of a new batch."""
        self.batches.append(templates)
        return len(self.batches) - 1

    def template(self, sent: TransferTemplate) -> int:
        """The number of a new template."""
        self.templates.append(sent)
        return len(self.templates) - 1

    def host_event(self, start: int, dur: int, line: LineKey) -> None:
        """The host works on a slice from ``start`` on."""
        self.host.append(HostEvent(start, dur, line))
