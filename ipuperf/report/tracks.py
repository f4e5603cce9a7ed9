"""The tracks of an interactive viewer, which the exports to Perfetto and Chrome JSON have in common."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.arguments import check_inside
from ipuperf.report.instances import InstanceWork, instance_work
from ipuperf.report.live import Series, link_use, live_memory
from ipuperf.report.marks import Arrow, arrows, loop_marks, owner, run_waits
from ipuperf.report.waiting import OWNERS
from ipuperf.trace import PHASES, Trace, Window, slice_count, slices
from ipuperf.trace.columns import lookup

if TYPE_CHECKING:
    import pandas as pd


Description = tuple[str, str, dict[str, int | float | str]]
"""Name, category and arguments of a slice."""

LANES: dict[int, str] = {0: "compute tiles", 1: "I/O tiles"}
"""The names of an IPU's lanes. Other lanes are named by their number."""

HOST_GROUP = "Host"
LINK_GROUP = "Links"
COUNTER_GROUP = "Counters"


@dataclass(frozen=True)
class SliceTrack:
    """Slices that do not overlap, in order of time.

    ``start`` and ``dur`` are in cycles. Slices with an equal ``key`` have the same description, ``describe(key)``.
    ``leaving`` and ``arriving`` are the arrows that begin and end at a slice, by the slice's index.
    """

    group: str
    name: str
    start: np.ndarray
    dur: np.ndarray
    key: np.ndarray
    describe: Callable[[int], Description]
    leaving: Mapping[int, list[int]] = field(default_factory=dict)
    arriving: Mapping[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class CounterTrack:
    """A value over time. ``unit`` is ``"bytes"``, ``"%"`` or empty."""

    group: str
    name: str
    unit: str
    series: Series


def check_limit(trace: Trace, window: Window | None, max_slices: int) -> None:
    """Raise ``ValueError`` if a window is outside of the trace or holds more than ``max_slices`` slices."""
    check_inside(trace, window)
    count = slice_count(trace, window)
    if count > max_slices:
        raise ValueError(
            f"the trace has {count:,} slices{' in this window' if window else ''}, allowed are {max_slices:,}: give a "
            "shorter window=(start, stop) in cycles (ipuperf.trace.fitting_window finds one), or raise max_slices"
        )


def pack(start: np.ndarray, dur: np.ndarray) -> np.ndarray:
    """A row for each interval, so that intervals in one row do not overlap: the lowest row that is free at its start.

    Intervals are placed in order of start. If two start together, the longer comes first, so that children stand below
    their parents.
    """
    rows = np.zeros(len(start), dtype=np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    for place in np.lexsort((-dur, start)).tolist():
        begin = int(start[place])
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, used = used, used + 1
        rows[place] = row
        # An interval without length takes a cycle too, so that two at the same time get two rows.
        heapq.heappush(busy, (begin + max(int(dur[place]), 1), row))
    return rows


def ipu_group(trace: Trace, replica: int, ipu: int) -> str:
    """The name of an IPU, with its replica if the trace has several."""
    many = len(np.unique(trace.columns("instances")["replica"])) > 1
    return f"replica {replica} IPU {ipu}" if many else f"IPU {ipu}"


def _step_describer(trace: Trace) -> Callable[[int], Description]:
    steps, ops, programs = trace.columns("steps"), trace.step_ops, trace.step_programs
    table = trace.columns("ops")
    of_op = {name: lookup(steps["op_id"], table["op_id"], table[name], "") for name in ("module", "line")}

    def describe(row: int) -> Description:
        kind = str(steps["kind"][row])
        op = str(ops[row])
        args: dict[str, int | float | str] = {"op": op} if op else {}
        if programs[row]:
            args["program"] = str(programs[row])
        args.update({name: str(values[row]) for name, values in of_op.items() if values[row]})
        args["cycles"] = int(steps["dur"][row])
        if steps["loop"][row] >= 0:
            args["executions_of_an_instance"] = int(trace.template.trips[row])
        for name in ("bytes_in", "bytes_out", "flops"):
            if steps[name][row]:
                args[name] = int(steps[name][row])
        if kind == "compute":
            args["active_tiles"] = int(steps["active_tiles"][row])
            if steps["dur"][row]:
                args["tile_balance"] = float(steps["dur_mean"][row]) / int(steps["dur"][row])
        # A reader looks for the op of a compute step. Other steps are named by their kind.
        return (op if kind == "compute" and op else kind), kind, args

    return describe


def _instance_describer(trace: Trace, work: InstanceWork) -> Callable[[int], Description]:
    instances = trace.columns("instances")

    def describe(row: int) -> Description:
        phase = PHASES[work.phase[row]]
        micro_batch = int(instances["micro_batch"][row])
        args: dict[str, int | float | str] = {key: int(instances[key][row]) for key in ("segment", "iteration")}
        args["run"], args["cycles"] = int(instances["parent"][row]), int(work.dur[row])
        if work.waiting[row]:
            args["waiting_cycles"] = int(work.waiting[row])
        if micro_batch < 0:
            return phase, "instance", args
        args["micro_batch"] = micro_batch
        return f"{phase} mb {micro_batch}", "instance", args

    return describe


def _packed(
    group: str, name: str, start: np.ndarray, dur: np.ndarray, key: np.ndarray, describe: Callable[[int], Description]
) -> Iterator[SliceTrack]:
    row = pack(start, dur)
    for number in range(int(row.max()) + 1 if len(row) else 0):
        chosen = np.flatnonzero(row == number)
        chosen = chosen[np.argsort(start[chosen], kind="stable")]
        title = name if number == 0 else f"{name} ({number + 1})"
        yield SliceTrack(group, title, start[chosen], dur[chosen], key[chosen], describe)


def _touching(start: np.ndarray, dur: np.ndarray, window: Window | None) -> np.ndarray:
    if window is None:
        return np.arange(len(start))
    # Slices without length count as one cycle, so that those at the begin of the window are in it.
    return np.flatnonzero((start < window[1]) & (start + np.maximum(dur, 1) > window[0]))


def _waiting(
    group: str, waits_of_runs: Sequence[pd.DataFrame], replica: int, ipu: int, window: Window | None
) -> Iterator[SliceTrack]:
    """The waits of an IPU: a slice for each wait, named by its main owner."""
    waits: list[dict[str, Any]] = []
    for table in waits_of_runs:
        rows = np.flatnonzero((table["replica"] == replica) & (table["ipu"] == ipu))
        rows = rows[_touching(table["start"].to_numpy()[rows], table["dur"].to_numpy()[rows], window)]
        waits += table.iloc[rows].to_dict("records")

    def describe(key: int) -> Description:
        wait = waits[key]
        args: dict[str, int | float | str] = {"cycles": wait["dur"]}
        if wait["blamed_ipu"] >= 0:
            args["waits_for_ipu"] = wait["blamed_ipu"]
        if wait["blamed_op"]:
            args["waits_for_op"] = str(wait["blamed_op"])
        args |= {f"{name}_cycles": wait[name] for name in OWNERS if wait[name]}
        return f"waits: {owner(np.array([wait[name] for name in OWNERS]))}", "waiting", args

    start, dur = (np.array([wait[name] for wait in waits], dtype=np.int64) for name in ("start", "dur"))
    yield from _packed(group, "waiting", start, dur, np.arange(len(waits)), describe)


def _loops(group: str, trace: Trace, rows: np.ndarray, window: Window | None) -> Iterator[SliceTrack]:
    """The loops inside instances, each as one slice with its trips."""
    marks = list(loop_marks(trace, rows))
    start = np.array([mark.start for mark in marks], dtype=np.int64)
    dur = np.array([mark.dur for mark in marks], dtype=np.int64)

    def describe(key: int) -> Description:
        trips, period = marks[key].trips, marks[key].period
        return f"loop of {trips:,} trips", "loop", {"trips": trips, "cycles_of_a_trip": period}

    near = _touching(start, dur, window)
    yield from _packed(group, "loops", start[near], dur[near], near, describe)


def _with_arrows(trace: Trace, track: SliceTrack, ipu: int, known: Sequence[Arrow]) -> SliceTrack:
    """The track with arrows for copies, from the sender's copy to the receiver's first slice after the arrival."""
    link = np.flatnonzero(trace.columns("steps")["kind"][track.key] == "link")
    leaving: dict[int, list[int]] = {}
    arriving: dict[int, list[int]] = {}
    for number, arrow in enumerate(known):
        if arrow.source == ipu:
            # The last link step that begins no later than the copy, if it has not ended by then.
            place = int(np.searchsorted(track.start[link], arrow.start, side="right")) - 1
            if place >= 0 and arrow.start < track.start[link[place]] + track.dur[link[place]]:
                leaving.setdefault(int(link[place]), []).append(number + 1)
        if arrow.target == ipu:
            place = int(np.searchsorted(track.start, arrow.end))
            if place < len(track.start):
                arriving.setdefault(place, []).append(number + 1)
    return replace(track, leaving=leaving, arriving=arriving)


def _lane_tracks(trace: Trace, group: str, rows: np.ndarray, window: Window | None) -> Iterator[tuple[int, SliceTrack]]:
    """The lanes of an IPU and their tracks. A lane with overlapping slices has several tracks."""
    expanded, steps, describe = slices(trace, window, rows), trace.columns("steps"), _step_describer(trace)
    lanes = steps["lane"][expanded.step]
    for lane in np.unique(lanes).tolist():
        part = expanded.take(np.flatnonzero(lanes == lane))
        name = LANES.get(lane, f"lane {lane}")
        # At equal starts, slices without length come first. Otherwise they would seem to overlap.
        part = part.take(np.lexsort((part.dur, part.start)))
        # Slices of a track must not overlap. Those that do are distributed over several tracks.
        if (part.start[1:] < (part.start + part.dur)[:-1]).any():
            for track in _packed(group, name, part.start, part.dur, part.step, describe):
                yield lane, track
        else:
            yield lane, SliceTrack(group, name, part.start, part.dur, part.step, describe)


def slice_tracks(trace: Trace, window: Window | None = None) -> Iterator[SliceTrack]:
    """All tracks of slices that touch the window.

    Each IPU has tracks for the work of its instances, its lanes (with arrows for copies), its waits, and the loops
    inside instances. The channels of the host follow.
    """
    instances, work = trace.columns("instances"), instance_work(trace)
    describe_instance = _instance_describer(trace, work)
    # Both follow from whole runs, so they are worked out once for all IPUs.
    known, waiting = arrows(trace, window), run_waits(trace, window)
    pairs = np.unique(np.stack([instances["replica"], instances["ipu"]], axis=1), axis=0)
    for replica, ipu in pairs.tolist():
        group = ipu_group(trace, replica, ipu)
        rows = np.flatnonzero((instances["replica"] == replica) & (instances["ipu"] == ipu))
        near = rows[_touching(instances["start"][rows], instances["dur"][rows], window)]
        # Instances that only wait have no work to show.
        working = rows[work.dur[rows] > 0]
        working = working[_touching(work.start[working], work.dur[working], window)]
        yield from _packed(group, "micro-batches", work.start[working], work.dur[working], working, describe_instance)
        for lane, track in _lane_tracks(trace, group, rows, window):
            # Copies between IPUs leave from the compute tiles, so only lane 0 has arrows.
            yield track if lane else _with_arrows(trace, track, ipu, known)
        yield from _waiting(group, waiting, replica, ipu, window)
        yield from _loops(group, trace, near, window)
    events = trace.columns("host_events")

    def describe_event(row: int) -> Description:
        return str(events["label"][row]), "host", {"cycles": int(events["dur"][row])}

    for channel in dict.fromkeys(events["channel"].tolist()):
        rows = np.flatnonzero(events["channel"] == channel)
        rows = rows[_touching(events["start"][rows], events["dur"][rows], window)]
        yield from _packed(HOST_GROUP, channel, events["start"][rows], events["dur"][rows], rows, describe_event)


def counter_tracks(trace: Trace, window: Window | None = None) -> Iterator[CounterTrack]:
    """Live memory of each IPU, use of each link in percent of its bandwidth, and the tracks of table ``counters``."""
    for (replica, ipu), series in live_memory(trace, window).items():
        yield CounterTrack(ipu_group(trace, replica, ipu), "live memory", "bytes", series)
    for name, series in link_use(trace, window).items():
        yield CounterTrack(LINK_GROUP, f"{name} use", "%", series)
    counters = trace.columns("counters")
    for name in dict.fromkeys(counters["track"].tolist()):
        rows = np.flatnonzero(counters["track"] == name)
        rows = rows[np.argsort(counters["t"][rows], kind="stable")]
        if window is not None:
            rows = rows[(counters["t"][rows] >= window[0]) & (counters["t"][rows] < window[1])]
        if len(rows):
            yield CounterTrack(COUNTER_GROUP, name, "", (counters["t"][rows], counters["value"][rows]))
