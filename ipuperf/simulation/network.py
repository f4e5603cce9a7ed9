"""Flow-level network: transfers in flight share links, DDR channels and PCIe ports by max-min fairness.

A flow crosses all links of its route at once, with a single rate. The rates of all flows are max-min fair: the link
with the smallest share per flow comes first, its flows get that share, and the remaining flows divide the remaining
bandwidth in the same way. The network recomputes the rates at the end of each instant in which a flow entered or left.
Between two such instants they are constant. A flow pays the latencies of its links before it enters. It then occupies
its share until the next whole cycle after its last byte, and ends there.

The arithmetic uses integers and is exact to a unit of 1 / (:data:`SCALE` x clock) byte. A link of B bytes/s moves
B x SCALE units in a cycle of a clock of f Hz; a byte is f x SCALE units. Shares are whole units, rounded down, so a
link never carries more than its bandwidth. SCALE is divisible by 1 to 16, so an equal share between up to 16 flows is
exact, and flows end on the cycle that a calculation by hand gives. There is no floating point, hence no drift and no
dependence on the platform.

**Bundles of sends.** Sends of the same size that begin together and need the same latency are one flow as long as their
rates are equal. Examples are a round of a collective, or what identical replicas send at once. The rates are computed
for each send. Where they come out different, the network splits the flow. The outcome is therefore the same, to the
unit, as if each send were a flow of its own. A flow that stands for several replicas must not be split; this raises
:class:`.errors.Asymmetric`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .errors import Asymmetric, SimulationError
from .event_loop import NETWORK, EventLoop
from .flows import Batch, Done, FlowSplit, FlowTemplate, NetworkFlow, SendBundle
from .recorder import Flight, TransferTemplate
from .sharing import Shares, Sharing, Sharings

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .recorder import Label, Recorder

SCALE = 720_720
"""Units in a byte x Hz: the least common multiple of 1 to 16 (see the module's docstring)."""

# The caches are emptied when they are full: what is still in use comes back at once.
_ROUTES_KEPT = 65536
"""Largest number of routes in the cache."""

_BUNDLES_KEPT = 65536
"""Largest number of different lists of sends in the cache."""

_SPLITS_KEPT = 64
"""Largest number of lists of flows that each :class:`.sharing.Sharing` keeps."""


class Send(NamedTuple):
    """A transfer that somebody asks for.

    Attributes:
        owner: identifies the transfer among those in flight; the same integers in every iteration of a loop.
        route: the links that it crosses.
        ipu: the IPU of the machine that asks for it.
    """

    owner: tuple[int, ...]
    route: tuple[Link, ...]
    ipu: int


class _Route(NamedTuple):
    """A route as numbers: ids of its links, the resources they occupy, and the sum of their latencies in cycles."""

    links: tuple[int, ...]
    resources: tuple[int, ...]
    latency: int


class Network:
    """All links of a machine and the flows on them.

    Args:
        events: the event loop.
        links: the links; links with the same :attr:`Link.resource` share one bandwidth.
        clock_hz: the tile clock.
        recorder: records every finished flow.
    """

    def __init__(self, events: EventLoop, links: Sequence[Link], clock_hz: int, recorder: Recorder) -> None:
        self._events = events
        self._recorder = recorder
        self._units_per_byte = clock_hz * SCALE
        self._link_ids = {link.name: index for index, link in enumerate(links)}
        # Flows compete for resources, not for links: links of one resource share its bandwidth.
        resources: dict[str, int] = {}
        capacity: list[int] = []
        self._resource: list[int] = []
        for link in links:
            if link.resource not in resources:
                resources[link.resource] = len(resources)
                capacity.append(link.bandwidth_bytes_per_s * SCALE)
            self._resource.append(resources[link.resource])
        self._routes: dict[int, tuple[tuple[Link, ...], _Route]] = {}
        self._bundles: dict[tuple[tuple[int, Flight], ...], list[SendBundle]] = {}
        self._templates: dict[tuple[object, ...], tuple[SendBundle, FlowTemplate]] = {}
        self._joined_flows: dict[tuple[int, ...], tuple[int, tuple[Flight, ...]]] = {}
        self._recorded_batches: dict[tuple[int, tuple[int, ...], int, Label], tuple[tuple[Flight, ...], int]] = {}
        self._partial_templates: dict[tuple[int, tuple[int, ...]], FlowTemplate] = {}
        self._sharings = Sharings(capacity)
        self._flows: list[NetworkFlow] = []
        self._sharing: Sharing | None = None  # rates of `_flows`, valid from the time `_sharing_start` on
        self._sharing_start = 0
        self._ended_sharing: Sharing | None = None  # its first flows ended in this instant
        self._entered: list[NetworkFlow] = []  # in this instant
        self._entering_at: dict[int, list[NetworkFlow]] = {}  # flows by the time at which they enter
        self._settle_planned = False
        self._planned_end = -1  # time at which the first flow ends, -1: not planned

    # -- what is to be sent ------------------------------------------------------------------------------------------

    def bundles(self, sends: Iterable[Send]) -> list[SendBundle]:
        """The bundles of sends that begin together: one for each latency. Equal sends get the same bundles again.

        Raises:
            SimulationError: a send has no route.
        """
        flights = []
        for owner, route, ipu in sends:
            route_numbers = self._route_numbers(route)
            if not route_numbers.links:
                raise SimulationError(f"IPU {ipu}: a transfer without a route")
            flights.append((route_numbers.latency, Flight(owner, route_numbers.links, route_numbers.resources, ipu)))
        key = tuple(flights)
        if key not in self._bundles:
            if len(self._bundles) == _BUNDLES_KEPT:
                self._bundles.clear()
            flights_by_latency: dict[int, list[Flight]] = {}
            for latency, flight in flights:
                flights_by_latency.setdefault(latency, []).append(flight)
            self._bundles[key] = [self._bundle(*bundle) for bundle in flights_by_latency.items()]
        return self._bundles[key]

    def template(self, bundle: SendBundle, owner: tuple[int, ...], size: int, label: Label) -> FlowTemplate:
        """The flow that moves ``size`` bytes for each send of ``bundle``. ``owner`` is put before each send's owner."""
        # The entry holds the bundle, so that its identity cannot be that of a later one.
        key = (id(bundle), owner, size, label)
        known = self._templates.get(key)
        if known is None:
            sent = TransferTemplate(owner, bundle.flights, size, label)
            template = FlowTemplate(self._recorder.template(sent), bundle, sent, size * self._units_per_byte)
            known = self._templates[key] = (bundle, template)
        return known[1]

    def bundle(self, sends: Sequence[Send], replicas: tuple[int, ...]) -> SendBundle:
        """The bundle of sends for ``replicas`` that do the same, one send for each replica.

        Raises:
            Asymmetric: the sends need different latencies.
        """
        bundles = self.bundles(sends)
        if len(bundles) > 1:
            replica_of_owner = {flight.owner: replica for replica, flight in zip(replicas, sends, strict=True)}
            replica_sets = [[replica_of_owner[flight.owner] for flight in bundle.flights] for bundle in bundles]
            raise Asymmetric("the transfers of the replicas have different latencies", replica_sets)
        return bundles[0]._replace(replicas=replicas)

    def send(self, sends: Iterable[Send], size: int, label: Label, done: Done) -> None:
        """Move ``size`` bytes over the route of each send; see :meth:`move`."""
        for bundle in self.bundles(sends):
            self.move(bundle, (), size, label, done)

    def move(self, bundle: SendBundle, owner: tuple[int, ...], size: int, label: Label, done: Done) -> None:
        """Move ``size`` bytes for each send of ``bundle``.

        Args:
            bundle: the sends.
            owner: what is put before the owner of each send.
            size: bytes of each send.
            label: what the trace says about the transfer.
            done: is called with the sends whose last byte has arrived, once for each part if the flow is split.
        """
        self.start([NetworkFlow(self.template(bundle, owner, size, label), done)])

    def start(self, flows: Sequence[NetworkFlow], delay: int = 0) -> None:
        """Begin flows of the same latency ``delay`` cycles from now.

        They enter after the latencies of their links. A flow without bytes is done when these are over, and leaves no
        transfer in the trace.
        """
        wait = delay + flows[0].latency
        entry_time = self._events.now + wait
        for flow in flows:
            flow.start = entry_time
        if not wait:
            self._enter(flows)
        elif entry_time in self._entering_at:
            self._entering_at[entry_time] += flows
        else:
            self._entering_at[entry_time] = [*flows]
            self._events.after(wait, self._enter_due)

    @property
    def idle(self) -> bool:
        """Whether no flow is in flight and none has entered in this instant."""
        return not self._flows and not self._entered

    def record(
        self,
        moved: Sequence[tuple[int, int, tuple[Flight, ...]]],
        owner: tuple[int, ...],
        size: int,
        label: Label,
        repeats: int,
        period: int,
    ) -> None:
        """Record sends that are repeated without being simulated.

        Args:
            moved: begin, end and sends of what was simulated; the sends of an entry began and ended together.
            owner: what is put before the owner of each send.
            size: bytes of each send.
            label: what the trace says about them.
            repeats: how many more times all of this happens.
            period: cycles from each time to the next.
        """
        batches = []
        for start, end, flights in moved:
            # The entry holds the flights, so their identity cannot be that of later ones.
            key = (id(flights), owner, size, label)
            if key not in self._recorded_batches:
                number = self._recorder.template(TransferTemplate(owner, flights, size, label))
                self._recorded_batches[key] = (flights, self._recorder.together((number,)))
            batches.append((self._recorded_batches[key][1], start, end - start))
        for shift in range(period, (repeats + 1) * period, period):
            for batch, start, dur in batches:
                self._recorder.transfers.add((batch, start + shift, dur))

    def _bundle(self, latency: int, flights: Iterable[Flight]) -> SendBundle:
        flight_tuple = tuple(flights)
        resources = tuple([flight.resources for flight in flight_tuple])
        return SendBundle(latency, flight_tuple, resources, self._sharings.kind(resources))

    def _route_numbers(self, links: tuple[Link, ...]) -> _Route:
        """The numbers of a route. The cache goes by identity, because the topology gives the same tuple every time."""
        known = self._routes.get(id(links))
        if known is None or known[0] is not links:
            if len(self._routes) == _ROUTES_KEPT:
                self._routes.clear()
            ids = tuple(self._link_ids[link.name] for link in links)
            resources = tuple(sorted({self._resource[i] for i in ids}))
            known = self._routes[id(links)] = (
                links,
                _Route(ids, resources, sum(link.latency_cycles for link in links)),
            )
        return known[1]

    # -- what is in flight -------------------------------------------------------------------------------------------

    def state(self, time: int) -> tuple[tuple[int, ...], ...]:
        """Everything on which the future depends, relative to ``time``; valid at the end of an instant."""
        entering = [
            (0, flow.template.number, entry_time - time, 0)
            for entry_time, flows in self._entering_at.items()
            for flow in flows
        ]
        flying: list[tuple[int, ...]] = []
        if self._sharing is not None:
            remaining = self._sharing.left_after(time - self._sharing_start)
            flying = [
                (1, flow.template.number, flow.start - time, units)
                for flow, units in zip(self._flows, remaining, strict=True)
            ]
        return tuple(sorted(entering + flying))

    def _enter_due(self) -> None:
        self._enter(self._entering_at.pop(self._events.now))

    def _enter(self, flows: Sequence[NetworkFlow]) -> None:
        moving = [flow for flow in flows if flow.units]
        self._entered += moving
        if self._entered:
            self._changed()
        # A flow without bytes needs no bandwidth and is done at once.
        if len(moving) < len(flows):
            for flow in flows:
                if not flow.units:
                    flow.done(flow.template.sent.flights)

    def _changed(self) -> None:
        if not self._settle_planned:
            self._settle_planned = True
            self._events.after(0, self._settle, NETWORK)

    def _settle(self) -> None:
        """Share the links between the present flows and those that entered in this instant; plan the first end."""
        self._settle_planned = False
        time, ended_sharing, entered = self._events.now, self._ended_sharing, self._entered
        if ended_sharing is not None and not entered:
            # The usual case, and the cheap one: flows only ended, so what follows may be known already.
            sharing = self._sharings.after(ended_sharing)
            if not isinstance(sharing, Sharing):
                sharing = self._part_flows(sharing, self._flows_before_entry(time)[1])
            self._sharing, self._sharing_start = sharing, time
        elif entered:
            kinds, units = self._flows_before_entry(time)
            kinds += tuple([flow.kind for flow in entered])
            units += tuple([flow.units for flow in entered])
            self._flows = self._flows + entered  # not `+=`: a split may still hold the present list
            self._entered = []
            sharing = self._sharings.of(kinds, units)
            if not isinstance(sharing, Sharing):
                sharing = self._part_flows(sharing, units)
            self._sharing, self._sharing_start = sharing, time
        self._ended_sharing = None
        if self._sharing is not None:
            first_end = self._sharing_start + self._sharing.lasts
            if first_end != self._planned_end:
                self._planned_end = first_end
                self._events.after(first_end - time, self._wake)

    def _flows_before_entry(self, time: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Kinds of the flows without those that enter now, and the units that each of their sends has still to move."""
        if self._ended_sharing is not None:
            kinds, remaining, others = (
                self._ended_sharing.kinds,
                self._ended_sharing.left_after(self._ended_sharing.lasts),
                self._ended_sharing.others,
            )
            return tuple([kinds[place] for place in others]), tuple([remaining[place] for place in others])
        if self._sharing is not None:
            return self._sharing.kinds, self._sharing.left_after(time - self._sharing_start)
        return (), ()

    def _part_flows(self, shares: list[Shares], units: tuple[int, ...]) -> Sharing:
        """Split the flows until all sends of each flow have the same rate.

        Args:
            shares: the rates of the sends of each flow.
            units: what each send of a flow has still to move.
        """
        sharing: Sharing | list[Shares] = shares
        while not isinstance(sharing, Sharing):
            flows = [
                (part, flow_units)
                for flow, flow_units, flow_shares in zip(self._flows, units, sharing, strict=True)
                for part in self._parts(flow, flow_shares)
            ]
            self._flows, units = [flow for flow, _ in flows], tuple([flow_units for _, flow_units in flows])
            sharing = self._sharings.of(tuple([flow.kind for flow in self._flows]), units)
        return sharing

    def _parts(self, flow: NetworkFlow, shares: Shares) -> list[NetworkFlow]:
        """The parts of a flow, one for each rate of its sends.

        Raises:
            Asymmetric: the rates differ, but the flow stands for replicas that do the same.
        """
        if len(shares) == 1:
            return [flow]
        replicas = flow.template.bundle.replicas
        if replicas:
            replica_sets = [[replicas[place] for place in places] for _, places in shares]
            raise Asymmetric(
                f"the {flow.template.sent.label.kind} transfers of the replicas are not equally fast", replica_sets
            )
        return [NetworkFlow(self._part(flow.template, tuple(places)), flow.done, flow.start) for _, places in shares]

    def _part(self, whole: FlowTemplate, places: tuple[int, ...]) -> FlowTemplate:
        """The template of a flow that has only the sends at these ``places`` of the whole flow."""
        key = (whole.number, places)
        if key not in self._partial_templates:
            bundle = self._bundle(whole.bundle.latency, [whole.sent.flights[place] for place in places])
            sent = whole.sent._replace(flights=bundle.flights)
            self._partial_templates[key] = whole._replace(
                number=self._recorder.template(sent), bundle=bundle, sent=sent
            )
        return self._partial_templates[key]

    def _wake(self) -> None:
        """End the first flows, unless the rates have changed since this was planned."""
        time, sharing = self._events.now, self._sharing
        # Events of the loop cannot be withdrawn: an end that is no longer planned is passed over.
        if time != self._planned_end or sharing is None:
            return
        # The rates end with the first flow; `_settle` works out those of the others.
        self._planned_end, self._sharing = -1, None
        split = sharing.splits.get(id(self._flows[0]))
        if split is None or split.flows != self._flows:
            if len(sharing.splits) == _SPLITS_KEPT:
                sharing.splits.clear()
            split = sharing.splits[id(self._flows[0])] = self._split(self._flows, sharing)
        self._flows = split.others
        if self._flows:
            self._ended_sharing = sharing
            self._changed()
        add = self._recorder.transfers.add
        for batch in split.ended:
            start = batch.listener_flow.start
            add((batch.number, start, time - start))
        # All ends are recorded before anybody is told, because who is told may start these flows again.
        for batch in split.ended:
            batch.listener_flow.done(batch.flights)

    def _split(self, flows: list[NetworkFlow], sharing: Sharing) -> FlowSplit:
        """Which flows end. Flows that began together and tell the same listener are one batch."""
        batches: dict[tuple[Done, int], list[NetworkFlow]] = {}
        for place in sharing.ended:
            batches.setdefault((flows[place].done, flows[place].start), []).append(flows[place])
        ended = [Batch(batch[0], *self._join(batch)) for batch in batches.values()]
        return FlowSplit(flows, ended, [flows[place] for place in sharing.others])

    def _join(self, flows: Sequence[NetworkFlow]) -> tuple[int, tuple[Flight, ...]]:
        """Number and sends of a batch of flows. The same flows always give the same tuple of sends."""
        key = tuple([flow.template.number for flow in flows])
        if key not in self._joined_flows:
            flights = tuple([flight for flow in flows for flight in flow.template.sent.flights])
            self._joined_flows[key] = (self._recorder.together(key), flights)
        return self._joined_flows[key]
