"""The simulated clock: a user's program sees it when it asks for the time.

A program that measures ``time()`` around ``session.run`` must see the time the IPU would have taken, not NumPy's.
The runtime therefore advances the active :class:`SimulatedClock` by the simulated seconds of each run and replaces
the program's ``time`` module by :meth:`SimulatedClock.time_module`. Apart from runs, only ``sleep`` and queries
advance the clock, so two runs of a program see the same durations.
"""

from __future__ import annotations

import math
import threading
import time as real_time
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from .run_context import RUN

#: Nanoseconds that asking for the time costs on the simulated host.
#:
#: Assumed: the order of a ``clock_gettime`` call from Python. It makes ``while time() < end: pass`` end.
QUERY_COST_NS = 50

_NS_PER_SECOND = 1_000_000_000


class SimulatedClock:
    """A clock that stands still unless it is advanced, slept on or queried.

    It counts whole nanoseconds since its start. :meth:`advance` carries the fraction it leaves over to the next call,
    so many short advances do not drift. ``epoch`` is the Unix time (seconds) that :meth:`time` shows at the start; the
    default is the real time at which the clock is made. Each query first lets :data:`QUERY_COST_NS` pass and then
    answers, so successive answers of one query in nanoseconds always increase. Several threads may use one clock.
    """

    def __init__(self, epoch: float | None = None) -> None:
        if epoch is not None and not math.isfinite(epoch):
            raise ValueError(f"epoch={epoch}: expected a finite Unix time in seconds, or None for the present")
        self._epoch_ns = real_time.time_ns() if epoch is None else round(epoch * _NS_PER_SECOND)
        self._elapsed_ns = 0
        self._carried_ns = 0.0  # in [0, 1): the part of past advances that does not fill a nanosecond yet
        self._shown = -math.inf  # the last answer of time()
        self._lock = threading.Lock()
        self._module: ModuleType | None = None

    @property
    def now(self) -> float:
        """Seconds since the start of the clock; reading it costs no simulated time."""
        return self._elapsed_ns / _NS_PER_SECOND

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` (finite, not negative) pass."""
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(
                f"advance({seconds}): a clock can only advance by a finite, non-negative number of seconds"
            )
        with self._lock:
            passed = float(seconds) * _NS_PER_SECOND + self._carried_ns
            whole_ns = math.floor(passed)
            self._carried_ns = passed - whole_ns
            self._elapsed_ns += whole_ns

    def sleep(self, seconds: float) -> None:
        """Like ``time.sleep``, but returns at once with the clock advanced by ``seconds``."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.advance(seconds)

    def time_ns(self) -> int:
        """Simulated Unix time in nanoseconds."""
        return self._epoch_ns + self._query()

    def time(self) -> float:
        """Simulated Unix time in seconds; as in ``time.time``, such a float resolves about 0.2 microseconds.

        If that resolution hides the cost of the query, the clock advances to the next float. A program may divide by
        the difference of two answers even if nothing between them takes simulated time.
        """
        self._query()
        with self._lock:
            answer = (self._epoch_ns + self._elapsed_ns) / _NS_PER_SECOND
            if answer <= self._shown:
                answer = math.nextafter(self._shown, math.inf)
                self._elapsed_ns = max(self._elapsed_ns, math.ceil(answer * _NS_PER_SECOND) - self._epoch_ns)
            self._shown = answer
        return answer

    def perf_counter_ns(self) -> int:
        """Nanoseconds since the start of the clock."""
        return self._query()

    def perf_counter(self) -> float:
        """Seconds since the start of the clock."""
        return self._query() / _NS_PER_SECOND

    def monotonic_ns(self) -> int:
        """Nanoseconds since the start of the clock."""
        return self._query()

    def monotonic(self) -> float:
        """Seconds since the start of the clock."""
        return self._query() / _NS_PER_SECOND

    def time_module(self) -> ModuleType:
        """Return a module named ``time`` that shows this clock; always the same object.

        It replaces ``time``, ``perf_counter``, ``monotonic``, their ``_ns`` forms and ``sleep``. Everything else
        (``strftime``, ``gmtime``, ``process_time`` ...) comes from the real module.
        """
        if self._module is None:
            self._module = _TimeModule(self)
        return self._module

    def shown_module(self) -> ModuleType:
        """Return a module named ``time`` for what only shows the time: asking it costs nothing.

        How often a progress bar asks depends on how fast the simulator is, which must not show in a program's times.
        """
        return _TimeModule(_Shown(self))

    def _query(self) -> int:
        with self._lock:
            self._elapsed_ns += QUERY_COST_NS
            return self._elapsed_ns


class _Shown:
    """What a :class:`SimulatedClock` shows, at no cost."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock, self.sleep = clock, clock.sleep

    def time_ns(self) -> int:
        return self._clock._epoch_ns + self._clock._elapsed_ns

    def perf_counter_ns(self) -> int:
        return self._clock._elapsed_ns

    def time(self) -> float:
        return self.time_ns() / _NS_PER_SECOND

    def perf_counter(self) -> float:
        return self._clock.now

    monotonic, monotonic_ns = perf_counter, perf_counter_ns


class _TimeModule(ModuleType):
    """The ``time`` module with the functions that read or spend time taken from a simulated clock."""

    def __init__(self, clock: SimulatedClock | _Shown) -> None:
        super().__init__("time", doc="The time module as seen by a program on ipuperf's simulated clock.")
        # Without it, ``from time import *`` would import only what this module itself holds.
        self.__all__ = [name for name in dir(real_time) if not name.startswith("_")]
        for name in _REPLACED:
            setattr(self, name, getattr(clock, name))

    def __getattr__(self, name: str) -> Any:
        # Python asks here only for names that this module does not hold itself.
        return getattr(real_time, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(real_time), *super().__dir__()})


_REPLACED = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "sleep")


def active_clock() -> SimulatedClock | None:
    """Return the clock of the innermost :func:`activate` block of this process; ``None`` means wall time."""
    return RUN.clocks[-1] if RUN.clocks else None


def activate(clock: SimulatedClock) -> AbstractContextManager[SimulatedClock]:
    """Make ``clock`` the active one within the ``with`` block; afterwards the previous one is active again."""
    return RUN.entered(RUN.clocks, clock)
