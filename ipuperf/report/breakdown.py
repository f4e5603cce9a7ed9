"""The parts of the time of one run. Overlap and waiting are resolved, so that the parts add up to the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.once import once
from ipuperf.trace import KINDS, WAITING_KINDS, Trace, Window, pairs, slices, spent, working_cycles

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
"""The part of the breakdown that each kind of step belongs to."""

PARTS: tuple[str, ...] = ("compute", "exchange", "sync", "links", "ddr", "host")
"""The parts of a breakdown, in the order of drawing."""


def run_instances(trace: Trace, run: int | None = None) -> tuple[Window, np.ndarray]:
    """The window of a run (cycles) and the rows of table ``instances`` that belong to it.

    ``run`` is a run id, by default that of the last run, which has no start-up effects. A trace without runs counts as
    one run from its first start to its last end. Raises ``ValueError`` for an unknown run or an empty trace.
    """
    runs, instances = trace.columns("runs"), trace.columns("instances")
    if len(runs["run"]) == 0:
        if run is not None:
            raise ValueError(f"run {run}: the trace has no runs")
        if len(instances["start"]) == 0:
            raise ValueError("the trace has no runs and no instances: nothing was executed")
        ends = instances["start"] + instances["dur"]
        return (int(instances["start"].min()), int(ends.max())), np.arange(len(ends))
    # argmax gives 0 where no row matches, which the next lines find out.
    row = int(np.argmax(runs["start"])) if run is None else int(np.argmax(runs["run"] == run))
    if run is not None and runs["run"][row] != run:
        raise ValueError(f"run {run}: the trace has runs {', '.join(str(r) for r in runs['run'])}")
    begin, length = int(runs["start"][row]), int(runs["dur"][row])
    return (begin, begin + length), np.flatnonzero(instances["parent"] == runs["run"][row])


@checked
def critical_ipu(trace: Trace, rows: np.ndarray, times: np.ndarray | None = None) -> tuple[int, int]:
    """The (replica, ipu) that sets the pace: the one that ends last among the given rows of ``instances``.

    If several end together, it is the one that works longest, without waiting and host exchanges, then the lowest.
    ``times`` is how often each row occurs (default: once).
    """
    instances = trace.columns("instances")
    end = (instances["start"] + instances["dur"])[rows]
    last_rows = rows[end == end.max()]
    keys, row = np.unique(np.stack([instances["replica"][rows], instances["ipu"][rows]]), axis=1, return_inverse=True)
    place = trace.template.place(instances["segment"][rows])
    known, per_segment = place >= 0, working_cycles(trace)
    work = np.zeros(keys.shape[1], dtype=per_segment.dtype)
    cycles = per_segment[place[known]]
    np.add.at(work, row.reshape(-1)[known], cycles if times is None else cycles * times[known])
    ending = np.isin(keys[1], instances["ipu"][last_rows]) & np.isin(keys[0], instances["replica"][last_rows])
    best = np.lexsort((keys[1], keys[0], -work, ~ending))[0]
    return int(keys[0, best]), int(keys[1, best])


@once
def pace(trace: Trace, run: int | None = None) -> tuple[int, int]:
    """The (replica, ipu) that sets the pace of a run (by default the last)."""
    short = trace.short
    rows = run_instances(short.trace, run)[1]
    return critical_ipu(short.trace, rows, short.cuts.times(short.trace.columns("instances")["start"][rows]))


@dataclass(frozen=True)
class _Loops:
    """The outermost loops inside segments, and the steps in them.

    ``lane``, ``start`` and ``stop`` (cycles) have a row for each execution of a loop. ``instance``, ``step`` and
    ``owner``, the row of the step's loop, have a row for each step.
    """

    trace: Trace
    lane: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    owner: np.ndarray
    instance: np.ndarray
    step: np.ndarray

    @classmethod
    def of(cls, trace: Trace, rows: np.ndarray) -> _Loops:
        """The loops in the given rows of table ``instances``."""
        steps, template = trace.columns("steps"), trace.template
        instance, step = pairs(trace, rows, template.loop >= 0)
        outer = trace.loops.chain[template.loop[step], 0] if len(step) else step
        keys, owner = np.unique(np.stack([instance, outer, steps["lane"][step]]), axis=1, return_inverse=True)
        owner = owner.reshape(-1)
        instance_start = trace.columns("instances")["start"][instance]
        start, stop = np.full(keys.shape[1], np.iinfo(np.int64).max), np.zeros(keys.shape[1], dtype=np.int64)
        np.minimum.at(start, owner, instance_start + steps["rel_start"][step])
        np.maximum.at(stop, owner, instance_start + template.reach[step])
        return cls(trace, keys[2], start, stop, owner, instance, step)

    def clipped(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and stops within a window."""
        return np.clip(self.start, begin, end), np.clip(self.stop, begin, end)

    def take(self, lane: int, edges: np.ndarray, free: np.ndarray, times: np.ndarray) -> Iterator[tuple[str, int]]:
        """Yield kind and cycles of the lane's steps in the free stretches between ``edges``, and mark those as taken.

        Each stretch occurs ``times``. Time of a loop without any step counts as waiting.
        """
        for loop in np.flatnonzero(self.lane == lane).tolist():
            low, high = np.searchsorted(edges, np.clip([self.start[loop], self.stop[loop]], edges[0], edges[-1]))
            taken = low + np.flatnonzero(free[low:high])
            begins, ends = edges[taken], edges[taken + 1]
            free[low:high] = False
            idle_cycles = int(((ends - begins) * times[taken]).sum())
            for row in np.flatnonzero(self.owner == loop).tolist():
                cycles = int(((self._spent(row, ends) - self._spent(row, begins)) * times[taken]).sum())
                yield str(self.trace.columns("steps")["kind"][self.step[row]]), cycles
                idle_cycles -= cycles
            yield "idle", idle_cycles

    def _spent(self, row: int, time: np.ndarray) -> np.ndarray:
        steps, step = self.trace.columns("steps"), self.step[row]
        first_start = self.trace.columns("instances")["start"][self.instance[row]] + steps["rel_start"][step]
        loop = np.full(len(time), self.trace.template.loop[step])
        return spent(self.trace.loops, np.full(len(time), steps["dur"][step]), loop, time - first_start)


