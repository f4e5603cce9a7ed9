"""The event loop: SimPy's environment with a stated order of simultaneous events.

Everything that happens in one cycle forms an *instant*. Within an instant the IPU processes run first and only make
their requests. Then the network shares its links between the present flows (:data:`NETWORK`). Last, the host takes the
requests of the instant, sorted by stream, kind of work and replica (:data:`HOST`). What one of them causes without
delay belongs to the same instant and goes through the same three stages again. Therefore nothing depends on the order
in which the processes of an instant are resumed: ``seed`` shuffles it, and a test shows that the trace stays the same.

For speed there is a list of actions for each later time, and one for each stage of the present instant. SimPy's own
processes and events also work. They stand in SimPy's queue and come first in their instant. A test runs everything as
events of SimPy's own loop, with the same traces.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, Event

NETWORK = 2
"""Stage of an instant in which the network recomputes rates (SimPy priority; processes run at 0 and 1)."""

HOST = 3
"""Stage of an instant in which the host takes requests."""

Action = Callable[[], None]

Waiting = Generator["int | None", None, None]
"""The generator of a process: it yields the cycles that it lets pass, or None to wait until it is told to go on."""


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
        self._ready: deque[Action] = deque()  # what happens next
        self._network: deque[Action] = deque()  # later stages of the present instant
        self._host: deque[Action] = deque()
        self._due: dict[int, list[Action]] = {}  # by time
        self._times: list[int] = []  # a heap of these times
        self._stages = {NETWORK: self._network, HOST: self._host}
        self.soon: Callable[[Action], None] = self._ready.append if self._random is None else self._shuffle_in
        """Call an action in the present instant, in the stage of the processes."""

    def schedule(self, event: Event, priority: Any = NORMAL, delay: Any = 0) -> None:
        """Put an event into the queue. Those of an instant and stage stay in sequence, or the seed shuffles them."""
        order: Any = next(self._eid)
        if self._random is not None:
            order = (self._random.random(), order)
        heappush(self._queue, (self.now + delay, priority, order, event))

    def after(self, delay: int, action: Action, stage: int = NORMAL) -> None:
        """Call ``action`` ``delay`` cycles from now, in the given stage of that instant."""
        if delay:
            if stage != NORMAL:
                # Lists of later times have no stages; the action chooses its stage when its time has come.
                action = partial(self.after, 0, action, stage)
            time = self.now + delay
            if time in self._due:
                self._due[time].append(action)
            else:
                self._due[time] = [action]
                heappush(self._times, time)
        elif stage == NORMAL:
            self.soon(action)
        else:
            self._stages[stage].append(action)

    def step(self) -> None:
        """Handle the actions of the present or the next instant, up to an event of SimPy's own in it.

        Raises:
            EmptySchedule: nothing can happen any more.
        """
        ready, network, host, queue = self._ready, self._network, self._host, self._queue
        if not ready and not self._refill():
            raise EmptySchedule
        while True:
            while ready:
                ready.popleft()()
            later = network or host
            # An event of SimPy's own in this instant comes before the later stages.
            if not later or (queue and queue[0][0] == self.now):
                return
            later.popleft()()

    def peek(self) -> int | float:
        """The time of the next event, infinity if there is none."""
        if self._ready or self._network or self._host:
            return self.now
        return min(super().peek(), self._times[0]) if self._times else super().peek()

    def exhaust(self, between: Action) -> None:
        """Run to the end of all events; ``between`` is called at the end of each instant."""
        ready, refill, step = self._ready, self._refill, self.step
        while ready or refill(between):
            step()

    def _refill(self, between: Action | None = None) -> bool:
        """Make ready what comes next: SimPy's events of this instant, its next stage, or the next instant.

        Returns:
            Whether there is anything left to do.
        """
        queue, ready, times = self._queue, self._ready, self._times
        if queue and queue[0][0] == self.now and queue[0][1] <= NORMAL:
            ready.append(partial(_trigger, heappop(queue)[3]))
            return True
        later = self._network or self._host
        if later:
            ready.append(later.popleft())
            return True
        if not queue and not times:
            return False
        if between is not None:
            between()
        time = times[0] if times and not (queue and queue[0][0] < times[0]) else queue[0][0]
        # SimPy reads `_now`.
        self._now = self.now = time  # type: ignore[assignment]
        while queue and queue[0][0] == time:
            _, stage, _, event = heappop(queue)
            self._stages.get(stage, ready).append(partial(_trigger, event))
        if times and times[0] == time:
            due = self._due.pop(heappop(times))
            if self._random is not None:
                self._random.shuffle(due)
            ready.extend(due)
        # The instant may have actions of later stages only.
        return bool(ready) or self._refill()

    def _shuffle_in(self, action: Action) -> None:
        assert self._random is not None
        self._ready.insert(self._random.randint(0, len(self._ready)), action)


def _trigger(event: Event) -> None:
    """Call the callbacks of an event of SimPy. Events of this simulation do not fail."""
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
    for callback in callbacks:
        callback(event)
    if not event.ok:
        raise event.value  # type: ignore[misc]
