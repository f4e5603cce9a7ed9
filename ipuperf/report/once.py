"""Results that a trace keeps, so that the views of a report share them."""

from __future__ import annotations

from functools import wraps
from typing import Protocol, TypeVar

from ipuperf.trace import Trace

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class OfRun(Protocol[R_co]):
    """A function of a trace and a run of it, by default the last."""

    def __call__(self, trace: Trace, run: int | None = None) -> R_co:
        """The result for a run."""


def once(function: OfRun[R]) -> OfRun[R]:
    """Decorate a function of a run: its result is computed once, and all readers of the trace share it."""

    @wraps(function)
    def call(trace: Trace, run: int | None = None) -> R:
        if (function, run) not in trace.derived:
            trace.derived[function, run] = function(trace, run)
        result: R = trace.derived[function, run]
        return result

    return call
