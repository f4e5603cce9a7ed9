"""What an interactive viewer is shown of a trace that is too long for it: a stated window, and what repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.report.marks import MOST_SLICES
from ipuperf.report.tracks import Description, SliceTrack, check_limit
from ipuperf.report.window import check_inside, whole
from ipuperf.trace import fitting_window, slice_count

if TYPE_CHECKING:
    from ipuperf.trace import SteadyLoop, Trace, Window

MAX_SLICES = 100_000
"""Slices of a timeline that is cut, so that its file stays below 20 MB and is written in 2 s: some 80 bytes each, with
arrows, waits and counters."""

GROUP = "Excerpt"
"""Group of the tracks that say what is shown."""


@dataclass(frozen=True)
class Excerpt:
    """What is shown of a trace: all of it (``window`` None), or what touches the window (cycles).

    Attributes:
        trace: all of it.
        window: None for all.
        shown: the trace with what is shown.
        replicas: where one replica is shown for all that do the same: how many that are, for each; else empty.
    """

    trace: Trace
    window: Window | None
    shown: Trace
    replicas: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, window: Window | None, max_slices: int | None, allowed: int, cut: int) -> Excerpt:
        """What to show.

        Args:
            window: what is asked for; None: all, or where that is too long the beginning.
            max_slices: slices that are asked for at most; None: ``allowed``, and ``cut`` where no window is given.

        Raises:
            ValueError: all, or the window, holds more slices than are asked for or allowed; a window outside of the
                trace.
        """
        check_inside(trace, window)
        if window is None and max_slices is None:
            return cls.default(trace, cut)
        check_limit(trace, window, allowed if max_slices is None else max_slices)
        return cls(trace, window, _followed(trace, window))

    @classmethod
    def default(cls, trace: Trace, cut: int = 0) -> Excerpt:
        """All if that is at most ``cut`` slices (0: :data:`MAX_SLICES`); else the beginning, of one replica of those
        that do the same."""
        cut = cut or MAX_SLICES
        if slice_count(trace) <= cut:
            return cls(trace, None, trace)
        alone, replicas = trace.of_each_class(), trace.replicas
        window = fitting_window(alone, cut)
        if max(replicas.values(), default=1) == 1:
            return cls(trace, window, _followed(trace, window))
        return cls(trace, window, _followed(alone, window), replicas)

    @property
    def repeats(self) -> list[SteadyLoop]:
        """What comes again and again, of what is shown in part."""
        if self.window is None:
            return []
        begin, end = self.window
        return [one for one in self.trace.repeats if one.start < end and one.end > begin]

    def sentence(self) -> str:
        """What is shown, for a report; "" for all."""
        parts = []
        if self.window is not None:
            begin, end = whole(self.trace)
            parts.append(f"cycles {self.window[0]:,} to {self.window[1]:,} only, of {begin:,} to {end:,}")
        parts += [f"replica {replica} for {count:,} that do the same" for replica, count in self.replicas.items()]
        repeats = [mark_text(one) for one in self.repeats if one.depth == 0]
        return "; ".join([f"{', '.join(parts)} (too long for a viewer)", *repeats]) if parts else ""


def _followed(trace: Trace, window: Window | None) -> Trace:
    """What is needed of a trace for a window. Whom an IPU waits for is looked up in the whole run, so that a window of
    a trace in which that is done needs all of it."""
    return trace if window is None or slice_count(trace) <= MOST_SLICES else trace.within(window)


def mark_text(one: SteadyLoop) -> str:
    """A repeat in words."""
    return f"x {one.trips:,}, period {one.period:,} cycles, from cycle {one.start:,} to {one.end:,}"


def repeat_tracks(excerpt: Excerpt) -> Iterator[SliceTrack]:
    """Where not all is shown: a slice that says what is, and one for each loop in steady state that goes on in it."""
    if not excerpt.sentence():
        return
    begin, end = excerpt.window or whole(excerpt.trace)
    yield _marks("shown", [(begin, end)], [(f"shown: {excerpt.sentence()}", "window", {})])
    depths = sorted({one.depth for one in excerpt.repeats})
    for depth in depths:
        own = [one for one in excerpt.repeats if one.depth == depth]
        places = [(max(one.start, begin), min(one.end, end)) for one in own]
        args = [{"trips": one.trips, "period_cycles": one.period, "start": one.start, "end": one.end} for one in own]
        texts: list[Description] = [(mark_text(one), "repeat", dict(arg)) for one, arg in zip(own, args, strict=True)]
        yield _marks("repeats" if depth == 0 else f"repeats inside ({depth})", places, texts)


def _marks(name: str, places: Sequence[Window], said: Sequence[Description]) -> SliceTrack:
    start, end = (np.array(values, dtype=np.int64) for values in zip(*places, strict=True))
    return SliceTrack(GROUP, name, start, end - start, np.arange(len(places)), lambda key: said[key])
