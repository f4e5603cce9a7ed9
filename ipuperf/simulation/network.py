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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import SimulationError
from .kernel import NETWORK, Kernel

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .recorder import Recorder

SCALE = 720_720
"""Least common multiple of 1 to 16: units of a byte x Hz (see module docstring)."""


@dataclass(frozen=True)
class Label:
    """What a transfer is for: its kind in the trace, the op, and the IPU (machine number) that asked for it."""

    kind: str
    op_id: int
    ipu: int


class Flow:
    """One transfer in flight.

    ``owner`` identifies it among the transfers in flight (a tuple of integers, the same in every iteration of a loop);
    ``resources`` are what it occupies, ``remaining`` is in units, ``rate`` in units per cycle.
    """

    __slots__ = ("bytes", "done", "label", "links", "owner", "rate", "remaining", "resources", "start")

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
        self.remaining = 0
        self.rate = 0


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


class Network:
    """All links of a machine and the flows on them.

    Args:
        kernel: the event loop.
        links: the links; those of one :attr:`Link.resource` share one bandwidth.
        clock_hz: tile clock.
        recorder: gets every finished flow.
    """

    def __init__(self, kernel: Kernel, links: Sequence[Link], clock_hz: int, recorder: Recorder) -> None:
        self._kernel = kernel
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
        self._flows: list[Flow] = []
        self._entering: dict[tuple[int, ...], tuple[Flow, int]] = {}
        self._last = 0
        self._version = 0
        self._dirty = False

    def send(
        self,
        owner: tuple[int, ...],
        route: Iterable[Link],
        size: int,
        label: Label,
        done: Callable[[], None],
        latency: int = 0,
    ) -> None:
        """Move ``size`` bytes over ``route``; call ``done`` when the last byte is there.

        The flow enters after the latencies of its links and ``latency`` further cycles. Nothing to move means done as
        soon as the latency is over, without a transfer in the trace.
        """
        links = tuple(route)
        ids = tuple(self._link_ids[link.name] for link in links)
        flow = Flow(owner, ids, tuple(sorted({self._resource[i] for i in ids})), size, label, done)
        if not links:
            raise SimulationError(f"IPU {label.ipu}: a {label.kind} transfer without a route")
        delay = latency + sum(link.latency_cycles for link in links)
        if delay:
            self._entering[owner] = (flow, self._kernel.now + delay)
            self._kernel.after(delay, lambda: self._enter(flow))
        else:
            self._enter(flow)

    def state(self, now: int) -> tuple[tuple[int, ...], ...]:
        """Everything the future depends on, relative to ``now`` (valid at the end of an instant)."""
        entering = [(0, *owner, at - now) for owner, (_, at) in self._entering.items()]
        flying = [
            (1, *flow.owner, flow.start - now, flow.remaining - flow.rate * (now - self._last)) for flow in self._flows
        ]
        return tuple(sorted(entering + flying))

    def _enter(self, flow: Flow) -> None:
        self._entering.pop(flow.owner, None)
        if flow.bytes == 0:
            flow.done()
            return
        flow.start = self._kernel.now
        flow.remaining = flow.bytes * self._byte
        self._flows.append(flow)
        self._changed()

    def _changed(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._kernel.after(0, self._settle, NETWORK)

    def _advance(self) -> None:
        """Move what the rates allowed since the last time; flows that entered just now still have rate 0."""
        elapsed = self._kernel.now - self._last
        self._last = self._kernel.now
        if elapsed:
            for flow in self._flows:
                flow.remaining -= flow.rate * elapsed

    def _settle(self) -> None:
        self._dirty = False
        self._advance()
        self._version += 1
        if not self._flows:
            return
        rates = fair_rates([flow.resources for flow in self._flows], self._capacity)
        for flow, rate in zip(self._flows, rates, strict=True):
            flow.rate = rate
        version = self._version
        self._kernel.after(min(-(-f.remaining // f.rate) for f in self._flows), lambda: self._wake(version))

    def _wake(self, version: int) -> None:
        """The first flow ends now, unless the rates have changed since this was planned."""
        if version != self._version:
            return
        self._advance()
        ended = sorted((flow for flow in self._flows if flow.remaining <= 0), key=lambda flow: flow.owner)
        self._flows = [flow for flow in self._flows if flow.remaining > 0]
        self._changed()
        for flow in ended:
            self._recorder.transfer(flow, self._kernel.now)
        for flow in ended:
            flow.done()
