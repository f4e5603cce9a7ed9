"""The event loop: SimPy with a stated order of simultaneous events.

Everything that happens in one cycle forms an *instant*. Within an instant the IPU processes run first and only say
what they want; then the network shares its links between the flows it has (:data:`NETWORK`); last the host takes the
requests of the instant, sorted by replica and stream (:data:`HOST`). What one of them sets off at no delay belongs to
the same instant and goes through the same three stages again. Nothing therefore depends on the order in which processes
of the same instant are resumed: ``seed`` shuffles it, and a test shows that the trace stays the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, Event

NETWORK = 2
"""Stage of an instant in which the network recomputes rates (SimPy priority; processes run at 0 and 1)."""

HOST = 3
"""Stage of an instant in which the host takes requests."""


class EventLoop(simpy.Environment):
    """A SimPy environment that counts whole cycles.

    >>> events, log = EventLoop(), []
    >>> events.after(3, lambda: log.append(events.now))
    >>> events.run()
    >>> log
    [3]
    """

    now: int = 0  # a plain attribute where SimPy has a property: it is read more often than anything else
    """The present cycle."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(initial_time=0)
        self._random = None if seed is None else random.Random(seed)

    def schedule(self, event: Event | Callable[[], None], priority: Any = NORMAL, delay: Any = 0) -> None:
        """Put an event or action into the queue; those of an instant and stage in sequence, or shuffled by the seed."""
        order: Any = next(self._eid)
        if self._random is not None:
            order = (self._random.random(), order)
        heappush(self._queue, (self.now + delay, priority, order, event))  # type: ignore[misc]

    def step(self) -> None:
        """Handle the next event, or call the next action. Events of this simulation do not fail."""
        if not self._queue:
            raise EmptySchedule
        time, _, _, event = heappop(self._queue)
        self._now = self.now = time  # type: ignore[assignment]
        if isinstance(event, Event):
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event.ok:
                raise event.value  # type: ignore[misc]
        else:
            event()

    def exhaust(self, between: Callable[[], None]) -> None:
        """Run to the end of all events; ``between`` is called at the end of each instant."""
        queue = self._queue
        while queue:
            if queue[0][0] > self.now:
                between()
            self.step()

    def after(self, delay: int, action: Callable[[], None], stage: int = NORMAL) -> None:
        """Call ``action`` ``delay`` cycles from now, in the given stage of that instant."""
        self.schedule(action, stage, delay)
