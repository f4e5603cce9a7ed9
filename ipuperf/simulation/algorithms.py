"""Algorithms of collectives: which IPU sends what to whom in which round, and how long that takes by itself.

GCL, Graphcore's library, is closed source. Its predecessor is open: PopLibs' ``ReplicatedCollectives`` has the first
two algorithms below under these names. It chooses between them by bytes and number of replicas, with thresholds
"determined experimentally" on older hardware. The third algorithm is ours, and so is the choice: the cheapest by
estimate on the machine at hand. ``D`` is the bytes of the whole tensor on one replica, ``R`` the members of a group.

``bidirectional_ring_pair``
    Each half of the data goes round its own ring, in opposite directions, in R chunks of D / 2R: R - 1 rounds. Two
    members have only one neighbour, so both halves would cross the same link: they take one round of D / 2 each way.
``meet_in_middle_ring``
    R chunks of D / R go half way round, clockwise and anticlockwise, until they meet: R / 2 rounds. When R is even, the
    last round uses only the clockwise direction. This is half the rounds for slightly more bytes over each link.
``hierarchical``
    For members that fill a grid of rungs, rails and racks. They reduce-scatter along the rungs, then along the rails
    with 1 / 2 of the data, then between the racks with the remaining part, and all-gather in the opposite order. Every
    dimension uses the cheaper of the two rings, and all rings of a dimension run at once. Rungs have three times the
    links of rails, both rails work at once, and rounds add up per dimension (1 + 31 instead of 63 on 64 IPUs).

``broadcast``
    For all-reduces only: each member sends the whole tensor to all others, and each adds on its own: one round. GCL
    uses it where group size times bytes is at most :data:`MAX_BROADCAST_BYTES`, as "the network latency cost is paid
    only once" (GCL user guide, 4.1.1), but not for groups with a stride (release notes of GCL 3.0). Groups over several
    racks do not use it here: according to the guide their collectives work in phases, and nothing more is public.

Any other all-reduce is a reduce-scatter followed by an all-gather. Chunks are rounded up to whole bytes. On hardware
the order of additions follows the algorithm; our numeric half always adds by ascending replica number. Which member
gets which shard follows the algorithm too, and upstream leaves it open.
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
"""IPUs of the machine: each is a neighbour of the next, and the last one of the first."""


@dataclass(frozen=True)
class CollectiveRound:
    """A round, that is sends that begin together, which is executed ``times`` times.

    Attributes:
        sends: pairs of IPUs of the machine.
        part: fraction of the tensor that each send moves.
        reduced: fraction of the tensor that a member then adds up.
        together: the round ends for all members when it ends for the last one (a simplification). Otherwise it ends for
            each member by itself.
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
        return sum(planned_round.times for planned_round in self.rounds)


