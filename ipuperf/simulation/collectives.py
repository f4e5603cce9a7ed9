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

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ipuperf.lowering.steps import Collective

from .algorithms import CollectivePlan, CollectiveRound, Planner, reduce_cycles
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


class _Prepared(NamedTuple):
    """What is the same each time a round is repeated: bytes of a send, cycles of the reduction, the sends, how many of
    them begin or end at each member, and whether that is the same number."""

    chunk: int
    reduce: int
    bundles: list[SendBundle]
    ends: dict[int, int]
    even: bool


class _Over(NamedTuple):
    """A round that is over: when it began, when it ended for all members, or (``ends``) for each."""

    item: _Prepared
    start: int
    end: int
    ends: dict[int, int]

    def of(self, member: int) -> int:
        """When it ended for this one."""
        return self.ends[member] if self.ends else self.end

    def later(self, cycles: int) -> _Over:
        """The same again."""
        ends = {member: end + cycles for member, end in self.ends.items()}
        return self._replace(start=self.start + cycles, end=self.end + cycles, ends=ends)


class RoundTemplates:
    """Sends of rounds, bundled once for all collectives that have them: with the number of a send as the end of its
    owner, and how many of them begin or end at each IPU."""

    def __init__(self, network: Network, topology: Topology) -> None:
        self._network = network
        self._topology = topology
        self._known: dict[tuple[tuple[int, int], ...], tuple[list[SendBundle], dict[int, int]]] = {}

    def of(self, pairs: tuple[tuple[int, int], ...]) -> tuple[list[SendBundle], dict[int, int]]:
        """Those of the sends between these IPUs."""
        if pairs not in self._known:
            sends = [Send((number,), self._topology.route(*pair), pair[0]) for number, pair in enumerate(pairs)]
            self._known[pairs] = (self._network.bundles(sends), dict(Counter(ipu for pair in pairs for ipu in pair)))
        return self._known[pairs]


