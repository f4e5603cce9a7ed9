"""Values over time for viewers: live memory of each IPU, and use of each link."""

from __future__ import annotations

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.trace import Trace, Window, slice_batches
from ipuperf.trace.columns import lookup
from ipuperf.trace.traffic import LinkTraffic, traffic

Series = tuple[np.ndarray, np.ndarray]
"""Increasing times in cycles, and the value from each time on."""


def _changes(time: np.ndarray, value: np.ndarray) -> Series:
    """The last value at each time, without repeated values."""
    is_last = np.append(time[1:] != time[:-1], True) if len(time) else np.empty(0, dtype=bool)
    time, value = time[is_last], value[is_last]
    moved = np.append(True, value[1:] != value[:-1]) if len(time) else np.empty(0, dtype=bool)
    return time[moved], value[moved]


_BATCH = 100_000
"""The slices that are made at once."""


@checked
def live_memory(trace: Trace, window: Window | None = None) -> dict[tuple[int, int], Series]:
    """Live bytes, always live or not, of each stored (replica, ipu) over time.

    Liveness is recorded by program step and not by time. So the bytes of a step are found by the name of its program.
    If several program steps have one name, the largest value counts. Steps whose program is not in table ``liveness``
    keep the previous value. IPUs without any match are left out.
    """
    liveness, instances = trace.columns("liveness"), trace.columns("instances")
    if not len(liveness["ipu"]):
        return {}
    by_ipu = _bytes_of_steps(trace)
    pieces: dict[tuple[int, int], list[Series]] = {}
    for piece in slice_batches(trace, window, batch=_BATCH):
        replica, ipu = (instances[name][piece.instance].astype(np.int64) for name in ("replica", "ipu"))
        key = replica << 32 | ipu
        order = np.argsort(key, kind="stable")
        begins = np.flatnonzero(np.append(True, np.diff(key[order]) != 0)[: len(key)])
        for chosen in np.split(order, begins[1:]) if len(begins) else ():
            of_ipu = int(replica[chosen[0]]), int(ipu[chosen[0]])
            if of_ipu[1] not in by_ipu:
                continue
            value = by_ipu[of_ipu[1]][piece.step[chosen]]
            known = value >= 0
            pieces.setdefault(of_ipu, []).append((piece.start[chosen][known], value[known]))
    result = {}
    for (replica_id, ipu_id), parts in sorted(pieces.items()):
        time = np.concatenate([part[0] for part in parts])
        order = np.argsort(time, kind="stable")
        series = _changes(time[order], np.concatenate([part[1] for part in parts])[order])
        if len(series[0]):
            result[replica_id, ipu_id] = series
    return result


def _bytes_of_steps(trace: Trace) -> dict[int, np.ndarray]:
    """For each IPU, the live bytes at each row of table ``steps`` (-1: the IPU has no program of that name)."""
    liveness = trace.columns("liveness")
    total = liveness["always_live"] + liveness["not_always_live"]
    # A program has many steps, so that names become numbers first.
    programs, ids = trace.columns("programs"), trace.columns("steps")["program_id"]
    names = {name: number for number, name in enumerate(dict.fromkeys([*programs["name"].tolist(), ""]))}
    of_program = np.array([names[name] for name in programs["name"].tolist()], dtype=np.int64)
    program = lookup(ids, programs["program_id"], of_program, names[""])
    # The last number is that of names that no program has.
    number = np.array([names.get(name, len(names)) for name in liveness["program"].tolist()], dtype=np.int64)
    by_ipu = {}
    for ipu in np.unique(liveness["ipu"]).tolist():
        rows = liveness["ipu"] == ipu
        most = np.full(len(names) + 1, -1, dtype=np.int64)
        np.maximum.at(most, number[rows], total[rows])
        by_ipu[ipu] = most[program]
    return by_ipu


@checked
def link_use(trace: Trace, window: Window | None = None) -> dict[str, Series]:
    """The percentage of each link's bandwidth that is in use over time, by link name. Unused links are left out.

    A transfer counts with its mean rate, which is its bytes over its duration.
    """
    links = trace.columns("links")
    row_of = {link: row for row, link in enumerate(links["link_id"].tolist())}
    series: dict[int, Series] = {}
    for carried in traffic(trace):
        chosen = carried.dur > 0
        if window is not None:
            chosen &= (carried.start < window[1]) & (carried.start + carried.dur > window[0])
        moving = carried.chosen(chosen)
        rows = [row_of[link] for link in moving.links.tolist()] if len(moving.start) else []
        peaks = links["bandwidth_bytes_per_s"][rows]
        # Links that carry the same differ in their bandwidth at most.
        for peak in np.unique(peaks[peaks > 0]).tolist():
            use = _use(moving, trace.seconds(moving.dur), peak)
            series.update((row, use) for row, of_link in zip(rows, peaks.tolist(), strict=True) if of_link == peak)
    return {links["name"][row]: series[row] for row in sorted(series)}


def _use(carried: LinkTraffic, seconds: np.ndarray, peak: float) -> Series:
    """The percentage of a bandwidth (bytes a second) that these transfers use over time; ``seconds``: how long each
    takes."""
    rate = 100.0 * carried.bytes / seconds / peak
    time, change = np.concatenate([carried.start, carried.start + carried.dur]), np.concatenate([rate, -rate])
    # At equal times the order does not matter, because only the last sum of a time counts.
    order = np.argsort(time, kind="stable")
    # Rates that end leave rounding errors in the sum; values that small count as 0.
    level = np.cumsum(change[order])
    return _changes(time[order], np.where(np.abs(level) < 1e-6, 0.0, level))
