"""The tracks of an interactive viewer: what Perfetto and Chrome JSON have in common."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.report.live import Series, link_use, live_memory
from ipuperf.report.timeline import instance_phases
from ipuperf.trace import PHASES, Window, slice_count, slices

if TYPE_CHECKING:
    from ipuperf.trace import Trace

Description = tuple[str, str, dict[str, int | float | str]]
"""Name, category and arguments of a slice."""

LANES: dict[int, str] = {0: "compute tiles", 1: "I/O tiles"}
"""Names of the lanes of an IPU; others are called by their number."""

HOST_GROUP = "Host"
LINK_GROUP = "Links"
COUNTER_GROUP = "Counters"


@dataclass(frozen=True)
class SliceTrack:
    """Slices that do not overlap, in order of time.

    ``start`` and ``dur`` in cycles; slices of equal ``key`` look alike, and ``describe(key)`` says how.
    """

    group: str
    name: str
    start: np.ndarray
    dur: np.ndarray
    key: np.ndarray
    describe: Callable[[int], Description]


@dataclass(frozen=True)
class CounterTrack:
    """A value over time. ``unit`` is ``"bytes"``, ``"%"`` or empty."""

    group: str
    name: str
    unit: str
    series: Series


def check_limit(trace: Trace, window: Window | None, max_slices: int) -> None:
    """Raise ``ValueError`` with the remedy if the window holds more than ``max_slices`` slices."""
    count = slice_count(trace, window)
    if count > max_slices:
        raise ValueError(
            f"the trace has {count:,} slices{' in this window' if window else ''}, allowed are {max_slices:,}: give a "
            "shorter window=(start, stop) in cycles (ipuperf.trace.fitting_window finds one), or raise max_slices"
        )


def pack(start: np.ndarray, dur: np.ndarray) -> np.ndarray:
    """Row of each interval such that no row holds two at once: the lowest row that is free when it starts.

    Intervals in order of start; of two that start together the longer comes first, so children stand below parents.
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
        heapq.heappush(busy, (begin + max(int(dur[place]), 1), row))
    return rows


def ipu_group(trace: Trace, replica: int, ipu: int) -> str:
    """Name of an IPU; its replica is named too where the trace holds several."""
    many = len(np.unique(trace.columns("instances")["replica"])) > 1
    return f"replica {replica} IPU {ipu}" if many else f"IPU {ipu}"


def _step_describer(trace: Trace) -> Callable[[int], Description]:
    steps, ops, programs = trace.columns("steps"), trace.step_ops, trace.step_programs

    def describe(row: int) -> Description:
        kind = str(steps["kind"][row])
        op = str(ops[row])
        args: dict[str, int | float | str] = {"op": op} if op else {}
        if programs[row]:
            args["program"] = str(programs[row])
        args["cycles"] = int(steps["dur"][row])
        for name in ("bytes_in", "bytes_out", "flops"):
            if steps[name][row]:
                args[name] = int(steps[name][row])
        if kind == "compute":
            args["active_tiles"] = int(steps["active_tiles"][row])
            if steps["dur"][row]:
                args["tile_balance"] = float(steps["dur_mean"][row]) / int(steps["dur"][row])
        return (op if kind == "compute" and op else kind), kind, args

    return describe


def _instance_describer(trace: Trace) -> Callable[[int], Description]:
    instances, phases = trace.columns("instances"), instance_phases(trace)

    def describe(row: int) -> Description:
        phase = PHASES[phases[row]]
        micro_batch = int(instances["micro_batch"][row])
        keys = ("segment", "iteration", "parent", "dur")
        args: dict[str, int | float | str] = {key: int(instances[key][row]) for key in keys}
        args["run"], args["cycles"] = args.pop("parent"), args.pop("dur")
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
    return np.flatnonzero((start < window[1]) & (start + np.maximum(dur, 1) > window[0]))


def slice_tracks(trace: Trace, window: Window | None = None) -> Iterator[SliceTrack]:
    """All tracks of slices that touch the window: per IPU its instances and its lanes, then the channels of the
    host."""
    instances, steps = trace.columns("instances"), trace.columns("steps")
    describe_step, describe_instance = _step_describer(trace), _instance_describer(trace)
    pairs = np.unique(np.stack([instances["replica"], instances["ipu"]], axis=1), axis=0)
    for replica, ipu in pairs.tolist():
        group = ipu_group(trace, replica, ipu)
        rows = np.flatnonzero((instances["replica"] == replica) & (instances["ipu"] == ipu))
        near = rows[_touching(instances["start"][rows], instances["dur"][rows], window)]
        start, dur = instances["start"][near], instances["dur"][near]
        yield from _packed(group, "micro-batches", start, dur, near, describe_instance)
        found = slices(trace, window, rows)
        lanes = steps["lane"][found.step]
        for lane in np.unique(lanes).tolist():
            part = found.take(np.flatnonzero(lanes == lane))
            name = LANES.get(lane, f"lane {lane}")
            order = np.lexsort((part.dur, part.start))
            part = part.take(order)
            if (part.start[1:] < (part.start + part.dur)[:-1]).any():
                yield from _packed(group, name, part.start, part.dur, part.step, describe_step)
            else:
                yield SliceTrack(group, name, part.start, part.dur, part.step, describe_step)
    events = trace.columns("host_events")

    def describe_event(row: int) -> Description:
        return str(events["label"][row]), "host", {"cycles": int(events["dur"][row])}

    for channel in dict.fromkeys(events["channel"].tolist()):
        rows = np.flatnonzero(events["channel"] == channel)
        rows = rows[_touching(events["start"][rows], events["dur"][rows], window)]
        yield from _packed(HOST_GROUP, channel, events["start"][rows], events["dur"][rows], rows, describe_event)


def counter_tracks(trace: Trace, window: Window | None = None) -> Iterator[CounterTrack]:
    """Live memory of each IPU, use of each link in percent of its bandwidth, and the rows of table ``counters``."""
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
