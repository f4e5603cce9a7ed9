"""Records what happens during a simulation, in the time of the event loop. Tables are made from it at the end.

Folding (:mod:`.folding`) copies and shifts rows according to their ends. To save time and memory, a row is not an
object but a few numbers in an array that grows. What occurs again and again is a template, to which the row points.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True)
class Label:
    """The purpose of a transfer: its kind in the trace, and the op."""

    kind: str
    op_id: int


class Flight(NamedTuple):
    """A send over the network.

    Attributes:
        owner: identifies the send among those in flight.
        links: ids of the links of its route.
        resources: numbers of the resources that it occupies.
        ipu: the IPU of the machine that asked for it.
    """

    owner: tuple[int, ...]
    links: tuple[int, ...]
    resources: tuple[int, ...]
    ipu: int


class TransferTemplate(NamedTuple):
    """Sends of the same size.

    Attributes:
        owner: what is put before the owner of each send.
        flights: the sends.
        size: bytes of each send.
        label: the purpose of the sends.
    """

    owner: tuple[int, ...]
    flights: tuple[Flight, ...]
    size: int
    label: Label


class LineKey(NamedTuple):
    """The work of a host server for a stream: to prepare, complete, accept or handle its slices."""

    server: int
    stream: int
    work: str


class RunBefore(NamedTuple):
    """The name and the cycles of an engine's run before the simulated one; it was simulated separately."""

    name: str
    cycles: int


class HostEvent(NamedTuple):
    """The host's work for one slice of a stream, for all replicas of a server."""

    start: int
    dur: int
    line: LineKey


class Stood(NamedTuple):
    """Syncs, one right after the other, in which a party stood.

    Attributes:
        times: when each sync between its IPUs was over.
        first, stop: which of these syncs (half open).
        leaf: the leaf of the first of them; those of the others follow it.
        mark: since when the party waited for the first.
        context: the counters from the second on.
    """

    times: list[int]
    first: int
    stop: int
    leaf: int
    mark: int
    context: int


class Rows:
    """Collects rows of integers and gives them as columns. Calling ``pack`` now and then saves memory.

    >>> rows = Rows("start", "dur")
    >>> rows.add((3, 4))
    >>> rows.add((7, 1))
    >>> len(rows), rows.columns()["dur"].tolist()
    (2, [4, 1])
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._fresh: list[int] = []  # appending to a list is four times as fast as to the array
        self._packed = array("q")
        self.add = self._fresh.extend
        """Append a row."""

    def __len__(self) -> int:
        return (len(self._packed) + len(self._fresh)) // len(self._names)

    def pack(self) -> None:
        """Move the rows into the array, where a number takes eight bytes."""
        self._packed.fromlist(self._fresh)
        self._fresh.clear()

    def columns(self) -> dict[str, np.ndarray]:
        """The columns, ``int64``."""
        self.pack()
        # Rows lie one after the other; each column becomes contiguous, which NumPy handles faster.
        numbers = np.array(self._packed, dtype=np.int64).reshape(-1, len(self._names))
        return dict(zip(self._names, np.ascontiguousarray(numbers.T), strict=True))


EXECUTED = ("stretch", "start", "context")
"""Columns of what an IPU executed: number of the stretch, its start (its end minus its length), and the number of its
:data:`COUNTERS`. A negative number is that of syncs in which the IPU stood (-1: the first of
:attr:`Recorder.stood`)."""

COUNTERS = ("epoch", "stream", "batch", "loop", "iteration")
"""Columns of an IPU's counters: ``epoch`` is the number of folds made before. ``stream`` and ``batch`` say which slice
of which host-to-device stream came last (-1: none). ``loop`` and ``iteration`` are the innermost loop (index of its
instruction) and its trip (-1: none)."""


class Recorder:
    """Collects the rows of a simulation of ``processes`` IPU processes.

    Attributes:
        stretches: the rows of each process (:data:`EXECUTED`); a row may begin later than the present time.
        stood: syncs one after the other, which are one row.
        counters: the counters of all processes (:data:`COUNTERS`).
        transfers: the transfers that ended: number of the batch, start and duration.
        templates: the templates of transfers.
        batches: for each batch, the numbers of the templates that began and ended together.
        host: the host's work.
        epoch: how many folds were made.
    """

    def __init__(self, processes: int) -> None:
        self.stretches = [Rows(*EXECUTED) for _ in range(processes)]
        self.stood: list[Stood] = []
        self._syncs = 0
        self.counters = Rows(*COUNTERS)
        self._contexts = 0
        self.transfers = Rows("batch", "start", "dur")
        self.templates: list[TransferTemplate] = []
        self.batches: list[tuple[int, ...]] = []
        self.host: list[HostEvent] = []
        self.epoch = 0

    @property
    def executions(self) -> int:
        """How many executions the rows stand for, at most."""
        return sum(map(len, self.stretches)) + self._syncs

    def stand(self, stood: Stood) -> int:
        """The number that stands for these syncs in the row of a process."""
        self.stood.append(stood)
        self._syncs += stood.stop - stood.first
        return -len(self.stood)

    def context(self, counters: tuple[int, int, int, int, int]) -> int:
        """The number of these counters."""
        self.counters.add(counters)
        self._contexts += 1
        return self._contexts - 1

    def pack(self) -> None:
        """Reduce the memory of what was recorded."""
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
        """Record that the host works on a slice from ``start`` on, for ``dur`` cycles."""
        self.host.append(HostEvent(start, dur, line))
