"""The excerpt of a long trace that an interactive viewer can show: a stated window, and the loops that repeat in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ipuperf.report.arguments import check_inside, whole
from ipuperf.report.marks import MOST_SLICES
from ipuperf.report.tracks import Description, SliceTrack, check_limit
from ipuperf.trace import SteadyLoop, Trace, Window, fitting_window, slice_count

MAX_SLICES = 100_000
"""The number of slices in an excerpt. With arrows, waits and counters a slice takes some 80 bytes, so that a file stays
below 20 MB and is written in 2 s."""

GROUP = "Excerpt"
"""The group of the tracks that describe the excerpt."""


@dataclass(frozen=True)
class Excerpt:
    """The part of a trace that is shown: all of it, or slices that touch a window (cycles).

    Attributes:
        trace: the whole trace.
        window: the window; None: the whole trace is shown.
        shown: a trace with what is shown.
        replicas: the number of replicas that each shown replica stands for, if one is shown for all that do the same;
            otherwise empty.
    """

    trace: Trace
    window: Window | None
    shown: Trace
    replicas: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, window: Window | None, max_slices: int | None, allowed: int, cut: int) -> Excerpt:
        """The excerpt for a request.

        Args:
            window: the requested window; None: everything, or the beginning if that is too long.
            max_slices: the requested limit of slices; None: ``allowed``, or ``cut`` if no window is given.

        Raises:
            ValueError: the trace or the window holds more slices than the limit, or the window is outside of the
                trace.
        """
        check_inside(trace, window)
        if window is None and max_slices is None:
            return cls.default(trace, cut)
        check_limit(trace, window, allowed if max_slices is None else max_slices)
        return cls(trace, window, _followed(trace, window))

    @classmethod
    def default(cls, trace: Trace, cut: int = 0) -> Excerpt:
        """Everything, if that is at most ``cut`` slices (0: :data:`MAX_SLICES`).

        Otherwise it is the beginning, of one replica for all replicas that do the same.
        """
        cut = cut or MAX_SLICES
        if slice_count(trace) <= cut:
            return cls(trace, None, trace)
        # One replica of each class has fewer slices, so that a longer window can be shown.
        alone, replicas = trace.of_each_class(), trace.replicas
        window = fitting_window(alone, cut)
        # No replica stands for another one, so the whole trace serves as it is.
        if max(replicas.values(), default=1) == 1:
            return cls(trace, window, _followed(trace, window))
        return cls(trace, window, _followed(alone, window), replicas)

    @property
    def repeats(self) -> list[SteadyLoop]:
        """The loops in steady state that touch the window; empty if everything is shown."""
        if self.window is None:
            return []
        begin, end = self.window
        return [loop for loop in self.trace.repeats if loop.start < end and loop.end > begin]

    def sentence(self) -> str:
        """The excerpt in words, for a report; "" if everything is shown."""
        parts = []
        if self.window is not None:
            begin, end = whole(self.trace)
            parts.append(f"cycles {self.window[0]:,} to {self.window[1]:,} only, of {begin:,} to {end:,}")
        parts += [f"replica {replica} for {count:,} that do the same" for replica, count in self.replicas.items()]
        repeats = [mark_text(loop) for loop in self.repeats if loop.depth == 0]
        return "; ".join([f"{', '.join(parts)} (too long for a viewer)", *repeats]) if parts else ""


def _followed(trace: Trace, window: Window | None) -> Trace:
    """The part of a trace that a window needs.

    Waits are found in the whole run, so traces that are short enough for that are needed as a whole.
    """
    return trace if window is None or slice_count(trace) <= MOST_SLICES else trace.within(window)


def mark_text(loop: SteadyLoop) -> str:
    """A repeat in words."""
    return f"x {loop.trips:,}, period {loop.period:,} cycles, from cycle {loop.start:,} to {loop.end:,}"


def repeat_tracks(excerpt: Excerpt) -> Iterator[SliceTrack]:
    """The tracks of an excerpt: a slice that says what is shown, and one for each loop in steady state within it.

    There are none if everything is shown.
    """
    if not excerpt.sentence():
        return
    begin, end = excerpt.window or whole(excerpt.trace)
    yield _marks("shown", [(begin, end)], [(f"shown: {excerpt.sentence()}", "window", {})])
    depths = sorted({loop.depth for loop in excerpt.repeats})
    for depth in depths:
        loops = [loop for loop in excerpt.repeats if loop.depth == depth]
        places = [(max(loop.start, begin), min(loop.end, end)) for loop in loops]
        args = [
            {"trips": loop.trips, "period_cycles": loop.period, "start": loop.start, "end": loop.end} for loop in loops
        ]
        texts: list[Description] = [
            (mark_text(loop), "repeat", dict(arg)) for loop, arg in zip(loops, args, strict=True)
        ]
        yield _marks("repeats" if depth == 0 else f"repeats inside ({depth})", places, texts)


def _marks(name: str, places: Sequence[Window], descriptions: Sequence[Description]) -> SliceTrack:
    start, end = (np.array(values, dtype=np.int64) for values in zip(*places, strict=True))
    return SliceTrack(GROUP, name, start, end - start, np.arange(len(places)), lambda key: descriptions[key])
