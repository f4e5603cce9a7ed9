"""Additional marks of an interactive timeline: waits, loops with their trips, and arrows for copies between IPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipuperf.report.waiting import OWNERS, waits
from ipuperf.trace import FoldedTransfers, Trace, Window, slice_count
from ipuperf.trace.columns import lookup
from ipuperf.trace.folded import ranges

if TYPE_CHECKING:
    import pandas as pd


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
    transfers = trace.columns("transfers")
    chosen = transfers["kind"] == "p2p"
    if window is not None:
        chosen = chosen & (transfers["start"] >= window[0]) & (transfers["start"] < window[1])
    rows = np.flatnonzero(chosen)
    # A transfer has a row for each link of its route.
    _, first, copy = np.unique(transfers["transfer"][rows], return_index=True, return_inverse=True)
    copies, target = _targets(trace, len(first), copy.reshape(-1), transfers["link_id"][rows])
    ends = np.full(len(first), np.iinfo(np.int64).min)
    np.maximum.at(ends, copy.reshape(-1), (transfers["start"] + transfers["dur"])[rows])
    # Copies stay in the order in which they stand in the table.
    order = np.argsort(first[copies], kind="stable")
    copies, target = copies[order], target[order]
    start = rows[first[copies]]
    columns = (transfers["ipu"][start], target, transfers["start"][start], ends[copies])
    return [Arrow(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def repeated_arrows(trace: Trace) -> dict[str, np.ndarray]:
    """All copies between IPUs, each once for all trips of the loops around it.

    Columns: start, dur (cycles), source, target (IPUs) and repeat, the loop in the folded table (-1: none).
    """
    table = trace.folded("transfers")
    if not isinstance(table, FoldedTransfers):
        columns = np.array(arrows(trace, None), dtype=np.int64).reshape(-1, 4).T
        source, target, start, end = columns
        return {
            "start": start,
            "dur": end - start,
            "source": source,
            "target": target,
            "repeat": np.full(len(start), -1),
        }
    arrays = table.arrays
    copying = np.array([kind == "p2p" for kind in table.words["kinds"]], dtype=bool)[arrays["kind"]]
    # Templates share sends, so that the targets of each send are looked up once.
    _, send = ranges(arrays["first"][copying], arrays["sends"][copying])
    send = np.unique(send)
    copy, link = ranges(arrays["link_first"][send], arrays["links"][send])
    copies, target = _targets(trace, len(send), copy, arrays["link_id"][link])
    order = np.argsort(copies)
    copies, target = send[copies[order]], target[order]
    # The copies of each template are a stretch, and each row has those of its template.
    first, end = np.searchsorted(copies, [arrays["first"], arrays["first"] + arrays["sends"]])
    of_rows = arrays["template"]
    row, place = ranges(first[of_rows], np.where(copying, end - first, 0)[of_rows])
    of_row = {name: arrays[name][row] for name in ("start", "dur", "repeat")}
    return {**of_row, "source": arrays["ipu"][copies[place]], "target": target[place]}


def _targets(trace: Trace, number: int, copy: np.ndarray, link_id: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The copies, of so many, whose route ends at one IPU, and that IPU.

    ``copy`` and ``link_id`` have a row for each link of each route.
    """
    links = trace.columns("links")
    names = sorted({*links["source"].tolist(), *links["destination"].tolist()})
    place = {name: row for row, name in enumerate(names)}
    source, destination = (
        lookup(link_id, links["link_id"], np.array([place[name] for name in links[end]], np.int64), -1)
        for end in ("source", "destination")
    )
    # The target is the only end of a route at which none of its links begins.
    key = copy * (len(names) + 1)
    copies, targets = np.divmod(np.setdiff1d(key + destination, key + source), len(names) + 1)
    single = np.flatnonzero(np.bincount(copies, minlength=number)[copies] == 1)
    ipu_of = np.array([int(ipu[1]) if (ipu := _IPU.search(name)) else -1 for name in names] + [-1])
    single = single[ipu_of[targets[single]] >= 0]
    return copies[single], ipu_of[targets[single]]


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
