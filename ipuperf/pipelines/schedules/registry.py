"""Schedules by name: those that :func:`ipuperf.pipelines.build_pipeline` can build from stages and micro-batches alone.

The decorator :func:`schedule` registers a schedule where it is written. Callers that offer schedules (scenarios, the
pipeline builder, sweeps) look them up here and need no list of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ipuperf.base.near_names import instead_of

from .timetable import ScheduleError, Timetable


class Rule(Protocol):
    """A function that makes timetables and takes its options by keyword."""

    __name__: str

    def __call__(self, stages: int, micro_batches: int, /, **options: Any) -> Timetable:
        """The timetable of ``stages`` stages and ``micro_batches`` micro-batches."""
        ...


@dataclass(frozen=True)
class Schedule:
    """A registered schedule.

    Attributes:
        make: the function that makes its timetables.
        copies: when stages copy, ``every step`` or ``when needed`` (:func:`ipuperf.pipelines.build_pipeline`).
        recompute: the value of its option ``recompute`` with which it recomputes as upstream does by default (None: it
            never recomputes).
        stages_per_ipu: how many stages an IPU has, unless the option ``devices`` says otherwise.
    """

    make: Rule
    copies: str
    recompute: Any
    stages_per_ipu: int = 1


SCHEDULES: dict[str, Schedule] = {}
"""Name (also of its timetables) -> schedule."""

_Made = TypeVar("_Made", bound=Callable[..., Timetable])


def schedule(
    *, copies: str = "every step", recompute: Any = None, name: str | None = None, stages_per_ipu: int = 1
) -> Callable[[_Made], _Made]:
    """Register the decorated function under ``name`` (None: its own name). Its timetables must have that name."""

    def register(make: _Made) -> _Made:
        SCHEDULES[name or make.__name__] = Schedule(make, copies, recompute, stages_per_ipu)
        return make

    return register


def timetable_of(name: str, stages: int, micro_batches: int, *, recompute: bool = False, **options: Any) -> Timetable:
    """The timetable of a registered schedule.

    ``recompute`` turns recomputation on in the schedules that have it; others ignore it.

    Raises:
        ScheduleError: the name is unknown, or the schedule does not allow these numbers and options.
    """
    if name not in SCHEDULES:
        raise ScheduleError(f"schedule is {name!r}{instead_of(name, SCHEDULES)}")
    registered = SCHEDULES[name]
    if recompute and registered.recompute is not None:
        options["recompute"] = registered.recompute
    allowed = [
        key
        for key, parameter in inspect.signature(registered.make).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    for option in options:
        if option not in allowed:
            raise ScheduleError(f"{name}: no option {option!r}{instead_of(option, allowed)}")
    return registered.make(stages, micro_batches, **options)


def copies_of(table: Timetable) -> str:
    """When the stages of a timetable copy; in every step if its schedule is not registered."""
    return SCHEDULES[table.name].copies if table.name in SCHEDULES else "every step"
