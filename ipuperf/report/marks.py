"""Additional marks of an interactive timeline: waits, loops with their trips, and arrows for copies between IPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipuperf.report.waiting import OWNERS, waits
from ipuperf.trace import Window, slice_count
from ipuperf.trace.columns import lookup

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.trace import Trace

MOST_SLICES = 1_000_000
"""The number of slices up to which waits are computed, because they are found in the whole run."""

_IPU = re.compile(r"ipu(\d+)$")


class Arrow(NamedTuple):
    """A copy between two IPUs: it leaves ``source`` at ``start`` and has arrived at ``target`` at ``end`` (cycles)."""

    source: int
    target: int
    start: int
    end: int


class LoopMark(NamedTuple):
    """A loop inside an instance: its ``start``, ``dur`` and ``period`` of a trip in cycles, and its number of trips."""

    start: int
    dur: int
    trips: int
    period: int


def arrows(trace: Trace, window: Window | None) -> list[Arrow]:
    """Copies between IPUs that leave within the window, in order of the table."""
    transfers, links = trace.columns("transfers"), trace.columns("links")
    chosen = transfers["kind"] == "p2p"
    if window is not None:
        chosen = chosen & (transfers["start"] >= window[0]) & (transfers["start"] < window[1])
    rows = np.flatnonzero(chosen)
    names = sorted({*links["source"].tolist(), *links["destination"].tolist()})
    number = {name: place for place, name in enumerate(names)}
    source, destination = (
        lookup(transfers["link_id"][rows], links["link_id"], np.array([number[n] for n in links[end]], np.int64), -1)
        for end in ("source", "destination")
    )
    # The route of a transfer has a row for each link. Its target is the only end at which no other link begins.
    _, first, copy = np.unique(transfers["transfer"][rows], return_index=True, return_inverse=True)
    key = copy.reshape(-1) * (len(names) + 1)
    copies, targets = np.divmod(np.setdiff1d(key + destination, key + source), len(names) + 1)
    single = np.flatnonzero(np.bincount(copies, minlength=len(first))[copies] == 1)
    ipu_of = np.array([int(ipu[1]) if (ipu := _IPU.search(name)) else -1 for name in names] + [-1])
    ends = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(ends, copy.reshape(-1), (transfers["start"] + transfers["dur"])[rows])
    single = single[ipu_of[targets[single]] >= 0]
    copies = copies[single]
    # Copies stay in the order in which they stand in the table.
    order = np.argsort(first[copies], kind="stable")
    copies, target = copies[order], ipu_of[targets[single]][order]
    start = rows[first[copies]]
    columns = (transfers["ipu"][start], target, transfers["start"][start], ends[copies])
    return [Arrow(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def loop_marks(trace: Trace, rows: np.ndarray) -> Iterator[LoopMark]:
    """The outermost loops inside the given rows of table ``instances``."""
    loops, template, instances = trace.loops, trace.template, trace.columns("instances")
    if not loops.depth:
        return
    first_starts: dict[int, dict[int, int]] = {}
    steps = trace.columns("steps")
    inside = np.flatnonzero(template.loop >= 0)
    for step in inside.tolist():
        of_segment = first_starts.setdefault(int(steps["segment"][step]), {})
        outer = int(loops.chain[template.loop[step], 0])
        of_segment[outer] = min(of_segment.get(outer, 1 << 62), int(steps["rel_start"][step]))
    for row in rows.tolist():
        for outer, begin in first_starts.get(int(instances["segment"][row]), {}).items():
            count, period = int(loops.count[outer, 0]), int(loops.period[outer, 0])
            yield LoopMark(int(instances["start"][row]) + begin, count * period, count, period)


def run_waits(trace: Trace, window: Window | None) -> list[pd.DataFrame]:
    """The waits of each run that touches the window; none for a trace of more than :data:`MOST_SLICES` slices."""
    runs = trace.columns("runs")
    if slice_count(trace) > MOST_SLICES:
        return []
    return [
        waits(trace, int(run)).table()
        for run, start, dur in zip(runs["run"], runs["start"], runs["dur"], strict=True)
        if window is None or (start < window[1] and start + dur > window[0])
    ]


def owner(cycles: np.ndarray) -> str:
    """The main owner of a wait."""
    return OWNERS[int(np.argmax(cycles))]
