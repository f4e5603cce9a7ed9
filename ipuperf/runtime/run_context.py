"""What is in force while programs run: the settings of runs and the simulated clock.

One :class:`RunContext` per process: programs may start sessions in threads of their own, and these run under the same
settings and the same clock. Each entry ends with its ``with`` block. (Where ops go is of the thread that writes them:
:data:`ipuperf.ir.CONTEXT`.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .clock import SimulatedClock
    from .settings import RunSettings

T = TypeVar("T")


class RunContext:
    """Stacks of what is in force, innermost last.

    Attributes:
        settings: of runs (:func:`.settings.use_settings`).
        clocks: simulated clocks (:func:`.clock.activate`).
    """

    def __init__(self) -> None:
        self.settings: list[RunSettings] = []
        self.clocks: list[SimulatedClock] = []

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
