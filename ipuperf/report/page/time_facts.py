"""Facts on the time line: templates of steps with their loops, their executions, and the transfers of links.

They are folded like the trace. The steps of a segment are there once, loops have their trips, IPUs and links that do
the same share a course, and what a loop repeats is there once. The page expands only what it shows. So it can show a
run of 10^12 steps, or thousands of IPUs, down to single supersteps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ipuperf.report.marks import repeated_arrows
from ipuperf.report.page.encoding import Columns, steps_up
from ipuperf.trace import PHASES, FoldedHostEvents, FoldedInstances, Trace, Window, span
from ipuperf.trace.columns import code_of, lookup, numbered
from ipuperf.trace.folded import REPEATS, FoldedTable, Repeating
from ipuperf.trace.loops import build_loops, count_executions
from ipuperf.trace.traffic import folded_traffic

_LINKS = 64
"""The largest number of links with a lane, the busiest ones."""


class RepeatedRows(NamedTuple):
    """What follows in time, each row once for all trips of the loops around it.

    Attributes:
        start: of the first occurrence of each row, in cycles.
        repeat: the innermost loop around each row (-1: none).
        loops: the loops, in the columns ``parent``, ``count`` and ``period``.
        columns: the other columns.
    """

    start: np.ndarray
    repeat: np.ndarray
    loops: Columns
    columns: Columns

    @classmethod
    def of(cls, table: FoldedTable | None, start: np.ndarray, repeat: np.ndarray, columns: Columns) -> RepeatedRows:
        """Rows of a table in order of start; None: a table that is not folded."""
        order = np.argsort(start, kind="stable")
        loops = {name: table.arrays[name] for name in REPEATS} if isinstance(table, Repeating) else _NO_LOOPS
        return cls(start[order], repeat[order], loops, {name: values[order] for name, values in columns.items()})

    def begun(self, until: int) -> int:
        """How many occurrences begin before a time."""
        if not len(self.start):
            return 0
        loops = build_loops({"loop": np.arange(len(self.loops["count"])), **self.loops})
        no_length = np.zeros(len(self.start), dtype=np.int64)
        return count_executions(loops, self.start, no_length, self.repeat, (int(self.start[0]), until))

    def chosen(self, rows: np.ndarray) -> RepeatedRows:
        """The rows of these places or flags."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return self._replace(start=self.start[rows], repeat=self.repeat[rows], columns=columns)

    def facts(self, **columns: Any) -> dict[str, Any]:
        """The rows for the page, with these columns in place of those of their names."""
        return {"start": steps_up(self.start), "repeat": self.repeat, "loops": self.loops, **self.columns, **columns}


class Executions(NamedTuple):
    """The executions of segments of IPUs (replica, ipu) that do the same."""

    course: RepeatedRows
    ipus: list[tuple[int, int]]


_NO_LOOPS: Columns = {name: np.empty(0, dtype=np.int64) for name in REPEATS}


def page_window(courses: Iterable[RepeatedRows], most: int) -> Window | None:
    """The window from the first start in which at most ``most`` rows begin; None: all begin in it."""
    courses = [course for course in courses if len(course.start)]
    begin = min((int(course.start[0]) for course in courses), default=0)

    def begun(until: int) -> int:
        return sum(course.begun(until) for course in courses)

    low, high = begin, 1 << 62
    if begun(high) <= most:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if begun(middle) <= most else (low, middle)
    # A window has at least one cycle, also where more than that many begin at once.
    return begin, max(low, begin + 1)


def timeline(trace: Trace, links: Iterable[Mapping[str, Any]], most: int) -> dict[str, Any]:
    """Segments, executions by row, copies between IPUs, and lanes of links.

    They are those that begin in a window from the start with at most ``most`` executions and transfers. ``links`` are
    those of a summary.
    """
    executions, lanes, copies = _executions(trace), _lanes(trace, links), _copies(trace)
    carried = {id(course): course for _, course in lanes}
    window = page_window([*(course for course, _ in executions), *carried.values(), copies], most)
    begin, end = window or (_begin(trace), 1 << 62)
    executions = [Executions(course.chosen(course.start < end), ipus) for course, ipus in executions]
    segments = np.unique(
        np.concatenate([np.empty(0, np.int64), *(course.columns["segment"] for course, _ in executions)])
    )
    names, templates = _templates(trace, segments)
    copies = copies.chosen(copies.start < end)
    return {
        "window": list(window) if window is not None else None,
        "begin": begin,
        "ops": names,
        "segments": templates,
        **_rows(trace, executions, segments),
        "flows": copies.facts(),
        **_carried(trace, lanes, end),
        "host": _host(trace, end),
    }


