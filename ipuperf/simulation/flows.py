"""Flows of the network: what they are made from, and what begins and ends together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .recorder import Flight, TransferTemplate

Resources = tuple[tuple[int, ...], ...]
"""What each send of a flow occupies."""

Done = Callable[[tuple[Flight, ...]], None]
"""Told which sends are over."""


class SendBundle(NamedTuple):
    """Sends of one latency, which occupy these ``resources``, known by this ``kind`` (:class:`.sharing.Sharings`); they
    are not parted if they are those of ``replicas`` (one send each) that do the same."""

    latency: int
    flights: tuple[Flight, ...]
    resources: Resources
    kind: int
    replicas: tuple[int, ...] = ()


class FlowTemplate(NamedTuple):
    """What is the same each time the same sends begin together.

    Attributes:
        number: of what was sent, in the recorder.
        bundle: the sends.
        sent: what the trace says about them.
        units: what each of them moves.
    """

    number: int
    bundle: SendBundle
    sent: TransferTemplate
    units: int


class NetworkFlow:
    """Sends of a ``template``, which enter at the time ``start`` and have the same rate as long as they are in flight;
    ``done`` is told when they are over. When it is over, a flow may be started again."""

    __slots__ = ("done", "kind", "latency", "start", "template", "units")

    def __init__(self, template: FlowTemplate, done: Done, start: int = -1) -> None:
        self.template = template
        self.done = done
        self.start = start
        # where they are read all the time
        self.kind, self.latency, self.units = template.bundle.kind, template.bundle.latency, template.units


@dataclass(eq=False, slots=True)
class Batch:
    """Flows that began and end together, of which one is ``first``, and who is told: the number of what was sent, and
    the sends."""

    listener_flow: NetworkFlow
    number: int
    flights: tuple[Flight, ...]


@dataclass(eq=False, slots=True)  # read faster than a tuple with names
class FlowSplit:
    """These ``flows``: those that end, and those that do not."""

    flows: list[NetworkFlow]
    ended: list[Batch]
    others: list[NetworkFlow]
