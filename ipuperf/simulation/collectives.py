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

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ipuperf.lowering.steps import Collective

from .algorithms import Planner, reduce_cycles
from .instructions import MOST_CYCLES, StepPart
from .network import Network, Send, SendBundle
from .recorder import Flight, Label

if TYPE_CHECKING:
    from ipuperf.machine import Topology

    from .world import World


class Members(ABC):
    """Who takes part in a collective, as the parties of the simulation."""

    @abstractmethod
    def begin(self, now: int) -> None:
        """The first round begins."""

    @abstractmethod
    def leave(self, ipus: Sequence[int], parts: tuple[StepPart, ...]) -> None:
        """These IPUs of the machine are through, each of which took so long from the first round on."""


class _Round(NamedTuple):
    """What is the same each time a round is gone through: bytes of a send, cycles of the reduction, the sends as pairs
    of IPUs and bundled, how many of them begin or end at each member, whether that is the same number, the place of the
    last round that is like it, and whether it is over for all members at once."""

    chunk: int
    reduce: int
    sends: tuple[tuple[int, int], ...]
    bundles: list[SendBundle]
    ends: dict[int, int]
    even: bool
    last: int
    together: bool


class Course(NamedTuple):
    """The ``rounds`` of a collective among the same members, equal ones as one object, and the ``sync`` before each."""

    rounds: tuple[_Round, ...]
    sync: int


class _Over(NamedTuple):
    """Rounds that are over: when the first began, when it ended for all members, or (``ends``) for each; how often it
    came ``again``, each time ``period`` cycles later."""

    item: _Round
    start: int
    end: int
    ends: dict[int, int]
    again: int = 0
    period: int = 0

    def of(self, member: int) -> int:
        """When the first ended for this one."""
        return self.ends[member] if self.ends else self.end

    def since(self, now: int) -> list[tuple[object, ...]]:
        """Each of them relative to ``now``."""
        return [_since(self.start, self.end, self.ends, now - n * self.period) for n in range(self.again + 1)]

    def parts(self, member: int, following: int) -> list[StepPart]:
        """What a member did in them until the next round, which begins when ``following`` says (-1: there is none):
        transfer, reduction and sync."""
        item, dur = self.item, self.of(member) - self.start
        moved = item.ends[member] // 2 * item.chunk  # as many sends as receives
        done = dur + item.reduce
        before = [StepPart("link", 0, dur, moved, moved), StepPart("compute", 0, item.reduce)]
        between = [*before, StepPart("sync_external", 0, self.period - done)]
        sync = following - self.start - self.again * self.period - done if following >= 0 else 0
        parts = [*between * self.again, *before, StepPart("sync_external", 0, sync)]
        return [part for part in parts if part.dur or part.bytes_in]


class Courses:
    """The courses of collectives, each made once; sends of rounds are bundled once for all that have them, with the
    number of a send as the end of its owner.

    Args:
        planner: gives the rounds.
    """

    def __init__(self, planner: Planner, network: Network, topology: Topology) -> None:
        self._planner = planner
        self._network = network
        self._topology = topology
        self._known: dict[tuple[object, ...], Course] = {}
        self._sends: dict[tuple[tuple[int, int], ...], tuple[list[SendBundle], dict[int, int]]] = {}

    def of(self, step: Collective, ipus: tuple[int, ...]) -> Course:
        """That of ``step`` among these IPUs of the machine."""
        key = (step.kind, step.bytes, step.reduce_cycles, step.method, ipus)
        if key not in self._known:
            self._known[key] = self._course(step, ipus)
        return self._known[key]

    def _course(self, step: Collective, ipus: tuple[int, ...]) -> Course:
        rounds: list[_Round] = []
        plan = self._planner.plan(step, tuple(sorted(ipus)))
        for item in plan.rounds:
            bundles, ends = self._bundled(item.sends)
            chunk, reduce = item.chunk(step.bytes), reduce_cycles(item, step, len(ipus))
            even, last = len(set(ends.values())) == 1, len(rounds) + item.times - 1
            rounds += [_Round(chunk, reduce, item.sends, bundles, ends, even, last, item.together)] * item.times
        return Course(tuple(rounds), self._planner.syncs.before(ipus, plan.method))

    def _bundled(self, pairs: tuple[tuple[int, int], ...]) -> tuple[list[SendBundle], dict[int, int]]:
        """The sends between these IPUs, and how many of them begin or end at each."""
        if pairs not in self._sends:
            sends = [Send((number,), self._topology.route(*pair), pair[0]) for number, pair in enumerate(pairs)]
            self._sends[pairs] = (self._network.bundles(sends), dict(Counter(ipu for pair in pairs for ipu in pair)))
        return self._sends[pairs]


