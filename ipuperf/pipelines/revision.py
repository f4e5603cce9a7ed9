"""Changes of pipelines before they are built.

``build_pipeline`` is the one place where all front ends request pipelines. Within :func:`revising` a function changes
these requests, so that a question "what if" needs no front end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

from ipuperf.ir import Ir
from ipuperf.pipelines.schedules import Timetable

from .model import HostIo, Offload, StageGraph, StageOutput, Training


@dataclass(frozen=True)
class BuildRequest:
    """The arguments of :func:`~.build.build_pipeline` that can be revised, and how its stages copy and repeat."""

    ir: Ir
    parts: Sequence[StageGraph]
    timetable: Timetable
    outputs: Sequence[StageOutput]
    training: Training | None
    offload: Offload
    host_io: HostIo
    copies: str
    repeats: int


Revision: TypeAlias = Callable[[BuildRequest], BuildRequest]

_REVISION: ContextVar[Revision | None] = ContextVar("revision of pipelines", default=None)


@contextmanager
def revising(revise: Revision | None) -> Iterator[None]:
    """Build pipelines within as ``revise`` changes them; with None as they are requested."""
    # A context variable, so that a revision ends with its block and does not reach other threads.
    token = _REVISION.set(revise)
    try:
        yield
    finally:
        _REVISION.reset(token)


def revised(request: BuildRequest) -> BuildRequest:
    """The request after the active revision."""
    revise = _REVISION.get()
    return request if revise is None else revise(request)
