"""The stretch of time that a view shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipuperf.trace import Window, check_window

if TYPE_CHECKING:
    from ipuperf.trace import Trace


def whole(trace: Trace) -> Window:
    """Window of everything the trace holds; raises ``ValueError`` if nothing was executed."""
    starts, ends = [], []
    for name in ("runs", "instances"):
        table = trace.columns(name)
        if len(table["start"]):
            starts.append(int(table["start"].min()))
            ends.append(int((table["start"] + table["dur"]).max()))
    if not starts or max(ends) <= min(starts):
        raise ValueError("the trace has no runs and no instances: there is no timeline to draw")
    return min(starts), max(ends)


def check_inside(trace: Trace, window: Window | None) -> None:
    """Raise ``ValueError`` for what is no window, and for one that shows nothing of what was executed."""
    if window is None:
        return
    check_window(window)
    begin, end = whole(trace)
    if window[0] >= end or window[1] <= begin:
        shown = f"({window[0]:,}, {window[1]:,})"
        raise ValueError(f"window {shown} lies outside of the trace, cycles {begin:,} to {end:,}")