class CollectiveRun:
    """One execution of a collective by one group, from the moment all members are there.

    Args:
        course: its rounds.
        key: identifies it among those under way: leaf, IPU of the replica, group.
        ipus: the members, IPUs of the machine.
        members: told what happens to them.
        finished: called before the last member goes on.
    """

    def __init__(
        self,
        world: World,
        course: Course,
        key: tuple[int, int, int],
        step: Collective,
        ipus: Sequence[int],
        members: Members,
        finished: Callable[[], None],
    ) -> None:
        self._events = world.events
        self._network = world.network
        self._key = key
        self._label = Label(step.kind, step.op_id)
        self._ipus = tuple(ipus)
        self._members = members
        self._finished = finished
        self._rounds, self._sync = course
        self._round = -1
        self._start = -1
        self._next_start = self._events.now + self._sync
        self._rounds_over: list[_Over] = []
        self._parts: dict[tuple[tuple[int, int], ...], tuple[StepPart, ...]] = {}
        self._open: dict[int, int] = {}
        self._busy = 0
        self._end = -1  # of the round for all members
        self._ends: dict[int, int] = {}  # where it is not the same
        self._moved: list[tuple[int, int, tuple[Flight, ...]]] = []  # of this round: latency, end, sends
        self._undisturbed = 0  # nothing else happens before this
        self._left = len(self._ipus)
        self._alike = True  # all members ended each round together, with as many sends
        self._events.after(self._sync, self._begin)

    def state(self, now: int) -> tuple[object, ...]:
        """Everything the future depends on, relative to ``now``; the flows themselves are the network's state."""
        over = tuple([since for one in self._rounds_over for since in one.since(now)])
        present = _since(self._start, self._end, self._ends, now)
        next_start = self._next_start - now if self._next_start >= 0 else -1
        return (self._key, self._round, present, next_start, over)

    @property
    def _item(self) -> _Round:
        """The round that is under way."""
        return self._rounds[self._round]

    def _begin(self) -> None:
        """All meet: send the chunks of the next round."""
        if self._round < 0:
            self._members.begin(self._events.now)
        self._round += 1
        self._start, self._next_start = self._events.now, -1
        item = self._item
        self._open = {}
        self._end, self._ends, self._moved = -1, {}, []
        self._busy = len(self._ipus)
        self._undisturbed = self._quiet_until()
        owner = (1, *self._key)
        for bundle in item.bundles:
            self._network.move(bundle, owner, item.chunk, self._label, partial(self._arrived, bundle.latency))

    def _arrived(self, latency: int, flights: tuple[Flight, ...]) -> None:
        """These sends of the round are over, which needed this latency."""
        self._moved.append((latency, self._events.now, flights))
        sends = self._item.sends
        if len(flights) == len(sends):
            self._members_done(self._ipus)
            return
        left = self._open = self._open or dict(self._item.ends)
        done = []
        for flight in flights:
            for ipu in sends[flight.owner[0]]:
                left[ipu] -= 1
                if left[ipu] == 0:
                    done.append(ipu)
        if self._item.together:
            done = [] if any(left.values()) else list(self._ipus)
        if done:
            self._members_done(done)

    def _members_done(self, ipus: Sequence[int]) -> None:
        if len(ipus) == len(self._ipus):
            self._end = self._events.now
        else:
            self._ends.update(dict.fromkeys(ipus, self._events.now))
        self._busy -= len(ipus)
        self._alike = self._alike and self._item.even and len(ipus) == len(self._ipus)
        if self._round + 1 == len(self._rounds):
            self._events.after(self._item.reduce, lambda: self._leave(ipus))
        elif not self._busy:
            delay = self._item.reduce + self._sync
            self._next_start = self._events.now + delay
            self._events.after(delay, self._between)

    def _between(self) -> None:
        self._rounds_over.append(_Over(self._item, self._start, self._end, self._ends))
        again = self._quiet_rounds()
        if again:
            self._skip(again)
        else:
            self._begin()

    # -- closed form -------------------------------------------------------------------------------------------------

    def _quiet_until(self) -> int:
        """When something else happens, if nothing is under way now; 0 otherwise."""
        return int(min(self._events.peek(), MOST_CYCLES)) if self._network.idle else 0

    def _quiet_rounds(self) -> int:
        """How many rounds are certain to be like the last one, which nothing disturbed: the same round, before
        anything else happens; the last round of all is not one of them."""
        now, over = self._events.now, self._rounds_over[-1]
        if self._undisturbed <= now:
            return 0
        last = self._item.last - self._round
        if self._round + last + 1 == len(self._rounds):
            last -= 1
        until, period = self._quiet_until(), now - over.start
        return max(0, min(last, (until - 1 - now) // period)) if period else 0

    def _skip(self, rounds: int) -> None:
        """Add as many rounds like the last one, and go on after them."""
        over, now, size = self._rounds_over.pop(), self._events.now, self._item.chunk
        period = now - over.start
        later = rounds * period
        self._rounds_over.append(over._replace(again=rounds, period=period))
        if size:
            moved = [(over.start + latency, end, flights) for latency, end, flights in self._moved]
            self._network.record(moved, (1, *self._key), size, self._label, rounds, period)
        self._round += rounds
        self._start, self._end = over.start + later, over.end + later
        self._ends = {member: end + later for member, end in over.ends.items()}
        self._undisturbed = 0
        self._next_start = now + later
        self._events.after(later, self._begin)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _parts_of(self, member: int) -> tuple[StepPart, ...]:
        """What a member did from the first round on: transfer, reduction and sync of each. Made once for members that
        did the same at the same time."""
        rounds = [*self._rounds_over, _Over(self._item, self._start, self._end, self._ends)]
        key = tuple([(over.of(member), over.item.ends[member]) for over in rounds])
        found = self._parts.get(key)
        if found is None:
            following = [*[over.start for over in rounds[1:]], -1]
            every = [over.parts(member, start) for over, start in zip(rounds, following, strict=True)]
            found = self._parts[key] = tuple(itertools.chain.from_iterable(every))
        return found

    def _leave(self, ipus: Sequence[int]) -> None:
        known = self._parts_of(ipus[0])
        same: dict[int, tuple[tuple[StepPart, ...], list[int]]] = {}
        for ipu in () if self._alike else ipus:
            parts = self._parts_of(ipu)
            same.setdefault(id(parts), (parts, []))[1].append(ipu)
        self._left -= len(ipus)
        if not self._left:
            self._finished()
        for parts, own in [(known, ipus)] if self._alike else list(same.values()):
            self._members.leave(own, parts)


def _since(start: int, end: int, ends: dict[int, int], now: int) -> tuple[object, ...]:
    """A round relative to ``now``."""
    return (start - now, end - now if end >= 0 else 1, *((ipu, ends[ipu] - now) for ipu in sorted(ends)))
