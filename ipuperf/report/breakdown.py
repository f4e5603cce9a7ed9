"""Where the time of one run goes, with overlap and waiting resolved so that the parts add up to the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.trace import KINDS, WAITING_KINDS, Window, pairs, slices, spent, working_cycles

if TYPE_CHECKING:
    from ipuperf.trace import Trace

PART_OF_KIND: dict[str, str] = {
    "compute": "compute",
    "exchange": "exchange",
    "sync": "sync",
    "sync_external": "sync",
    "idle": "sync",
    "link": "links",
    "remote_load": "ddr",
    "remote_store": "ddr",
    "host_begin": "host",
    "host_mid": "host",
    "host_end": "host",
    "host_run": "host",
}
"""Part of the breakdown each kind of step counts as."""

PARTS: tuple[str, ...] = ("compute", "exchange", "sync", "links", "ddr", "host")
"""Parts of a breakdown, in the order in which they are drawn."""


def run_instances(trace: Trace, run: int | None = None) -> tuple[Window, np.ndarray]:
    """Window (cycles) of a run and the rows of table ``instances`` that belong to it.

    ``run`` is a run id, by default the last run (that is the one without start-up effects). A trace without runs counts
    as one run from its first start to its last end. Raises ``ValueError`` for an unknown run or a trace of nothing.
    """
    runs, instances = trace.columns("runs"), trace.columns("instances")
    if len(runs["run"]) == 0:
        if run is not None:
            raise ValueError(f"run {run}: the trace has no runs")
        if len(instances["start"]) == 0:
            raise ValueError("the trace has no runs and no instances: nothing was executed")
        ends = instances["start"] + instances["dur"]
        return (int(instances["start"].min()), int(ends.max())), np.arange(len(ends))
    row = int(np.argmax(runs["start"])) if run is None else int(np.argmax(runs["run"] == run))
    if run is not None and runs["run"][row] != run:
        raise ValueError(f"run {run}: the trace has runs {', '.join(str(r) for r in runs['run'])}")
    begin, length = int(runs["start"][row]), int(runs["dur"][row])
    return (begin, begin + length), np.flatnonzero(instances["parent"] == runs["run"][row])


@checked
def critical_ipu(trace: Trace, rows: np.ndarray) -> tuple[int, int]:
    """(replica, ipu) that ends last among the given rows of ``instances``: it sets the pace. Of several that end
    together the one that works longest, waiting and host exchanges not counted; of equals the lowest."""
    instances = trace.columns("instances")
    end = (instances["start"] + instances["dur"])[rows]
    last = rows[end == end.max()]
    keys, row = np.unique(np.stack([instances["replica"][rows], instances["ipu"][rows]]), axis=1, return_inverse=True)
    place = trace.template.place(instances["segment"][rows])
    known, per_segment = place >= 0, working_cycles(trace)
    work = np.zeros(keys.shape[1], dtype=per_segment.dtype)
    np.add.at(work, row.reshape(-1)[known], per_segment[place[known]])
    ending = np.isin(keys[1], instances["ipu"][last]) & np.isin(keys[0], instances["replica"][last])
    best = np.lexsort((keys[1], keys[0], -work, ~ending))[0]
    return int(keys[0, best]), int(keys[1, best])


@dataclass(frozen=True)
class _Loops:
    """The outermost loops inside segments, one row for each execution: lane, start and stop in cycles; and the steps in
    them, one row for each, with ``owner``, the row of its loop."""

    trace: Trace
    lane: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    owner: np.ndarray
    instance: np.ndarray
    step: np.ndarray

    @classmethod
    def of(cls, trace: Trace, rows: np.ndarray) -> _Loops:
        """Those of the given rows of table ``instances``."""
        steps, template = trace.columns("steps"), trace.template
        instance, step = pairs(trace, rows, template.loop >= 0)
        outer = trace.loops.chain[template.loop[step], 0] if len(step) else step
        keys, owner = np.unique(np.stack([instance, outer, steps["lane"][step]]), axis=1, return_inverse=True)
        owner = owner.reshape(-1)
        at = trace.columns("instances")["start"][instance]
        start, stop = np.full(keys.shape[1], np.iinfo(np.int64).max), np.zeros(keys.shape[1], dtype=np.int64)
        np.minimum.at(start, owner, at + steps["rel_start"][step])
        np.maximum.at(stop, owner, at + template.reach[step])
        return cls(trace, keys[2], start, stop, owner, instance, step)

    def clipped(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and stops within a window."""
        return np.clip(self.start, begin, end), np.clip(self.stop, begin, end)

    def take(self, lane: int, edges: np.ndarray, free: np.ndarray) -> Iterator[tuple[str, int]]:
        """Kind and cycles of what the steps of a lane do in the free stretches between ``edges``, which are free no
        more. Time in which no step of a loop does anything counts as waiting."""
        for loop in np.flatnonzero(self.lane == lane).tolist():
            low, high = np.searchsorted(edges, np.clip([self.start[loop], self.stop[loop]], edges[0], edges[-1]))
            change = np.diff(np.concatenate([[False], free[low:high], [False]]).astype(np.int8))
            begins, ends = edges[low + np.flatnonzero(change == 1)], edges[low + np.flatnonzero(change == -1)]
            free[low:high] = False
            rest = int((ends - begins).sum())
            for row in np.flatnonzero(self.owner == loop).tolist():
                cycles = int((self._spent(row, ends) - self._spent(row, begins)).sum())
                yield str(self.trace.columns("steps")["kind"][self.step[row]]), cycles
                rest -= cycles
            yield "idle", rest

    def _spent(self, row: int, time: np.ndarray) -> np.ndarray:
        steps, step = self.trace.columns("steps"), self.step[row]
        first = self.trace.columns("instances")["start"][self.instance[row]] + steps["rel_start"][step]
        loop = np.full(len(time), self.trace.template.loop[step])
        return spent(self.trace.loops, np.full(len(time), steps["dur"][step]), loop, time - first)