@checked
def breakdown_cycles(trace: Trace, run: int | None = None) -> dict[str, int]:
    """Cycles of one run on its critical IPU (see :func:`critical_ipu`) by part. They sum to the duration of the run.

    Each moment counts once. Where lanes overlap, the lowest busy lane counts, and waiting (external sync, idle) counts
    only if no lane is busy. Time without any step is waiting for others and counts as ``sync``. Steps outside the
    window of the run are left out. During a loop of a segment other lanes do not count.
    """
    cuts, whole, trace = trace.short.cuts, trace, trace.short.trace
    (begin, end), rows = run_instances(trace, run)
    cycles_by_part = dict.fromkeys(PARTS, 0)
    if len(rows) == 0:
        cycles_by_part["sync"] = end - begin
        return cycles_by_part
    replica, ipu = pace(whole, run)
    instances, steps = trace.columns("instances"), trace.columns("steps")
    rows = rows[(instances["ipu"][rows] == ipu) & (instances["replica"][rows] == replica)]
    expanded, loops = slices(trace, rows=rows, steps=trace.template.loop < 0), _Loops.of(trace, rows)
    start, stop = np.clip(expanded.start, begin, end), np.clip(expanded.start + expanded.dur, begin, end)
    kind = trace.kind_codes[expanded.step]
    # Waiting steps get lanes above all others, so that they count last.
    lane = steps["lane"][expanded.step].astype(np.int64) + 1_000 * np.isin(KINDS, WAITING_KINDS)[kind]
    of_cuts = [edge for cut in cuts.places for edge in (cut.begin, cut.end)]
    edges = distinct(np.concatenate([start, stop, *loops.clipped(begin, end), [begin, end, *of_cuts]]))
    times, free = cuts.times(edges[:-1]), np.ones(len(edges) - 1, dtype=bool)
    length = np.diff(edges) * times
    # Lanes in ascending order, with waiting steps as lanes above all others, so that each takes what is still free.
    for level in np.flatnonzero(np.bincount(np.concatenate([lane, loops.lane]))).tolist():
        for code, name in enumerate(KINDS):
            chosen = (lane == level) & (kind == code)
            if not chosen.any():
                continue
            # Starts count up and ends count down, so the running sum says where the kind is active.
            change = np.zeros(len(edges), dtype=np.int64)
            np.add.at(change, np.searchsorted(edges, start[chosen]), 1)
            np.add.at(change, np.searchsorted(edges, stop[chosen]), -1)
            covered = (np.cumsum(change)[:-1] > 0) & free
            cycles_by_part[PART_OF_KIND[name]] += int(length[covered].sum())
            free &= ~covered
        for name, cycles in loops.take(level, edges, free, times):
            cycles_by_part[PART_OF_KIND[name]] += cycles
    cycles_by_part["sync"] += int(length[free].sum())
    return cycles_by_part


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values, sorted. ``np.unique`` hashes whole numbers, which takes ten times as long for tens of
    millions."""
    # The array is sorted in place, so callers give it away.
    values.sort()
    sorted_values: np.ndarray = values[np.append(True, values[1:] != values[:-1])]
    return sorted_values


@checked
def breakdown(trace: Trace, run: int | None = None) -> dict[str, float]:
    """Seconds of one run on its critical IPU: compute, exchange, sync, links, ddr, host; see
    :func:`breakdown_cycles`."""
    return {part: trace.seconds(cycles) for part, cycles in breakdown_cycles(trace, run).items()}
