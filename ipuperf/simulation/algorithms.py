"""Algorithms of collectives: which IPU sends what to whom in which round, and what that would take alone.

GCL, Graphcore's library, is closed. Its predecessor is not: PopLibs' ``ReplicatedCollectives`` knows the first two
algorithms below under these names, and picks between them by bytes and number of replicas with thresholds "determined
experimentally" on older hardware. The third, and picking the cheapest by estimate on the machine at hand instead of by
those thresholds, are ours. ``D`` is the bytes of the whole tensor on one replica, ``R`` the members of a group.

``bidirectional_ring_pair``
    Two halves of the data, each on its own ring, one each way round, in R chunks of D / 2R: R - 1 rounds. Two members
    have only one neighbour, to which both halves would go over the same link: one round of D / 2 each way.
``meet_in_middle_ring``
    R chunks of D / R; half way round clockwise, half anticlockwise, until they meet: R / 2 rounds, in the last of which
    only the clockwise way is used when R is even. Half the rounds for slightly more bytes over each link.
``hierarchical``
    Members that fill a grid of rungs, rails and racks: reduce-scatter along the rungs, then along the rails with
    1 / 2 of the data, then between the racks with what is left, and all-gather the way back. Every dimension uses the
    cheaper of the two rings; all rings of a dimension run at once. Rungs have three times the links of rails, both
    rails work at once, and rounds add up per dimension (1 + 31 instead of 63 on 64 IPUs).

``broadcast``
    All-reduces only: each member sends the whole tensor to all others, which add on their own: one round. GCL takes it
    where group size times bytes is at most :data:`MAX_BROADCAST_BYTES`, as "the network latency cost is paid only once"
    (GCL user guide, 4.1.1), and not for groups with a stride (release notes of GCL 3.0). Groups over several racks do
    not take it here: their collectives work in phases (there), of which nothing more is public.

Any other all-reduce is a reduce-scatter and then an all-gather. Chunks are rounded up to whole bytes. The order in
which values are added follows the algorithm on hardware; the numeric half adds by ascending replica number, whatever
the algorithm. Which member ends up with which shard follows it too, and is left open upstream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from ipuperf.lowering.steps import Collective
from ipuperf.lowering.steps.collective import BROADCAST, HIERARCHICAL, MEET_IN_MIDDLE, RING_PAIR

if TYPE_CHECKING:
    from ipuperf.machine import Machine, Topology

MAX_BROADCAST_BYTES = 2048
"""Most bytes times members of an all-reduce by broadcast: the default of GCL's ``syncful.maxBroadcastSize``
(``docs.graphcore.ai/projects/gcl-user-guide``, 4.1.1)."""

Ring = tuple[int, ...]
"""IPUs of the machine, each a neighbour of the next and the last of the first."""


@dataclass(frozen=True)
class CollectiveRound:
    """Sends that begin together, ``times`` rounds of them.

    Attributes:
        sends: pairs of IPUs of the machine.
        part: fraction of the tensor that each send moves.
        reduced: fraction of the tensor that a member then adds up.
        together: it is over for all members when it is for the last (a simplification; otherwise for each by itself).
    """

    sends: tuple[tuple[int, int], ...]
    part: Fraction
    reduced: Fraction
    times: int
    together: bool = False

    def chunk(self, size: int) -> int:
        """Bytes of a send for a tensor of ``size`` bytes."""
        return -(-size * self.part.numerator // self.part.denominator)


@dataclass(frozen=True)
class CollectivePlan:
    """The rounds of a collective, of ``method``."""

    method: str
    rounds: tuple[CollectiveRound, ...]

    @property
    def count(self) -> int:
        """Number of rounds."""
        return sum(item.times for item in self.rounds)


def ring_rounds(rings: Sequence[Ring], part: Fraction, reduces: bool, method: str) -> tuple[CollectiveRound, ...]:
    """One half of an all-reduce (``reduces``: the reduce-scatter) of ``part`` of the tensor on equally long rings."""
    size = len(rings[0])
    here = [pair for ring in rings for pair in zip(ring, ring[1:] + ring[:1])]
    back = [pair for ring in rings for pair in zip(ring, ring[-1:] + ring[:-1])]
    both = tuple(pair for pairs in zip(here, back) for pair in pairs)
    added = 1 if reduces else 0
    if size == 2:
        return (CollectiveRound(tuple(here), part / 2, added * part / 2, 1),)
    if method == RING_PAIR:
        return (CollectiveRound(both, part / (2 * size), added * part / size, size - 1),)
    chunk = part / size
    rounds = [CollectiveRound(both, chunk, 2 * added * chunk, (size - 1) // 2)]
    if size % 2 == 0:
        rounds.append(CollectiveRound(tuple(here), chunk, added * chunk, 1))
    return tuple(rounds)


def broadcast_round(members: Ring) -> CollectiveRound:
    """Everybody sends the whole tensor to everybody else, and adds up what came: ``R - 1`` times as much as it holds,
    each as one of its ``R`` chunks, because a tensor so small has no more to add on a tile."""
    sends = tuple((source, destination) for source in members for destination in members if source != destination)
    return CollectiveRound(sends, Fraction(1), Fraction(len(members) - 1, len(members)), 1, together=True)


def dimensions(topology: Topology, members: Ring) -> list[list[Ring]]:
    """Rings along the rungs, the rails and between the racks; empty unless the members fill a grid of two or three.

    Rungs and rails follow from the numbers, as everywhere: IPUs ``2 n`` and ``2 n + 1`` of a rack are a rung.
    """
    places = {}
    for ipu in members:
        place = topology.place_in_rack(ipu)
        places[place % 2, place // 2, topology.rack(ipu)] = ipu
    axes = [sorted({place[axis] for place in places}) for axis in range(3)]
    if len(members) != len(axes[0]) * len(axes[1]) * len(axes[2]) or sum(len(axis) > 1 for axis in axes) < 2:
        return []
    found = []
    for axis in range(3):
        lines: dict[tuple[int, ...], list[int]] = {}
        for spot in sorted(places):
            lines.setdefault(spot[:axis] + spot[axis + 1 :], []).append(places[spot])
        if len(axes[axis]) > 1:
            found.append([topology.ring(line) for line in lines.values()])
    return found


@dataclass(frozen=True)
class CollectiveSyncs:
    """Cycles of the syncs before each round of a collective.

    Attributes:
        near, far: one sync where all members are IPUs of one IPU-Machine, and where they are not.
        ipus_per_machine: IPU ``i`` of the machine is one of IPU-Machine ``i // ipus_per_machine``.
        decisions: further syncs of a round of a ring.
    """

    near: int
    far: int
    ipus_per_machine: int
    decisions: int = 0

    def before(self, members: Ring, method: str) -> int:
        """Those before a round of ``method`` among these IPUs."""
        one = self.far if len({ipu // self.ipus_per_machine for ipu in members}) > 1 else self.near
        return one if method == BROADCAST else one * (1 + self.decisions)


def collective_syncs(machine: Machine, placement: Sequence[Sequence[int]]) -> CollectiveSyncs:
    """The syncs of a program whose replicas are placed so.

    A copy between replicas is synchronised globally (Poplar's ``SyncType::GLOBAL``). On one IPU-Machine that takes as
    long as an external sync, on several :attr:`~ipuperf.machine.IpuMachine.global_sync_cycles`, which was fitted to
    collectives of all replicas and has in it what a round between machines needs besides. So a group on one
    IPU-Machine pays the former, as if the others were not asked: PopLibs puts the signal itself at 15 ns a hop
    (``lib/poplibs_test/Util.cpp``), less than the external sync on up to 64 IPUs.

    In each round of a ring the program decides what to do: which fragment is sliced next, whether this is the first or
    the last round (``Switch`` and ``If`` of PopLibs' ``ReplicatedCollectives``, by scalars on one tile). All IPUs of a
    replica run one program, so in replicas of several IPUs the decision goes to the others, which takes one more sync
    (assumed: one for all decisions of a round, as long as the copy's). On a torus PopLibs divides a tensor that lies on
    several IPUs into one copy for each pair of them (``splitExchangesToAvoidDeadlock``); a collective here is of one
    IPU of each replica, and the empty copies of the others are taken to be none.
    """
    near = machine.chip.external_sync_cycles
    far = max(near, machine.ipu_machine.global_sync_cycles)
    return CollectiveSyncs(near, far, machine.ipu_machine.ipus, decisions=1 if len(placement[0]) > 1 else 0)


@dataclass
class Planner:
    """Plans of collectives on a machine, found once and kept.

    Args:
        clock_hz: tile clock.
        syncs: before each round.
    """

    topology: Topology
    clock_hz: int
    syncs: CollectiveSyncs
    _plans: dict[tuple[object, ...], CollectivePlan] = field(default_factory=dict, repr=False)
    _ways: dict[tuple[tuple[int, int], ...], tuple[int, set[tuple[int, int]]]] = field(default_factory=dict, repr=False)

    def plan(self, step: Collective, members: Ring) -> CollectivePlan:
        """The rounds of ``step`` among ``members`` (IPUs of the machine, ascending).

        Broadcast for small all-reduces; otherwise the cheapest of the others by :meth:`estimate` (of equal ones the
        first named above) unless the step names one. The hierarchical one falls back to the cheapest ring where the
        members fill no grid, broadcast where nothing is reduced for all.
        """
        key = (step.kind, step.bytes, step.reduce_cycles, step.method, members)
        if key not in self._plans:
            self._plans[key] = min(self._candidates(step, members), key=lambda plan: self.estimate(plan, step, members))
        return self._plans[key]

    def estimate(self, plan: CollectivePlan, step: Collective, members: Ring) -> int:
        """Cycles from the arrival of the last member to the end, without any other traffic.

        A simplification for several groups: those of other IPUs of the replica and of other groups of the step, which
        usually run at the same time, are not seen here (in the simulation they are).
        """
        sync = self.syncs.before(members, plan.method)
        return sum(self._round_cycles(item, step, members, sync) for item in plan.rounds)

    def _round_cycles(self, item: CollectiveRound, step: Collective, members: Ring, sync: int) -> int:
        latency, crossings = self._way(item.sends)
        chunk = item.chunk(step.bytes)
        moving = max(-(-chunk * count * self.clock_hz // rate) for count, rate in crossings)
        return item.times * (sync + latency + moving + reduce_cycles(item, step, len(members)))

    def _way(self, sends: tuple[tuple[int, int], ...]) -> tuple[int, set[tuple[int, int]]]:
        """The longest latency, and by how many of the sends links of which bandwidth are crossed."""
        if sends not in self._ways:
            routes = [self.topology.route(*ends) for ends in sends]
            counts = Counter(link.resource for route in routes for link in route)
            rates = {link.resource: link.bandwidth_bytes_per_s for route in routes for link in route}
            latency = max(sum(link.latency_cycles for link in route) for route in routes)
            self._ways[sends] = (latency, {(number, rates[name]) for name, number in counts.items()})
        return self._ways[sends]

    def _candidates(self, step: Collective, members: Ring) -> list[CollectivePlan]:
        if self._broadcasts(step, members):
            return [CollectivePlan(BROADCAST, (broadcast_round(members),))]
        ring = self.topology.ring(members)
        plans = []
        for method in (RING_PAIR, MEET_IN_MIDDLE):
            if step.method in ("auto", method, HIERARCHICAL, BROADCAST):
                halves = [ring_rounds([ring], Fraction(1), reduces, method) for reduces in _halves(step.kind)]
                plans.append(CollectivePlan(method, tuple(item for half in halves for item in half)))
        if step.method in ("auto", HIERARCHICAL):
            grid = dimensions(self.topology, members)
            if grid:
                only = step.method == HIERARCHICAL
                plans = [*([] if only else plans), self._hierarchical(step, members, grid)]
        return plans

    def _broadcasts(self, step: Collective, members: Ring) -> bool:
        """Whether this is an all-reduce by broadcast."""
        if step.kind != "all_reduce" or step.method != "auto":
            return step.kind == "all_reduce" and step.method == BROADCAST
        small = step.bytes * len(members) <= MAX_BROADCAST_BYTES
        return small and not _strided(step) and len({self.topology.rack(ipu) for ipu in members}) == 1

    def _hierarchical(self, step: Collective, members: Ring, grid: Sequence[Sequence[Ring]]) -> CollectivePlan:
        rounds: list[CollectiveRound] = []
        for reduces in _halves(step.kind):
            part, half = Fraction(1), []
            for rings in grid:
                options = [ring_rounds(rings, part, reduces, method) for method in (RING_PAIR, MEET_IN_MIDDLE)]
                half.append(min(options, key=lambda o: self.estimate(CollectivePlan(HIERARCHICAL, o), step, members)))
                part /= len(rings[0])
            rounds += [item for phase in (half if reduces else half[::-1]) for item in phase]
        return CollectivePlan(HIERARCHICAL, tuple(rounds))


def _strided(step: Collective) -> bool:
    """Whether its groups are of every so-many-th replica."""
    return any(group[-1] - group[0] + 1 != len(group) for group in step.groups)


def _halves(kind: str) -> tuple[bool, ...]:
    """The halves of a collective, for each whether it reduces."""
    return {"all_reduce": (True, False), "reduce_scatter": (True,), "all_gather": (False,)}[kind]


def reduce_cycles(item: CollectiveRound, step: Collective, members: int) -> int:
    """Cycles to add what arrived in a round: in proportion to :attr:`Collective.reduce_cycles`, which is for a
    ``members``-th of the tensor (a simplification: the fixed cycles of a vertex grow with it)."""
    return -(-step.reduce_cycles * members * item.reduced.numerator // item.reduced.denominator)
