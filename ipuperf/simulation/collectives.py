"""Collectives as ring rounds over the links.

**Convention.** The members stand in the order of ``Topology.ring``. The data of one replica, D bytes, is cut in two
halves; each half runs its own ring, one each way round, in R chunks of ``ceil(D / 2R)`` bytes. In a round every member
sends one chunk of each half to its neighbour of that direction. Two members have only one neighbour, to which both
halves would go over the same link: there a round is one chunk of ``ceil(D / 2)`` bytes each way. A reduce-scatter or an
all-gather takes R - 1 rounds, an all-reduce is the one after the other, 2 (R - 1) rounds.

A round ends for a member when everything it sends and receives has arrived; in a reducing round it then computes for
``reduce_cycles``. Between rounds all members meet in an external sync: the next round begins for all of them
``external_sync_cycles`` after the slowest. After the last round nobody waits.

**Closed form.** Without other traffic, when ring neighbours are joined by one hop of latency l and the narrowest hop of
the ring moves a chunk in t cycles (rounded up), a collective of n rounds of which m reduce takes, from the arrival of
its last member, ``n (external_sync + l + t) + m reduce_cycles`` cycles: n = 2 (R - 1) and m = R - 1 for an all-reduce,
n = R - 1 for the others with m = R - 1 for a reduce-scatter and 0 for an all-gather.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipuperf.lowering.program import Collective

from .network import Label

if TYPE_CHECKING:
    from ipuperf.machine import Link, Topology

    from .ipu import IpuProcess
    from .kernel import Kernel
    from .network import Network
    from .walk import Leaf


_Send = tuple[tuple[int, ...], tuple["Link", ...], Label, Callable[[], None]]
"""Owner of a flow, its route, its label, and what to call at its end."""


@dataclass(frozen=True)
class Plan:
    """Rounds of a collective among ``members``: how many, how many of the first reduce, and the bytes of one chunk."""

    members: int
    rounds: int
    reducing: int
    chunk: int

    @property
    def ways(self) -> int:
        """Chunks a member sends (and receives) in a round."""
        return 1 if self.members == 2 else 2


def plan_rounds(kind: str, size: int, members: int) -> Plan:
    """The rounds of a collective of ``size`` bytes; see the module docstring."""
    one_way = members - 1
    pieces = 2 if members == 2 else 2 * members
    rounds = 2 * one_way if kind == "all_reduce" else one_way
    return Plan(members, rounds, 0 if kind == "all_gather" else one_way, -(-size // pieces))


class RingRun:
    """One execution of a collective by one group, from the moment all members are there.

    Args:
        key: identifies it among those under way: leaf, IPU of the replica, group.
        members: the processes, each with what to call when it may go on.
        finished: called when the last member went on.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        topology: Topology,
        external_sync: int,
        key: tuple[int, int, int],
        leaf: Leaf,
        members: list[tuple[IpuProcess, Callable[[], None]]],
        finished: Callable[[], None],
    ) -> None:
        assert isinstance(leaf.step, Collective)
        self._kernel = kernel
        self._network = network
        self._topology = topology
        self._sync = external_sync
        self._key = key
        self._step = leaf.step
        by_ipu = {process.ipu: (process, done) for process, done in members}
        self._ring = [by_ipu[ipu] for ipu in topology.ring(tuple(by_ipu))]
        self._finished = finished
        self._plan = plan_rounds(self._step.kind, self._step.bytes, len(members))
        self._round = -1
        self._start = -1
        self._next_start = kernel.now + external_sync
        self._open = [0] * len(members)
        self._ends = [-1] * len(members)
        self._gone = 0
        self._sends = [
            self._prepared(place, neighbour % len(members), way)
            for place in range(len(members))
            for way, neighbour in enumerate((place + 1, place - 1)[: self._plan.ways])
        ]
        kernel.after(external_sync, self._begin)

    def state(self, now: int) -> tuple[object, ...]:
        """Everything the future depends on, relative to ``now``; the flows themselves are the network's state."""
        ends = tuple(end - now if end >= 0 else 1 for end in self._ends)
        next_start = self._next_start - now if self._next_start >= 0 else -1
        return (self._key, self._round, self._start - now if self._start >= 0 else 1, ends, next_start)

    def _begin(self) -> None:
        """All meet: close the sync of every member and send the chunks of the next round."""
        for process, _ in self._ring:
            process.open_wait = ""
            process.close_part("sync_external")
        self._round += 1
        self._start, self._next_start = self._kernel.now, -1
        members = len(self._ring)
        self._open = [2 * self._plan.ways] * members
        self._ends = [-1] * members
        for owner, route, label, arrived in self._sends:
            self._network.send(owner, route, self._plan.chunk, label, arrived)

    def _prepared(self, place: int, neighbour: int, way: int) -> _Send:
        """What is the same in each round about the chunks from one place of the ring to the next."""
        source, destination = self._ring[place][0].ipu, self._ring[neighbour][0].ipu

        def arrived() -> None:
            for member in (place, neighbour):
                self._open[member] -= 1
                if self._open[member] == 0:
                    self._member_done(member)

        leaf, ipu, group = self._key
        owner = (1, leaf, ipu, group, 2 * place + way)
        label = Label(self._step.kind, self._step.op_id, source)
        return owner, self._topology.route(source, destination), label, arrived

    @property
    def _reduce(self) -> int:
        return self._step.reduce_cycles if self._round < self._plan.reducing else 0

    def _member_done(self, member: int) -> None:
        self._ends[member] = self._kernel.now
        if self._round + 1 == self._plan.rounds:
            self._kernel.after(self._reduce, lambda: self._leave(member))
        elif min(self._ends) >= 0:
            delay = self._reduce + self._sync
            self._next_start = self._kernel.now + delay
            self._kernel.after(delay, self._between)

    def _work_parts(self, member: int) -> None:
        """Transfer and reduction of this round."""
        process = self._ring[member][0]
        moved = self._plan.ways * self._plan.chunk
        process.add_part("link", self._ends[member] - self._start, 0, moved, moved)
        if self._reduce:
            process.add_part("compute", self._reduce)

    def _between(self) -> None:
        for member in range(len(self._ring)):
            self._work_parts(member)
        self._begin()

    def _leave(self, member: int) -> None:
        self._work_parts(member)
        self._gone += 1
        if self._gone == len(self._ring):
            self._sends.clear()  # they hold this object: nothing is left to the garbage collector
            self._finished()
        self._ring[member][1]()
