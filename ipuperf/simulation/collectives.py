"""Collectives as rounds of sends over the links; :mod:`.algorithms` says which rounds.

A round ends for a member when everything it sends and receives has arrived; in a reducing round it then computes.
Before each round all members meet in a sync (:func:`.algorithms.collective_syncs`): the next round begins
for all of them ``sync`` cycles after the slowest. After the last round nobody waits.

**Closed form.** Without other traffic, when ring neighbours are joined by one hop of latency l and the narrowest hop of
the ring moves a chunk in t cycles (rounded up), a collective of n rounds of a bidirectional ring pair of which m reduce
takes, from the arrival of its last member, ``n (sync + l + t) + m reduce_cycles`` cycles: n = 2 (R - 1) and
m = R - 1 for an all-reduce, n = R - 1 for the others with m = R - 1 for a reduce-scatter and 0 for an all-gather. The
estimate by which an algorithm is chosen (:meth:`.algorithms.Planner.estimate`) is this form for any algorithm, with all
sends of the collective that share a link taken into account; alone, a collective takes exactly that long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ipuperf.lowering.steps import Collective

from .algorithms import CollectivePlan, CollectiveRound, Planner, reduce_cycles
from .instructions import StepPart
from .recorder import Label

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .gathering import Guest
    from .world import World


_Send = tuple[tuple[int, ...], tuple["Link", ...], Label, Callable[[], None]]
"""Owner of a flow, its route, its label, and what to call at its end."""


class _Prepared(NamedTuple):
    """What is the same each time a round is repeated: bytes of a send, cycles of the reduction, the sends, and how many
    of them begin or end at each member."""

    chunk: int
    reduce: int
    sends: list[_Send]
    ends: dict[int, int]


class _Over(NamedTuple):
    """A round that is over: when it began, and when it ended for each member."""

    item: _Prepared
    start: int
    ends: dict[int, int]


class CollectiveRun:
    """One execution of a collective by one group, from the moment all members are there.

    Args:
        planner: gives the rounds.
        key: identifies it among those under way: leaf, IPU of the replica, group.
        members: the parties, each with what to call when it may go on.
        finished: called when the last member went on.
    """

    def __init__(
        self,
        world: World,
        planner: Planner,
        key: tuple[int, int, int],
        step: Collective,
        members: Sequence[Guest],
        finished: Callable[[], None],
    ) -> None:
        self._events = world.events
        self._network = world.network
        self._topology = world.topology
        self._key = key
        self._step = step
        self._members = {guest.party.ipu: guest for guest in members}
        self._finished = finished
        self._sync = world.delays.collective_syncs.before(tuple(self._members))
        self._plan: CollectivePlan = planner.plan(self._step, tuple(sorted(self._members)))
        self._rounds = [number for number, item in enumerate(self._plan.rounds) for _ in range(item.times)]
        self._known: dict[int, _Prepared] = {}
        self._sends: dict[tuple[tuple[int, int], ...], tuple[list[_Send], dict[int, int]]] = {}
        self._round = -1
        self._start = -1
        self._next_start = self._events.now + self._sync
        self._rounds_over: list[_Over] = []
        self._parts: dict[tuple[tuple[int, int], ...], list[StepPart]] = {}
        self._open: dict[int, int] = {}
        self._ends = dict.fromkeys(self._members, -1)
        self._gone = 0
        self._events.after(self._sync, self._begin)

    def state(self, now: int) -> tuple[object, ...]:
        """Everything the future depends on, relative to ``now``; the flows themselves are the network's state."""
        members = sorted(self._ends)
        ends = tuple(self._ends[ipu] - now if self._ends[ipu] >= 0 else 1 for ipu in members)
        over = tuple((start - now, *(found[ipu] - now for ipu in members)) for _, start, found in self._rounds_over)
        next_start = self._next_start - now if self._next_start >= 0 else -1
        return (self._key, self._round, self._start - now if self._start >= 0 else 1, ends, next_start, over)

    @property
    def _item(self) -> _Prepared:
        """The round that is under way."""
        return self._known[self._rounds[self._round]]

    def _begin(self) -> None:
        """All meet: send the chunks of the next round."""
        if self._round < 0:
            for guest in self._members.values():
                guest.party.parts.close("sync_external")
        self._round += 1
        self._start, self._next_start = self._events.now, -1
        number = self._rounds[self._round]
        if number not in self._known:
            self._known[number] = self._prepare(self._plan.rounds[number])
        item = self._item
        self._open = dict(item.ends)
        self._ends = dict.fromkeys(self._members, -1)
        for owner, route, label, arrived in item.sends:
            self._network.send(owner, route, item.chunk, label, arrived)

    def _prepare(self, item: CollectiveRound) -> _Prepared:
        """What is the same each time a round is repeated."""
        if item.sends not in self._sends:
            ends = dict.fromkeys(self._members, 0)
            for pair in item.sends:
                for ipu in pair:
                    ends[ipu] += 1
            self._sends[item.sends] = ([self._send(number, *send) for number, send in enumerate(item.sends)], ends)
        reduce = reduce_cycles(item, self._step, len(self._members))
        return _Prepared(item.chunk(self._step.bytes), reduce, *self._sends[item.sends])

    def _send(self, number: int, source: int, destination: int) -> _Send:
        """What is the same in each round about a send."""

        def arrived() -> None:
            for member in (source, destination):
                self._open[member] -= 1
                if self._open[member] == 0:
                    self._member_done(member)

        leaf, ipu, group = self._key
        owner = (1, leaf, ipu, group, number)
        label = Label(self._step.kind, self._step.op_id, source)
        return owner, self._topology.route(source, destination), label, arrived

    def _member_done(self, member: int) -> None:
        self._ends[member] = self._events.now
        if self._round + 1 == len(self._rounds):
            self._events.after(self._item.reduce, lambda: self._leave(member))
        elif min(self._ends.values()) >= 0:
            delay = self._item.reduce + self._sync
            self._next_start = self._events.now + delay
            self._events.after(delay, self._between)

    def _between(self) -> None:
        self._rounds_over.append(_Over(self._item, self._start, self._ends))
        self._begin()

    def _parts_of(self, member: int) -> list[StepPart]:
        """What a member did from the first round on: transfer, reduction and sync of each. Made once for members that
        did the same at the same time."""
        rounds = [*self._rounds_over, _Over(self._item, self._start, self._ends)]
        key = tuple([(ends[member], item.ends[member]) for item, _, ends in rounds])
        if key not in self._parts:
            parts: list[StepPart] = []
            for (item, start, ends), after in zip(rounds, [*rounds[1:], None], strict=True):
                end = ends[member]
                moved = item.ends[member] // 2 * item.chunk  # as many sends as receives
                sync = after.start - end - item.reduce if after is not None else 0
                parts.append(StepPart("link", 0, end - start, moved, moved))
                parts.append(StepPart("compute", 0, item.reduce))
                parts.append(StepPart("sync_external", 0, sync))
            self._parts[key] = [part for part in parts if part.dur or part.bytes_in]
        return self._parts[key]

    def _leave(self, member: int) -> None:
        self._members[member].party.parts.add(self._parts_of(member))
        self._gone += 1
        if self._gone == len(self._members):
            self._known.clear()
            self._sends.clear()  # they hold this object: nothing is left to the garbage collector
            self._finished()
        self._members[member].go_on()
