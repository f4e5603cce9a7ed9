"""Flows of the network: what they are made of, and which of them begin and end together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .recorder import Flight, TransferTemplate

Resources = tuple[tuple[int, ...], ...]
"""For each send of a flow, the resources that it occupies."""

Done = Callable[[tuple[Flight, ...]], None]
"""A listener, which is told the sends that have ended."""


@dataclass(eq=False, frozen=True)
class SendBundle:
    """Sends with the same latency. A bundle equals itself alone, so that it is a fast key.

    Attributes:
        latency: cycles before the sends enter the network.
        flights: the sends.
        resources: what each send occupies.
        kind: the number of these resources (:class:`.sharing.Sharings`).
        replicas: replicas that do the same, one send each; their bundle must not be split. Empty for other sends.
    """

    latency: int
    flights: tuple[Flight, ...]
    resources: Resources
    kind: int
    replicas: tuple[int, ...] = ()


class FlowTemplate(NamedTuple):
    """What is the same each time the same sends begin together.

    Attributes:
        number: the number of ``sent`` in the recorder.
        bundle: the sends.
        sent: what the trace says about them.
        units: what each send moves, in units of the network (:data:`.network.SCALE`).
    """

    number: int
    bundle: SendBundle
    sent: TransferTemplate
    units: int


class NetworkFlow:
    """Sends of a ``template`` that enter at the time ``start`` and have the same rate as long as they are in flight.

    ``done`` is told when they have ended. A flow that has ended may be started again.
    """

    __slots__ = ("done", "kind", "latency", "start", "template", "units")

    def __init__(self, template: FlowTemplate, done: Done, start: int = -1) -> None:
        self.template = template
        self.done = done
        self.start = start
        # Copies of the bundle's fields, because the network reads them all the time.
        self.kind, self.latency, self.units = template.bundle.kind, template.bundle.latency, template.units


@dataclass(eq=False, slots=True)
class Batch:
    """Flows that began and end together and have the same listener.

    Attributes:
        listener_flow: one of the flows, for its listener and its start.
        number: the number of the batch in the recorder.
        flights: the sends of all flows.
    """

    listener_flow: NetworkFlow
    number: int
    flights: tuple[Flight, ...]


@dataclass(eq=False, slots=True)  # its fields are read faster than those of a named tuple
class FlowSplit:
    """The present ``flows`` of the network, divided into those that end next and those that do not."""

    flows: list[NetworkFlow]
    ended: list[Batch]
    others: list[NetworkFlow]
