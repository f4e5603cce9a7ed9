"""Schedules by name: those that :func:`ipuperf.pipelines.build_pipeline` builds from stages and micro-batches alone.

A schedule is registered where it is written, by :func:`schedule`; whoever offers schedules (scenarios, the pipeline
builder, sweeps) asks here and needs no list of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .timetable import ScheduleError, Timetable


class Rule(Protocol):
    """A function that makes timetables; options by keyword."""

    __name__: str

    def __call__(self, stages: int, micro_batches: int, /, **options: Any) -> Timetable:
        """The timetable of ``stages`` stages and ``micro_batches`` micro-batches."""
        ...


@dataclass(frozen=True)
class Schedule:
    """A registered schedule.

    Attributes:
        make: its function.
        copies: how stages copy, ``every step`` or ``when needed`` (:func:`ipuperf.pipelines.build_pipeline`).
        recompute: what its option ``recompute`` takes to recompute as upstream chooses (None: it never recomputes).
        stages_per_ipu: how many stages an IPU has unless its option ``devices`` says otherwise.
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
    """Register the function below under ``name`` (None: its own), which its timetables have to bear."""

    def register(make: _Made) -> _Made:
        SCHEDULES[name or make.__name__] = Schedule(make, copies, recompute, stages_per_ipu)
        return make

    return register


def timetable_of(name: str, stages: int, micro_batches: int, *, recompute: bool = False, **options: Any) -> Timetable:
    """The timetable of a registered schedule; ``recompute`` asks those that can for recomputation.

    Raises:
        ScheduleError: an unknown name, or numbers and options that the schedule cannot run.
    """
    if name not in SCHEDULES:
        raise ScheduleError(f"schedule is {name!r}; allowed: {', '.join(SCHEDULES)}")
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
            raise ScheduleError(f"{name}: no option {option!r}; allowed: {', '.join(allowed)}")
    return registered.make(stages, micro_batches, **options)


def copies_of(table: Timetable) -> str:
    """How the stages of a timetable copy; in every step when its schedule is not registered."""
    return SCHEDULES[table.name].copies if table.name in SCHEDULES else "every step"