@checked
def breakdown_cycles(trace: Trace, run: int | None = None) -> dict[str, int]:
    """Cycles of one run on its critical IPU (see :func:`critical_ipu`) by part; they sum to the duration of the run.

    Each moment counts once: where lanes overlap the lowest lane that does something wins, and waiting (external sync,
    idle) only counts where no lane does anything. Time without any step is waiting for others and counts as ``sync``.
    Steps outside the window of the run are left out. Inside a loop of a segment nothing of another lane counts.
    """
    (begin, end), rows = run_instances(trace, run)
    result = dict.fromkeys(PARTS, 0)
    if len(rows) == 0:
        result["sync"] = end - begin
        return result
    replica, ipu = critical_ipu(trace, rows)
    instances, steps = trace.columns("instances"), trace.columns("steps")
    rows = rows[(instances["ipu"][rows] == ipu) & (instances["replica"][rows] == replica)]
    found, loops = slices(trace, rows=rows, steps=trace.template.loop < 0), _Loops.of(trace, rows)
    start, stop = np.clip(found.start, begin, end), np.clip(found.start + found.dur, begin, end)
    kind = steps["kind"][found.step]
    lane = steps["lane"][found.step].astype(np.int64) + 1_000 * np.isin(kind, list(WAITING_KINDS))
    edges = _distinct(np.concatenate([start, stop, *loops.clipped(begin, end), [begin, end]]))
    length, free = np.diff(edges), np.ones(len(edges) - 1, dtype=bool)
    for level in np.flatnonzero(np.bincount(np.concatenate([lane, loops.lane]))).tolist():
        for name in KINDS:
            chosen = (lane == level) & (kind == name)
            if not chosen.any():
                continue
            change = np.zeros(len(edges), dtype=np.int64)
            np.add.at(change, np.searchsorted(edges, start[chosen]), 1)
            np.add.at(change, np.searchsorted(edges, stop[chosen]), -1)
            covered = (np.cumsum(change)[:-1] > 0) & free
            result[PART_OF_KIND[name]] += int(length[covered].sum())
            free &= ~covered
        for name, cycles in loops.take(level, edges, free):
            result[PART_OF_KIND[name]] += cycles
    result["sync"] += int(length[free].sum())
    return result


def _distinct(values: np.ndarray) -> np.ndarray:
    """As ``np.unique``, which hashes whole numbers and takes ten times as long for tens of millions."""
    values.sort()
    return values[np.append(True, values[1:] != values[:-1])]


@checked
def breakdown(trace: Trace, run: int | None = None) -> dict[str, float]:
    """Seconds of one run on its critical IPU: compute, exchange, sync, links, ddr, host; see
    :func:`breakdown_cycles`."""
    return {part: trace.seconds(cycles) for part, cycles in breakdown_cycles(trace, run).items()}
