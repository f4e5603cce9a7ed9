"""The event loop: SimPy's environment with a stated order of simultaneous events.

Everything that happens in one cycle forms an *instant*. Within an instant the IPU processes run first and only say
what they want; then the network shares its links between the flows it has (:data:`NETWORK`); last the host takes the
requests of the instant, sorted by replica and stream (:data:`HOST`). What one of them sets off at no delay belongs to
the same instant and goes through the same three stages again. Nothing therefore depends on the order in which processes
of the same instant are resumed: ``seed`` shuffles it, and a test shows that the trace stays the same.

Speed. What is to happen later stands in SimPy's queue; what is to happen in the present instant never goes there but
into a list for each stage. A :class:`Task` is SimPy's process without an event for each of its waits. SimPy's own
processes and events work beside it; a test runs all tasks as such, with the same traces.
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
"""What a task walks: it yields the cycles it lets pass, or None to wait until it is told to go on."""


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
        self._later: dict[int, deque[Action]] = {NETWORK: deque(), HOST: deque()}  # stages of the present instant
        self.soon: Callable[[Action], None] = self._ready.append if self._random is None else self._shuffle_in
        """Call an action in the present instant, with the processes."""

    def schedule(self, event: Event | Action, priority: Any = NORMAL, delay: Any = 0) -> None:
        """Put an event or action into the queue; those of an instant and stage in sequence, or shuffled by the seed."""
        order: Any = next(self._eid)
        if self._random is not None:
            order = (self._random.random(), order)
        heappush(self._queue, (self.now + delay, priority, order, event))  # type: ignore[misc]

    def after(self, delay: int, action: Action, stage: int = NORMAL) -> None:
        """Call ``action`` ``delay`` cycles from now, in the given stage of that instant."""
        if delay:
            self.schedule(action, stage, delay)
        elif stage == NORMAL:
            self.soon(action)
        else:
            self._later[stage].append(action)

    def step(self) -> None:
        """Handle what happens next: all that is ready in the present instant, or what the next stage makes ready.

        Raises:
            EmptySchedule: nothing can happen any more.
        """
        ready = self._ready
        if not ready and not self._refill():
            raise EmptySchedule
        while ready:
            ready.popleft()()

    def exhaust(self, between: Action) -> None:
        """Run to the end of all events; ``between`` is called at the end of each instant."""
        while self._ready or self._refill(between):
            self.step()

    def _refill(self, between: Action | None = None) -> bool:
        """Make ready what comes next: SimPy's events of this instant, its next stage, or the next instant."""
        queue, ready = self._queue, self._ready
        if queue and queue[0][0] == self.now and queue[0][1] <= NORMAL:
            ready.append(self._action(heappop(queue)[3]))
            return True
        for stage in self._later.values():
            if stage:
                ready.append(stage.popleft())
                return True
        if not queue:
            return False
        if between is not None and queue[0][0] > self.now:
            between()
        time = self._now = self.now = queue[0][0]  # type: ignore[assignment]
        while queue and queue[0][0] == time:
            _, stage_number, _, event = heappop(queue)
            self._later.get(stage_number, ready).append(self._action(event))
        return bool(ready) or self._refill()

    def _action(self, event: Event | Action) -> Action:
        return partial(_trigger, event) if isinstance(event, Event) else event

    def _shuffle_in(self, action: Action) -> None:
        assert self._random is not None
        self._ready.insert(self._random.randint(0, len(self._ready)), action)


def _trigger(event: Event) -> None:
    """Call back those who wait for an event of SimPy. Events of this simulation do not fail."""
    callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
    for callback in callbacks:
        callback(event)
    if not event.ok:
        raise event.value  # type: ignore[misc]


class Task:
    """Something that walks ``steps`` from the present instant on.

    >>> events, log = EventLoop(), []
    >>> def steps():
    ...     yield 3
    ...     log.append(events.now)
    ...     yield None
    ...     log.append(events.now)
    >>> task = Task(events, steps())
    >>> events.after(10, task.go_on)
    >>> events.run()
    >>> log
    [3, 10]
    """

    def __init__(self, events: EventLoop, steps: Waiting) -> None:
        self._events = events
        self._next = steps.__next__
        events.soon(self._walk)

    def go_on(self) -> None:
        """It waits no longer."""
        self._events.soon(self._walk)

    def _walk(self) -> None:
        try:
            cycles = self._next()
        except StopIteration:
            return
        if cycles is not None:
            self._events.after(cycles, self._walk)
