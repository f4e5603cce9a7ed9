"""Collectives as rounds of sends over the links; :mod:`.algorithms` says which rounds.

A round ends for a member when everything it sends and receives has arrived; in a reducing round it then computes.
Before each round all members meet in a sync (:func:`.algorithms.collective_syncs`). The next round begins for all of
them ``sync`` cycles after the slowest has ended. Nobody waits after the last round.

**Closed form.** Consider a bidirectional ring pair without other traffic. One hop of latency l joins ring neighbours,
and the narrowest hop of the ring moves a chunk in t cycles (rounded up). A collective of n rounds, of which m reduce,
then takes ``n (sync + l + t) + m reduce_cycles`` cycles from the arrival of its last member. For an all-reduce
n = 2 (R - 1) and m = R - 1. For the others n = R - 1, with m = R - 1 for a reduce-scatter and 0 for an all-gather.
:meth:`.algorithms.Planner.estimate`, by which an algorithm is chosen, is this form for any algorithm. It takes into
account which sends of the collective share a link. Without other traffic a collective takes exactly that long.
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
from .flows import SendBundle
from .instructions import MOST_CYCLES, StepPart
from .network import Network
from .recorder import Flight, Label
from .templates import Send

if TYPE_CHECKING:
    from ipuperf.machine import Faults, Topology

    from .world import World


class Members(ABC):
    """The parties of the simulation that take part in a collective."""

    @abstractmethod
    def begin(self, time: int) -> None:
        """The first round begins."""

    @abstractmethod
    def leave(self, ipus: Sequence[int], parts: tuple[StepPart, ...]) -> None:
        """These IPUs of the machine have finished; ``parts`` is what each did from the first round on."""


class _Round(NamedTuple):
    """What is the same in each execution of a round.

    Attributes:
        chunk: bytes of a send.
        reduce: cycles of the reduction.
        sends: the sends as pairs of IPUs.
        bundles: the same sends as bundles.
        ends: how many sends begin or end at each member.
        last: place of the last round that is equal to this one.
        together: whether the round ends for all members at once.
    """

    chunk: int
    reduce: int
    sends: tuple[tuple[int, int], ...]
    bundles: list[SendBundle]
    ends: dict[int, int]
    last: int
    together: bool


class Course(NamedTuple):
    """The ``rounds`` of a collective among certain members, and the cycles of the ``sync`` before each round.

    Equal rounds are one object.
    """

    rounds: tuple[_Round, ...]
    sync: int


class _FinishedRounds(NamedTuple):
    """A finished round and its repetitions.

    Attributes:
        finished_round: the round.
        start: when it first began.
        end: when it first ended, if it ended for all members at once.
        ends: when it first ended for each member; empty if ``end`` is for all.
        repeats: how many more times it came.
        period: cycles from each time to the next.
    """

    finished_round: _Round
    start: int
    end: int
    ends: dict[int, int]
    repeats: int = 0
    period: int = 0

    def of(self, member: int) -> int:
        """When the round first ended for this member."""
        return self.ends[member] if self.ends else self.end

    def since(self, time: int) -> list[tuple[object, ...]]:
        """The round and each repetition, relative to ``time``."""
        return [
            _relative_to(self.start, self.end, self.ends, time - number * self.period)
            for number in range(self.repeats + 1)
        ]

    def parts(self, member: int, following: int) -> list[StepPart]:
        """The transfers, reductions and syncs of a member until the next round begins at ``following`` (-1: none)."""
        finished_round, dur = self.finished_round, self.of(member) - self.start
        moved_bytes = finished_round.ends[member] // 2 * finished_round.chunk  # as many sends as receives
        busy_cycles = dur + finished_round.reduce
        busy_parts = [StepPart("link", 0, dur, moved_bytes, moved_bytes), StepPart("compute", 0, finished_round.reduce)]
        repeated_parts = [*busy_parts, StepPart("sync_external", 0, self.period - busy_cycles)]
        sync = following - self.start - self.repeats * self.period - busy_cycles if following >= 0 else 0
        parts = [*repeated_parts * self.repeats, *busy_parts, StepPart("sync_external", 0, sync)]
        return [part for part in parts if part.dur or part.bytes_in]


class Courses:
    """The courses of collectives. Each course is made once, and rounds with the same sends share their bundles.

    The owner of a send ends with the number of the send in its round.

    Args:
        planner: plans the rounds.
        topology: the routes of the sends.
        faults: the additions of a round last as long as on the slowest member (a simplification).
    """

    def __init__(self, planner: Planner, network: Network, topology: Topology, faults: Faults) -> None:
        self._planner = planner
        self._network = network
        self._topology = topology
        self._faults = faults
        self._known: dict[tuple[object, ...], Course] = {}
        self._sends: dict[tuple[tuple[int, int], ...], tuple[list[SendBundle], dict[int, int]]] = {}

    def of(self, step: Collective, ipus: tuple[int, ...]) -> Course:
        """The course of ``step`` among these IPUs of the machine."""
        key = (step.kind, step.bytes, step.reduce_cycles, step.method, ipus)
        if key not in self._known:
            self._known[key] = self._course(step, ipus)
        return self._known[key]

    def _course(self, step: Collective, ipus: tuple[int, ...]) -> Course:
        rounds: list[_Round] = []
        plan = self._planner.plan(step, tuple(sorted(ipus)))
        for planned_round in plan.rounds:
            bundles, ends = self._bundled(planned_round.sends)
            chunk, reduce = planned_round.chunk(step.bytes), reduce_cycles(planned_round, step, len(ipus))
            if self._faults:
                reduce = max(self._faults.cycles_of(ipu, reduce) for ipu in ipus)
            last_alike = len(rounds) + planned_round.times - 1
            rounds += [
                _Round(chunk, reduce, planned_round.sends, bundles, ends, last_alike, planned_round.together)
            ] * planned_round.times
        return Course(tuple(rounds), self._planner.syncs.before(ipus, plan.method))

    def _bundled(self, pairs: tuple[tuple[int, int], ...]) -> tuple[list[SendBundle], dict[int, int]]:
        """The bundles of sends between these pairs of IPUs, and how many sends begin or end at each IPU."""
        if pairs not in self._sends:
            sends = [Send((number,), self._topology.route(*pair), pair[0]) for number, pair in enumerate(pairs)]
            self._sends[pairs] = (
                self._network.templates.bundles(sends),
                dict(Counter(ipu for pair in pairs for ipu in pair)),
            )
        return self._sends[pairs]


class CollectiveRun:
    """One execution of a collective by one group, from the moment all members are there.

    Args:
        course: the rounds.
        key: identifies the execution among those under way: leaf, IPU of the replica, group.
        ipus: the members, as IPUs of the machine.
        members: is told when the first round begins and when members finish.
        finished: is called before the last member goes on.
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
        self._rounds_over: list[_FinishedRounds] = []
        self._parts: dict[tuple[tuple[int, int], ...], tuple[StepPart, ...]] = {}
        self._open_transfers: dict[int, int] = {}
        self._busy_members = 0
        self._end = -1  # of the round for all members
        self._ends: dict[int, int] = {}  # where it is not the same
        self._moved: list[tuple[int, int, tuple[Flight, ...]]] = []  # of this round: latency, end, sends
        self._undisturbed = 0  # nothing else happens before this
        self._remaining_members = len(self._ipus)
        self._alike = True  # all members ended each round together
        self._events.after(self._sync, self._begin)

    def state(self, time: int) -> tuple[object, ...]:
        """Everything on which the future depends, relative to ``time``, but for the flows: they are the network's."""
        over = tuple([since for rounds in self._rounds_over for since in rounds.since(time)])
        present = _relative_to(self._start, self._end, self._ends, time)
        next_start = self._next_start - time if self._next_start >= 0 else -1
        return (self._key, self._round, present, next_start, over)

    @property
    def _present_round(self) -> _Round:
        """The round that is under way."""
        return self._rounds[self._round]

    def _begin(self) -> None:
        """All members have met: send the chunks of the next round."""
        if self._round < 0:
            self._members.begin(self._events.now)
        self._round += 1
        self._start, self._next_start = self._events.now, -1
        present_round = self._present_round
        self._open_transfers = {}
        self._end, self._ends, self._moved = -1, {}, []
        self._busy_members = len(self._ipus)
        # Asked before the sends start, as the network is not idle afterwards.
        self._undisturbed = self._quiet_until()
        owner = (1, *self._key)
        for bundle in present_round.bundles:
            self._network.move(bundle, owner, present_round.chunk, self._label, partial(self._arrived, bundle.latency))

    def _arrived(self, latency: int, flights: tuple[Flight, ...]) -> None:
        """These sends of the round have arrived. Their links have this latency."""
        self._moved.append((latency, self._events.now, flights))
        sends = self._present_round.sends
        # The usual case needs no counting: one bundle holds all sends of the round.
        if len(flights) == len(sends):
            self._members_done(self._ipus)
            return
        open_transfers = self._open_transfers = self._open_transfers or dict(self._present_round.ends)
        finished_members = []
        for flight in flights:
            for ipu in sends[flight.owner[0]]:
                open_transfers[ipu] -= 1
                if open_transfers[ipu] == 0:
                    finished_members.append(ipu)
        if self._present_round.together:
            finished_members = [] if any(open_transfers.values()) else list(self._ipus)
        if finished_members:
            self._members_done(finished_members)

    def _members_done(self, ipus: Sequence[int]) -> None:
        if len(ipus) == len(self._ipus):
            self._end = self._events.now
        else:
            self._ends.update(dict.fromkeys(ipus, self._events.now))
        self._busy_members -= len(ipus)
        self._alike = self._alike and len(ipus) == len(self._ipus)
        # No sync follows the last round, so each member leaves as soon as it has finished.
        if self._round + 1 == len(self._rounds):
            self._events.after(self._present_round.reduce, lambda: self._leave(ipus))
        elif not self._busy_members:
            # Every member meets the others again in the sync before the next round.
            delay = self._present_round.reduce + self._sync
            self._next_start = self._events.now + delay
            self._events.after(delay, self._between)

    def _between(self) -> None:
        self._rounds_over.append(_FinishedRounds(self._present_round, self._start, self._end, self._ends))
        further_rounds = self._quiet_rounds()
        if further_rounds:
            self._skip(further_rounds)
        else:
            self._begin()

    # -- closed form -------------------------------------------------------------------------------------------------

    def _quiet_until(self) -> int:
        """When the next other event happens, if the network is idle now; 0 if it is not."""
        return int(min(self._events.peek(), MOST_CYCLES)) if self._network.idle else 0

    def _quiet_rounds(self) -> int:
        """How many of the next rounds are certain to pass like the previous one.

        These are equal rounds that end before anything else happens, if nothing disturbed the previous one. The last
        round of the collective is never among them, because its members leave without a sync.
        """
        time, previous = self._events.now, self._rounds_over[-1]
        if self._undisturbed <= time:
            return 0
        equal_rounds = self._present_round.last - self._round
        if self._round + equal_rounds + 1 == len(self._rounds):
            equal_rounds -= 1
        # The rounds must be over before the next event: in its instant they could share links with it.
        until, period = self._quiet_until(), time - previous.start
        return max(0, min(equal_rounds, (until - 1 - time) // period)) if period else 0

    def _skip(self, rounds: int) -> None:
        """Add this many rounds like the previous one without simulating them, and go on after them."""
        previous, time, chunk = self._rounds_over.pop(), self._events.now, self._present_round.chunk
        period = time - previous.start
        added_cycles = rounds * period
        self._rounds_over.append(previous._replace(repeats=rounds, period=period))
        if chunk:
            moved = [(previous.start + latency, end, flights) for latency, end, flights in self._moved]
            self._network.record(moved, (1, *self._key), chunk, self._label, rounds, period)
        self._round += rounds
        # As if the last of these rounds had just passed.
        self._start, self._end = previous.start + added_cycles, previous.end + added_cycles
        self._ends = {member: end + added_cycles for member, end in previous.ends.items()}
        self._undisturbed = 0
        self._next_start = time + added_cycles
        self._events.after(added_cycles, self._begin)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _parts_of(self, member: int) -> tuple[StepPart, ...]:
        """The transfers, reductions and syncs of a member in all rounds.

        Members that did the same at the same time share one tuple.
        """
        rounds = [*self._rounds_over, _FinishedRounds(self._present_round, self._start, self._end, self._ends)]
        key = tuple([(finished.of(member), finished.finished_round.ends[member]) for finished in rounds])
        member_parts = self._parts.get(key)
        if member_parts is None:
            following = [*[finished.start for finished in rounds[1:]], -1]
            parts_by_round = [finished.parts(member, start) for finished, start in zip(rounds, following, strict=True)]
            member_parts = self._parts[key] = tuple(itertools.chain.from_iterable(parts_by_round))
        return member_parts

    def _leave(self, ipus: Sequence[int]) -> None:
        first_parts = self._parts_of(ipus[0])
        members_by_parts: dict[int, tuple[tuple[StepPart, ...], list[int]]] = {}
        for ipu in () if self._alike else ipus:
            parts = self._parts_of(ipu)
            members_by_parts.setdefault(id(parts), (parts, []))[1].append(ipu)
        self._remaining_members -= len(ipus)
        if not self._remaining_members:
            # The run is closed before anybody goes on, because a member may come back with the same key.
            self._finished()
        for parts, group in [(first_parts, ipus)] if self._alike else list(members_by_parts.values()):
            self._members.leave(group, parts)


def _relative_to(start: int, end: int, ends: dict[int, int], time: int) -> tuple[object, ...]:
    """The times of a round relative to ``time``."""
    # An end is never after ``time``, so 1 can stand for none.
    return (start - time, end - time if end >= 0 else 1, *((ipu, ends[ipu] - time) for ipu in sorted(ends)))
