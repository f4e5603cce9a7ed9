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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from .errors import SimulationError
from .event_loop import NETWORK, EventLoop
from .recorder import Transferred

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .recorder import Label, Recorder

SCALE = 720_720
"""Least common multiple of 1 to 16: units of a byte x Hz (see module docstring)."""


_NEVER = 1 << 62
_OWNER = attrgetter("owner")

_RATES_KEPT = 4096
"""Different sets of flows whose rates are remembered."""

_ROUTES_KEPT = 65536
"""Routes that are remembered."""


class NetworkFlow:
    """One transfer in flight.

    ``owner`` identifies it among the transfers in flight (a tuple of integers, the same in every iteration of a loop);
    ``resources`` are what it occupies. Since the time ``since``, when ``remaining`` units were left, it has had
    ``rate`` units per cycle, with which it ends at the time ``end`` (never, before it has a rate).
    """

    __slots__ = ("bytes", "done", "end", "label", "links", "owner", "rate", "remaining", "resources", "since", "start")

    def __init__(
        self,
        owner: tuple[int, ...],
        links: tuple[int, ...],
        resources: tuple[int, ...],
        size: int,
        label: Label,
        done: Callable[[], None],
    ) -> None:
        self.owner = owner
        self.links = links
        self.resources = resources
        self.bytes = size
        self.label = label
        self.done = done
        self.start = -1
        self.since = -1
        self.remaining = 0
        self.rate = 0
        self.end = _NEVER

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
        self._rates: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        self._flows: list[NetworkFlow] = []
        self._entering: dict[tuple[int, ...], tuple[NetworkFlow, int]] = {}
        self._due: dict[int, list[NetworkFlow]] = {}  # flows by the time at which they enter
        self._dirty = False
        self._planned = -1  # when the first flow ends

    def send(
        self,
        owner: tuple[int, ...],
        route: Iterable[Link],
        size: int,
        label: Label,
        done: Callable[[], None],
    ) -> None:
        """Move ``size`` bytes over ``route``; call ``done`` when the last byte is there.

        The flow enters after the latencies of its links. Nothing to move means done as soon as they are over, without a
        transfer in the trace.
        """
        way = self._way(tuple(route))
        if not way.links:
            raise SimulationError(f"IPU {label.ipu}: a {label.kind} transfer without a route")
        flow = NetworkFlow(owner, way.links, way.resources, size, label, done)
        if way.latency:
            at = self._events.now + way.latency
            self._entering[owner] = (flow, at)
            if at not in self._due:
                self._due[at] = []
                self._events.after(way.latency, lambda: self._enter_all(at))
            self._due[at].append(flow)
        else:
            self._enter(flow)

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

    def state(self, now: int) -> tuple[tuple[int, ...], ...]:
        """Everything the future depends on, relative to ``now`` (valid at the end of an instant)."""
        entering = [(0, *owner, at - now) for owner, (_, at) in self._entering.items()]
        flying = [
            (1, *flow.owner, flow.start - now, flow.remaining - flow.rate * (now - flow.since)) for flow in self._flows
        ]
        return tuple(sorted(entering + flying))

    def _enter_all(self, at: int) -> None:
        for flow in self._due.pop(at):
            del self._entering[flow.owner]
            self._enter(flow)

    def _enter(self, flow: NetworkFlow) -> None:
        if flow.bytes == 0:
            flow.done()
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
        routes = tuple([flow.resources for flow in self._flows])
        rates = self._rates.get(routes)
        if rates is None:
            if len(self._rates) == _RATES_KEPT:
                self._rates.clear()
            rates = self._rates[routes] = fair_rates(routes, self._capacity)
        now = self._events.now
        ends = [
            flow.end if flow.rate == rate else flow.change(now, rate)
            for flow, rate in zip(self._flows, rates, strict=True)
        ]
        first = min(ends)
        if first != self._planned:
            self._planned = first
            self._events.after(first - now, self._wake)

    def _wake(self) -> None:
        """The first flow ends now, unless the rates have changed since this was planned."""
        now = self._events.now
        if now != self._planned:
            return
        self._planned = -1
        ended = [flow for flow in self._flows if flow.end <= now]
        self._flows = [flow for flow in self._flows if flow.end > now]
        ended.sort(key=_OWNER)
        self._changed()
        for flow in ended:
            self._recorder.transfer(
                Transferred(flow.start, now - flow.start, flow.owner, flow.links, flow.bytes, flow.label)
            )
        for flow in ended:
            flow.done()
