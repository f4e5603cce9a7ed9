"""Find the trace of the object that a user has."""

from __future__ import annotations

from typing import Any

from ipuperf.trace import Trace

_WAYS = ("executable", "program", "compiled_model")
"""Attributes that lead from a front end's object to one with a trace.

A PopXL session and a compiled PopTorch model have an ``executable``. A compiled TensorFlow function has a ``program``
with one. A PopTorch executor has a ``compiled_model`` with one, which is None before compilation."""


def trace_of(subject: Any) -> Trace:
    """Return the trace of one run of a program, simulated now if it has not been.

    Args:
        subject: an :class:`ipuperf.trace.Trace`, an :class:`ipuperf.runtime.executable.Executable`, or any object whose
            ``trace`` is a trace or whose ``executable`` has one: a PopXL session, a compiled PopTorch executor, a
            TensorFlow program that has run.

    Raises:
        TypeError: the object is something else (a class, a graph without a chosen machine).
        ValueError: the program is not compiled yet.
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
    """Return the trace, and whether an attribute that should lead to it is still None."""
    if isinstance(subject, Trace):
        return subject, False
    # A class has the attributes of its objects as properties, which lead nowhere.
    if subject is None or isinstance(subject, type) or depth < 0:
        return None, False
    if isinstance(trace_attribute := getattr(subject, "trace", None), Trace):
        return trace_attribute, False
    unfinished = False
    for way in _WAYS:
        # The default is the subject itself, so that a missing attribute differs from one that is None.
        following = getattr(subject, way, subject)
        unfinished |= following is None
        if following is subject or following is None:
            continue
        trace, open_end = _search(following, depth - 1)
        if trace is not None:
            return trace, False
        unfinished |= open_end
    return None, unfinished
