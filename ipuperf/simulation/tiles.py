"""``fidelity="tile"``: every tile of an IPU is a SimPy process, and they meet at a barrier after every local step.

This is the reference that the fast way is checked against: durations are not computed but come out of the clock.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from simpy.events import Event

from .party import Waiting

if TYPE_CHECKING:
    from .event_loop import EventLoop


class Tiles:
    """The tiles of one IPU.

    Args:
        events: the event loop.
        tiles: number of tiles; a phase with fewer leaves the others idle.
    """

    def __init__(self, events: EventLoop, tiles: int) -> None:
        self._events = events
        self._idle = [0] * tiles
        self._go = events.event()
        self._met = events.event()
        self._arrived = 0
        for tile in range(tiles):
            events.process(self._tile(tile))

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self._idle)

    def work(self, cycles: list[int]) -> Waiting:
        """Each tile is busy for its own ``cycles`` (further tiles for none), then all meet."""
        work = cycles + self._idle[len(cycles) :]
        self._arrived, self._met = 0, self._events.event()
        go, self._go = self._go, self._events.event()
        go.succeed(work)
        yield self._met

    def sleep(self, cycles: int) -> Waiting:
        """Let cycles pass that are the same for all."""
        if cycles:
            yield self._events.timeout(cycles)

    def _tile(self, tile: int) -> Generator[Event, list[int], None]:
        while True:
            work = yield self._go
            if work[tile]:
                yield self._events.timeout(work[tile])
            self._arrived += 1
            if self._arrived == len(self._idle):
                self._met.succeed()
