"""Links between IPUs, gateways, DDR and host; routes over them, and the rings that collectives use.

A `Link` is one direction of a bundle of physical links. Nodes are named ``ipu3``, ``gateway0``, ``ddr0`` (the DDR of
one IPU-Machine), ``nic0`` (its network card to the host) and ``host0``. IPU numbers are those of the whole Pod: IPU ``4
* m + i`` is IPU ``i`` of IPU-Machine ``m``.

IPUs joined by IPU-Links stand in one **rack** (an IPU-Link domain). A route from one rack to another leads through
gateways: up to the sender's own gateway, over the fewest GW-Links to a gateway of the other rack, down to the IPU there
that is nearest to the destination, and over IPU-Links from there. Where no GW-Links lead on from the sender's gateway
(they are down), the route begins with IPU-Links to the nearest IPU that has some.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from ipuperf.machine.errors import MachineError

LINK_KINDS = ("ipu_link", "gw_link", "ddr", "pcie")
_HOPS_TO_ANOTHER_RACK = 3  # at least: up to a gateway, a GW-Link, down
_EXACT_RING = 7  # up to this many IPUs every ring is tried (6! = 720 orders)


@dataclass(frozen=True)
class Link:
    """One direction of a bundle of links between two nodes.

    ``bandwidth_bytes_per_s`` is the bandwidth of the whole bundle in this direction with the protocol efficiency
    applied. ``latency_cycles`` is the latency of the wire alone. Links with the same `resource` share one bandwidth,
    that of the fastest of them: the two directions of a DDR channel do, the two directions of every other link do not.
    The latency of ``ddr`` and ``pcie`` links is 0 because `StreamingMemory.remote_transfer_seconds` and
    `Host.stream_latency_seconds` already count it.
    """

    name: str
    source: str
    destination: str
    kind: str
    count: int
    bandwidth_bytes_per_s: int
    latency_cycles: int
    shared: str = ""

    @property
    def resource(self) -> str:
        """Name of the resource that a transfer over this link occupies: ``shared`` if it is set, else the link
        itself."""
        return self.shared or self.name


IpuLink = Link


@dataclass
class _Search:
    """A breadth-first search from one IPU, which goes on where it stopped.

    Attributes:
        distances: hops to the IPUs found so far, the nearest first.
        frontier: the IPUs whose neighbours come next.
    """

    distances: dict[int, int]
    frontier: list[int]

    def until(self, ipu: int, adjacent: Sequence[Sequence[int]]) -> int:
        """Hops to ``ipu``, -1 where no links lead there."""
        while self.frontier and ipu not in self.distances:
            found = []
            for near in self.frontier:
                for neighbour in adjacent[near]:
                    if neighbour not in self.distances:
                        self.distances[neighbour] = self.distances[near] + 1
                        found.append(neighbour)
            self.frontier = found
        return self.distances.get(ipu, -1)

    def all(self, adjacent: Sequence[Sequence[int]]) -> Mapping[int, int]:
        """Hops to every IPU that links reach."""
        self.until(-1, adjacent)
        return self.distances


@dataclass(frozen=True)
class Topology:
    """All links of a machine with ``ipus`` IPUs. Routes and rings are worked out on first use, then kept.

    A search for a way between two IPUs goes no farther than the destination, so what is asked of neighbours costs the
    same on any number of IPUs.
    """

    links: tuple[Link, ...]
    ipus: int
    _routes: dict[tuple[int, int], tuple[Link, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _off_chip: dict[tuple[str, int, bool], tuple[Link, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _rings: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _searches: dict[int, _Search] = field(default_factory=dict, init=False, repr=False, compare=False)
    _gateway_trees: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _gateway_paths: dict[tuple[str, int], tuple[str, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def by_ends(self) -> Mapping[tuple[str, str], Link]:
        """(source node, destination node) -> link."""
        return {(link.source, link.destination): link for link in self.links}

    def link(self, source: str, destination: str) -> Link:
        """The link from one node to a neighbouring one; `MachineError` if there is none."""
        try:
            return self.by_ends[source, destination]
        except KeyError:
            ends = sorted({link.destination for link in self.links if link.source == source}, key=_natural)
            advice = f"{source} has links to {', '.join(ends)}" if ends else f"there is no node {source}"
            raise MachineError(f"topology: no link {source}->{destination}; {advice}") from None

    def at_rates(self, rates: Mapping[tuple[str, str], Fraction]) -> Topology:
        """These links with some of them at a part of their bandwidth.

        Args:
            rates: the part by the ends of a link; a link of rate 0 is down, and routes lead elsewhere.

        Raises:
            MachineError: links that are down leave no route.
        """
        links = []
        for link in self.links:
            rate = rates.get((link.source, link.destination), Fraction(1))
            if rate == 0 and link.kind not in ("ipu_link", "gw_link"):
                raise MachineError(f"no other route leads from {link.source} to {link.destination}")
            if rate > 0:
                bandwidth = max(1, math.floor(link.bandwidth_bytes_per_s * rate))
                links.append(replace(link, bandwidth_bytes_per_s=bandwidth))
        left = Topology(tuple(links), self.ipus)
        for ipu, (before, now) in enumerate(zip(self._racks, left._racks, strict=True)):
            if before != now:
                raise MachineError(f"no IPU-Links are left that lead from IPU {self.firsts[before]} to IPU {ipu}")
        for first, rack in itertools.product(self.firsts if self._gateways_beside else (), range(self.racks)):
            if self._racks[first] != rack and left._exit(first, rack) < 0:
                raise MachineError(f"no GW-Links are left that lead from IPU {first} to rack {rack}")
        return left

    def neighbours(self, ipu: int) -> tuple[int, ...]:
        """The IPUs that have an IPU-Link to this one, ascending."""
        self._check(ipu)
        return self._adjacent[ipu]

    def reaches(self, source: int, destination: int) -> bool:
        """Whether IPU-Links, or GW-Links between racks, lead from one IPU to the other."""
        self._check(source)
        self._check(destination)
        if self._distance(source, destination) >= 0:
            return True
        return self._exit(source, self.rack(destination)) >= 0

    def hops(self, source: int, destination: int) -> int:
        """Number of links on the route between two IPUs (0 from an IPU to itself)."""
        self._require_way(source, destination)
        distance = self._distance(source, destination)
        return distance if distance >= 0 else len(self.route(source, destination))

    def _require_way(self, source: int, destination: int) -> None:
        if not self.reaches(source, destination):
            raise MachineError(f"topology: no IPU-Links lead from IPU {source} to IPU {destination}")

    @property
    def racks(self) -> int:
        """Number of racks: sets of IPUs that IPU-Links join."""
        return len(self.firsts)

    def rack(self, ipu: int) -> int:
        """The rack of an IPU; racks are numbered by their smallest IPU."""
        self._check(ipu)
        return self._racks[ipu]

    def place_in_rack(self, ipu: int) -> int:
        """How many IPUs of the same rack have smaller numbers."""
        # The IPUs of a rack have consecutive numbers, so the distance from its first one is the place.
        return ipu - self.firsts[self.rack(ipu)]

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The smallest IPU of each rack."""
        found = {rack: ipu for ipu, rack in reversed([*enumerate(self._racks)])}
        return tuple(found[rack] for rack in sorted(found))

    def route(self, source: int, destination: int) -> tuple[Link, ...]:
        """The links from one IPU to another, in order; empty from an IPU to itself.

        A route has the fewest hops; among these the widest narrowest link; then wide links as early as possible (rung
        before rail, as Graphcore's model of the ladder does, PopLibs lib/poplibs_test/Util.cpp:360-430); then the
        smaller node numbers. Between racks it leads through gateways (module docstring).
        """
        key = (source, destination)
        if key not in self._routes:
            self._require_way(source, destination)
            self._routes[key] = self._find_route(source, destination) if source != destination else ()
        return self._routes[key]

    def ring(self, ipus: Sequence[int]) -> tuple[int, ...]:
        """The order in which these IPUs form the ring of a collective, starting at the smallest number.

        It has the fewest hops all round, then the shortest longest hop, then the smaller numbers first: IPUs 0 to 3 of
        an IPU-Machine give 0-1-3-2. Up to seven IPUs all rings are tried. Beyond that the best of four regular ones is
        taken: up one rail of the ladder and down the other, zigzag over the rungs, plain ascending order, and every
        second one up and the others down (PopLibs' interleaved pattern). The first has one hop between all neighbours
        when the IPUs fill a stretch of the ladder, the last at most two when they fill a stretch of a rail.
        """
        # Sorted, so that the ring does not depend on the order of the request.
        members = tuple(sorted(ipus))
        if not members or len(set(members)) != len(members):
            raise MachineError(f"topology: a ring needs one or more different IPUs, got {list(ipus)}")
        for ipu in members:
            self._check(ipu)
        if members not in self._rings:
            # No order is better than the ascending one where that has the fewest hops that are possible at all.
            steps, *_ = self._ring_cost(members)
            least = _HOPS_TO_ANOTHER_RACK if len({self.rack(ipu) for ipu in members}) == len(members) else 1
            candidates = [members] if steps == least * len(members) else _ring_candidates(members)
            self._rings[members] = min(candidates, key=self._ring_cost)
        return self._rings[members]

    def host_route(self, ipu: int, to_host: bool) -> tuple[Link, ...]:
        """The links between an IPU and the host, over the network card of its IPU-Machine. Without a gateway they are
        direct."""
        key = ("host", ipu, to_host)
        if key not in self._off_chip:
            self._check(ipu)
            node = f"ipu{ipu}"
            gateway = self._gateway(node)
            stops = [node, gateway.replace("gateway", "nic"), "host0"] if gateway else [node, "host0"]
            self._off_chip[key] = self._walk(stops if to_host else stops[::-1])
        return self._off_chip[key]

    def remote_route(self, ipu: int, load: bool) -> tuple[Link, ...]:
        """The links between an IPU and the Streaming Memory of its IPU-Machine, for a remote load or a store.

        `MachineError` where the IPU has no gateway with DDR behind it.
        """
        key = ("remote", ipu, load)
        if key not in self._off_chip:
            self._check(ipu)
            node = f"ipu{ipu}"
            gateway = self._gateway(node)
            if not gateway:
                raise MachineError(f"topology: {node} has no IPU-Gateway, so no Streaming Memory and no remote buffers")
            stops = [node, gateway, gateway.replace("gateway", "ddr")]
            self._off_chip[key] = self._walk(stops[::-1] if load else stops)
        return self._off_chip[key]

    @cached_property
    def _adjacent(self) -> tuple[tuple[int, ...], ...]:
        ends: list[set[int]] = [set() for _ in range(self.ipus)]
        for link in self.links:
            if link.kind == "ipu_link":
                ends[int(link.source[3:])].add(int(link.destination[3:]))
        return tuple(tuple(sorted(neighbours)) for neighbours in ends)

    @cached_property
    def _entering(self) -> tuple[tuple[int, ...], ...]:
        """The IPUs from which an IPU-Link leads to each IPU."""
        sources: list[list[int]] = [[] for _ in range(self.ipus)]
        for ipu, neighbours in enumerate(self._adjacent):
            for neighbour in neighbours:
                sources[neighbour].append(ipu)
        return tuple(map(tuple, sources))

    def _search(self, source: int) -> _Search:
        if source not in self._searches:
            self._searches[source] = _Search({source: 0}, [source])
        return self._searches[source]

    def _distance(self, source: int, destination: int) -> int:
        """IPU-Links on a shortest way between two IPUs, -1 where none lead there."""
        if self._racks[source] != self._racks[destination]:
            return -1
        if destination in self._adjacent[source]:
            return 1
        return self._search(source).until(destination, self._adjacent)

    @cached_property
    def _racks(self) -> tuple[int, ...]:
        """Rack of every IPU."""
        racks = [-1] * self.ipus
        number = 0
        for ipu in range(self.ipus):
            if racks[ipu] < 0:
                for reached in self._search(ipu).all(self._adjacent):
                    racks[reached] = number
                number += 1
        return tuple(racks)

    @cached_property
    def _gateways_beside(self) -> Mapping[str, tuple[str, ...]]:
        """Gateways that GW-Links join to each gateway, in natural order."""
        gateways: dict[str, list[str]] = {}
        for link in self.links:
            if link.kind == "gw_link":
                gateways.setdefault(link.source, []).append(link.destination)
        return {node: tuple(sorted(neighbours, key=_natural)) for node, neighbours in gateways.items()}

    @cached_property
    def _ipus_below(self) -> Mapping[str, tuple[int, ...]]:
        """IPUs of each gateway, ascending."""
        ipus_of_gateway: dict[str, list[int]] = {}
        for link in self.links:
            if link.source.startswith("ipu") and link.destination.startswith("gateway"):
                ipus_of_gateway.setdefault(link.destination, []).append(int(link.source[3:]))
        return {node: tuple(sorted(ipus)) for node, ipus in ipus_of_gateway.items()}

    def _gateway_tree(self, start: str) -> dict[str, str]:
        """The gateways that GW-Links reach, the nearest first, and the one before each on a shortest path."""
        if start not in self._gateway_trees:
            before = {start: ""}
            reached = [start]
            for node in reached:  # grows while it is walked
                for neighbour in self._gateways_beside.get(node, ()):
                    if neighbour not in before:
                        before[neighbour] = node
                        reached.append(neighbour)
            self._gateway_trees[start] = before
        return self._gateway_trees[start]

    @cached_property
    def _racks_below(self) -> Mapping[str, frozenset[int]]:
        return {node: frozenset(self._racks[ipu] for ipu in ipus) for node, ipus in self._ipus_below.items()}

    def _gateway_path(self, ipu: int, rack: int) -> tuple[str, ...]:
        """Gateways on the shortest path over GW-Links from that of ``ipu`` to one of ``rack``; empty where there is
        none."""
        key = start, rack = self._gateway(f"ipu{ipu}"), rack
        if key not in self._gateway_paths:
            before = self._gateway_tree(start) if start else {}
            there = (node for node in before if node != start and rack in self._racks_below.get(node, ()))
            path, node = [], next(there, "")
            while node:
                path.append(node)
                node = before[node]
            self._gateway_paths[key] = tuple(path[::-1])
        return self._gateway_paths[key]

    def _exit(self, ipu: int, rack: int) -> int:
        """The nearest IPU from whose gateway GW-Links lead to ``rack`` (``ipu`` itself where all are up); -1: none."""
        if self._gateway_path(ipu, rack):
            return ipu
        distances = self._search(ipu).all(self._adjacent)
        others = [other for other in distances if other != ipu and self._gateway_path(other, rack)]
        return min(others, key=lambda other: (distances[other], other), default=-1)

    def _cross_racks(self, source: int, destination: int) -> tuple[Link, ...]:
        """The route through gateways to an IPU of another rack."""
        leaving = self._exit(source, self.rack(destination))
        if leaving != source:
            return self.route(source, leaving) + self.route(leaving, destination)
        path = self._gateway_path(source, self.rack(destination))
        # The IPU-Links of the other rack are used as little as possible.
        landing = min(self._ipus_below[path[-1]], key=lambda ipu: (self._distance(ipu, destination), ipu))
        return self._walk([f"ipu{source}", *path, f"ipu{landing}"]) + self.route(landing, destination)

    def _find_route(self, source: int, destination: int) -> tuple[Link, ...]:
        if destination in self._adjacent[source]:
            return self._walk([f"ipu{source}", f"ipu{destination}"])
        if self._distance(source, destination) < 0:
            return self._cross_racks(source, destination)
        layers = self._layers(source, destination)
        # Physical links are counted, as a link at part of its rate keeps its routes.
        widths = {
            near: {
                far: self.link(f"ipu{near}", f"ipu{far}").count
                for far in self._adjacent[near]
                if far in layers[hop + 1]
            }
            for hop, layer in enumerate(layers[:-1])
            for near in layer
        }
        # Forwards: the widest narrowest link.
        least: dict[int, float] = {source: math.inf}
        for near, ways_on in widths.items():
            for far, width in ways_on.items():
                least[far] = max(least.get(far, 0), min(least[near], width))
        # Backwards: the best of the ways on, over links as wide as that.
        best: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {destination: ((), ())}
        for near in reversed(widths):
            ways = [
                ((-width, *best[far][0]), (far, *best[far][1]))
                for far, width in widths[near].items()
                if far in best and width >= least[destination]
            ]
            if ways:
                best[near] = min(ways)
        return self._walk([f"ipu{source}", *(f"ipu{ipu}" for ipu in best[source][1])])

    def _layers(self, source: int, destination: int) -> list[set[int]]:
        """The IPUs that shortest ways pass after each number of hops."""
        distances = self._search(source).distances
        layers = [{destination}]
        for hop in reversed(range(distances[destination])):
            layers.append({near for ipu in layers[-1] for near in self._entering[ipu] if distances.get(near) == hop})
        return layers[::-1]

    def _walk(self, nodes: Sequence[str]) -> tuple[Link, ...]:
        return tuple(self.link(node, next_node) for node, next_node in itertools.pairwise(nodes))

    def _ring_cost(self, order: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        steps = [self.hops(ipu, next_ipu) for ipu, next_ipu in zip(order, order[1:] + order[:1])]
        return sum(steps), max(steps), order

    def _gateway(self, node: str) -> str:
        return next((link.destination for link in self._uplinks.get(node, ())), "")

    @cached_property
    def _uplinks(self) -> Mapping[str, tuple[Link, ...]]:
        uplinks: dict[str, tuple[Link, ...]] = {}
        for link in self.links:
            if link.destination.startswith("gateway") and link.source.startswith("ipu"):
                uplinks[link.source] = (*uplinks.get(link.source, ()), link)
        return uplinks

    def _check(self, ipu: int) -> None:
        if not 0 <= ipu < self.ipus:
            raise MachineError(f"topology: there is no IPU {ipu}, the IPUs are 0 to {self.ipus - 1}")


def _natural(node: str) -> tuple[str, int]:
    """Sort key that puts ipu9 before ipu10."""
    match = re.fullmatch(r"(\D*)(\d*)", node)
    return (match[1], int(match[2] or -1)) if match else (node, -1)


def _ring_candidates(members: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Ring orders worth comparing, each starting at the smallest IPU."""
    lowest, others = members[0], members[1:]
    if len(members) <= _EXACT_RING:
        return [(lowest, *order) for order in itertools.permutations(others)]
    same_rail = [ipu for ipu in others if ipu % 2 == lowest % 2]
    other_rail = [ipu for ipu in others if ipu % 2 != lowest % 2]
    zigzag: list[int] = []
    for _, pair in itertools.groupby(members, key=lambda ipu: ipu // 2):
        # Each rung is walked from the end where the previous one was left.
        rung = list(pair)
        turns = bool(zigzag) and zigzag[-1] % 2 != rung[0] % 2
        zigzag += rung[::-1] if turns else rung
    interleaved = (*members[::2], *members[1::2][::-1])
    return [(lowest, *other_rail, *same_rail[::-1]), tuple(zigzag), members, interleaved]
