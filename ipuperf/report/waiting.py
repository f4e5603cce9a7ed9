"""Who is to blame when an IPU waits: every waiting cycle gets an owner.

An IPU waits where none of its lanes does anything: external sync, idle time, and time without a step. A wait ends when
the IPU it waited for has arrived, so of all other IPUs the one that works until the latest before that end is to
blame; of equals one of the same replica, then the nearest, then the lowest. Each cycle of the wait then belongs to
what that IPU does meanwhile:

- ``host``: it stands in a host exchange or in the host's cost of a run;
- ``ddr``: it loads from Streaming Memory or stores there;
- ``collective``, ``link``: it sends over IPU-Links, for a collective or otherwise;
- ``bubble``: it works, and the pipeline fills or drains: from the begin of a weight update's micro-batches until every
  IPU has begun its first backward pass (without any: its first forward pass), and from the first IPU that has no
  forward pass left until all backward passes are done;
- ``imbalance``: it works at any other time: its share of the work is the larger one;
- where it waits itself, to the owner of that wait;
- ``sync``: nobody does anything, all wait for the sync itself.

Simplification: blame goes to one IPU for each wait, found by time and not by the programs' dependencies.
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
"""Who a waiting cycle belongs to."""

_DOES: tuple[str, ...] = ("work", "link", "collective", "ddr", "host", "waits")
"""What an IPU does at a time."""
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
"""How often waits are traced on to the waits that caused them: chains of more IPUs than that are left as ``sync``."""


@dataclass(frozen=True)
class IpuLine:
    """What one IPU does: between ``edges[n]`` and ``edges[n + 1]`` it does ``does[n]``, of which ``spent`` holds the
    cycles up to each edge (a column for each of :data:`_DOES`); ``step`` is the row of table ``steps`` (-1: none)."""

    replica: int
    ipu: int
    edges: np.ndarray
    does: np.ndarray
    step: np.ndarray
    spent: np.ndarray

    def waits(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of each wait, those without anything in between as one."""
        waits = np.concatenate([[False], self.does == _WAITS, [False]])
        change = np.diff(waits.astype(np.int8))
        return self.edges[np.flatnonzero(change == 1)], self.edges[np.flatnonzero(change == -1)]

    def until(self, time: np.ndarray, values: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """``values`` (at the edges) at given times, growing between edges at ``rates``."""
        place = np.clip(np.searchsorted(self.edges, time, side="right") - 1, 0, len(self.does) - 1)
        return values[place] + (time - self.edges[place])[:, None] * rates[place]

    def doing(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Cycles of each of :data:`_DOES` between the given times."""
        rates = np.eye(len(_DOES), dtype=np.int64)[self.does]
        return self.until(end, self.spent, rates) - self.until(begin, self.spent, rates)

    def last_work(self, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Until when the IPU did something before each time, and the step that it did then (-1: nothing)."""
        busy = np.flatnonzero(self.does != _WAITS)
        if not len(busy):
            nothing = np.full(len(time), np.iinfo(np.int64).min)
            return nothing, np.full(len(time), -1)
        place = np.searchsorted(self.edges[busy], time, side="left") - 1
        found = busy[np.maximum(place, 0)]
        until = np.minimum(self.edges[found + 1], time)
        return np.where(place >= 0, until, np.iinfo(np.int64).min), np.where(place >= 0, self.step[found], -1)


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
        """Waiting cycles of each IPU by owner; owners of nothing left out."""
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
    """The waits of a run (by default the last) on all stored IPUs, and whom they belong to; see the module.

    Raises:
        ValueError: no such run, or a trace of nothing. TraceError: more slices than can be expanded at once.
    """
    window, rows = run_instances(trace, run)
    lines = ipu_lines(trace, rows, window)
    begins, ends, blamed, step = [], [], [], []
    bubbles = {replica: _bubbles(trace, replica, window) for replica in {line.replica for line in lines}}
    for line in lines:
        begin, end = line.waits()
        others = [other for other in lines if other is not line]
        culprit, last = _blame(line, others, begin, end)
        begins.append(begin)
        ends.append(end)
        blamed.append(culprit)
        step.append(last)
    split = _owners(lines, begins, ends, blamed, bubbles)
    cycles = [_whole(part, end - begin) for part, begin, end in zip(split, begins, ends, strict=True)]
    ipus = np.array([*(line.ipu for line in lines), -1])
    names = np.append(trace.step_ops, "")
    counts = [len(begin) for begin in begins]
    return Waits(
        np.repeat([line.replica for line in lines], counts),
        np.repeat([line.ipu for line in lines], counts),
        np.concatenate([*begins, np.empty(0, dtype=np.int64)]),
        np.concatenate([*ends, np.empty(0, dtype=np.int64)]),
        ipus[np.concatenate([*blamed, np.empty(0, dtype=np.int64)])],
        names[np.concatenate([*step, np.empty(0, dtype=np.int64)])],
        np.concatenate([*cycles, np.empty((0, len(OWNERS)), dtype=np.int64)]),
    )


def _does(trace: Trace) -> np.ndarray:
    """What a row of table ``steps`` is of :data:`_DOES`."""
    steps, transfers = trace.columns("steps"), trace.columns("transfers")
    codes = np.array([_DOES.index(_OF_KIND[kind]) for kind in steps["kind"]], dtype=np.int64)
    collective = np.unique(transfers["op_id"][np.isin(transfers["kind"], _COLLECTIVES)])
    codes[(steps["kind"] == "link") & np.isin(steps["op_id"], collective)] = _DOES.index("collective")
    return codes


def ipu_lines(trace: Trace, rows: np.ndarray, window: Window) -> list[IpuLine]:
    """What each IPU does in the window, by replica and IPU. Of lanes that overlap, the lowest that does something
    counts."""
    instances, steps, codes = trace.columns("instances"), trace.columns("steps"), _does(trace)
    keys = np.unique(np.stack([instances["replica"][rows], instances["ipu"][rows]]), axis=1)
    result = []
    for replica, ipu in keys.T.tolist():
        own = rows[(instances["replica"][rows] == replica) & (instances["ipu"][rows] == ipu)]
        found = slices(trace, rows=own, steps=codes != _WAITS)
        start, end = np.clip(found.start, *window), np.clip(found.start + found.dur, *window)
        there = start < end
        start, end, step = start[there], end[there], found.step[there]
        edges = np.sort(np.concatenate([start, end, window]))
        edges = edges[np.append(True, edges[1:] != edges[:-1])]
        does, at = np.full(len(edges) - 1, _WAITS), np.full(len(edges) - 1, -1)
        for lane in np.unique(steps["lane"][step])[::-1].tolist():
            chosen = np.flatnonzero(steps["lane"][step] == lane)
            order = chosen[np.argsort(start[chosen], kind="stable")]
            covering = np.searchsorted(start[order], edges[:-1], side="right") - 1
            row = order[np.maximum(covering, 0)]
            covered = (covering >= 0) & (edges[:-1] < end[row])
            does[covered], at[covered] = codes[step[row]][covered], step[row][covered]
        spent = np.zeros((len(edges), len(_DOES)), dtype=np.int64)
        spent[np.arange(1, len(edges)), does] = np.diff(edges)
        result.append(IpuLine(replica, ipu, edges, does, at, np.cumsum(spent, axis=0)))
    return result


def _blame(
    line: IpuLine, others: Sequence[IpuLine], begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each wait the place among all lines (sorted as they are) of the IPU to blame, -1 for none, and its step."""
    best, culprit, step = begin.copy(), np.full(len(begin), -1), np.full(len(begin), -1)
    own = sum((other.replica, other.ipu) < (line.replica, line.ipu) for other in others)
    ranked = sorted(
        range(len(others)),
        key=lambda n: (others[n].replica != line.replica, abs(others[n].ipu - line.ipu), others[n].ipu),
    )
    for number in ranked:
        until, last = others[number].last_work(end)
        later = until > best
        best[later], culprit[later], step[later] = until[later], number + (number >= own), last[later]
    return culprit, step


def _bubbles(trace: Trace, replica: int, window: Window) -> np.ndarray:
    """Stretches (rows of begin and end) of the window in which the pipeline of a replica fills or drains."""
    found = []
    for whole, stages in stage_work(trace, replica, window):
        if len(stages) < 2:
            continue
        forward = [stage.forward for stage in stages if stage.forward]
        backward = [stage.backward for stage in stages if stage.backward]
        last = max(end for _, end in backward or forward)
        steady = max(begin for begin, _ in backward or forward)
        drain = min((end for _, end in forward), default=last)
        found += [(whole[0], min(steady, last)), (min(max(drain, steady), last), last)]
    return np.array([pair for pair in found if pair[0] < pair[1]], dtype=np.int64).reshape(-1, 2)


def _owners(
    lines: Sequence[IpuLine],
    begins: Sequence[np.ndarray],
    ends: Sequence[np.ndarray],
    blamed: Sequence[np.ndarray],
    bubbles: dict[int, np.ndarray],
) -> list[np.ndarray]:
    """Cycles (float) of each wait of each line by owner."""
    doing = [np.zeros((len(begin), len(_DOES))) for begin in begins]
    for number, line in enumerate(lines):
        for wait, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            mine = blamed[wait] == number
            doing[wait][mine] = line.doing(begin[mine], end[mine])
    known = []
    for line, begin, end, done in zip(lines, begins, ends, doing, strict=True):
        part = np.zeros((len(begin), len(OWNERS)))
        for does in ("link", "collective", "ddr", "host"):
            part[:, OWNERS.index(does)] = done[:, _DOES.index(does)]
        share = _overlap(bubbles[line.replica], begin, end) / np.maximum(end - begin, 1)
        work = done[:, _DOES.index("work")]
        part[:, OWNERS.index("bubble")], part[:, OWNERS.index("imbalance")] = work * share, work * (1 - share)
        known.append(part)
    result = known
    for _ in range(_ROUNDS):
        result = _passed_on(lines, begins, ends, blamed, known, result)
    for part, begin, end in zip(result, begins, ends, strict=True):
        part[:, OWNERS.index("sync")] = (end - begin) - part.sum(axis=1)
    return result


def _passed_on(
    lines: Sequence[IpuLine],
    begins: Sequence[np.ndarray],
    ends: Sequence[np.ndarray],
    blamed: Sequence[np.ndarray],
    known: Sequence[np.ndarray],
    found: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """``known``, and of the time in which the IPU to blame waited itself the owners ``found`` for its waits."""
    result = [part.copy() for part in known]
    for number, line in enumerate(lines):
        begin, end = begins[number], ends[number]
        rate = found[number] / np.maximum(end - begin, 1)[:, None]
        rates = np.zeros((len(line.does), len(OWNERS)))
        waits = np.flatnonzero(line.does == _WAITS)
        rates[waits] = rate[np.searchsorted(begin, line.edges[waits], side="right") - 1] if len(begin) else 0.0
        sums = np.zeros((len(line.edges), len(OWNERS)))
        sums[1:] = np.cumsum(rates * np.diff(line.edges)[:, None], axis=0)
        for wait, part in enumerate(result):
            mine = blamed[wait] == number
            part[mine] += line.until(ends[wait][mine], sums, rates) - line.until(begins[wait][mine], sums, rates)
    return result


def _overlap(stretches: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Cycles of each of the waits that lie in one of the stretches, which do not overlap."""
    common = np.zeros(len(begin), dtype=np.int64)
    for low, high in stretches.tolist():
        common += np.maximum(np.minimum(end, high) - np.maximum(begin, low), 0)
    return common


def _whole(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Rows of floats as integers with the given sums: rounded down, the rest to the largest fractions."""
    down = np.floor(part + 1e-6).astype(np.int64)
    missing = total - down.sum(axis=1)
    order = np.argsort(-(part - down), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return down + (rank < missing[:, None])
