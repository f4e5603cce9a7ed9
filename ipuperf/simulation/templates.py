"""What is to be sent over the network, prepared once: routes as numbers, bundles of sends, templates of flows.

The same sends begin together again and again. A :class:`.flows.SendBundle` has the sends that need the same latency;
they can be one flow. A :class:`.flows.FlowTemplate` says besides how much each of them moves and what for. Each is made
once, and the same request gives the same object, so that the network and the recorder compare identities and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from .caches import Cache, IdentityCache
from .errors import Asymmetric, SimulationError
from .flows import FlowTemplate, NetworkFlow, SendBundle
from .recorder import Flight, TransferTemplate

if TYPE_CHECKING:
    from ipuperf.machine import Link

    from .recorder import Label, Recorder
    from .sharing import Sharings

_TEMPLATES_KEPT = 65536
"""Largest number of entries in each cache of this module."""


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


class FlowTemplates:
    """Bundles and templates of all flows of a simulation.

    Args:
        links: the links of the machine.
        resources: numbers of the resources that links occupy, by name.
        units_per_byte: units of the network in a byte.
        sharings: numbers the resources that flows occupy.
        recorder: numbers the templates.
    """

    def __init__(
        self,
        links: Sequence[Link],
        resources: Mapping[str, int],
        units_per_byte: int,
        sharings: Sharings,
        recorder: Recorder,
    ) -> None:
        self._link_ids = {link.name: index for index, link in enumerate(links)}
        self._resources = resources
        self._units_per_byte = units_per_byte
        self._sharings = sharings
        self._recorder = recorder
        # The topology gives the same tuple of links each time, and links are slow to compare.
        self._routes: IdentityCache[tuple[Link, ...], _Route] = IdentityCache(_TEMPLATES_KEPT)
        self._bundles: Cache[tuple[tuple[int, Flight], ...], list[SendBundle]] = Cache(_TEMPLATES_KEPT)
        self._templates: Cache[tuple[object, ...], FlowTemplate] = Cache(_TEMPLATES_KEPT)
        self._parts: Cache[tuple[int, tuple[int, ...]], FlowTemplate] = Cache(_TEMPLATES_KEPT)
        self._joined: Cache[tuple[int, ...], tuple[int, tuple[Flight, ...]]] = Cache(_TEMPLATES_KEPT)
        self._recorded: IdentityCache[tuple[Flight, ...], int] = IdentityCache(_TEMPLATES_KEPT)

    def bundles(self, sends: Iterable[Send]) -> list[SendBundle]:
        """The bundles of sends that begin together: one for each latency. Equal sends get the same bundles again.

        Raises:
            SimulationError: a send has no route.
        """
        flights = []
        for owner, links, ipu in sends:
            route = self._route(links)
            if not route.links:
                raise SimulationError(f"IPU {ipu}: a transfer without a route")
            flights.append((route.latency, Flight(owner, route.links, route.resources, ipu)))
        key = tuple(flights)
        bundles = self._bundles.get(key)
        if bundles is None:
            flights_by_latency: dict[int, list[Flight]] = {}
            for latency, flight in flights:
                flights_by_latency.setdefault(latency, []).append(flight)
            bundles = self._bundles.put(key, [self._bundle(*bundle) for bundle in flights_by_latency.items()])
        return bundles

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
        return replace(bundles[0], replicas=replicas)

    def of(self, bundle: SendBundle, owner: tuple[int, ...], size: int, label: Label) -> FlowTemplate:
        """The flow that moves ``size`` bytes for each send of ``bundle``. ``owner`` is put before each send's owner."""
        key = (bundle, owner, size, label)
        template = self._templates.get(key)
        if template is None:
            sent = TransferTemplate(owner, bundle.flights, size, label)
            template = FlowTemplate(self._recorder.template(sent), bundle, sent, size * self._units_per_byte)
            self._templates.put(key, template)
        return template

    def part(self, whole: FlowTemplate, places: Sequence[int]) -> FlowTemplate:
        """The template of a flow that has only the sends at these ``places`` of the whole flow."""
        key = (whole.number, tuple(places))
        template = self._parts.get(key)
        if template is None:
            bundle = self._bundle(whole.bundle.latency, [whole.sent.flights[place] for place in places])
            sent = whole.sent._replace(flights=bundle.flights)
            template = whole._replace(number=self._recorder.template(sent), bundle=bundle, sent=sent)
            self._parts.put(key, template)
        return template

    def join(self, flows: Sequence[NetworkFlow]) -> tuple[int, tuple[Flight, ...]]:
        """Number and sends of flows that end together. The same flows always give the same tuple of sends."""
        key = tuple([flow.template.number for flow in flows])
        batch = self._joined.get(key)
        if batch is None:
            flights = flows[0].template.sent.flights
            if len(flows) > 1:
                flights = tuple([flight for flow in flows for flight in flow.template.sent.flights])
            batch = self._joined.put(key, (self._recorder.together(key), flights))
        return batch

    def recorded(self, sent: TransferTemplate) -> int:
        """The number in the recorder of sends that are not simulated."""
        detail = (sent.owner, sent.size, sent.label)
        number = self._recorded.get(sent.flights, detail)
        if number is None:
            number = self._recorder.together((self._recorder.template(sent),))
            self._recorded.put(sent.flights, number, detail)
        return number

    def _bundle(self, latency: int, flights: Sequence[Flight]) -> SendBundle:
        resources = tuple([flight.resources for flight in flights])
        return SendBundle(latency, tuple(flights), resources, self._sharings.kind(resources))

    def _route(self, links: tuple[Link, ...]) -> _Route:
        route = self._routes.get(links)
        if route is None:
            ids = tuple([self._link_ids[link.name] for link in links])
            # A route may cross several links of one resource but occupies it once. Slower links are resources besides.
            names = {link.resource for link in links} | {link.name for link in links} & self._resources.keys()
            resources = tuple(sorted(self._resources[name] for name in names))
            route = self._routes.put(links, _Route(ids, resources, sum(link.latency_cycles for link in links)))
        return route
