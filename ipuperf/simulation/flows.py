"""Flows of the network: what they are made from, and what begins and ends together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .recorder import Flight, TransferTemplate

Resources = tuple[tuple[int, ...], ...]
"""What each send of a flow occupies."""

Done = Callable[[tuple[Flight, ...]], None]
"""Told which sends are over."""


class FlowTemplate(NamedTuple):
    """What is the same each time the same sends begin together.

    Attributes:
        number: in the recorder.
        latency: cycles before they enter.
        sent: what the trace says about them.
        resources, kind: what each of them occupies, and its number (:class:`.sharing.Sharings`).
        units: what each of them moves.
        one: they must not be parted.
    """

    number: int
    latency: int
    sent: TransferTemplate
    resources: Resources
    kind: int
    units: int
    one: bool


class NetworkFlow:
    """Sends of a ``template``, which enter at the time ``start`` and have the same rate as long as they are in flight;
    ``done`` is told when they are over. When it is over, a flow may be started again."""

    __slots__ = ("done", "kind", "start", "template", "units")

    def __init__(self, template: FlowTemplate, done: Done, start: int = -1) -> None:
        self.template = template
        self.done = done
        self.start = start
        self.kind, self.units = template.kind, template.units  # where they are read all the time


class Batch(NamedTuple):
    """Flows that began and end together, of which one is ``first``, and who is told: the number of what was sent, and
    the sends."""

    first: NetworkFlow
    number: int
    flights: tuple[Flight, ...]


class Split(NamedTuple):
    """These ``flows``: those that end, and those that do not."""

    flows: list[NetworkFlow]
    ended: list[Batch]
    others: list[NetworkFlow]
