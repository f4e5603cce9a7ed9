"""Checks of what report functions are given: kinds of arguments by their annotations, and windows."""

from __future__ import annotations

from ipuperf.base.kinds import ANYTHING, ArgumentKind, Kinds
from ipuperf.trace import Trace, Window, check_window, span

# Named here, because most modules import it for type checkers alone. Their sources would be parsed to find it.
_TRACE = ArgumentKind(lambda value: isinstance(value, Trace), "a Trace", frozenset([Trace]))

checked = Kinds({**dict.fromkeys(("Window", "ndarray"), ANYTHING), "Trace": _TRACE}).checked()


def whole(trace: Trace) -> Window:
    """Window of everything the trace holds; raises ``ValueError`` if nothing was executed."""
    begin, end = span(trace)
    if end <= begin:
        raise ValueError("the trace has no runs and no instances: there is no timeline to draw")
    return begin, end


def check_inside(trace: Trace, window: Window | None) -> None:
    """Raise ``ValueError`` if ``window`` is no window, or if nothing was executed in it."""
    if window is None:
        return
    check_window(window)
    begin, end = whole(trace)
    if window[0] >= end or window[1] <= begin:
        shown = f"({window[0]:,}, {window[1]:,})"
        raise ValueError(f"window {shown} lies outside of the trace, cycles {begin:,} to {end:,}")
