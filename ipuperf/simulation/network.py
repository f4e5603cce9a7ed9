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
"""Least common multiple of 1 to 16: units of a byte x Hz (see module docstring)."""

_ROUTES_KEPT = 65536
"""Routes that are remembered."""

_BUNDLES_KEPT = 65536
"""Sends together that are remembered."""

_SPLITS_KEPT = 64
"""Different flows that share alike which are remembered."""


class Send(NamedTuple):
    """A transfer to be: ``owner`` identifies it among those in flight (a tuple of integers, the same in every iteration
    of a loop), ``route`` is its way, ``ipu`` the IPU of the machine that asks for it."""

    owner: tuple[int, ...]
    route: tuple[Link, ...]
    ipu: int


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
        self._together: dict[tuple[int, ...], tuple[int, tuple[Flight, ...]]] = {}
        self._recorded: dict[tuple[int, tuple[int, ...], int, Label], tuple[tuple[Flight, ...], int]] = {}
        self._parted: dict[tuple[int, tuple[int, ...]], FlowTemplate] = {}
        self._sharings = Sharings(capacity)
        self._flows: list[NetworkFlow] = []
        self._sharing: Sharing | None = None  # of these flows, from the time `_since` on
        self._since = 0
        self._over: Sharing | None = None  # what ended in this instant
        self._entered: list[NetworkFlow] = []  # in this instant
        self._due: dict[int, list[NetworkFlow]] = {}  # flows by the time at which they enter
        self._dirty = False
        self._planned = -1  # when the first flow ends

    # -- what is to be sent ------------------------------------------------------------------------------------------

    def bundles(self, sends: Iterable[Send]) -> list[SendBundle]:
        """Sends that begin together, by latency. What is sent again and again is bundled once.

        Raises:
            SimulationError: one of them has no route.
        """
        flights = []
        for owner, route, ipu in sends:
            way = self._way(route)
            if not way.links:
                raise SimulationError(f"IPU {ipu}: a transfer without a route")
            flights.append((way.latency, Flight(owner, way.links, way.resources, ipu)))
        key = tuple(flights)
        if key not in self._bundles:
            if len(self._bundles) == _BUNDLES_KEPT:
                self._bundles.clear()
            found: dict[int, list[Flight]] = {}
            for latency, flight in flights:
                found.setdefault(latency, []).append(flight)
            self._bundles[key] = [self._bundle(*together) for together in found.items()]
        return self._bundles[key]

    def template(self, bundle: SendBundle, owner: tuple[int, ...], size: int, label: Label) -> FlowTemplate:
        """The flow that moves ``size`` bytes for each send of ``bundle``; their owners begin with ``owner``."""
        key = (id(bundle), owner, size, label)
        kept = self._templates.get(key)
        if kept is None:
            sent = TransferTemplate(owner, bundle.flights, size, label)
            template = FlowTemplate(self._recorder.template(sent), bundle, sent, size * self._byte)
            kept = self._templates[key] = (bundle, template)
        return kept[1]

    def bundle(self, sends: Sequence[Send], replicas: tuple[int, ...]) -> SendBundle:
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
        ``owner``."""
        self.start([NetworkFlow(self.template(bundle, owner, size, label), done)])

    def start(self, flows: Sequence[NetworkFlow], delay: int = 0) -> None:
        """Begin flows of one latency ``delay`` cycles from now.

        They enter after the latencies of their links. Nothing to move means done as soon as they are over, without a
        transfer in the trace.
        """
        wait = delay + flows[0].latency
        at = self._events.now + wait
        for flow in flows:
            flow.start = at
        if not wait:
            self._enter(flows)
        elif at in self._due:
            self._due[at] += flows
        else:
            self._due[at] = [*flows]
            self._events.after(wait, self._enter_due)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, or has entered in this instant."""
        return not self._flows and not self._entered

    def record(
        self,
        moved: Sequence[tuple[int, int, tuple[Flight, ...]]],
        owner: tuple[int, ...],
        size: int,
        label: Label,
        again: int,
        period: int,
    ) -> None:
        """Sends that began and ended together (begin, end) do so ``again`` so often, each time ``period`` cycles later,
        without being simulated."""
        known = []
        for start, end, flights in moved:
            key = (id(flights), owner, size, label)
            if key not in self._recorded:
                number = self._recorder.template(TransferTemplate(owner, flights, size, label))
                self._recorded[key] = (flights, self._recorder.together((number,)))
            known.append((self._recorded[key][1], start, end - start))
        for later in range(period, (again + 1) * period, period):
            for batch, start, dur in known:
                self._recorder.transfers.add((batch, start + later, dur))

    def _bundle(self, latency: int, flights: Iterable[Flight]) -> SendBundle:
        own = tuple(flights)
        resources = tuple([flight.resources for flight in own])
        return SendBundle(latency, own, resources, self._sharings.kind(resources))

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

    # -- what is in flight -------------------------------------------------------------------------------------------

    def state(self, now: int) -> tuple[tuple[int, ...], ...]:
        """Everything the future depends on, relative to ``now`` (valid at the end of an instant)."""
        entering = [(0, flow.template.number, at - now, 0) for at, flows in self._due.items() for flow in flows]
        flying: list[tuple[int, ...]] = []
        if self._sharing is not None:
            left = self._sharing.left_after(now - self._since)
            flying = [
                (1, flow.template.number, flow.start - now, units)
                for flow, units in zip(self._flows, left, strict=True)
            ]
        return tuple(sorted(entering + flying))

    def _enter_due(self) -> None:
        self._enter(self._due.pop(self._events.now))

    def _enter(self, flows: Sequence[NetworkFlow]) -> None:
        moving = [flow for flow in flows if flow.units]
        self._entered += moving
        if self._entered:
            self._changed()
        if len(moving) < len(flows):
            for flow in flows:
                if not flow.units:
                    flow.done(flow.template.sent.flights)

    def _changed(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._events.after(0, self._settle, NETWORK)

    def _settle(self) -> None:
        """Let those that entered in this instant take part, and plan the first end."""
        self._dirty = False
        now, over, entered = self._events.now, self._over, self._entered
        if over is not None and not entered:
            found = self._sharings.after(over)
            if not isinstance(found, Sharing):
                found = self._part_flows(found, self._present(now)[1])
            self._sharing, self._since = found, now
        elif entered:
            kinds, units = self._present(now)
            kinds += tuple([flow.kind for flow in entered])
            units += tuple([flow.units for flow in entered])
            self._flows = self._flows + entered  # a new list: others may be kept in splits
            self._entered = []
            found = self._sharings.of(kinds, units)
            if not isinstance(found, Sharing):
                found = self._part_flows(found, units)
            self._sharing, self._since = found, now
        self._over = None
        if self._sharing is not None:
            first = self._since + self._sharing.lasts
            if first != self._planned:
                self._planned = first
                self._events.after(first - now, self._wake)

    def _present(self, now: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Kinds of the flows, but those that enter, and what is left of them."""
        if self._over is not None:
            kinds, left, others = self._over.kinds, self._over.left_after(self._over.lasts), self._over.others
            return tuple([kinds[place] for place in others]), tuple([left[place] for place in others])
        if self._sharing is not None:
            return self._sharing.kinds, self._sharing.left_after(now - self._since)
        return (), ()

    def _part_flows(self, shares: list[Shares], units: tuple[int, ...]) -> Sharing:
        """Part the flows, of which so much is left, so that the sends of each are equally fast."""
        found: Sharing | list[Shares] = shares
        while not isinstance(found, Sharing):
            flows = [
                (part, left)
                for flow, left, own in zip(self._flows, units, found, strict=True)
                for part in self._parts(flow, own)
            ]
            self._flows, units = [flow for flow, _ in flows], tuple([left for _, left in flows])
            found = self._sharings.of(tuple([flow.kind for flow in self._flows]), units)
        return found

    def _parts(self, flow: NetworkFlow, shares: Shares) -> list[NetworkFlow]:
        """The flow, parted where the rates of its sends differ.

        Raises:
            Asymmetric: they are those of replicas that do the same.
        """
        if len(shares) == 1:
            return [flow]
        replicas = flow.template.bundle.replicas
        if replicas:
            apart = [[replicas[place] for place in places] for _, places in shares]
            raise Asymmetric(
                f"the {flow.template.sent.label.kind} transfers of the replicas are not equally fast", apart
            )
        return [NetworkFlow(self._part(flow.template, tuple(places)), flow.done, flow.start) for _, places in shares]

    def _part(self, whole: FlowTemplate, places: tuple[int, ...]) -> FlowTemplate:
        """These of the sends."""
        key = (whole.number, places)
        if key not in self._parted:
            bundle = self._bundle(whole.bundle.latency, [whole.sent.flights[place] for place in places])
            sent = whole.sent._replace(flights=bundle.flights)
            self._parted[key] = whole._replace(number=self._recorder.template(sent), bundle=bundle, sent=sent)
        return self._parted[key]

    def _wake(self) -> None:
        """The first flow ends now, unless the rates have changed since this was planned."""
        now, sharing = self._events.now, self._sharing
        if now != self._planned or sharing is None:
            return
        self._planned, self._sharing = -1, None
        split = sharing.splits.get(id(self._flows[0]))
        if split is None or split.flows != self._flows:
            if len(sharing.splits) == _SPLITS_KEPT:
                sharing.splits.clear()
            split = sharing.splits[id(self._flows[0])] = self._split(self._flows, sharing)
        self._flows = split.others
        if self._flows:
            self._over = sharing
            self._changed()
        add = self._recorder.transfers.add
        for batch in split.ended:
            start = batch.first.start
            add((batch.number, start, now - start))
        for batch in split.ended:
            batch.first.done(batch.flights)

    def _split(self, flows: list[NetworkFlow], sharing: Sharing) -> FlowSplit:
        """Who ends; flows that the same one started together are one batch."""
        batches: dict[tuple[Done, int], list[NetworkFlow]] = {}
        for place in sharing.ended:
            batches.setdefault((flows[place].done, flows[place].start), []).append(flows[place])
        ended = [Batch(batch[0], *self._joined(batch)) for batch in batches.values()]
        return FlowSplit(flows, ended, [flows[place] for place in sharing.others])

    def _joined(self, flows: Sequence[NetworkFlow]) -> tuple[int, tuple[Flight, ...]]:
        """Number and sends of these together; for the same flows the same tuple."""
        key = tuple([flow.template.number for flow in flows])
        if key not in self._together:
            flights = tuple([flight for flow in flows for flight in flow.template.sent.flights])
            self._together[key] = (self._recorder.together(key), flights)
        return self._together[key]
