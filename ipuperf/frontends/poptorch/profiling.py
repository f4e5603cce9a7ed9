"""``poptorch.profiling``: trace points of the host program.

Upstream records them with ``libpvti`` and does nothing where that is not installed; here it never is. Simulated device
time is in the reports of the executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from .effects import EFFECTS

_T = TypeVar("_T")


class Channel:
    """A named channel of trace points."""

    def __init__(self, name: str) -> None:
        self.name = name

    def instrument(self, obj: _T, *methods: str) -> _T:
        """Returns ``obj`` as it is. ``AttributeError`` if it lacks one of ``methods``."""
        EFFECTS.given("profiling.Channel.instrument(methods)", methods)
        for method in methods:
            getattr(obj, method)
        return obj

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """A ``with`` statement that records nothing."""
        EFFECTS.given("profiling.Channel.tracepoint(name)", name)
        yield
