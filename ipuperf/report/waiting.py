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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import distinct, run_instances
from ipuperf.report.once import once
from ipuperf.report.pipeline import stage_work
from ipuperf.trace import (
    HOST_WAITING_KINDS,
    KINDS,
    MOST_SLICES,
    WAITING_KINDS,
    Ipu,
    LoopCuts,
    Trace,
    TraceError,
    Window,
    slices,
)

if TYPE_CHECKING:
    import pandas as pd


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
class Rates:
    """Amounts that grow over time: ``rates[n]`` is the growth per cycle between ``edges[n]`` and ``edges[n + 1]``."""

    edges: np.ndarray
    rates: np.ndarray
    cuts: LoopCuts

    @cached_property
    def _sums(self) -> np.ndarray:
        """The amounts up to each edge."""
        sums = np.zeros((len(self.edges), self.rates.shape[1]), dtype=self.rates.dtype)
        sums[1:] = np.cumsum(self.rates * np.diff(self.edges)[:, None], axis=0)
        return sums

    @cached_property
    def _of_cuts(self) -> np.ndarray:
        """The amounts of each cut."""
        amounts = np.zeros((len(self.cuts.places), self.rates.shape[1]), dtype=self.rates.dtype)
        # Cuts inside a cut stand before it, so their amounts are known.
        for place, (begin, end, _) in enumerate(self.cuts.places):
            amounts[place] = self._between(np.array([begin]), np.array([end]), amounts)[0]
        return amounts

    def _until(self, time: np.ndarray) -> np.ndarray:
        stretch = np.clip(np.searchsorted(self.edges, time, side="right") - 1, 0, len(self.rates) - 1)
        amounts: np.ndarray = self._sums[stretch] + (time - self.edges[stretch])[:, None] * self.rates[stretch]
        return amounts

    def _between(self, begin: np.ndarray, end: np.ndarray, of_cuts: np.ndarray) -> np.ndarray:
        growth: np.ndarray = self._until(end) - self._until(begin) + self.cuts.added(begin, end, of_cuts)
        return growth

    def until(self, time: np.ndarray) -> np.ndarray:
        """The growth up to times in cycles of the run."""
        short, trips = self.cuts.located(time)
        growth: np.ndarray = self._until(short) + trips.T @ self._of_cuts
        return growth

    def between(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The growth between two times, in the trips that were left out too."""
        return self._between(begin, end, self._of_cuts)


@dataclass(frozen=True)
class IpuLine:
    """The activity of one IPU over time.

    Between ``edges[n]`` and ``edges[n + 1]`` the activity is ``activity[n]``, an index into :data:`ACTIVITIES`, and
    ``step[n]`` is the row of table ``steps`` (-1: none). Times are those of the shortened trace with these ``cuts``.
    """

    replica: int
    ipu: int
    edges: np.ndarray
    activity: np.ndarray
    step: np.ndarray
    cuts: LoopCuts = field(default_factory=LoopCuts)

    def waits(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of each wait. Waits that follow each other directly are one."""
        # The False at both ends gives a wait at the edge of the window a begin and an end.
        waits = np.concatenate([[False], self.activity == WAITS, [False]])
        change = np.diff(waits.astype(np.int8))
        return self.edges[np.flatnonzero(change == 1)], self.edges[np.flatnonzero(change == -1)]

    def doing(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Cycles of each of :data:`ACTIVITIES` between two times."""
        # The rates take more memory than the line, so that they are not kept.
        return Rates(self.edges, np.eye(len(ACTIVITIES), dtype=np.int64)[self.activity], self.cuts).between(begin, end)

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
class Blames:
    """The waits of all lines, by line and time, a row each, in cycles of the shortened trace.

    ``line`` is the place of the waiting IPU among all lines, ``blamed`` that of the blamed IPU (-1: none), and ``step``
    the last step of its work (-1: none). ``length`` is the true length of each wait in cycles.
    """

    line: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    blamed: np.ndarray
    step: np.ndarray
    length: np.ndarray


@dataclass(frozen=True)
class Followed:
    """The activity of IPUs in one run.

    Attributes:
        trace: the shortened trace, whose steps the lines name.
        cuts: its cuts.
        window: the run, in cycles of the shortened trace.
        lines: the activity of each IPU of it.
        twins: for each line the IPUs that do the same, itself included.
    """

    trace: Trace
    cuts: LoopCuts
    window: Window
    lines: Sequence[IpuLine]
    twins: Sequence[tuple[Ipu, ...]]

    def on_twins(self, line: np.ndarray, blamed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rows with the places of two lines (-1: none), on each IPU that does the same as the first.

        Returns:
            The row, replica and IPU, and the nearest IPU of the second line (-1: none), in order of replica and IPU.
        """
        parts = []
        for (replica, ipu), place in sorted((twin, place) for place, twins in enumerate(self.twins) for twin in twins):
            rows = np.flatnonzero(line == place)
            # The index -1 means nobody. It picks the last entry.
            nearest = np.array([*(self.nearest(other, replica, ipu)[1] for other in range(len(self.lines))), -1])
            parts.append((rows, np.full(len(rows), replica), np.full(len(rows), ipu), nearest[blamed[rows]]))
        row, replicas, ipus, others = (
            np.concatenate([np.empty(0, dtype=np.int64), *part]) for part in zip(*parts, strict=True)
        )
        return row, replicas, ipus, others

    @cached_property
    def _of_replica(self) -> list[dict[int, Ipu]]:
        """For each line, the IPU of each replica that does the same."""
        return [{twin[0]: twin for twin in twins} for twins in self.twins]

    def nearest(self, line: int, replica: int, ipu: int) -> Ipu:
        """The IPU of a line that ``ipu`` waits for: that of its replica, or else the nearest."""
        of_replica = self._of_replica[line]
        if replica in of_replica:
            return of_replica[replica]
        return min(self.twins[line], key=lambda twin: (abs(twin[1] - ipu), twin[1]))


@dataclass(frozen=True)
class Waits:
    """The waits of one run, by IPU and time, in columns of equal length.

    A row stands for the waits of all trips of a loop in steady state, and of all replicas that do the same:
    :meth:`table` has a row for each. ``start`` and ``end`` are cycles of the first one, ``times`` is how often it
    occurs on its IPU. ``blamed`` is the IPU that was waited for (-1: none) and ``blamed_op`` the name of the op it was
    busy with at the end ("": none). ``cycles`` has a column for each of :data:`OWNERS` (int64), and its rows sum to
    ``end - start``.
    """

    replica: np.ndarray
    ipu: np.ndarray
    start: np.ndarray
    end: np.ndarray
    blamed: np.ndarray
    blamed_op: np.ndarray
    cycles: np.ndarray
    times: np.ndarray
    blames: Blames = field(repr=False)
    followed: Followed = field(repr=False)

    def by_ipu(self) -> dict[int, dict[str, int]]:
        """Waiting cycles of each IPU by owner, without owners that have none."""
        total: dict[int, np.ndarray] = {}
        cycles = self.cycles * self.times[:, None]
        for place in np.unique(self.blames.line).tolist():
            of_line = cycles[self.blames.line == place].sum(axis=0)
            for _, ipu in self.followed.twins[place]:
                total[ipu] = total.get(ipu, 0) + of_line
        return {
            ipu: {owner: cycles for owner, cycles in zip(OWNERS, total[ipu].tolist(), strict=True) if cycles}
            for ipu in sorted(total)
        }

    def by_blamed(self) -> pd.DataFrame:
        """Cycles that each IPU waits for another one and its op: ipu, blamed_ipu, blamed_op and dur, in this order."""
        import pandas as pd

        rows = pd.DataFrame({"line": self.blames.line, "blamed": self.blames.blamed, "blamed_op": self.blamed_op})
        rows["dur"] = (self.end - self.start) * self.times
        # Replicas that do the same wait equally long, so sums are made before these replicas get rows.
        sums = rows[rows["blamed"] >= 0].groupby(["line", "blamed", "blamed_op"], as_index=False)["dur"].sum()
        row, _, ipu, blamed = self.followed.on_twins(sums["line"].to_numpy(), sums["blamed"].to_numpy())
        sums = sums.take(row).assign(ipu=ipu, blamed_ipu=blamed)
        return sums.groupby(["ipu", "blamed_ipu", "blamed_op"], as_index=False)["dur"].sum()

    def table(self) -> pd.DataFrame:
        """One row per wait: replica, ipu, start, dur (cycles), blamed_ipu, blamed_op, and the cycles of each owner.

        Raises:
            TraceError: the run has more waits than can be listed at once.
        """
        import pandas as pd

        members = np.array([len(twins) for twins in self.followed.twins], dtype=np.int64)
        total = sum((self.times * members[self.blames.line]).tolist())
        if total > MOST_SLICES:
            raise TraceError(f"the run has {total:,} waits, at most {MOST_SLICES:,} can be listed at once")
        wait, offset = self.followed.cuts.occurrences(self.blames.begin)
        order = np.argsort(self.start[wait] + offset, kind="stable")
        wait, offset = wait[order], offset[order]
        row, replica, ipu, blamed = self.followed.on_twins(self.blames.line[wait], self.blames.blamed[wait])
        wait = wait[row]
        columns = {"replica": replica, "ipu": ipu, "start": self.start[wait] + offset[row]}
        columns |= {"dur": (self.end - self.start)[wait], "blamed_ipu": blamed, "blamed_op": self.blamed_op[wait]}
        return pd.DataFrame({**columns, **{owner: self.cycles[wait, code] for code, owner in enumerate(OWNERS)}})


@checked
@once
def waits(trace: Trace, run: int | None = None) -> Waits:
    """The waits of a run (by default the last) on all stored IPUs, and their owners; see the module.

    Raises:
        ValueError: the trace has no such run, or nothing at all.
        TraceError: the run has more slices than can be expanded at once.
    """
    followed = _follow(trace, run)
    lines, cuts = followed.lines, followed.cuts
    blames = _blames(followed)
    # The index -1 means nobody, or no step. It picks the last entry of these arrays.
    nearest = np.full((len(lines) + 1, len(lines) + 1), -1)
    for place, line in enumerate(lines):
        nearest[place, :-1] = [followed.nearest(other, line.replica, line.ipu)[1] for other in range(len(lines))]
    start = cuts.true(blames.begin)
    return Waits(
        replica=np.array([line.replica for line in lines], dtype=np.int64)[blames.line],
        ipu=np.array([line.ipu for line in lines], dtype=np.int64)[blames.line],
        start=start,
        end=start + blames.length,
        blamed=nearest[blames.line, blames.blamed],
        blamed_op=np.append(followed.trace.step_ops, "")[blames.step],
        cycles=_whole(_owner_cycles(blames, followed), blames.length),
        times=cuts.times(blames.begin),
        blames=blames,
        followed=followed,
    )


# -- the activity of each IPU ------------------------------------------------------------------------------------------


def _follow(trace: Trace, run: int | None) -> Followed:
    """The activity of the IPUs of a trace in a run (by default the last)."""
    short = trace.short
    window, rows = run_instances(short.trace, run)
    lines = ipu_lines(short.trace, rows, window, short.cuts)
    return Followed(short.trace, short.cuts, window, lines, [short.twins[line.replica, line.ipu] for line in lines])


def ipu_lines(trace: Trace, rows: np.ndarray, window: Window, cuts: LoopCuts) -> list[IpuLine]:
    """The activity of each IPU in the window, by replica and IPU. Where lanes overlap, the lowest busy lane counts."""
    instances, activities = trace.columns("instances"), _step_activities(trace)
    ipus = np.unique(np.stack([instances["replica"][rows], instances["ipu"][rows]]), axis=1)
    lines = []
    for replica, ipu in ipus.T.tolist():
        of_ipu = rows[(instances["replica"][rows] == replica) & (instances["ipu"][rows] == ipu)]
        edges, step = _steps_over_time(trace, of_ipu, activities != WAITS, window)
        # The appended entry is the activity of no step, which index -1 picks.
        lines.append(IpuLine(replica, ipu, edges, np.append(activities, WAITS)[step], step, cuts))
    return lines


def _step_activities(trace: Trace) -> np.ndarray:
    """The activity of each row of table ``steps``, as an index into :data:`ACTIVITIES`."""
    of_kind = np.array([ACTIVITIES.index(_ACTIVITY_OF_KIND[kind]) for kind in KINDS])
    activities: np.ndarray = of_kind[trace.kind_codes]
    # Steps of collectives have the kind "link" too. Only their transfers tell which ops are collectives.
    transfers = trace.transfer_ops()
    collective = [op for op, kind in transfers if kind in _COLLECTIVES]
    links = np.flatnonzero(activities == ACTIVITIES.index("link"))
    activities[links[np.isin(trace.columns("steps")["op_id"][links], collective)]] = ACTIVITIES.index("collective")
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


def _blames(followed: Followed) -> Blames:
    """The waits of all lines. Nobody is to blame for a wait after whose begin no other IPU worked."""
    lines = followed.lines
    waits_of = [line.waits() for line in lines]
    place = np.repeat(np.arange(len(lines)), [len(begin) for begin, _ in waits_of])
    begin, end = (np.concatenate(times) for times in zip(*waits_of, strict=True))
    latest, blamed, step = begin.copy(), np.full(len(begin), -1), np.full(len(begin), -1)
    rank, first = _ranks(followed), np.full(len(begin), -1)
    for other, line in enumerate(lines):
        work_end, work_step = line.last_work(end)
        # If several end at once, the first in rank is to blame. The waiting IPU itself ends before its wait.
        later = (work_end > latest) | ((work_end == latest) & (rank[place, other] < first))
        latest[later], blamed[later], step[later] = work_end[later], other, work_step[later]
        first[later] = rank[place[later], other]
    return Blames(place, begin, end, blamed, step, followed.cuts.length(begin, end))


def _ranks(followed: Followed) -> np.ndarray:
    """For each line, the rank of every line among those to blame: its replica's come first, then the nearest."""
    ranks = np.zeros((len(followed.lines), len(followed.lines)), dtype=np.int64)
    for place, line in enumerate(followed.lines):
        nearest = [followed.nearest(other, line.replica, line.ipu) for other in range(len(followed.lines))]
        order = sorted(
            range(len(nearest)),
            key=lambda other: (nearest[other][0] != line.replica, abs(nearest[other][1] - line.ipu), nearest[other][1]),
        )
        ranks[place, order] = np.arange(len(order))
    return ranks


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


def _owner_cycles(blames: Blames, followed: Followed) -> np.ndarray:
    """Cycles (float) of each wait by owner, a row for each wait."""
    activities = _of_blamed(blames, len(ACTIVITIES), lambda place: followed.lines[place].doing)
    direct = _direct_owners(blames, activities, followed)
    # Each round reaches one IPU further along the chain of waits, from what is known without any chain.
    owners = direct
    for _ in range(_ROUNDS):
        owners = direct + _inherited(blames, owners, followed)
    owners[:, OWNERS.index("sync")] = blames.length - owners.sum(axis=1)
    return owners


def _of_blamed(
    blames: Blames, columns: int, measure: Callable[[int], Callable[[np.ndarray, np.ndarray], np.ndarray]]
) -> np.ndarray:
    """What ``measure(place)(begin, end)`` says of the IPU blamed for each wait, a row for each; 0 if nobody is."""
    result = np.zeros((len(blames.begin), columns))
    for place in np.unique(blames.blamed[blames.blamed >= 0]).tolist():
        rows = np.flatnonzero(blames.blamed == place)
        result[rows] = measure(place)(blames.begin[rows], blames.end[rows])
    return result


def _direct_owners(blames: Blames, activities: np.ndarray, followed: Followed) -> np.ndarray:
    """Cycles of each wait by owner, from the activities of the blamed IPU without its own waits."""
    cycles = np.zeros((len(blames.begin), len(OWNERS)))
    for activity in ("link", "collective", "ddr", "host"):
        cycles[:, OWNERS.index(activity)] = activities[:, ACTIVITIES.index(activity)]
    bubble = np.zeros(len(blames.begin), dtype=np.int64)
    replicas = np.array([line.replica for line in followed.lines])[blames.line]
    for replica in np.unique(replicas).tolist():
        rows = np.flatnonzero(replicas == replica)
        for low, high in _bubbles(followed.trace, replica, followed.window).tolist():
            begin, end = np.maximum(blames.begin[rows], low), np.minimum(blames.end[rows], high)
            bubble[rows] += np.where(begin < end, followed.cuts.length(begin, end), 0)
    # Work is spread evenly over a wait, so that it has as large a part in a bubble as the wait.
    share = bubble / np.maximum(blames.length, 1)
    work = activities[:, ACTIVITIES.index("work")]
    cycles[:, OWNERS.index("bubble")] = work * share
    cycles[:, OWNERS.index("imbalance")] = work * (1 - share)
    return cycles


def _inherited(blames: Blames, owners: np.ndarray, followed: Followed) -> np.ndarray:
    """For the time in which the blamed IPU waits, the owners of that wait."""
    return _of_blamed(blames, len(OWNERS), lambda place: _owner_rates(blames, place, owners, followed).between)


def _owner_rates(blames: Blames, place: int, owners: np.ndarray, followed: Followed) -> Rates:
    """The cycles of each owner over time, of the waits of one IPU."""
    line = followed.lines[place]
    rows = np.flatnonzero(blames.line == place)
    # Waits do not touch each other, so their edges increase. A wait stands between every second pair.
    edges = np.stack([blames.begin[rows], blames.end[rows]], axis=1).ravel()
    edges = np.concatenate([line.edges[:1] - 1, edges, line.edges[-1:] + 1])
    rates = np.zeros((len(edges) - 1, len(OWNERS)))
    # A part of a wait has the owners of the whole wait, in the same proportion.
    rates[1::2] = owners[rows] / np.maximum(blames.length[rows], 1)[:, None]
    return Rates(edges, rates, followed.cuts)


def _whole(fractions: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Round rows of floats down to integers; the cycles then missing from the sums go to the largest fractions."""
    # The small addend keeps whole numbers whole that rounding errors have made a little smaller.
    down = np.floor(fractions + 1e-6).astype(np.int64)
    missing = total - down.sum(axis=1)
    order = np.argsort(-(fractions - down), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    rounded: np.ndarray = down + (rank < missing[:, None])
    return rounded