def _begin(trace: Trace) -> int:
    """Where the last run begins."""
    starts = trace.columns("runs")["start"]
    return int(starts.max()) if len(starts) else span(trace)[0]


def _templates(trace: Trace, segments: np.ndarray) -> tuple[list[str], dict[str, Any]]:
    """The names of ops, and the steps of the given segments in columns.

    ``first`` says where the steps of each segment begin, ``rel`` is the start relative to the previous step, and
    ``loop`` is a row of ``loops`` (-1: none).
    """
    steps, ops, template = trace.columns("steps"), trace.columns("ops"), trace.template
    segment_index = template.place(segments)
    counts = template.count[segment_index]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    step = template.order[np.repeat(template.first[segment_index], counts) + within]
    owner = np.repeat(np.arange(len(segments)), counts)
    takes_time = steps["dur"][step] > 0
    step, owner = step[takes_time], owner[takes_time]
    order = np.lexsort((steps["rel_start"][step], owner))
    step, owner = step[order], owner[order]
    first_step = np.searchsorted(owner, np.arange(len(segments) + 1))
    start = steps["rel_start"][step]
    previous_start = (
        np.where(np.append(True, owner[1:] != owner[:-1]), 0, np.append(0, start[:-1])) if len(step) else start
    )
    names, name = numbered(trace.step_ops[step])
    loop, loops = _loops(trace.columns("loops"), steps["loop"][step])
    return names, {
        "first": first_step,
        "rel": start - previous_start,
        "kind": trace.kind_codes[step],
        "phase": code_of(lookup(steps["op_id"][step], ops["op_id"], ops["phase"], "other"), PHASES),
        "op": name,
        "mean": np.round(steps["dur_mean"][step], 1).tolist(),
        "tiles": steps["active_tiles"][step],
        "slowest": steps["argmax_tile"][step],
        **{name: steps[name][step] for name in ("dur", "bytes_in", "bytes_out", "flops", "lane")},
        "loop": loop,
        "loops": loops,
    }


def _loops(loops: Columns, step_loops: np.ndarray) -> tuple[list[int], dict[str, list[int]]]:
    """The number of each step's loop (-1: none), and the loops with these numbers in columns.

    Only loops of the shown steps are written, and numbered again from 0.
    """
    row = {loop: place for place, loop in enumerate(loops["loop"].tolist())}
    used = sorted({row[loop] for loop in np.unique(step_loops).tolist() if loop >= 0})
    parents = [row.get(parent, -1) for parent in loops["parent"].tolist()]
    for loop in used:  # the list grows here, because the loops around a used one are used too
        if parents[loop] >= 0 and parents[loop] not in used:
            used.append(parents[loop])
    number = {loop: place for place, loop in enumerate(used)} | {-1: -1}
    return [number[row.get(loop, -1)] for loop in step_loops.tolist()], {
        "parent": [number[parents[loop]] for loop in used],
        "count": [int(loops["count"][loop]) for loop in used],
        "period": [int(loops["period"][loop]) for loop in used],
    }


def _executions(trace: Trace) -> list[Executions]:
    """The executions of segments that have steps, of IPUs that do the same."""
    table = trace.folded("instances")
    if isinstance(table, FoldedInstances):
        arrays, repeat = table.arrays, table.arrays["repeat"]
        process, names = arrays["process"], ["segment", "micro_batch", "micro_batch_steps"]
        members = np.stack([arrays[name] for name in ("of", "replica", "ipu")], axis=1).tolist()
        order = np.lexsort((arrays["number"], arrays["start"] + arrays["dur"]))
    else:
        arrays, names = trace.columns("instances"), ["segment", "micro_batch"]
        repeat, order = np.full(len(arrays["start"]), -1), np.arange(len(arrays["start"]))
        # Each IPU is a process of its own: the upper and the lower 32 bits are replica and IPU.
        process = arrays["replica"].astype(np.int64) << 32 | arrays["ipu"]
        members = [(key, key >> 32, key & 0xFFFFFFFF) for key in np.unique(process).tolist()]
    processes: dict[tuple[int, int], set[int]] = {}
    for number, replica, ipu in members:
        processes.setdefault((replica, ipu), set()).add(number)
    alike: dict[frozenset[int], list[tuple[int, int]]] = {}
    for key, numbers in processes.items():
        alike.setdefault(frozenset(numbers), []).append(key)
    order = order[trace.template.place(arrays["segment"][order]) >= 0]
    result = []
    for same, ipus in alike.items():
        rows = order[np.isin(process[order], list(same))]
        columns = {name: arrays[name][rows] for name in names}
        result.append(Executions(RepeatedRows.of(table, arrays["start"][rows], repeat[rows], columns), ipus))
    return result


