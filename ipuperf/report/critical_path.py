"""The critical path of a run: the chain of work, transfers and syncs that sets its duration.

The path is found backwards, from the end of the run on the IPU that sets its pace. While that IPU works, it is on the
path. Where it waits, the path moves to the IPU that it waits for (:mod:`~ipuperf.report.waiting`), at the time when
that IPU stopped working. The rest of the wait is a sync. The pieces of the path cover the run without a gap.
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
    """The pieces of the path in order of time, in columns of equal length.

    ``replica`` and ``ipu`` say which IPU a piece is on, ``start`` and ``end`` are in cycles, and ``sync`` marks pieces
    in which no IPU does anything.
    """

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
def critical_path(trace: Trace, run: int | None = None, known_waits: Waits | None = None) -> CriticalPath:
    """The critical path of a run (by default the last). ``known_waits`` are the waits of that run, if already computed.

    Raises:
        ValueError: the trace has no such run, or nothing at all.
        TraceError: the run has more slices than can be expanded at once.
    """
    (begin, end), rows = run_instances(trace, run)
    known_waits = waits(trace, run) if known_waits is None else known_waits
    present_ipu = critical_ipu(trace, rows)
    replica_of = dict(zip(known_waits.ipu.tolist(), known_waits.replica.tolist(), strict=True))
    waits_of = {
        key: np.flatnonzero((known_waits.replica == key[0]) & (known_waits.ipu == key[1]))
        for key in {present_ipu, *zip(known_waits.replica.tolist(), known_waits.ipu.tolist(), strict=True)}
    }
    pieces: list[tuple[int, int, int, int, bool]] = []
    time = end
    while time > begin:
        ipu_waits = waits_of[present_ipu] if present_ipu in waits_of else np.empty(0, dtype=np.int64)
        # The last wait that begins before this time.
        place = int(np.searchsorted(known_waits.start[ipu_waits], time, side="left")) - 1
        wait = ipu_waits[place] if place >= 0 else -1
        # Before its first wait the IPU has worked since the begin of the run.
        if wait < 0:
            pieces.append((*present_ipu, begin, time, False))
            break
        if known_waits.end[wait] < time:
            pieces.append((*present_ipu, int(known_waits.end[wait]), time, False))
            time = int(known_waits.end[wait])
        blamed = (replica_of.get(int(known_waits.blamed[wait]), present_ipu[0]), int(known_waits.blamed[wait]))
        # A wait that no IPU is blamed for (below 0) is a sync as a whole.
        worked_until = (
            max(_last_work(known_waits, waits_of, blamed, time), int(known_waits.start[wait])) if blamed[1] >= 0 else -1
        )
        if worked_until < time:
            worked_until = worked_until if worked_until > known_waits.start[wait] else int(known_waits.start[wait])
            pieces.append((*present_ipu, worked_until, time, True))
            time = worked_until
        # If the blamed IPU did nothing during the wait, the path stays here and goes on before the wait.
        if blamed[1] >= 0 and worked_until > known_waits.start[wait]:
            present_ipu = blamed
    columns = list(zip(*pieces[::-1], strict=True)) if pieces else [()] * 5
    replica, ipu, start, stop = (np.array(column, dtype=np.int64) for column in columns[:4])
    return CriticalPath(replica, ipu, start, stop, np.array(columns[4], dtype=bool))


def _last_work(run_waits: Waits, waits_of: dict[tuple[int, int], np.ndarray], ipu: tuple[int, int], time: int) -> int:
    """The end of an IPU's latest work before a time."""
    ipu_waits = waits_of.get(ipu, np.empty(0, dtype=np.int64))
    place = int(np.searchsorted(run_waits.start[ipu_waits], time, side="left")) - 1
    return time if place < 0 or run_waits.end[ipu_waits[place]] < time else int(run_waits.start[ipu_waits[place]])


PATH_PLACES: tuple[str, ...] = ("tiles", "links", "ddr", "host", "sync")
"""The places of a path: tiles of its IPU, links, Streaming Memory, the host, or a sync of all IPUs."""