def ring_rounds(rings: Sequence[Ring], part: Fraction, reduces: bool, method: str) -> tuple[CollectiveRound, ...]:
    """The rounds of one half of an all-reduce on rings of equal length.

    Args:
        rings: the rings, which work at the same time.
        part: the fraction of the tensor that is reduced or gathered.
        reduces: whether this is the reduce-scatter.
        method: the algorithm.
    """
    size = len(rings[0])
    clockwise = [pair for ring in rings for pair in zip(ring, ring[1:] + ring[:1])]
    anticlockwise = [pair for ring in rings for pair in zip(ring, ring[-1:] + ring[:-1])]
    both_ways = tuple(pair for pairs in zip(clockwise, anticlockwise) for pair in pairs)
    added = 1 if reduces else 0
    if size == 2:
        return (CollectiveRound(tuple(clockwise), part / 2, added * part / 2, 1),)
    if method == RING_PAIR:
        return (CollectiveRound(both_ways, part / (2 * size), added * part / size, size - 1),)
    chunk = part / size
    # One chunk arrives from either side, so a member adds two.
    rounds = [CollectiveRound(both_ways, chunk, 2 * added * chunk, (size - 1) // 2)]
    if size % 2 == 0:
        rounds.append(CollectiveRound(tuple(clockwise), chunk, added * chunk, 1))
    return tuple(rounds)


def broadcast_round(members: Ring) -> CollectiveRound:
    """Every member sends the whole tensor to all others and adds the ``R - 1`` tensors that arrive.

    Each of them costs as much as one of the ``R`` chunks of a tensor: there is no more to add on a tile, because the
    tensor is so small.
    """
    sends = tuple((source, destination) for source in members for destination in members if source != destination)
    return CollectiveRound(sends, Fraction(1), Fraction(len(members) - 1, len(members)), 1, together=True)


def dimensions(topology: Topology, members: Ring) -> list[list[Ring]]:
    """Rings along the rungs, along the rails and between the racks.

    The list is empty unless the members fill a grid of two or three dimensions.

    Rungs and rails follow from the numbers, as everywhere: IPUs ``2 n`` and ``2 n + 1`` of a rack are a rung.
    """
    # Three coordinates of each member: its IPU of the rung, its rung in the rack, and its rack.
    places = {}
    for ipu in members:
        place = topology.place_in_rack(ipu)
        places[place % 2, place // 2, topology.rack(ipu)] = ipu
    axes = [sorted({place[axis] for place in places}) for axis in range(3)]
    # With a single dimension the plain rings do the same.
    if len(members) != len(axes[0]) * len(axes[1]) * len(axes[2]) or sum(len(axis) > 1 for axis in axes) < 2:
        return []
    rings_by_axis = []
    for axis in range(3):
        lines: dict[tuple[int, ...], list[int]] = {}
        for coordinates in sorted(places):
            lines.setdefault(coordinates[:axis] + coordinates[axis + 1 :], []).append(places[coordinates])
        if len(axes[axis]) > 1:
            rings_by_axis.append([topology.ring(line) for line in lines.values()])
    return rings_by_axis


@dataclass(frozen=True)
class CollectiveSyncs:
    """Cycles of the syncs before each round of a collective.

    Attributes:
        near: one sync among IPUs of the same IPU-Machine.
        far: one sync among IPUs of several IPU-Machines.
        ipus_per_machine: IPU ``i`` of the machine is one of IPU-Machine ``i // ipus_per_machine``.
        decisions: further syncs of a round of a ring.
    """

    near: int
    far: int
    ipus_per_machine: int
    decisions: int = 0

    def before(self, members: Ring, method: str) -> int:
        """Cycles of the syncs before a round of ``method`` among these IPUs."""
        sync_cycles = self.far if len({ipu // self.ipus_per_machine for ipu in members}) > 1 else self.near
        return sync_cycles if method == BROADCAST else sync_cycles * (1 + self.decisions)


def collective_syncs(machine: Machine, placement: Sequence[Sequence[int]]) -> CollectiveSyncs:
    """The syncs of collectives in a program with this placement of replicas.

    A copy between replicas is synchronised globally (Poplar's ``SyncType::GLOBAL``). On one IPU-Machine that takes as
    long as an external sync, on several it takes :attr:`~ipuperf.machine.IpuMachine.global_sync_cycles`. That figure
    was fitted to collectives of all replicas, and includes what else a round between machines needs. A group on one
    IPU-Machine therefore pays only the external sync, although all replicas are synchronised: PopLibs puts the signal
    itself at 15 ns a hop (``lib/poplibs_test/Util.cpp``), less than the external sync on up to 64 IPUs.

    In each round of a ring the program makes decisions: which fragment is sliced next, and whether this is the first or
    the last round (``Switch`` and ``If`` of PopLibs' ``ReplicatedCollectives``, by scalars on one tile). All IPUs of a
    replica run one program. In replicas of several IPUs the decision therefore goes to the other IPUs, which takes one
    more sync (assumed: one for all decisions of a round, as long as the copy's). On a torus PopLibs divides a tensor
    that lies on several IPUs into one copy for each pair of them (``splitExchangesToAvoidDeadlock``). A collective here
    has one IPU of each replica, and the empty copies of the other IPUs are left out.
    """
    near = machine.chip.external_sync_cycles
    far = max(near, machine.ipu_machine.global_sync_cycles)
    return CollectiveSyncs(near, far, machine.ipu_machine.ipus, decisions=1 if len(placement[0]) > 1 else 0)


@dataclass
class Planner:
    """Plans the collectives on a machine. Each plan is made once.

    Args:
        topology: gives routes and rings.
        clock_hz: the tile clock.
        syncs: the syncs before each round.
    """

    topology: Topology
    clock_hz: int
    syncs: CollectiveSyncs
    _plans: dict[tuple[object, ...], CollectivePlan] = field(default_factory=dict, repr=False)
    _grids: dict[Ring, list[list[Ring]]] = field(default_factory=dict, repr=False)
    _route_costs: dict[tuple[tuple[int, int], ...], tuple[int, set[tuple[int, int]]]] = field(
        default_factory=dict, repr=False
    )

    def plan(self, step: Collective, members: Ring) -> CollectivePlan:
        """The rounds of ``step`` among ``members`` (IPUs of the machine, ascending).

        Small all-reduces use broadcast. Others use the method that the step names, or the cheapest by :meth:`estimate`
        (of equal ones the one that the module's docstring names first). The cheapest ring replaces ``hierarchical``
        where the members fill no grid, and ``broadcast`` where the step is not an all-reduce.
        """
        key = (step.kind, step.bytes, step.reduce_cycles, step.method, members)
        if key not in self._plans:
            self._plans[key] = min(self._candidates(step, members), key=lambda plan: self.estimate(plan, step, members))
        return self._plans[key]

    def estimate(self, plan: CollectivePlan, step: Collective, members: Ring) -> int:
        """Cycles from the arrival of the last member to the end, without any other traffic.

        The collectives of other IPUs of the replica and of other groups of the step usually run at the same time. The
        estimate leaves them out (a simplification); the simulation does not.
        """
        sync = self.syncs.before(members, plan.method)
        return sum(self._round_cycles(planned_round, step, members, sync) for planned_round in plan.rounds)

    def _round_cycles(self, planned_round: CollectiveRound, step: Collective, members: Ring, sync: int) -> int:
        latency, crossings = self._route_cost(planned_round.sends)
        chunk = planned_round.chunk(step.bytes)
        moving = max(-(-chunk * count * self.clock_hz // rate) for count, rate in crossings)
        return planned_round.times * (sync + latency + moving + reduce_cycles(planned_round, step, len(members)))

    def _route_cost(self, sends: tuple[tuple[int, int], ...]) -> tuple[int, set[tuple[int, int]]]:
        """The longest latency of the sends, and pairs of how many sends cross a link and the link's bandwidth."""
        if sends not in self._route_costs:
            routes = [self.topology.route(*ends) for ends in sends]
            counts = Counter(link.resource for route in routes for link in route)
            rates = {link.resource: link.bandwidth_bytes_per_s for route in routes for link in route}
            latency = max(sum(link.latency_cycles for link in route) for route in routes)
            # Links with as many sends and the same bandwidth are equally slow, so a set of pairs is enough.
            self._route_costs[sends] = (latency, {(number, rates[name]) for name, number in counts.items()})
        return self._route_costs[sends]

    def _candidates(self, step: Collective, members: Ring) -> list[CollectivePlan]:
        if self._broadcasts(step, members):
            return [CollectivePlan(BROADCAST, (broadcast_round(members),))]
        ring = self.topology.ring(members)
        plans = []
        for method in (RING_PAIR, MEET_IN_MIDDLE):
            # Hierarchical and broadcast fall back to a ring where they do not apply.
            if step.method in ("auto", method, HIERARCHICAL, BROADCAST):
                halves = [ring_rounds([ring], Fraction(1), reduces, method) for reduces in _halves(step.kind)]
                plans.append(CollectivePlan(method, tuple(planned_round for half in halves for planned_round in half)))
        if step.method in ("auto", HIERARCHICAL):
            if members not in self._grids:
                self._grids[members] = dimensions(self.topology, members)
            grid = self._grids[members]
            if grid:
                hierarchical_only = step.method == HIERARCHICAL
                plans = [*([] if hierarchical_only else plans), self._hierarchical(step, members, grid)]
        return plans

    def _broadcasts(self, step: Collective, members: Ring) -> bool:
        """Whether this step is an all-reduce by broadcast."""
        if step.kind != "all_reduce" or step.method != "auto":
            return step.kind == "all_reduce" and step.method == BROADCAST
        small = step.bytes * len(members) <= MAX_BROADCAST_BYTES
        return small and not _strided(step) and len({self.topology.rack(ipu) for ipu in members}) == 1

    def _hierarchical(self, step: Collective, members: Ring, grid: Sequence[Sequence[Ring]]) -> CollectivePlan:
        rounds: list[CollectiveRound] = []
        for reduces in _halves(step.kind):
            part, phases = Fraction(1), []
            for rings in grid:
                options = [ring_rounds(rings, part, reduces, method) for method in (RING_PAIR, MEET_IN_MIDDLE)]
                phases.append(
                    min(options, key=lambda option: self.estimate(CollectivePlan(HIERARCHICAL, option), step, members))
                )
                # After a reduce-scatter along one dimension, each member holds this part for the next.
                part /= len(rings[0])
            rounds += [planned_round for phase in (phases if reduces else phases[::-1]) for planned_round in phase]
        return CollectivePlan(HIERARCHICAL, tuple(rounds))


def _strided(step: Collective) -> bool:
    """Whether the step has groups whose replicas do not follow each other directly."""
    return any(group[-1] - group[0] + 1 != len(group) for group in step.groups)


def _halves(kind: str) -> tuple[bool, ...]:
    """The halves of a collective: for each half, whether it reduces."""
    return {"all_reduce": (True, False), "reduce_scatter": (True,), "all_gather": (False,)}[kind]


def reduce_cycles(planned_round: CollectiveRound, step: Collective, members: int) -> int:
    """Cycles to add what arrived in a round.

    They are in proportion to :attr:`Collective.reduce_cycles`, which is for a ``members``-th of the tensor. This is a
    simplification: the fixed cycles of a vertex are scaled too.
    """
    return -(-step.reduce_cycles * members * planned_round.reduced.numerator // planned_round.reduced.denominator)
