"""The critical path of a run: the chain of work, transfers and syncs without which it would end earlier.

Read backwards from the end of the run on the IPU that sets its pace: while that IPU does something, it is on the path;
where it waits, the path goes over to the IPU that it waits for (:mod:`~ipuperf.report.waiting`), at the moment that one
stopped working; what is left of the wait is a sync. The pieces cover the run without a gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import critical_ipu, run_instances
from ipuperf.report.waiting import Waits, ipu_lines, waits

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.trace import Trace


@dataclass(frozen=True)
class CriticalPath:
    """Pieces of the path in time, in columns: ``replica`` and ``ipu`` that it runs through, ``start`` and ``end`` in
    cycles, ``sync``: the piece is a sync in which nobody does anything."""

    replica: np.ndarray
    ipu: np.ndarray
    start: np.ndarray
    end: np.ndarray
    sync: np.ndarray

    def table(self) -> pd.DataFrame:
        """One row per piece: replica, ipu, start, dur (cycles), sync."""
        import pandas as pd

        columns = {"replica": self.replica, "ipu": self.ipu, "start": self.start, "dur": self.end - self.start}
        return pd.DataFrame({**columns, "sync": self.sync})


@checked
def critical_path(trace: Trace, run: int | None = None, found: Waits | None = None) -> CriticalPath:
    """The critical path of a run (by default the last); ``found``: the waits of that run, where they are known.

    Raises:
        ValueError: no such run, or a trace of nothing. TraceError: more slices than can be expanded at once.
    """
    (begin, end), rows = run_instances(trace, run)
    found = waits(trace, run) if found is None else found
    at = critical_ipu(trace, rows)
    replica_of = dict(zip(found.ipu.tolist(), found.replica.tolist(), strict=True))
    own = {
        key: np.flatnonzero((found.replica == key[0]) & (found.ipu == key[1]))
        for key in {at, *zip(found.replica.tolist(), found.ipu.tolist(), strict=True)}
    }
    pieces: list[tuple[int, int, int, int, bool]] = []
    time = end
    while time > begin:
        mine = own[at] if at in own else np.empty(0, dtype=np.int64)
        place = int(np.searchsorted(found.start[mine], time, side="left")) - 1
        wait = mine[place] if place >= 0 else -1
        if wait < 0:
            pieces.append((*at, begin, time, False))
            break
        if found.end[wait] < time:
            pieces.append((*at, int(found.end[wait]), time, False))
            time = int(found.end[wait])
        blamed = (replica_of.get(int(found.blamed[wait]), at[0]), int(found.blamed[wait]))
        left = max(_last_work(found, own, blamed, time), int(found.start[wait])) if blamed[1] >= 0 else -1
        if left < time:
            left = left if left > found.start[wait] else int(found.start[wait])
            pieces.append((*at, left, time, True))
            time = left
        if blamed[1] >= 0 and left > found.start[wait]:
            at = blamed
    columns = list(zip(*pieces[::-1], strict=True)) if pieces else [()] * 5
    replica, ipu, start, stop = (np.array(column, dtype=np.int64) for column in columns[:4])
    return CriticalPath(replica, ipu, start, stop, np.array(columns[4], dtype=bool))


def _last_work(found: Waits, own: dict[tuple[int, int], np.ndarray], at: tuple[int, int], time: int) -> int:
    """Until when an IPU did something before a time."""
    mine = own.get(at, np.empty(0, dtype=np.int64))
    place = int(np.searchsorted(found.start[mine], time, side="left")) - 1
    return time if place < 0 or found.end[mine[place]] < time else int(found.start[mine[place]])


PATH_PLACES: tuple[str, ...] = ("tiles", "links", "ddr", "host", "sync")
"""Where a path runs: on the tiles of its IPU, over links, through Streaming Memory, at the host; or all meet."""

_PLACE = {
    **{"link": "links", "remote_load": "ddr", "remote_store": "ddr"},
    **{"host_begin": "host", "host_mid": "host", "host_end": "host", "host_run": "host"},
    **{"sync_external": "sync", "idle": "sync"},
}


def path_stretches(trace: Trace, path: CriticalPath) -> pd.DataFrame:
    """The pieces of the path by where it runs: columns ipu, place (of :data:`PATH_PLACES`), start and dur in cycles,
    in order of time; they cover the run without a gap."""
    import pandas as pd

    kinds, instances = trace.columns("steps")["kind"], trace.columns("instances")
    places = np.array([PATH_PLACES.index(_PLACE.get(kind, "tiles")) for kind in kinds] + [len(PATH_PLACES) - 1])
    lines = {
        (line.replica, line.ipu): line
        for line in ipu_lines(trace, np.arange(len(instances["ipu"])), _extent(path))
        if ((path.replica == line.replica) & (path.ipu == line.ipu)).any()
    }
    found: list[np.ndarray] = []
    for replica, ipu, start, end, synced in zip(
        path.replica.tolist(), path.ipu.tolist(), path.start.tolist(), path.end.tolist(), path.sync, strict=True
    ):
        line = lines[replica, ipu]
        low, high = np.searchsorted(line.edges, [start, end])
        low = max(int(low) - (line.edges[min(int(low), len(line.edges) - 1)] > start), 0)
        at = np.full(int(high) - low, len(kinds)) if synced else line.step[low : int(high)]
        place = places[at]
        edges = np.clip(line.edges[low : int(high) + 1], start, end)
        new = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
        begins = edges[new]
        found.append(
            np.stack([np.full(len(new), ipu), place[new], begins, np.append(begins[1:], end) - begins], axis=1)
        )
    rows = np.concatenate(found) if found else np.empty((0, 4), dtype=np.int64)
    table = pd.DataFrame(rows, columns=["ipu", "place", "start", "dur"])
    table["place"] = np.array(PATH_PLACES, dtype=object)[rows[:, 1]]
    return table


@checked
def path_cycles(trace: Trace, path: CriticalPath) -> pd.DataFrame:
    """Cycles of the path by what is done: columns ipu, kind, op (of the host's own run: which, "" for the call's),
    cycles, the largest first. They sum to the path."""
    import pandas as pd

    steps, instances = trace.columns("steps"), trace.columns("instances")
    result: dict[tuple[int, str, str], int] = {}
    rows_of = {
        key: np.flatnonzero((instances["replica"] == key[0]) & (instances["ipu"] == key[1]))
        for key in set(zip(path.replica.tolist(), path.ipu.tolist(), strict=True))
    }
    kinds = steps["kind"]
    names = np.where(kinds == "host_run", trace.step_programs, trace.step_ops)
    for replica, ipu in sorted(rows_of):
        pieces = np.flatnonzero((path.replica == replica) & (path.ipu == ipu))
        synced = int((path.end - path.start)[pieces[path.sync[pieces]]].sum())
        if synced:
            result[ipu, "sync_external", ""] = result.get((ipu, "sync_external", ""), 0) + synced
        pieces = pieces[~path.sync[pieces]]
        line = next(
            line
            for line in ipu_lines(trace, rows_of[replica, ipu], _extent(path))
            if (line.replica, line.ipu) == (replica, ipu)
        )
        inside = np.zeros(len(line.does), dtype=np.int64)
        for start, end in zip(path.start[pieces].tolist(), path.end[pieces].tolist(), strict=True):
            low, high = np.searchsorted(line.edges, [start, end])
            low = max(int(low) - 1, 0)
            edges = np.clip(line.edges[low : high + 2], start, end)
            inside[low : low + len(edges) - 1] += np.diff(edges)
        for step in np.unique(line.step[inside > 0]).tolist():
            cycles = int(inside[line.step == step].sum())
            key = (ipu, str(kinds[step]), str(names[step])) if step >= 0 else (ipu, "idle", "")
            result[key] = result.get(key, 0) + cycles
    table = pd.DataFrame([(*key, cycles) for key, cycles in result.items()], columns=["ipu", "kind", "op", "cycles"])
    return table.sort_values(["cycles", "ipu", "kind", "op"], ascending=[False, True, True, True], ignore_index=True)


def _extent(path: CriticalPath) -> tuple[int, int]:
    return int(path.start[0]), int(path.end[-1])
