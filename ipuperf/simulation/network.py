"""Flow-level network: transfers in flight share links, DDR channels and PCIe ports by max-min fairness.

A flow crosses the links of its route at once and at one rate. The rates of all flows are the max-min fair ones: the
link with the smallest share per flow is found, its flows get that share, and so on with what is left. They are
recomputed at the end of each instant in which a flow entered or left; between two such instants they are constant. A
flow pays the latencies of its links before it enters, occupies its share until the next whole cycle after its last
byte, and ends there.

Arithmetic is exact to a unit of 1 / (:data:`SCALE` x clock) byte and in integers: a link of B bytes/s moves B x SCALE
units in a cycle of a clock of f Hz, a byte is f x SCALE units. Shares are whole units, rounded down, so a link never
carries more than its bandwidth; since SCALE is divisible by 1 to 16, an equal share between up to 16 flows is exact and
ends fall on the cycle that pencil and paper give. There is no floating point, hence no drift and no platform
dependence.

**Sends together.** Sends of one size that begin at once and need the same latency are one flow as long as their rates
are the same (a round of a collective; what replicas that do the same do at once). Its rate is shared out send by send,
and where it comes out differently, the flow is parted: what happens is the same, to the unit, as if each send were a
flow of its own. One that stands for several replicas must not be parted (:class:`.errors.Asymmetric`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .errors import Asymmetric, SimulationError
from .event_loop import NETWORK, EventLoop
from .recorder import Flight, Transferred

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .recorder import Label, Recorder

SCALE = 720_720
"""Least common multiple of 1 to 16: units of a byte x Hz (see module docstring)."""


_NEVER = 1 << 62

_Shares = list[tuple[int, list[int]]]
"""The rates of a flow's sends: each with the places of those that have it."""

_RATES_KEPT = 4096
"""Different sets of flows whose rates are remembered."""

_ROUTES_KEPT = 65536
"""Routes that are remembered."""


class Send(NamedTuple):
    """A transfer to be: ``owner`` identifies it among those in flight (a tuple of integers, the same in every iteration
    of a loop), ``route`` is its way, ``ipu`` the IPU of the machine that asks for it."""

    owner: tuple[int, ...]
    route: tuple[Link, ...]
    ipu: int


class SendBundle(NamedTuple):
    """Sends of one latency, which occupy these ``resources``, known by this ``number``; they are not parted if they are
    those of ``replicas`` (one send each) that do the same."""

    latency: int
    flights: tuple[Flight, ...]
    resources: tuple[tuple[int, ...], ...]
    number: int
    replicas: tuple[int, ...] = ()


Done = Callable[[tuple[Flight, ...]], None]
"""Told which sends are over."""


