"""Additional marks of an interactive timeline: waits, loops with their trips, and arrows for copies between IPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipuperf.report.waiting import OWNERS, Waits, waits
from ipuperf.trace import Window, slice_count

if TYPE_CHECKING:
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
    ends = dict(zip(links["link_id"].tolist(), zip(links["source"], links["destination"], strict=True), strict=True))
    hops: dict[int, list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        hops.setdefault(int(transfers["transfer"][row]), []).append(row)
    copies = []
    for rows in hops.values():
        # The route of a transfer has a row for each link. Its target is the only end at which no other link begins.
        route = [ends[int(transfers["link_id"][row])] for row in rows]
        destinations = {destination for _, destination in route} - {source for source, _ in route}
        target = _IPU.search(destinations.pop()) if len(destinations) == 1 else None
        if target is not None:
            start = int(transfers["start"][rows[0]])
            end = max(int(transfers["start"][row] + transfers["dur"][row]) for row in rows)
            copies.append(Arrow(int(transfers["ipu"][rows[0]]), int(target[1]), start, end))
    return copies


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


def run_waits(trace: Trace, window: Window | None) -> list[Waits]:
    """The waits of each run that touches the window; none for a trace of more than :data:`MOST_SLICES` slices."""
    runs = trace.columns("runs")
    if slice_count(trace) > MOST_SLICES:
        return []
    return [
        waits(trace, int(run))
        for run, start, dur in zip(runs["run"], runs["start"], runs["dur"], strict=True)
        if window is None or (start < window[1] and start + dur > window[0])
    ]


def owner(cycles: np.ndarray) -> str:
    """The main owner of a wait."""
    return OWNERS[int(np.argmax(cycles))]
