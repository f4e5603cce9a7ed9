"""Join templates and instances, vectorised: slices, counts and sums without a Python loop over rows.

A slice is one step of one instance: it starts at ``instances.start + steps.rel_start`` and lasts ``steps.dur``. Sums
are taken on the folded tables (segment sums times number of instances) and never need the slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.trace.columns import code_of
from ipuperf.trace.schema import KINDS

if TYPE_CHECKING:
    from ipuperf.trace.trace import Trace

Window = tuple[int, int]
"""A stretch of time in cycles, half open."""


@dataclass(frozen=True)
class Template:
    """The steps sorted by segment and sequence.

    ``order[first[i] : first[i] + count[i]]`` are the rows of table ``steps`` of segment ``segments[i]``; ``low`` and
    ``extent`` are the first start and the last end among them, relative to the instance (0 for a segment of no steps).
    """

    order: np.ndarray
    segments: np.ndarray
    first: np.ndarray
    count: np.ndarray
    low: np.ndarray
    extent: np.ndarray

    def place(self, segment: np.ndarray) -> np.ndarray:
        """Index into ``segments`` of each segment id; -1 where the segment has no steps."""
        if len(self.segments) == 0:
            return np.full(len(segment), -1, dtype=np.int64)
        place = np.minimum(np.searchsorted(self.segments, segment), len(self.segments) - 1)
        return np.where(self.segments[place] == segment, place, -1)


@dataclass(frozen=True)
class Slices:
    """Slices in columns of equal length.

    ``start`` and ``dur`` in cycles (int64); ``step`` and ``instance`` are row numbers of the tables ``steps`` and
    ``instances``, through which every other property is looked up.
    """

    start: np.ndarray
    dur: np.ndarray
    step: np.ndarray
    instance: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: np.ndarray) -> Slices:
        """The slices at ``rows`` (indices or a mask)."""
        return Slices(self.start[rows], self.dur[rows], self.step[rows], self.instance[rows])


def build_template(trace: Trace) -> Template:
    """Sort table ``steps`` once; see :class:`Template`."""
    steps = trace.columns("steps")
    order = np.lexsort((steps["seq"], steps["segment"]))
    segments, first, count = np.unique(steps["segment"][order], return_index=True, return_counts=True)
    if len(segments) == 0:
        nothing = np.empty(0, dtype=np.int64)
        return Template(order, segments, first, count, nothing, nothing)
    ends = (steps["rel_start"] + steps["dur"])[order]
    low = np.minimum.reduceat(steps["rel_start"][order], first)
    return Template(order, segments, first, count, low, np.maximum.reduceat(ends, first))


def kind_codes(trace: Trace) -> np.ndarray:
    """Kind of each row of table ``steps`` as an index into ``KINDS`` (int64)."""
    return code_of(trace.columns("steps")["kind"], KINDS)


def check_window(window: Window | None) -> None:
    """Raise ``ValueError`` unless ``window`` is None or (start, stop) with start < stop."""
    if window is not None and not _is_window(window):
        raise ValueError(f"window {window!r}: expected (start, stop) in cycles with start < stop")


def _is_window(window: object) -> bool:
    """Whether ``window`` is two numbers, the second larger."""
    if not isinstance(window, (tuple, list, np.ndarray)) or len(window) != 2:
        return False
    return all(isinstance(edge, (int, float, np.integer)) for edge in window) and bool(window[0] < window[1])


def instances_in(trace: Trace, window: Window | None) -> np.ndarray:
    """Rows of table ``instances`` with a step that may touch the window, all when it is None."""
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
    return np.flatnonzero((place >= 0) & (begin < window[1]) & (end >= window[0]))


def slices(trace: Trace, window: Window | None = None, rows: np.ndarray | None = None) -> Slices:
    """Slices of the given rows of table ``instances`` (all by default) that touch ``window``, in instance order.

    A slice touches the window if some of it lies inside; a slice of no duration does if its start lies inside. Slices
    are not cut at the edges of the window.
    """
    instances, steps, template = trace.columns("instances"), trace.columns("steps"), trace.template
    rows = instances_in(trace, window) if rows is None else np.asarray(rows, dtype=np.int64)
    place = template.place(instances["segment"][rows])
    rows, place = rows[place >= 0], place[place >= 0]
    counts = template.count[place] if len(place) else np.empty(0, dtype=np.int64)
    total = int(counts.sum())
    instance = np.repeat(rows, counts)
    within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    step = template.order[np.repeat(template.first[place], counts) + within] if total else np.empty(0, dtype=np.int64)
    start = instances["start"][instance] + steps["rel_start"][step]
    result = Slices(start, steps["dur"][step], step, instance)
    if window is None:
        return result
    check_window(window)
    ends_after = np.where(result.dur > 0, start + result.dur > window[0], start >= window[0])
    return result.take((start < window[1]) & ends_after)


def slice_batches(trace: Trace, window: Window | None = None, batch: int = 1_000_000) -> Iterator[Slices]:
    """The slices of :func:`slices` in pieces of about ``batch``, so that memory stays bounded."""
    rows = instances_in(trace, window)
    place = trace.template.place(trace.columns("instances")["segment"][rows])
    counts = np.where(place >= 0, trace.template.count[place], 0) if len(trace.template.count) else place * 0
    edges = np.searchsorted(np.cumsum(counts), np.arange(batch, int(counts.sum()), batch), side="left") + 1
    for piece in np.split(rows, edges):
        if len(piece):
            yield slices(trace, window, piece)


def fitting_window(trace: Trace, limit: int) -> Window | None:
    """The longest window from the start of the trace that holds at most ``limit`` slices; None if all of it does."""
    template, instances = trace.template, trace.columns("instances")
    place = template.place(instances["segment"])
    counts = np.where(place >= 0, template.count[place], 0) if len(template.count) else place * 0
    if int(counts.sum()) <= limit:
        return None
    begin = instances["start"] + template.low[place]
    order = np.argsort(begin, kind="stable")
    order = order[counts[order] > 0]
    needed = int(np.searchsorted(np.cumsum(counts[order]), limit, side="right"))
    first = int(begin[order[0]])
    # Every instance that begins before the limit is reached can hold one of the first `limit` + 1 slice starts.
    latest = np.sort(slices(trace, rows=order[: needed + 1]).start)[limit]
    candidates = order[begin[order] <= latest]
    stop = int(np.sort(slices(trace, rows=candidates).start)[limit])
    return (first, max(stop, first + 1))


def segment_runs(trace: Trace) -> np.ndarray:
    """How often each segment of the template is executed, over all IPUs and replicas (int64)."""
    place = trace.template.place(trace.columns("instances")["segment"])
    return np.bincount(place[place >= 0], minlength=len(trace.template.segments)).astype(np.int64)


def step_runs(trace: Trace) -> np.ndarray:
    """How often each row of table ``steps`` is executed, over all IPUs and replicas (int64)."""
    runs = np.zeros(len(trace.template.order), dtype=np.int64)
    runs[trace.template.order] = np.repeat(segment_runs(trace), trace.template.count)
    return runs


@dataclass(frozen=True)
class IpuTotals:
    """Sums for each stored IPU.

    ``replica`` and ``ipu`` (sorted, one row each), ``cycles`` of shape (rows, len(KINDS)), ``first`` and ``last``:
    start of the first and end of the last instance.
    """

    replica: np.ndarray
    ipu: np.ndarray
    cycles: np.ndarray
    first: np.ndarray
    last: np.ndarray


def sum_by_segment(trace: Trace, weights: np.ndarray) -> np.ndarray:
    """Sum of a weight per row of ``steps`` by segment and kind: shape (segments, len(KINDS)), dtype of the weights."""
    template = trace.template
    result = np.zeros((len(template.segments), len(KINDS)), dtype=weights.dtype)
    segment = np.repeat(np.arange(len(template.segments)), template.count)
    np.add.at(result, (segment, kind_codes(trace)[template.order]), weights[template.order])
    return result


def ipu_totals(trace: Trace, weights: np.ndarray | None = None) -> IpuTotals:
    """Sum of ``steps.dur`` (or another weight per row of ``steps``) by kind for each stored IPU, without slices."""
    instances = trace.columns("instances")
    per_segment = sum_by_segment(trace, trace.columns("steps")["dur"] if weights is None else weights)
    pairs = np.stack([instances["replica"], instances["ipu"]], axis=1)
    keys, row = np.unique(pairs, axis=0, return_inverse=True)
    row = row.reshape(-1)
    place = trace.template.place(instances["segment"])
    cycles = np.zeros((len(keys), len(KINDS)), dtype=per_segment.dtype)
    known = place >= 0
    both = row[known] * max(len(per_segment), 1) + place[known]
    used, times = np.unique(both, return_counts=True)
    if len(used):
        rows, places = np.divmod(used, len(per_segment))
        np.add.at(cycles, rows, times[:, None] * per_segment[places])
    first = np.full(len(keys), np.iinfo(np.int64).max)
    last = np.full(len(keys), np.iinfo(np.int64).min)
    np.minimum.at(first, row, instances["start"])
    np.maximum.at(last, row, instances["start"] + instances["dur"])
    return IpuTotals(keys[:, 0], keys[:, 1], cycles, first, last)


def span(trace: Trace) -> Window:
    """First start and last end over runs and instances, (0, 0) when there are none."""
    starts: list[int] = []
    ends: list[int] = []
    for name in ("runs", "instances"):
        table = trace.columns(name)
        if len(table["start"]):
            starts.append(int(table["start"].min()))
            ends.append(int((table["start"] + table["dur"]).max()))
    return (min(starts), max(ends)) if starts else (0, 0)


def slice_count(trace: Trace, window: Window | None = None) -> int:
    """Number of slices that :func:`slices` would give."""
    if window is not None:
        return sum(len(piece) for piece in slice_batches(trace, window))
    place = trace.template.place(trace.columns("instances")["segment"])
    return int(trace.template.count[place[place >= 0]].sum())