class NetworkFlow:
    """Sends in flight that began together and have had the same rate since.

    ``bundle`` are the sends, ``owner`` is what their owners begin with, ``bytes`` what each moves. Since the time
    ``since``, when ``remaining`` units of each were left, each has had ``rate`` units per cycle, with which it ends at
    the time ``end`` (never, before it has a rate).
    """

    __slots__ = ("bundle", "bytes", "done", "end", "flights", "label", "owner", "rate", "remaining", "since", "start")

    def __init__(self, bundle: SendBundle, owner: tuple[int, ...], size: int, label: Label, done: Done) -> None:
        self.bundle = bundle
        self.flights = bundle.flights
        self.owner = owner
        self.label = label
        self.bytes = size
        self.done = done
        self.start = -1
        self.since = -1
        self.remaining = 0
        self.rate = 0
        self.end = _NEVER

    @property
    def first(self) -> tuple[int, ...]:
        """Owner of the first send."""
        return self.owner + self.flights[0].owner

    def part(self, bundle: SendBundle) -> NetworkFlow:
        """These of its sends."""
        flow = NetworkFlow(bundle, self.owner, self.bytes, self.label, self.done)
        flow.start, flow.since, flow.remaining = self.start, self.since, self.remaining
        flow.rate, flow.end = self.rate, self.end
        return flow

    def enter(self, now: int, units: int) -> None:
        """Begin with ``units`` to move."""
        self.start = self.since = now
        self.remaining = units

    def change(self, now: int, rate: int) -> int:
        """Go on with another rate; the new end."""
        left = self.remaining - self.rate * (now - self.since)
        self.since, self.rate, self.remaining = now, rate, left
        self.end = end = now - (-left // rate)
        return end


def fair_rates(routes: Sequence[tuple[int, ...]], capacity: Sequence[int]) -> list[int]:
    """Max-min fair rate of each route, in the (integer) unit of ``capacity``; the result does not depend on order.

    >>> fair_rates([(0,), (0, 1), (1,)], [10, 4])  # link 1 is tight: 2 each; the rest of link 0 goes to the first
    [8, 2, 2]
    """
    rates = [0] * len(routes)
    users: dict[int, list[int]] = {}
    for index, route in enumerate(routes):
        for resource in route:
            users.setdefault(resource, []).append(index)
    left = {resource: capacity[resource] for resource in users}
    count = {resource: len(flows) for resource, flows in users.items()}
    open_flows = set(range(len(routes)))
    while open_flows:
        shares = {resource: left[resource] // number for resource, number in count.items() if number}
        share = min(shares.values())
        tight = [resource for resource, value in shares.items() if value == share]
        for index in {index for resource in tight for index in users[resource]} & open_flows:
            open_flows.discard(index)
            rates[index] = share
            for resource in routes[index]:
                left[resource] -= share
                count[resource] -= 1
    return rates


class _Route(NamedTuple):
    """A route as numbers: link ids, what they occupy, and the sum of their latencies."""

    links: tuple[int, ...]
    resources: tuple[int, ...]
    latency: int


class Network:
    """All links of a machine and the flows on them.

    Args:
        events: the event loop.
        links: the links; those of one :attr:`Link.resource` share one bandwidth.
        clock_hz: tile clock.
        recorder: gets every finished flow.
    """

    def __init__(self, events: EventLoop, links: Sequence[Link], clock_hz: int, recorder: Recorder) -> None:
        self._events = events
        self._recorder = recorder
        self._byte = clock_hz * SCALE
        self._link_ids = {link.name: index for index, link in enumerate(links)}
        resources: dict[str, int] = {}
        self._capacity: list[int] = []
        self._resource: list[int] = []
        for link in links:
            if link.resource not in resources:
                resources[link.resource] = len(resources)
                self._capacity.append(link.bandwidth_bytes_per_s * SCALE)
            self._resource.append(resources[link.resource])
        self._routes: dict[int, tuple[tuple[Link, ...], _Route]] = {}
        self._numbers: dict[tuple[tuple[int, ...], ...], int] = {}  # of resources
        self._shares: dict[tuple[int, ...], list[_Shares]] = {}
        self._flows: list[NetworkFlow] = []
        self._entering: dict[tuple[int, ...], tuple[NetworkFlow, int]] = {}
        self._due: dict[int, list[NetworkFlow]] = {}  # flows by the time at which they enter
        self._dirty = False
        self._planned = -1  # when the first flow ends

    def bundles(self, sends: Iterable[Send]) -> list[SendBundle]:
        """Sends that begin together, by latency. What is sent again and again is bundled once.

        Raises:
            SimulationError: one of them has no route.
        """
        found: dict[int, list[Flight]] = {}
        for owner, route, ipu in sends:
            way = self._way(route)
            if not way.links:
                raise SimulationError(f"IPU {ipu}: a transfer without a route")
            found.setdefault(way.latency, []).append(Flight(owner, way.links, way.resources, ipu))
        return [self._bundle(latency, flights) for latency, flights in found.items()]

    def _bundle(self, latency: int, flights: Iterable[Flight]) -> SendBundle:
        own = tuple(flights)
        resources = tuple([flight.resources for flight in own])
        return SendBundle(latency, own, resources, self._numbers.setdefault(resources, len(self._numbers)))

    def bundle(self, sends: Iterable[Send], replicas: tuple[int, ...]) -> SendBundle:
        """The sends of ``replicas``, one each, which do the same.

        Raises:
            Asymmetric: they need different latencies.
        """
        bundles = self.bundles(sends)
        if len(bundles) > 1:
            of = {flight.owner: replica for replica, flight in zip(replicas, sends, strict=True)}
            apart = [[of[flight.owner] for flight in bundle.flights] for bundle in bundles]
            raise Asymmetric("the transfers of the replicas have different latencies", apart)
        return bundles[0]._replace(replicas=replicas)

    def send(self, sends: Iterable[Send], size: int, label: Label, done: Done) -> None:
        """Move ``size`` bytes over the route of each of these; see :meth:`move`."""
        for bundle in self.bundles(sends):
            self.move(bundle, (), size, label, done)

    def move(self, bundle: SendBundle, owner: tuple[int, ...], size: int, label: Label, done: Done) -> None:
        """Move ``size`` bytes for each send; call ``done`` with those whose last byte is there. Their owners begin with
        ``owner``.

        The flow enters after the latencies of its links. Nothing to move means done as soon as they are over, without a
        transfer in the trace.
        """
        flow = NetworkFlow(bundle, owner, size, label, done)
        if bundle.latency:
            at = self._events.now + bundle.latency
            self._entering[flow.first] = (flow, at)
            if at not in self._due:
                self._due[at] = []
                self._events.after(bundle.latency, lambda: self._enter_all(at))
            self._due[at].append(flow)
        else:
            self._enter(flow)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self._flows and not self._entering

    def record(self, start: int, dur: int, owner: tuple[int, ...], bundle: SendBundle, size: int, label: Label) -> None:
        """These sends begin and end together without being simulated."""
        self._recorder.transfer(Transferred(start, dur, owner, bundle.flights, size, label))

    def _way(self, links: tuple[Link, ...]) -> _Route:
        """The numbers of a route. It is looked up by identity: the topology gives the same tuple every time."""
        kept = self._routes.get(id(links))
        if kept is None or kept[0] is not links:
            if len(self._routes) == _ROUTES_KEPT:
                self._routes.clear()
            ids = tuple(self._link_ids[link.name] for link in links)
            resources = tuple(sorted({self._resource[i] for i in ids}))
            kept = self._routes[id(links)] = (links, _Route(ids, resources, sum(link.latency_cycles for link in links)))
        return kept[1]

    def state(self, now: int) -> tuple[tuple[object, ...], ...]:
        """Everything the future depends on, relative to ``now`` (valid at the end of an instant)."""
        entering = [(0, _owners(flow), at - now) for flow, at in self._entering.values()]
        flying = [
            (1, _owners(flow), flow.start - now, flow.remaining - flow.rate * (now - flow.since))
            for flow in self._flows
        ]
        return tuple(sorted(entering + flying))  # type: ignore[operator]

    def _enter_all(self, at: int) -> None:
        for flow in self._due.pop(at):
            del self._entering[flow.first]
            self._enter(flow)

    def _enter(self, flow: NetworkFlow) -> None:
        if flow.bytes == 0:
            flow.done(flow.flights)
            return
        flow.enter(self._events.now, flow.bytes * self._byte)
        self._flows.append(flow)
        self._changed()

    def _changed(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._events.after(0, self._settle, NETWORK)

    def _settle(self) -> None:
        self._dirty = False
        if not self._flows:
            return
        rates = self._share()
        now = self._events.now
        ends = [
            flow.end if flow.rate == rate else flow.change(now, rate)
            for flow, rate in zip(self._flows, rates, strict=True)
        ]
        first = min(ends)
        if first != self._planned:
            self._planned = first
            self._events.after(first - now, self._wake)

    def _share(self) -> list[int]:
        """The rate of each flow; those whose sends differ are parted first.

        Raises:
            Asymmetric: they are those of replicas that do the same.
        """
        key = tuple([flow.bundle.number for flow in self._flows])
        shares = self._shares.get(key)
        if shares is None:
            if len(self._shares) == _RATES_KEPT:
                self._shares.clear()
            shares = self._shares[key] = _shares([flow.bundle.resources for flow in self._flows], self._capacity)
        if max(map(len, shares)) > 1:
            pairs = list(zip(self._flows, shares, strict=True))
            self._flows = [part for flow, share in pairs for part in self._parted(flow, share)]
        return [rate for share in shares for rate, _ in share]

    def _parted(self, flow: NetworkFlow, share: _Shares) -> list[NetworkFlow]:
        if len(share) == 1:
            return [flow]
        replicas, flights = flow.bundle.replicas, flow.flights
        if replicas:
            apart = [[replicas[place] for place in places] for _, places in share]
            raise Asymmetric(f"the {flow.label.kind} transfers of the replicas are not equally fast", apart)
        return [flow.part(self._bundle(0, [flights[place] for place in places])) for _, places in share]

    def _wake(self) -> None:
        """The first flow ends now, unless the rates have changed since this was planned."""
        now = self._events.now
        if now != self._planned:
            return
        self._planned = -1
        ended = [flow for flow in self._flows if flow.end <= now]
        self._flows = [flow for flow in self._flows if flow.end > now]
        ended.sort(key=lambda flow: flow.first)
        self._changed()
        for flow in ended:
            self._recorder.transfer(
                Transferred(flow.start, now - flow.start, flow.owner, flow.flights, flow.bytes, flow.label)
            )
        for flow in ended:
            flow.done(flow.flights)


def _owners(flow: NetworkFlow) -> tuple[tuple[int, ...], ...]:
    return (flow.owner, *[flight.owner for flight in flow.flights])


def _shares(flows: Sequence[tuple[tuple[int, ...], ...]], capacity: Sequence[int]) -> list[_Shares]:
    """The rates of each flow's sends, which go over these resources."""
    rates = iter(fair_rates([route for flow in flows for route in flow], capacity))
    found = []
    for flow in flows:
        places: dict[int, list[int]] = {}
        for place in range(len(flow)):
            places.setdefault(next(rates), []).append(place)
        found.append(list(places.items()))
    return found