class CollectiveRun:
    """One execution of a collective by one group, from the moment all members are there.

    Args:
        planner: gives the rounds.
        templates: give their sends.
        key: identifies it among those under way: leaf, IPU of the replica, group.
        ipus: the members, IPUs of the machine.
        members: told what happens to them.
        finished: called before the last member goes on.
    """

    def __init__(
        self,
        world: World,
        planner: Planner,
        templates: RoundTemplates,
        key: tuple[int, int, int],
        step: Collective,
        ipus: Sequence[int],
        members: Members,
        finished: Callable[[], None],
    ) -> None:
        self._events = world.events
        self._network = world.network
        self._templates = templates
        self._key = key
        self._step = step
        self._label = Label(step.kind, step.op_id)
        self._ipus = tuple(ipus)
        self._members = members
        self._finished = finished
        self._sync = world.delays.collective_syncs.before(self._ipus)
        self._plan: CollectivePlan = planner.plan(self._step, tuple(sorted(self._ipus)))
        self._rounds = [number for number, item in enumerate(self._plan.rounds) for _ in range(item.times)]
        self._known: dict[int, _Prepared] = {}
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
        over = tuple(_since(one, now) for one in self._rounds_over)
        present = _since(_Over(None, self._start, self._end, self._ends), now)  # type: ignore[arg-type]
        next_start = self._next_start - now if self._next_start >= 0 else -1
        return (self._key, self._round, present, next_start, over)

    @property
    def _item(self) -> _Prepared:
        """The round that is under way."""
        return self._known[self._rounds[self._round]]

    def _begin(self) -> None:
        """All meet: send the chunks of the next round."""
        if self._round < 0:
            self._members.begin(self._events.now)
        self._round += 1
        self._start, self._next_start = self._events.now, -1
        number = self._rounds[self._round]
        if number not in self._known:
            self._known[number] = self._prepare(self._plan.rounds[number])
        item = self._item
        self._open = {}
        self._end, self._ends, self._moved = -1, {}, []
        self._busy = len(self._ipus)
        self._undisturbed = self._quiet_until()
        owner = (1, *self._key)
        for bundle in item.bundles:
            self._network.move(bundle, owner, item.chunk, self._label, partial(self._arrived, bundle.latency))

    def _prepare(self, item: CollectiveRound) -> _Prepared:
        """What is the same each time a round is repeated."""
        reduce = reduce_cycles(item, self._step, len(self._ipus))
        bundles, ends = self._templates.of(item.sends)
        even = len(set(ends.values())) == 1
        return _Prepared(item.chunk(self._step.bytes), reduce, bundles, ends, even)

    def _arrived(self, latency: int, flights: tuple[Flight, ...]) -> None:
        """These sends of the round are over, which needed this latency."""
        self._moved.append((latency, self._events.now, flights))
        sends = self._plan.rounds[self._rounds[self._round]].sends
        left = self._open = self._open or dict(self._item.ends)
        if len(flights) == len(sends):
            self._members_done(self._ipus)
            return
        done = []
        for flight in flights:
            for ipu in sends[flight.owner[0]]:
                left[ipu] -= 1
                if left[ipu] == 0:
                    done.append(ipu)
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
        number, now, over = self._rounds[self._round], self._events.now, self._rounds_over[-1]
        if self._undisturbed <= now:
            return 0
        last = self._plan.rounds[number].times - (self._round - self._rounds.index(number)) - 1
        if self._round + last + 1 == len(self._rounds):
            last -= 1
        until, period = self._quiet_until(), now - over.start
        return max(0, min(last, (until - 1 - now) // period)) if period else 0

    def _skip(self, rounds: int) -> None:
        """Add as many rounds like the last one, and go on after them."""
        over, now, owner, size = self._rounds_over[-1], self._events.now, (1, *self._key), self._item.chunk
        period = now - over.start
        for number in range(1, rounds + 1):
            self._rounds_over.append(over.later(number * period))
            for latency, end, flights in self._moved if size else ():
                start = over.start + latency
                self._network.record(start + number * period, end - start, owner, flights, size, self._label)
        self._round += rounds
        _, self._start, self._end, self._ends = self._rounds_over[-1]
        self._undisturbed = 0
        self._next_start = now + rounds * period
        self._events.after(rounds * period, self._begin)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _parts_of(self, member: int) -> tuple[StepPart, ...]:
        """What a member did from the first round on: transfer, reduction and sync of each. Made once for members that
        did the same at the same time."""
        rounds = [*self._rounds_over, _Over(self._item, self._start, self._end, self._ends)]
        key = tuple([(over.of(member), over.item.ends[member]) for over in rounds])
        if key not in self._parts:
            parts: list[StepPart] = []
            made: dict[tuple[int, int, int, int], list[StepPart]] = {}  # of rounds that are alike
            for over, after in zip(rounds, [*rounds[1:], None], strict=True):
                item, start, end = over.item, over.start, over.of(member)
                moved = item.ends[member] // 2 * item.chunk  # as many sends as receives
                sync = after.start - end - item.reduce if after is not None else 0
                alike = (end - start, moved, item.reduce, sync)
                parts += made.get(alike) or made.setdefault(alike, _parts(*alike))
            self._parts[key] = tuple(parts)
        return self._parts[key]

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


def _parts(dur: int, moved: int, reduce: int, sync: int) -> list[StepPart]:
    """The parts of a round: transfer of so many bytes, reduction and sync."""
    parts = [
        StepPart("link", 0, dur, moved, moved), StepPart("compute", 0, reduce), StepPart("sync_external", 0, sync)
    ]  # fmt: skip
    return [part for part in parts if part.dur or part.bytes_in]


def _since(over: _Over, now: int) -> tuple[object, ...]:
    """A round relative to ``now``."""
    return (over.start - now, over.end - now if over.end >= 0 else 1,
            *((ipu, over.ends[ipu] - now) for ipu in sorted(over.ends)))  # fmt: skip
