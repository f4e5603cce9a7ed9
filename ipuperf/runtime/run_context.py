"""The state of a process that runs programs: settings, the simulated clock, and what upstream's front ends keep.

There is one :class:`RunContext` per process. Programs may start sessions in threads of their own, and these threads
use the same settings and the same clock. Each entry ends with its ``with`` block. (Where ops are written is state of
a thread: :data:`ipuperf.ir.CONTEXT`.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .clock import SimulatedClock
    from .settings import RunSettings

T = TypeVar("T")


class RunContext:
    """Stacks of the settings, clocks and front-end states in force; the innermost stands last.

    Attributes:
        settings: settings of runs (:func:`.settings.use_settings`).
        clocks: simulated clocks (:func:`.clock.activate`).

    A front end keeps its state in an object of its own class. :meth:`of` makes the object on first use.
    """

    def __init__(self) -> None:
        self._states: dict[type, list[Any]] = {}
        self.settings: list[RunSettings] = []
        self.clocks: list[SimulatedClock] = []

    def of(self, kind: type[T]) -> T:
        """Return the object of this class that is in force in all threads; ``kind()`` makes the first one."""
        states: list[T] = self._states.setdefault(kind, [])
        if not states:
            states.append(kind())
        return states[-1]

    @contextmanager
    def fresh(self, kind: type[T]) -> Iterator[T]:
        """Put another object of this class in force within the block, as a new process would have it."""
        with self.entered(self._states.setdefault(kind, []), kind()) as state:
            yield state

    @contextmanager
    def afresh(self) -> Iterator[None]:
        """Hide all front-end states and clocks within the block, as in a new process."""
        states, clocks = self._states, self.clocks
        self._states, self.clocks = {}, []
        try:
            yield
        finally:
            self._states, self.clocks = states, clocks

    @contextmanager
    def entered(self, stack: list[T], value: T) -> Iterator[T]:
        """Put ``value`` on top of ``stack``, one of this context's stacks, within the block."""
        depth = len(stack)
        stack.append(value)
        try:
            yield value
        finally:
            # Entries that the block left open end with it.
            del stack[depth:]


RUN = RunContext()
