"""From what a user has in hand to its trace."""

from __future__ import annotations

from typing import Any

from ipuperf.trace import Trace

_WAYS = ("executable", "program", "compiled_model")
"""Attributes that lead from a front end's object to one with a trace: a PopXL session and a compiled PopTorch model
hold an ``executable``, a compiled TensorFlow function a ``program`` with one, a PopTorch executor a
``compiled_model`` with one (None before)."""


def trace_of(subject: Any) -> Trace:
    """The trace of one run of a program, simulated now unless it has been.

    Args:
        subject: an :class:`ipuperf.trace.Trace`; an :class:`ipuperf.runtime.executable.Executable`; or anything whose
            ``trace`` is a trace or whose ``executable`` has one: a PopXL session, a compiled PopTorch executor, a
            TensorFlow program that has run.

    Raises:
        TypeError: something else (a class, a graph that no machine was chosen for).
        ValueError: a program that is not compiled yet.
    """
    trace, unfinished = _search(subject, depth=3)
    if trace is not None:
        return trace
    description = f"{type(subject).__name__} {getattr(subject, 'name', '')!s}".strip()
    if unfinished:
        raise ValueError(
            f"{description} is not compiled yet: run it once, or compile it, before its cycles are asked for"
        )
    raise TypeError(
        f"{description} has no trace; give an ipuperf Trace, an Executable, a popxl.Session, a compiled PopTorch "
        "executor, or an object with one of them as its .trace or .executable"
    )


def _search(subject: Any, depth: int) -> tuple[Trace | None, bool]:
    """The trace, and whether an attribute that should lead to it is still None."""
    if isinstance(subject, Trace):
        return subject, False
    if subject is None or isinstance(subject, type) or depth < 0:
        return None, False
    if isinstance(trace_attribute := getattr(subject, "trace", None), Trace):
        return trace_attribute, False
    unfinished = False
    for way in _WAYS:
        following = getattr(subject, way, subject)
        unfinished |= following is None
        if following is subject or following is None:
            continue
        trace, open_end = _search(following, depth - 1)
        if trace is not None:
            return trace, False
        unfinished |= open_end
    return None, unfinished
