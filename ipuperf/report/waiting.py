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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import distinct, run_instances
from ipuperf.report.pipeline import stage_work
from ipuperf.trace import HOST_WAITING_KINDS, KINDS, WAITING_KINDS, Window, slices

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.trace import Trace

OWNERS: tuple[str, ...] = ("host", "bubble", "imbalance", "collective", "link", "ddr", "sync")
"""The possible owners of a waiting cycle."""

ACTIVITIES: tuple[str, ...] = ("work", "link", "collective", "ddr", "host", "waits")
"""The activities of an IPU."""
WAITS = ACTIVITIES.index("waits")
_ACTIVITY_OF_KIND = {
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
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class _Rates:
    """Amounts that grow over time: ``rates[n]`` is the growth per cycle between ``edges[n]`` and ``edges[n + 1]``."""

    edges: np.ndarray
    rates: np.ndarray

    @cached_property
    def _sums(self) -> np.ndarray:
        """The amounts up to each edge."""
        sums = np.zeros((len(self.edges), self.rates.shape[1]), dtype=self.rates.dtype)
        sums[1:] = np.cumsum(self.rates * np.diff(self.edges)[:, None], axis=0)
        return sums

    def _until(self, time: np.ndarray) -> np.ndarray:
        stretch = np.clip(np.searchsorted(self.edges, time, side="right") - 1, 0, len(self.rates) - 1)
        amounts: np.ndarray = self._sums[stretch] + (time - self.edges[stretch])[:, None] * self.rates[stretch]
        return amounts

    def between(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The growth between two times."""
        growth: np.ndarray = self._until(end) - self._until(begin)
        return growth


@dataclass(frozen=True)
class IpuLine:
    """The activity of one IPU over time.

    Between ``edges[n]`` and ``edges[n + 1]`` the activity is ``activity[n]``, an index into :data:`ACTIVITIES`, and
    ``step[n]`` is the row of table ``steps`` (-1: none).
    """

    replica: int
    ipu: int
    edges: np.ndarray
    activity: np.ndarray
    step: np.ndarray

    def waits(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of each wait. Waits that follow each other directly are one."""
        # The False at both ends gives a wait at the edge of the window a begin and an end.
        waits = np.concatenate([[False], self.activity == WAITS, [False]])
        change = np.diff(waits.astype(np.int8))
        return self.edges[np.flatnonzero(change == 1)], self.edges[np.flatnonzero(change == -1)]

    @cached_property
    def _cycles(self) -> _Rates:
        """The cycles of each of :data:`ACTIVITIES` over time."""
        return _Rates(self.edges, np.eye(len(ACTIVITIES), dtype=np.int64)[self.activity])

    def doing(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Cycles of each of :data:`ACTIVITIES` between two times."""
        return self._cycles.between(begin, end)

    def last_work(self, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each time the end of the latest work before it, and the step of that work (-1: none)."""
        working = np.flatnonzero(self.activity != WAITS)
        if not len(working):
            return np.full(len(time), _NEVER), np.full(len(time), -1)
        place = np.searchsorted(self.edges[working], time, side="left") - 1
        stretch = working[np.maximum(place, 0)]
        end = np.minimum(self.edges[stretch + 1], time)
        return np.where(place >= 0, end, _NEVER), np.where(place >= 0, self.step[stretch], -1)


@dataclass(frozen=True)
class _Blames:
    """The waits of one IPU in order of time, a row each.

    ``blamed`` is the place of the blamed IPU among all lines, and ``step`` the last step of its work (-1: none).
    """

    line: IpuLine
    begin: np.ndarray
    end: np.ndarray
    blamed: np.ndarray
    step: np.ndarray

    @property
    def length(self) -> np.ndarray:
        """Cycles of each wait."""
        cycles: np.ndarray = self.end - self.begin
        return cycles


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
    bubbles = {replica: _bubbles(trace, replica, window) for replica in {line.replica for line in lines}}
    blames = [_blames(line, lines) for line in lines]
    cycles = [
        _whole(fractions, wait.length) for wait, fractions in zip(blames, _owner_cycles(blames, bubbles), strict=True)
    ]
    # The index -1 means nobody, or no step. It picks the last entry of these arrays.
    ipus = np.array([*(line.ipu for line in lines), -1])
    names = np.append(trace.step_ops, "")
    counts = [len(wait.begin) for wait in blames]
    nothing = np.empty(0, dtype=np.int64)
    return Waits(
        replica=np.repeat([line.replica for line in lines], counts),
        ipu=np.repeat([line.ipu for line in lines], counts),
        start=np.concatenate([*(wait.begin for wait in blames), nothing]),
        end=np.concatenate([*(wait.end for wait in blames), nothing]),
        blamed=ipus[np.concatenate([*(wait.blamed for wait in blames), nothing])],
        blamed_op=names[np.concatenate([*(wait.step for wait in blames), nothing])],
        cycles=np.concatenate([*cycles, np.empty((0, len(OWNERS)), dtype=np.int64)]),
    )


# -- the activity of each IPU ------------------------------------------------------------------------------------------


def ipu_lines(trace: Trace, rows: np.ndarray, window: Window) -> list[IpuLine]:
    """The activity of each IPU in the window, by replica and IPU. Where lanes overlap, the lowest busy lane counts."""
    instances, activities = trace.columns("instances"), _step_activities(trace)
    ipus = np.unique(np.stack([instances["replica"][rows], instances["ipu"][rows]]), axis=1)
    lines = []
    for replica, ipu in ipus.T.tolist():
        of_ipu = rows[(instances["replica"][rows] == replica) & (instances["ipu"][rows] == ipu)]
        edges, step = _steps_over_time(trace, of_ipu, activities != WAITS, window)
        # The appended entry is the activity of no step, which index -1 picks.
        lines.append(IpuLine(replica, ipu, edges, np.append(activities, WAITS)[step], step))
    return lines


def _step_activities(trace: Trace) -> np.ndarray:
    """The activity of each row of table ``steps``, as an index into :data:`ACTIVITIES`."""
    steps, transfers = trace.columns("steps"), trace.columns("transfers")
    activities = np.array([ACTIVITIES.index(_ACTIVITY_OF_KIND[kind]) for kind in steps["kind"]], dtype=np.int64)
    # Steps of collectives have the kind "link" too. Only their transfers tell which ops are collectives.
    collective = np.unique(transfers["op_id"][np.isin(transfers["kind"], _COLLECTIVES)])
    activities[(steps["kind"] == "link") & np.isin(steps["op_id"], collective)] = ACTIVITIES.index("collective")
    return activities


def _steps_over_time(
    trace: Trace, rows: np.ndarray, included: np.ndarray, window: Window
) -> tuple[np.ndarray, np.ndarray]:
    """Edges in the window, and the step between each edge and the next (-1: none).

    ``rows`` are those of table ``instances``, and ``included`` is a mask of the rows of table ``steps``.
    """
    expanded = slices(trace, rows=rows, steps=included)
    start, end = np.clip(expanded.start, *window), np.clip(expanded.start + expanded.dur, *window)
    visible = start < end
    start, end, step = start[visible], end[visible], expanded.step[visible]
    edges = distinct(np.concatenate([start, end, window]))
    lane = trace.columns("steps")["lane"][step]
    step_at = np.full(len(edges) - 1, -1)
    # From the highest lane to the lowest, so that lower lanes overwrite higher ones.
    for level in np.unique(lane)[::-1].tolist():
        in_lane = np.flatnonzero(lane == level)
        order = in_lane[np.argsort(start[in_lane], kind="stable")]
        latest = np.searchsorted(start[order], edges[:-1], side="right") - 1
        row = order[np.maximum(latest, 0)]
        busy = (latest >= 0) & (edges[:-1] < end[row])
        step_at[busy] = step[row][busy]
    return edges, step_at


# -- who is to blame ---------------------------------------------------------------------------------------------------


def _blames(line: IpuLine, lines: Sequence[IpuLine]) -> _Blames:
    """The waits of ``line``. Nobody is to blame for a wait after whose begin no other IPU worked."""
    begin, end = line.waits()
    latest, blamed, step = begin.copy(), np.full(len(begin), -1), np.full(len(begin), -1)
    others = [place for place, other in enumerate(lines) if other is not line]

    def distance(place: int) -> tuple[bool, int, int]:
        other = lines[place]
        return other.replica != line.replica, abs(other.ipu - line.ipu), other.ipu

    # The nearest IPU comes first and only a later end replaces it, so that ties go to the nearest.
    for place in sorted(others, key=distance):
        work_end, work_step = lines[place].last_work(end)
        later = work_end > latest
        latest[later], blamed[later], step[later] = work_end[later], place, work_step[later]
    return _Blames(line, begin, end, blamed, step)


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


# -- the owner of each cycle -------------------------------------------------------------------------------------------


def _owner_cycles(blames: Sequence[_Blames], bubbles: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """Cycles (float) of each wait by owner: one array for each IPU, a row for each wait."""
    activities = _of_blamed(blames, len(ACTIVITIES), lambda place: blames[place].line.doing)
    direct = [
        _direct_owners(wait, cycles, bubbles[wait.line.replica])
        for wait, cycles in zip(blames, activities, strict=True)
    ]
    # Each round reaches one IPU further along the chain of waits, from what is known without any chain.
    owners = direct
    for _ in range(_ROUNDS):
        owners = _with_inherited(blames, direct, owners)
    for wait, cycles in zip(blames, owners, strict=True):
        cycles[:, OWNERS.index("sync")] = wait.length - cycles.sum(axis=1)
    return owners


def _of_blamed(
    blames: Sequence[_Blames], columns: int, measure: Callable[[int], Callable[[np.ndarray, np.ndarray], np.ndarray]]
) -> list[np.ndarray]:
    """What ``measure(place)(begin, end)`` says of the IPU blamed for each wait, a row for each; 0 if nobody is."""
    results = [np.zeros((len(wait.begin), columns)) for wait in blames]
    for place in range(len(blames)):
        between = measure(place)
        for wait, result in zip(blames, results, strict=True):
            rows = wait.blamed == place
            result[rows] = between(wait.begin[rows], wait.end[rows])
    return results


def _direct_owners(wait: _Blames, activities: np.ndarray, bubbles: np.ndarray) -> np.ndarray:
    """Cycles of each wait by owner, from the activities of the blamed IPU without its own waits."""
    cycles = np.zeros((len(wait.begin), len(OWNERS)))
    for activity in ("link", "collective", "ddr", "host"):
        cycles[:, OWNERS.index(activity)] = activities[:, ACTIVITIES.index(activity)]
    # Work is spread evenly over a wait, so that it has as large a part in a bubble as the wait.
    share = _overlap(bubbles, wait.begin, wait.end) / np.maximum(wait.length, 1)
    work = activities[:, ACTIVITIES.index("work")]
    cycles[:, OWNERS.index("bubble")] = work * share
    cycles[:, OWNERS.index("imbalance")] = work * (1 - share)
    return cycles


def _with_inherited(
    blames: Sequence[_Blames], direct: Sequence[np.ndarray], owners: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """``direct``, and for the time in which the blamed IPU waits, the owners of that wait."""
    inherited = _of_blamed(blames, len(OWNERS), lambda place: _owner_rates(blames[place], owners[place]).between)
    return [cycles + further for cycles, further in zip(direct, inherited, strict=True)]


def _owner_rates(wait: _Blames, owners: np.ndarray) -> _Rates:
    """The cycles of each owner over time, of the waits of one IPU."""
    line = wait.line
    rates = np.zeros((len(line.activity), len(OWNERS)))
    waiting = np.flatnonzero(line.activity == WAITS)
    if len(wait.begin):
        # A part of a wait has the owners of the whole wait, in the same proportion.
        of_wait = owners / np.maximum(wait.length, 1)[:, None]
        rates[waiting] = of_wait[np.searchsorted(wait.begin, line.edges[waiting], side="right") - 1]
    return _Rates(line.edges, rates)


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
    rounded: np.ndarray = down + (rank < missing[:, None])
    return rounded
