"""What is in force while programs run: the settings of runs, the simulated clock, and what upstream's front ends keep
per process.

One :class:`RunContext` per process: programs may start sessions in threads of their own, and these run under the same
settings and the same clock. Each entry ends with its ``with`` block. (Where ops go is of the thread that writes them:
:data:`ipuperf.ir.CONTEXT`.)
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
    """Stacks of what is in force, innermost last.

    Attributes:
        settings: of runs (:func:`.settings.use_settings`).
        clocks: simulated clocks (:func:`.clock.activate`).

    What a front end keeps is an object of a class of its own, made when it is first asked for (:meth:`of`).
    """

    def __init__(self) -> None:
        self._kept: dict[type, list[Any]] = {}
        self.settings: list[RunSettings] = []
        self.clocks: list[SimulatedClock] = []

    def of(self, kind: type[T]) -> T:
        """The object of this class that is in force, for all threads; ``kind()`` makes the first."""
        found: list[T] = self._kept.setdefault(kind, [])
        if not found:
            found.append(kind())
        return found[-1]

    @contextmanager
    def fresh(self, kind: type[T]) -> Iterator[T]:
        """Another object of this class in force within the block, as in a process of its own."""
        with self.entered(self._kept.setdefault(kind, []), kind()) as found:
            yield found

    @contextmanager
    def afresh(self) -> Iterator[None]:
        """Nothing kept by any front end and no clock within the block, as in a process of its own."""
        kept, clocks = self._kept, self.clocks
        self._kept, self.clocks = {}, []
        try:
            yield
        finally:
            self._kept, self.clocks = kept, clocks

    @contextmanager
    def entered(self, stack: list[T], value: T) -> Iterator[T]:
        """``value`` on top of ``stack``, one of this context, within the block."""
        depth = len(stack)
        stack.append(value)
        try:
            yield value
        finally:
            del stack[depth:]


RUN = RunContext()
