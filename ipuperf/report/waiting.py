"""Who is to blame when an IPU waits: every waiting cycle gets an owner.

An IPU waits while none of its lanes does anything: in external sync, in idle time, and in time without a step. A wait
ends when the IPU that it waited for arrives. So the IPU to blame is the one whose work ends last before the wait
ends. If several end at once, an IPU of the same replica comes first, then the nearest, then the one with the lowest
number. Each cycle of the wait then belongs to what the blamed IPU does in that cycle:

- ``host``: it stands in a host exchange or in the host's cost of a run;
- ``ddr``: it loads from Streaming Memory or stores there;
- ``collective``, ``link``: it sends over IPU-Links, for a collective or otherwise;
- ``bubble``: it works while the pipeline fills or drains. A pipeline fills from the begin of a weight update's
  micro-batches until every IPU has begun its first backward pass (its first forward pass in programs without
  backward passes). It drains as soon as one IPU has no forward pass left, until all backward passes are done;
- ``imbalance``: it works at any other time, so it has the larger share of the work;
- ``sync``: no IPU does anything, all wait for the sync itself.

If the blamed IPU waits too, the cycle belongs to the owner of that wait.

Simplification: each wait is blamed on one IPU. It is found by time, not by the dependencies of the programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import run_instances
from ipuperf.report.pipeline import stage_work
from ipuperf.trace import HOST_WAITING_KINDS, KINDS, WAITING_KINDS, Window, slices

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.trace import Trace

OWNERS: tuple[str, ...] = ("host", "bubble", "imbalance", "collective", "link", "ddr", "sync")
"""The possible owners of a waiting cycle."""

_DOES: tuple[str, ...] = ("work", "link", "collective", "ddr", "host", "waits")
"""The activities of an IPU."""
_WAITS = _DOES.index("waits")
_OF_KIND = {
    **dict.fromkeys(KINDS, "work"),
    "link": "link",
    "remote_load": "ddr",
    "remote_store": "ddr",
    "host_mid": "host",
    **dict.fromkeys(HOST_WAITING_KINDS, "host"),
    **dict.fromkeys(WAITING_KINDS, "waits"),
}
_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
_ROUNDS = 6
"""How often waits are traced back to the waits that caused them. In longer chains the remaining cycles are ``sync``."""


@dataclass(frozen=True)
class IpuLine:
    """What one IPU does over time.

    Between ``edges[n]`` and ``edges[n + 1]`` the activity is ``does[n]``, an index into :data:`_DOES`, and ``step[n]``
    is the row of table ``steps`` (-1: none). ``spent`` has the cycles of each activity up to each edge, one column for
    each of :data:`_DOES`.
    """

    replica: int
    ipu: int
    edges: np.ndarray
    does: np.ndarray
    step: np.ndarray
    spent: np.ndarray

    def waits(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of each wait. Waits that follow each other directly are one."""
        # The False at both ends gives a wait at the edge of the window a begin and an end.
        waits = np.concatenate([[False], self.does == _WAITS, [False]])
        change = np.diff(waits.astype(np.int8))
        return self.edges[np.flatnonzero(change == 1)], self.edges[np.flatnonzero(change == -1)]

    def until(self, time: np.ndarray, values: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """Interpolate ``values``, which are known at the edges and grow between edges at ``rates``, at each time."""
        place = np.clip(np.searchsorted(self.edges, time, side="right") - 1, 0, len(self.does) - 1)
        return values[place] + (time - self.edges[place])[:, None] * rates[place]

    def doing(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Cycles of each of :data:`_DOES` between two times."""
        rates = np.eye(len(_DOES), dtype=np.int64)[self.does]
        return self.until(end, self.spent, rates) - self.until(begin, self.spent, rates)

    def last_work(self, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each time the end of the latest work before it, and the step of that work (-1: none)."""
        busy = np.flatnonzero(self.does != _WAITS)
        if not len(busy):
            nothing = np.full(len(time), np.iinfo(np.int64).min)
            return nothing, np.full(len(time), -1)
        place = np.searchsorted(self.edges[busy], time, side="left") - 1
        segment = busy[np.maximum(place, 0)]
        until = np.minimum(self.edges[segment + 1], time)
        return np.where(place >= 0, until, np.iinfo(np.int64).min), np.where(place >= 0, self.step[segment], -1)


@dataclass(frozen=True)
class Waits:
    """The waits of one run, by IPU and time, in columns of equal length.

    ``start`` and ``end`` in cycles; ``blamed`` is the IPU that was waited for (-1: none) and ``blamed_op`` the name of
    the op it was busy with at the end ("": none); ``cycles`` has a column for each of :data:`OWNERS` (int64), and its
    rows sum to ``end - start``.
    """

    replica: np.ndarray
    ipu: np.ndarray
    start: np.ndarray
    end: np.ndarray
    blamed: np.ndarray
    blamed_op: np.ndarray
    cycles: np.ndarray

    def by_ipu(self) -> dict[int, dict[str, int]]:
        """Waiting cycles of each IPU by owner, without owners that have none."""
        result: dict[int, dict[str, int]] = {}
        for ipu in np.unique(self.ipu).tolist():
            total = self.cycles[self.ipu == ipu].sum(axis=0).tolist()
            result[ipu] = {owner: cycles for owner, cycles in zip(OWNERS, total, strict=True) if cycles}
        return result

    def table(self) -> pd.DataFrame:
        """One row per wait: replica, ipu, start, dur (cycles), blamed_ipu, blamed_op, and the cycles of each owner."""
        import pandas as pd

        columns = {"replica": self.replica, "ipu": self.ipu, "start": self.start, "dur": self.end - self.start}
        columns |= {"blamed_ipu": self.blamed, "blamed_op": self.blamed_op}
        return pd.DataFrame({**columns, **{owner: self.cycles[:, code] for code, owner in enumerate(OWNERS)}})


@checked
def waits(trace: Trace, run: int | None = None) -> Waits:
    """The waits of a run (by default the last) on all stored IPUs, and their owners; see the module.

    Raises:
        ValueError: the trace has no such run, or nothing at all.
        TraceError: the run has more slices than can be expanded at once.
    """
    window, rows = run_instances(trace, run)
    lines = ipu_lines(trace, rows, window)
    begins, ends, blamed, blamed_steps = [], [], [], []
    bubbles = {replica: _bubbles(trace, replica, window) for replica in {line.replica for line in lines}}
    for line in lines:
        begin, end = line.waits()
        other_lines = [candidate for candidate in lines if candidate is not line]
        culprit, blamed_step = _blame(line, other_lines, begin, end)
        begins.append(begin)
        ends.append(end)
        blamed.append(culprit)
        blamed_steps.append(blamed_step)
    split = _owners(lines, begins, ends, blamed, bubbles)
    cycles = [_whole(part, end - begin) for part, begin, end in zip(split, begins, ends, strict=True)]
    # The index -1 means nobody, or no step. It picks the last entry of these arrays.
    ipus = np.array([*(line.ipu for line in lines), -1])
    names = np.append(trace.step_ops, "")
    counts = [len(begin) for begin in begins]
    return Waits(
        np.repeat([line.replica for line in lines], counts),
        np.repeat([line.ipu for line in lines], counts),
        np.concatenate([*begins, np.empty(0, dtype=np.int64)]),
        np.concatenate([*ends, np.empty(0, dtype=np.int64)]),
        ipus[np.concatenate([*blamed, np.empty(0, dtype=np.int64)])],
        names[np.concatenate([*blamed_steps, np.empty(0, dtype=np.int64)])],
        np.concatenate([*cycles, np.empty((0, len(OWNERS)), dtype=np.int64)]),
    )


def _does(trace: Trace) -> np.ndarray:
    """The activity of each row of table ``steps``, as an index into :data:`_DOES`."""
    steps, transfers = trace.columns("steps"), trace.columns("transfers")
    codes = np.array([_DOES.index(_OF_KIND[kind]) for kind in steps["kind"]], dtype=np.int64)
    # Steps of collectives have the kind "link" too. Only their transfers tell which ops are collectives.
    collective = np.unique(transfers["op_id"][np.isin(transfers["kind"], _COLLECTIVES)])
    codes[(steps["kind"] == "link") & np.isin(steps["op_id"], collective)] = _DOES.index("collective")
    return codes


def ipu_lines(trace: Trace, rows: np.ndarray, window: Window) -> list[IpuLine]:
    """What each IPU does in the window, by replica and IPU. Where lanes overlap, the lowest busy lane counts."""
    instances, steps, codes = trace.columns("instances"), trace.columns("steps"), _does(trace)
    keys = np.unique(np.stack([instances["replica"][rows], instances["ipu"][rows]]), axis=1)
    lines = []
    for replica, ipu in keys.T.tolist():
        instance_rows = rows[(instances["replica"][rows] == replica) & (instances["ipu"][rows] == ipu)]
        expanded = slices(trace, rows=instance_rows, steps=codes != _WAITS)
        start, end = np.clip(expanded.start, *window), np.clip(expanded.start + expanded.dur, *window)
        visible = start < end
        start, end, step = start[visible], end[visible], expanded.step[visible]
        edges = np.sort(np.concatenate([start, end, window]))
        edges = edges[np.append(True, edges[1:] != edges[:-1])]
        activity, step_at = np.full(len(edges) - 1, _WAITS), np.full(len(edges) - 1, -1)
        # From the highest lane to the lowest, so that lower lanes overwrite higher ones.
        for lane in np.unique(steps["lane"][step])[::-1].tolist():
            chosen = np.flatnonzero(steps["lane"][step] == lane)
            order = chosen[np.argsort(start[chosen], kind="stable")]
            covering = np.searchsorted(start[order], edges[:-1], side="right") - 1
            row = order[np.maximum(covering, 0)]
            covered = (covering >= 0) & (edges[:-1] < end[row])
            activity[covered], step_at[covered] = codes[step[row]][covered], step[row][covered]
        spent = np.zeros((len(edges), len(_DOES)), dtype=np.int64)
        spent[np.arange(1, len(edges)), activity] = np.diff(edges)
        lines.append(IpuLine(replica, ipu, edges, activity, step_at, np.cumsum(spent, axis=0)))
    return lines


def _blame(
    line: IpuLine, others: Sequence[IpuLine], begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each wait of ``line`` the IPU to blame, as an index into the sorted lines of all IPUs, and its step.

    Both are -1 where no other IPU worked after the wait began.
    """
    latest, culprit, step = begin.copy(), np.full(len(begin), -1), np.full(len(begin), -1)
    waiting_index = sum((candidate.replica, candidate.ipu) < (line.replica, line.ipu) for candidate in others)
    ranked = sorted(
        range(len(others)),
        key=lambda n: (others[n].replica != line.replica, abs(others[n].ipu - line.ipu), others[n].ipu),
    )
    # The nearest IPU comes first and only a later end replaces it, so that ties go to the nearest.
    for index in ranked:
        until, last_step = others[index].last_work(end)
        later = until > latest
        # ``others`` lacks the IPU that waits, so the index of every IPU after it is one larger among all lines.
        latest[later], culprit[later], step[later] = until[later], index + (index >= waiting_index), last_step[later]
    return culprit, step


def _bubbles(trace: Trace, replica: int, window: Window) -> np.ndarray:
    """The stretches of the window in which the pipeline of a replica fills or drains, as rows of begin and end."""
    stretches = []
    for update_span, stages in stage_work(trace, replica, window):
        if len(stages) < 2:
            continue
        forward = [stage.forward for stage in stages if stage.forward]
        backward = [stage.backward for stage in stages if stage.backward]
        update_end = max(end for _, end in backward or forward)
        steady = max(begin for begin, _ in backward or forward)
        drain = min((end for _, end in forward), default=update_end)
        stretches += [(update_span[0], min(steady, update_end)), (min(max(drain, steady), update_end), update_end)]
    return np.array([stretch for stretch in stretches if stretch[0] < stretch[1]], dtype=np.int64).reshape(-1, 2)


def _owners(
    lines: Sequence[IpuLine],
    begins: Sequence[np.ndarray],
    ends: Sequence[np.ndarray],
    blamed: Sequence[np.ndarray],
    bubbles: dict[int, np.ndarray],
) -> list[np.ndarray]:
    """Cycles (float) of each wait of each line by owner: one array for each line, a row for each wait."""
    doing = [np.zeros((len(begin), len(_DOES))) for begin in begins]
    for blamed_index, line in enumerate(lines):
        for wait, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            is_blamed = blamed[wait] == blamed_index
            doing[wait][is_blamed] = line.doing(begin[is_blamed], end[is_blamed])
    known = []
    for line, begin, end, activity_cycles in zip(lines, begins, ends, doing, strict=True):
        owner_cycles = np.zeros((len(begin), len(OWNERS)))
        for activity in ("link", "collective", "ddr", "host"):
            owner_cycles[:, OWNERS.index(activity)] = activity_cycles[:, _DOES.index(activity)]
        share = _overlap(bubbles[line.replica], begin, end) / np.maximum(end - begin, 1)
        work = activity_cycles[:, _DOES.index("work")]
        owner_cycles[:, OWNERS.index("bubble")], owner_cycles[:, OWNERS.index("imbalance")] = (
            work * share,
            work * (1 - share),
        )
        known.append(owner_cycles)
    # Each round reaches one IPU further along the chain of waits, from what is known without any chain.
    owner_cycles_by_line = known
    for _ in range(_ROUNDS):
        owner_cycles_by_line = _passed_on(lines, begins, ends, blamed, known, owner_cycles_by_line)
    for owner_cycles, begin, end in zip(owner_cycles_by_line, begins, ends, strict=True):
        owner_cycles[:, OWNERS.index("sync")] = (end - begin) - owner_cycles.sum(axis=1)
    return owner_cycles_by_line


def _passed_on(
    lines: Sequence[IpuLine],
    begins: Sequence[np.ndarray],
    ends: Sequence[np.ndarray],
    blamed: Sequence[np.ndarray],
    known: Sequence[np.ndarray],
    owners_so_far: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """``known``, and ``owners_so_far`` for the time in which the blamed IPU waited itself."""
    result = [wait_owners.copy() for wait_owners in known]
    for blamed_index, line in enumerate(lines):
        begin, end = begins[blamed_index], ends[blamed_index]
        # A part of a wait has the owners of the whole wait, in the same proportion.
        rate = owners_so_far[blamed_index] / np.maximum(end - begin, 1)[:, None]
        rates = np.zeros((len(line.does), len(OWNERS)))
        waits = np.flatnonzero(line.does == _WAITS)
        rates[waits] = rate[np.searchsorted(begin, line.edges[waits], side="right") - 1] if len(begin) else 0.0
        sums = np.zeros((len(line.edges), len(OWNERS)))
        sums[1:] = np.cumsum(rates * np.diff(line.edges)[:, None], axis=0)
        for wait, wait_owners in enumerate(result):
            is_blamed = blamed[wait] == blamed_index
            wait_owners[is_blamed] += line.until(ends[wait][is_blamed], sums, rates) - line.until(
                begins[wait][is_blamed], sums, rates
            )
    return result


def _overlap(stretches: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Cycles of each wait that lie in a stretch. The stretches must not overlap."""
    common = np.zeros(len(begin), dtype=np.int64)
    for low, high in stretches.tolist():
        common += np.maximum(np.minimum(end, high) - np.maximum(begin, low), 0)
    return common


def _whole(fractions: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Round rows of floats down to integers; the cycles then missing from the sums go to the largest fractions."""
    # The small addend keeps whole numbers whole that rounding errors have made a little smaller.
    down = np.floor(fractions + 1e-6).astype(np.int64)
    missing = total - down.sum(axis=1)
    order = np.argsort(-(fractions - down), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return down + (rank < missing[:, None])
