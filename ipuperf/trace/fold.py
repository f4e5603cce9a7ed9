"""Joins templates and instances: vectorised slices, counts and sums, without a Python loop over rows.

A slice is one execution of a step of an instance. It starts at ``instances.start + steps.rel_start`` plus whole periods
of the loops around the step (:mod:`ipuperf.trace.loops`), and lasts ``steps.dur``. Sums are computed from the folded
tables (sum of a segment times number of its instances) and never need the slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ipuperf.trace.errors import TraceError
from ipuperf.trace.folded import FoldedInstances
from ipuperf.trace.loops import common_depth, count_executions, executions, product
from ipuperf.trace.schema import HOST_WAITING_KINDS, KINDS, WAITING_KINDS
from ipuperf.trace.shortened import instance_rows
from ipuperf.trace.tables import TraceTables
from ipuperf.trace.template import Window, check_window

MOST_SLICES = 20_000_000
"""Largest number of slices that can be expanded at once; about 3 GB as a table."""


@dataclass(frozen=True)
class Slices:
    """Slices, as columns of equal length.

    ``start`` and ``dur`` are in cycles (int64). ``step`` and ``instance`` are row numbers of the tables ``steps`` and
    ``instances``, where all other properties are found. ``trip`` is the trip of the segment's innermost loop (-1: no
    loop).
    """

    start: np.ndarray
    dur: np.ndarray
    step: np.ndarray
    instance: np.ndarray
    trip: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: np.ndarray) -> Slices:
        """The slices at ``rows`` (indices or a mask)."""
        return Slices(self.start[rows], self.dur[rows], self.step[rows], self.instance[rows], self.trip[rows])


def kind_codes(trace: TraceTables) -> np.ndarray:
    """Kind of each row of table ``steps`` as an index into ``KINDS`` (int64)."""
    return trace.kind_codes


def instances_in(trace: TraceTables, window: Window | None) -> np.ndarray:
    """The rows of table ``instances`` with a step that may touch the window; all rows if it is None."""
    instances = trace.columns("instances")
    if window is None:
        return np.arange(len(instances["start"]))
    check_window(window)
    template = trace.template
    place = template.place(instances["segment"])
    if len(template.segments) == 0:
        return np.empty(0, dtype=np.int64)
    begin = instances["start"] + template.low[place]
    end = instances["start"] + template.extent[place]
    # An instance may end with a slice without duration, which touches with its start, hence >=.
    return np.flatnonzero((place >= 0) & (begin < window[1]) & (end >= window[0]))


def pairs(trace: TraceTables, rows: np.ndarray, included: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The row of ``instances`` and the row of ``steps`` for every step of the given instances.

    ``included`` is a mask of the rows of ``steps``; None: all.
    """
    template = trace.template
    order, first_steps, count = template.order, template.first, template.count
    if included is not None:
        included_steps = included[order]
        # The number of included steps before a place is the new place of a segment.
        included_before = np.append(0, np.cumsum(included_steps))
        order, first_steps, count = (
            order[included_steps],
            included_before[first_steps],
            included_before[first_steps + count] - included_before[first_steps],
        )
    place = template.place(trace.columns("instances")["segment"][rows])
    rows, place = rows[place >= 0], place[place >= 0]
    counts = count[place] if len(place) else np.empty(0, dtype=np.int64)
    # This comes before `np.repeat` takes the memory.
    _require_few(counts)
    total = int(counts.sum())
    instance = np.repeat(rows, counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    step = order[np.repeat(first_steps[place], counts) + within] if total else np.empty(0, dtype=np.int64)
    return instance, step


def _require_few(counts: np.ndarray | int) -> None:
    """Raise :class:`TraceError` for more slices than can be expanded at once."""
    # The sum is taken in Python where it is large, because it may not fit into int64.
    total = counts if isinstance(counts, int) else sum(counts.tolist()) if counts.sum(dtype=float) > MOST_SLICES else 0
    if total > MOST_SLICES:
        raise TraceError(
            f"{total:,} slices (rows) are asked for, at most {MOST_SLICES:,} can be expanded at once: give a shorter "
            "window=(start, stop) in cycles (ipuperf.trace.fitting_window finds one)"
        )


def slices(
    trace: TraceTables, window: Window | None = None, rows: np.ndarray | None = None, steps: np.ndarray | None = None
) -> Slices:
    """The slices of the given rows of table ``instances`` (default: all) that touch ``window``, by instance and step.

    A slice touches the window if some of it lies inside; a slice without duration does if its start lies inside. Slices
    are not cut at the edges of the window. ``steps`` is a mask of the rows of table ``steps``; None: all.

    Raises :class:`TraceError` for more than ``MOST_SLICES`` slices.
    """
    check_window(window)
    rows = instances_in(trace, window) if rows is None else np.asarray(rows, dtype=np.int64)
    return _expanded(trace, pairs(trace, rows, steps), trace.columns("steps")["dur"], trace.template.loop, window)


def _expanded(
    trace: TraceTables,
    pairs: tuple[np.ndarray, np.ndarray],
    durations: np.ndarray,
    loops: np.ndarray,
    window: Window | None,
) -> Slices:
    """The slices of pairs of rows of ``instances`` and ``steps``, with a duration and a loop (row) for each step."""
    instance, step = pairs
    start = trace.columns("instances")["start"][instance] + trace.columns("steps")["rel_start"][step]
    dur, loop = durations[step], loops[step]
    # Trips multiply the pairs, so their number is checked before they are expanded.
    if trace.loops.depth:
        _require_few(count_executions(trace.loops, start, dur, loop, window))
    executed = executions(trace.loops, start, dur, loop, window)
    return Slices(executed.start, dur[executed.row], step[executed.row], instance[executed.row], executed.trip)


def merged_slices(trace: TraceTables, label: np.ndarray, rows: np.ndarray) -> Slices:
    """The slices of the given rows of ``instances``, where a loop of steps with the same label is a single slice.

    Such a slice lasts from the first start in the loop to the end of its last trip, and belongs to the loop's first
    step. ``label`` has a label for each row of table ``steps``.
    """
    template, loops = trace.template, trace.loops
    chain = loops.chain[template.loop]
    # A loop whose least and largest labels are equal holds steps of one label only.
    low, high = np.full(len(loops.ids), label.max(initial=0)), np.full(len(loops.ids), label.min(initial=0))
    for level in range(loops.depth):
        inside = chain[:, level] >= 0
        np.minimum.at(low, chain[inside, level], label[inside])
        np.maximum.at(high, chain[inside, level], label[inside])
    # Index -1 stands for no loop, which is never merged.
    equal = (chain >= 0) & np.append(low == high, False)[chain]
    merged = np.flatnonzero(equal.any(axis=1))
    # argmax finds the first True, which is the outermost loop with a single label.
    outer_level = np.argmax(equal[merged], axis=1) if loops.depth else merged
    outermost, loop_rows = chain[merged, outer_level], template.loop[merged]
    dur, loop, included = trace.columns("steps")["dur"].copy(), template.loop.copy(), np.ones(len(label), dtype=bool)
    dur[merged] = loops.count[loop_rows, outer_level] * loops.period[loop_rows, outer_level]
    loop[merged] = np.where(outer_level > 0, chain[merged, outer_level - 1], -1)
    included[merged] = False
    place = np.empty(len(label), dtype=np.int64)
    place[template.order] = np.arange(len(label))
    # Only the loop's first step in the template's order stands for it.
    by_loop = np.lexsort((place[merged], outermost))
    included[merged[by_loop[np.append(True, np.diff(outermost[by_loop]) != 0)[: len(by_loop)]]]] = True
    return _expanded(trace, pairs(trace, rows, included), dur, loop, None)


def slice_batches(
    trace: TraceTables, window: Window | None = None, batch: int = 1_000_000, steps: np.ndarray | None = None
) -> Iterator[Slices]:
    """The slices of :func:`slices` in pieces of about ``batch``, so that memory stays bounded.

    The slices of an instance stay in one piece.
    """
    rows, template = instances_in(trace, window), trace.template
    trips = template.trips if steps is None else np.where(steps, template.trips, 0)
    of_segment = np.add.reduceat(trips[template.order], template.first) if len(trips) else trips
    place = template.place(trace.columns("instances")["segment"][rows])
    # An instance of more than a batch fills a piece of its own. The cap keeps the running sums within int64.
    counts = np.minimum(np.where(place >= 0, of_segment[place], 0), batch) if len(trips) else place * 0
    # A piece ends with the instance that fills the batch.
    edges = np.searchsorted(np.cumsum(counts), np.arange(batch, int(counts.sum()), batch), side="left") + 1
    for piece in np.split(rows, edges):
        if len(piece):
            yield slices(trace, window, piece, steps)


def slice_count(trace: TraceTables, window: Window | None = None) -> int:
    """The number of slices that :func:`slices` would return."""
    template = trace.template
    if window is None:
        return sum((template.slices * segment_runs(trace)).tolist())
    if trace.folded("instances") is not None:
        trace = trace.within(window)
    return _count_within(trace, instances_in(trace, window), window)


def _count_within(trace: TraceTables, rows: np.ndarray, window: Window) -> int:
    """The number of slices of rows of table ``instances`` that touch the window."""
    template, instances = trace.template, trace.columns("instances")
    place = template.place(instances["segment"][rows])
    rows, place = rows[place >= 0], place[place >= 0]
    if not len(rows):
        return 0
    start = instances["start"][rows]
    # Instances that lie wholly inside are counted by a product. Only those at the edges are expanded.
    whole = (start + template.low[place] >= window[0]) & (start + template.extent[place] < window[1])
    instance, step = pairs(trace, rows[~whole])
    steps = trace.columns("steps")
    start, dur = instances["start"][instance] + steps["rel_start"][step], steps["dur"][step]
    partly = count_executions(trace.loops, start, dur, template.loop[step], window)
    return int(sum(template.slices[place[whole]].tolist())) + partly


def fitting_window(trace: TraceTables, limit: int) -> Window | None:
    """The longest window from the start of the trace with at most ``limit`` slices; None if the whole trace fits."""
    # The window grows by doubling until it holds too many slices; then its end is found by bisection.
    total = slice_count(trace)
    if total <= limit:
        return None
    place, start, end = _placed(trace)
    begin, end_of_trace = int((start + trace.template.low[place]).min()), int(end.max()) + 1
    # The first guess assumes that slices are spread evenly over time.
    fits, exceeds = begin, min(end_of_trace, begin + max(1, (end_of_trace - begin) * limit // total))
    while exceeds < end_of_trace and slice_count(trace, (begin, exceeds)) <= limit:
        fits, exceeds = exceeds, min(end_of_trace, begin + 2 * (exceeds - begin))
    # The bisection asks many times, so the rows of the window are made once, here.
    if trace.folded("instances") is not None:
        trace = trace.within((begin, exceeds))
    rows, instances, template = instances_in(trace, (begin, exceeds)), trace.columns("instances"), trace.template
    place = template.place(instances["segment"][rows])
    first, last = (instances["start"][rows] + edges[place] for edges in (template.low, template.extent))
    whole = 0  # slices of instances that end before the window does
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        count = whole + _count_within(trace, rows, (begin, middle))
        if count <= limit:
            fits, left = middle, last >= middle
            whole += sum(template.slices[place[~left]].tolist())
        else:
            exceeds, left = middle, first < middle
        rows, place, first, last = rows[left], place[left], first[left], last[left]
    return (begin, max(fits, begin + 1))


def _placed(trace: TraceTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Segment (index into the template), start and last end of the steps of each instance that has steps.

    In a folded table, an instance stands for all its repetitions.
    """
    template, folded = trace.template, trace.folded("instances")
    table = trace.columns("instances") if folded is None else folded.arrays
    place = template.place(table["segment"])
    start = table["start"].astype(np.int64)
    if isinstance(folded, FoldedInstances):
        last_start = folded.ends - folded.arrays["dur"]
    else:
        last_start = start
    known = place >= 0
    return place[known], start[known], last_start[known] + template.extent[place[known]]


def segment_runs(trace: TraceTables) -> np.ndarray:
    """How often each segment of the template is executed, over all IPUs and replicas (int64)."""
    folded = trace.folded("instances")
    table = trace.columns("instances") if folded is None else folded.arrays
    place = trace.template.place(table["segment"])
    times = folded.times * folded.members if isinstance(folded, FoldedInstances) else np.ones(len(place), np.int64)
    runs = np.zeros(len(trace.template.segments), dtype=np.int64)
    np.add.at(runs, place[place >= 0], times[place >= 0])
    return runs


def step_runs(trace: TraceTables) -> np.ndarray:
    """How often each row of table ``steps`` is executed, over all IPUs and replicas (int64)."""
    runs = np.zeros(len(trace.template.order), dtype=np.int64)
    runs[trace.template.order] = np.repeat(segment_runs(trace), trace.template.count)
    return product(runs, trace.template.trips)


def step_begins(trace: TraceTables, begins: np.ndarray) -> np.ndarray:
    """How often a stretch of steps begins with each row of the template (in the template's order).

    A stretch begins with the rows of the mask ``begins`` when they follow the row before them, and with every trip of a
    loop.
    """
    template, loops = trace.template, trace.loops
    loop = template.loop[template.order]
    shared = np.zeros(len(loop), dtype=np.int64)
    shared[1:] = common_depth(loops, loop[1:], loop[:-1])
    segment = np.repeat(np.arange(len(template.segments)), template.count)
    shared[1:][segment[1:] != segment[:-1]] = 0
    all_trips = template.trips[template.order]
    # How often a row follows the row before it. Its other executions are further trips of a loop.
    entered = all_trips // loops.inner[loop, shared]
    return product(np.repeat(segment_runs(trace), template.count), all_trips - np.where(begins, 0, entered))


def working_cycles(trace: TraceTables) -> np.ndarray:
    """Cycles of each segment in which its IPU works, that is, waits neither for other IPUs nor for the host."""
    waiting = np.isin(KINDS, (*WAITING_KINDS, *HOST_WAITING_KINDS, "host_mid"))
    return np.asarray(sum_by_segment(trace, trace.columns("steps")["dur"])[:, ~waiting].sum(axis=1))


@dataclass(frozen=True)
class IpuTotals:
    """Sums for each stored IPU, one row for each; rows are sorted by ``replica`` and ``ipu``.

    ``cycles`` has the shape (rows, len(KINDS)). ``first`` is the start of the first instance, ``last`` the end of the
    last one.
    """

    replica: np.ndarray
    ipu: np.ndarray
    cycles: np.ndarray
    first: np.ndarray
    last: np.ndarray


def sum_by_segment(trace: TraceTables, weights: np.ndarray) -> np.ndarray:
    """Sums of a weight per execution of ``steps``, by segment and kind: shape (segments, len(KINDS)).

    The dtype is that of the weights, or object where int64 could overflow.
    """
    template = trace.template
    weights = product(weights, template.trips)
    result = np.zeros((len(template.segments), len(KINDS)), dtype=weights.dtype)
    segment = np.repeat(np.arange(len(template.segments)), template.count)
    np.add.at(result, (segment, kind_codes(trace)[template.order]), weights[template.order])
    return result


def ipu_totals(trace: TraceTables, weights: np.ndarray | None = None) -> IpuTotals:
    """Sums of ``steps.dur`` (or another weight per row of ``steps``) by kind for each stored IPU, without slices."""
    instances = instance_rows(trace)
    per_segment = sum_by_segment(trace, trace.columns("steps")["dur"] if weights is None else weights)
    pairs = np.stack([instances.replica, instances.ipu], axis=1)
    keys, row = np.unique(pairs, axis=0, return_inverse=True)
    row = row.reshape(-1)
    place = trace.template.place(instances.segment)
    cycles = np.zeros((len(keys), len(KINDS)), dtype=per_segment.dtype)
    known = place >= 0
    row_and_segment = row[known] * max(len(per_segment), 1) + place[known]
    # Each pair of IPU and segment is summed once, times its number of instances.
    used, index = np.unique(row_and_segment, return_inverse=True)
    times = np.zeros(len(used), dtype=np.int64)
    np.add.at(times, index.reshape(-1), instances.times[known])
    if len(used):
        rows, places = np.divmod(used, len(per_segment))
        np.add.at(cycles, rows, times[:, None] * per_segment[places])
    first_starts = np.full(len(keys), np.iinfo(np.int64).max)
    last_ends = np.full(len(keys), np.iinfo(np.int64).min)
    np.minimum.at(first_starts, row, instances.start)
    np.maximum.at(last_ends, row, instances.end)
    of_ipu, replica, ipu = instances.repeated(keys[:, 0], keys[:, 1])
    order = np.lexsort((ipu, replica))
    of_ipu = of_ipu[order]
    return IpuTotals(replica[order], ipu[order], cycles[of_ipu], first_starts[of_ipu], last_ends[of_ipu])


def span(trace: TraceTables) -> Window:
    """The first start and the last end of all runs and instances; (0, 0) if there are none."""
    starts: list[int] = []
    ends: list[int] = []
    for name in ("runs", "instances"):
        folded = trace.folded(name)
        if isinstance(folded, FoldedInstances):
            start, end = folded.arrays["start"], folded.ends
        else:
            table = trace.columns(name)
            start, end = table["start"], table["start"] + table["dur"]
        if len(start):
            starts.append(int(start.min()))
            ends.append(int(end.max()))
    return (min(starts), max(ends)) if starts else (0, 0)