_PLACE = {
    **{"link": "links", "remote_load": "ddr", "remote_store": "ddr"},
    **{"host_begin": "host", "host_mid": "host", "host_end": "host", "host_run": "host"},
    **{"sync_external": "sync", "idle": "sync"},
}


def path_stretches(trace: Trace, path: CriticalPath) -> pd.DataFrame:
    """The pieces of the path by place, in order of time. They cover the run without a gap.

    The columns are ipu, place (of :data:`PATH_PLACES`), start and dur (cycles).
    """
    import pandas as pd

    kinds, instances = trace.columns("steps")["kind"], trace.columns("instances")
    # The last entry, which index -1 picks too, is for syncs and times without a step.
    places = np.array([PATH_PLACES.index(_PLACE.get(kind, "tiles")) for kind in kinds] + [len(PATH_PLACES) - 1])
    lines = {
        (line.replica, line.ipu): line
        for line in ipu_lines(trace, np.arange(len(instances["ipu"])), _extent(path))
        if ((path.replica == line.replica) & (path.ipu == line.ipu)).any()
    }
    pieces: list[np.ndarray] = []
    for replica, ipu, start, end, synced in zip(
        path.replica.tolist(), path.ipu.tolist(), path.start.tolist(), path.end.tolist(), path.sync, strict=True
    ):
        line = lines[replica, ipu]
        low, high = np.searchsorted(line.edges, [start, end])
        # The stretch that holds the start begins one edge earlier, unless an edge lies exactly there.
        low = max(int(low) - (line.edges[min(int(low), len(line.edges) - 1)] > start), 0)
        at = np.full(int(high) - low, len(kinds)) if synced else line.step[low : int(high)]
        place = places[at]
        edges = np.clip(line.edges[low : int(high) + 1], start, end)
        changes = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
        begins = edges[changes]
        pieces.append(
            np.stack([np.full(len(changes), ipu), place[changes], begins, np.append(begins[1:], end) - begins], axis=1)
        )
    rows = np.concatenate(pieces) if pieces else np.empty((0, 4), dtype=np.int64)
    table = pd.DataFrame(rows, columns=["ipu", "place", "start", "dur"])
    table["place"] = np.array(PATH_PLACES, dtype=object)[rows[:, 1]]
    return table


@checked
def path_cycles(trace: Trace, path: CriticalPath) -> pd.DataFrame:
    """Cycles of the path by IPU, kind of step and op, the largest first. They sum to the path.

    The columns are ipu, kind, op and cycles. For the host's own run, op says which run it is ("": that of the call).
    """
    import pandas as pd

    steps, instances = trace.columns("steps"), trace.columns("instances")
    cycles_by_kind: dict[tuple[int, str, str], int] = {}
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
            cycles_by_kind[ipu, "sync_external", ""] = cycles_by_kind.get((ipu, "sync_external", ""), 0) + synced
        pieces = pieces[~path.sync[pieces]]
        line = next(
            line
            for line in ipu_lines(trace, rows_of[replica, ipu], _extent(path))
            if (line.replica, line.ipu) == (replica, ipu)
        )
        inside = np.zeros(len(line.activity), dtype=np.int64)
        for start, end in zip(path.start[pieces].tolist(), path.end[pieces].tolist(), strict=True):
            low, high = np.searchsorted(line.edges, [start, end])
            low = max(int(low) - 1, 0)
            edges = np.clip(line.edges[low : high + 2], start, end)
            inside[low : low + len(edges) - 1] += np.diff(edges)
        for step in np.unique(line.step[inside > 0]).tolist():
            cycles = int(inside[line.step == step].sum())
            key = (ipu, str(kinds[step]), str(names[step])) if step >= 0 else (ipu, "idle", "")
            cycles_by_kind[key] = cycles_by_kind.get(key, 0) + cycles
    table = pd.DataFrame(
        [(*key, cycles) for key, cycles in cycles_by_kind.items()], columns=["ipu", "kind", "op", "cycles"]
    )
    return table.sort_values(["cycles", "ipu", "kind", "op"], ascending=[False, True, True, True], ignore_index=True)


def _extent(path: CriticalPath) -> tuple[int, int]:
    return int(path.start[0]), int(path.end[-1])