def _rows(trace: Trace, executions: Iterable[Executions], segments: np.ndarray) -> dict[str, Any]:
    """The courses of the time line's rows by lane, and the rows: replica, IPU, lane and the number of their course."""
    steps = trace.columns("steps")
    # A row for each segment, a column for each lane: whether the segment has steps on the lane that take time.
    uses_lane = np.zeros((len(segments), int(steps["lane"].max(initial=0)) + 1), dtype=bool)
    place = np.minimum(np.searchsorted(segments, steps["segment"]), len(segments) - 1)
    takes_time = np.flatnonzero((steps["dur"] > 0) & (segments[place] == steps["segment"])) if len(segments) else place
    uses_lane[place[takes_time], steps["lane"][takes_time]] = True
    courses: list[dict[str, Any]] = []
    rows = []
    for course, ipus in executions:
        place = np.searchsorted(segments, course.columns["segment"])
        for lane in np.flatnonzero(uses_lane[place].any(axis=0)).tolist():
            on_lane = uses_lane[place, lane]
            rows += [(replica, ipu, lane, len(courses)) for replica, ipu in ipus]
            courses.append(course.chosen(on_lane).facts(segment=place[on_lane]))
    columns = np.array(sorted(rows), dtype=np.int64).reshape(-1, 4).T
    return {"courses": courses, "rows": dict(zip(("replica", "ipu", "lane", "course"), columns, strict=True))}


def _copies(trace: Trace) -> RepeatedRows:
    """The copies between IPUs in order of start, with duration, source and target."""
    table, copies = trace.folded("transfers"), repeated_arrows(trace)
    order = np.lexsort((copies["target"], copies["source"], copies["start"]))
    start, repeat, *others = (copies[name][order] for name in ("start", "repeat", "dur", "source", "target"))
    return RepeatedRows.of(table, start, repeat, dict(zip(("dur", "source", "target"), others, strict=True)))


def _lanes(trace: Trace, links: Iterable[Mapping[str, Any]]) -> list[tuple[int, RepeatedRows]]:
    """The busiest links, as rows of table ``links``, and what they carry; links that carry the same share a course."""
    table = trace.folded("transfers")
    courses: dict[int, RepeatedRows] = {}
    for carried in folded_traffic(trace):
        moving = carried.chosen(carried.dur > 0)
        columns = {name: getattr(moving, name) for name in ("dur", "bytes", "op_id")}
        course = RepeatedRows.of(table, moving.start, moving.repeat, columns)
        if len(course.start):
            courses.update(dict.fromkeys(carried.links.tolist(), course))
    busy = [link["busy_cycles"] for link in links]
    number = trace.columns("links")["link_id"].tolist()
    busiest = sorted(
        (row for row, link in enumerate(number) if link in courses), key=lambda row: (-busy[row], number[row])
    )
    return [(row, courses[number[row]]) for row in busiest[:_LINKS]]


def _carried(trace: Trace, lanes: Iterable[tuple[int, RepeatedRows]], end: int) -> dict[str, Any]:
    """The lanes of links: name, kind, and the number of the transfers that each one carries."""
    links, ops = trace.columns("links"), trace.columns("ops")
    numbers: dict[int, int] = {}
    transfers: list[dict[str, Any]] = []
    shown = []
    for row, course in lanes:
        if id(course) not in numbers:
            numbers[id(course)] = len(transfers)
            begun = course.chosen(course.start < end)
            names, name = numbered(lookup(begun.columns["op_id"], ops["op_id"], ops["name"], ""))
            transfers.append(begun.facts(ops=names, op=name))
        shown.append({"name": str(links["name"][row]), "kind": str(links["kind"][row]), "course": numbers[id(course)]})
    return {"transfers": transfers, "lanes": shown}


def _host(trace: Trace, end: int) -> dict[str, Any]:
    """The events of the host in order of start, with duration, channel and label."""
    table = trace.folded("host_events")
    if isinstance(table, FoldedHostEvents):
        arrays, words = table.arrays, table.words["labels"]
        label = np.array(words, dtype=object)[arrays["line"]]
        channel = np.full(len(label), "host", dtype=object)
        repeat = arrays["repeat"]
    else:
        arrays = trace.columns("host_events")
        label, channel = arrays["label"], arrays["channel"]
        repeat = np.full(len(label), -1)
    columns = {"dur": arrays["dur"], "label": label, "channel": channel}
    course = RepeatedRows.of(table, arrays["start"], repeat, columns)
    course = course.chosen(course.start < end)
    labels, number = numbered(course.columns["label"])
    return course.facts(labels=labels, label=number, channel=course.columns["channel"].tolist())
