"""A trace with few trips of each loop in steady state, and with one replica of each class of replicas that do the same.

Analyses that follow steps one by one follow those of the shortened trace. Its times are those of a run without the
trips that were left out. A stretch of one period, in the middle of the trips that stay, stands for them
(:class:`Cut`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ipuperf.trace.folded import FoldedInstances, FoldedTable, Repeating, ranges

if TYPE_CHECKING:
    from ipuperf.trace.tables import TraceTables
    from ipuperf.trace.trace import Trace

LEAD = 8
"""The trips that stay before a cut, and after it. What is said of a trip may depend on that many trips beside it."""

Ipu = tuple[int, int]
"""A replica and an IPU of it."""


class Cut(NamedTuple):
    """The stretch of time from ``begin`` to ``end`` (cycles of the shortened trace), which stands for ``times`` equal
    ones that follow each other."""

    begin: int
    end: int
    times: int


@dataclass(frozen=True)
class LoopCuts:
    """The cuts of a shortened trace. A cut may contain others, which stand before it."""

    places: tuple[Cut, ...] = ()

    @cached_property
    def _pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The pieces of time between ends of cuts: where each begins, how often it occurs, and the cycles that repeats
        add before it. The first piece begins before all cuts."""
        edges = np.unique([edge for cut in self.places for edge in (cut.begin, cut.end)]).astype(np.int64)
        begin = np.concatenate([[np.iinfo(np.int64).min], edges])
        times = np.ones(len(begin), dtype=np.int64)
        for cut in self.places:
            times[slice(*np.searchsorted(begin, (cut.begin, cut.end)))] *= cut.times
        before = np.concatenate([[0, 0], np.cumsum(np.diff(edges) * (times[1:-1] - 1))])[: len(begin)]
        return begin, times, before

    def times(self, at: np.ndarray) -> np.ndarray:
        """How often what begins at these times (cycles of the shortened trace) occurs in the run."""
        begin, times, _ = self._pieces
        result: np.ndarray = times[np.searchsorted(begin, at, "right") - 1]
        return result

    def added(self, begin: np.ndarray, end: np.ndarray, of_cuts: np.ndarray) -> np.ndarray:
        """What the trips that were left out add to amounts between two times; ``of_cuts`` has a row for each cut.

        A stretch that contains a cut lasts through all trips of it.
        """
        result = np.zeros((len(begin), *of_cuts.shape[1:]), dtype=of_cuts.dtype)
        for cut, amount in zip(self.places, of_cuts, strict=True):
            result[(begin <= cut.begin) & (cut.end <= end)] += (cut.times - 1) * amount
        return result

    @cached_property
    def periods(self) -> np.ndarray:
        """The true length of each cut, in cycles."""
        lengths = np.zeros(len(self.places), dtype=np.int64)
        # Cuts inside a cut stand before it, so their lengths are known.
        for place, (begin, end, _) in enumerate(self.places):
            lengths[place] = end - begin + self.added(np.array([begin]), np.array([end]), lengths)[0]
        return lengths

    def elapsed(self, time: np.ndarray) -> np.ndarray:
        """Cycles of the run up to times of the shortened trace, where each moment of a cut counts as often as it
        occurs."""
        begin, times, before = self._pieces
        piece = np.searchsorted(begin, time, "right") - 1
        cycles: np.ndarray = time.astype(np.int64) + before[piece]
        # Outside of cuts nothing is repeated, and what begins before all of them has no beginning to count from.
        repeated = np.flatnonzero(times[piece] > 1)
        cycles[repeated] += (time[repeated] - begin[piece[repeated]]) * (times[piece[repeated]] - 1)
        return cycles

    def located(self, time: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cycles of the run as times of the shortened trace, and the whole trips of each cut (rows) before them."""
        trips = np.zeros((len(self.places), len(time)), dtype=np.int64)
        # In order of time, and a cut before those inside it: what lies before a cut is shortened already.
        for place in sorted(range(len(self.places)), key=lambda n: (self.places[n].begin, -n)):
            cut, period = self.places[place], int(self.periods[place])
            trips[place] = np.clip((time - cut.begin) // period, 0, cut.times - 1)
            time = time - trips[place] * period
        return time, trips

    def true(self, time: np.ndarray) -> np.ndarray:
        """Times of the shortened trace as cycles of the run, in the first trip of the cuts around them."""
        cycles: np.ndarray = time + self.added(np.full(len(time), np.iinfo(np.int64).min), time, self.periods)
        return cycles

    def occurrences(self, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All that begin at these times: the place in ``begin``, and the cycles after the first."""
        row, offset = np.arange(len(begin)), np.zeros(len(begin), dtype=np.int64)
        for cut, period in zip(self.places, self.periods.tolist(), strict=True):
            inside = (cut.begin <= begin[row]) & (begin[row] < cut.end)
            which, trip = ranges(np.zeros(len(row), dtype=np.int64), np.where(inside, cut.times, 1))
            row, offset = row[which], offset[which] + trip * period
        return row, offset

    def length(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The true cycles between two times of the shortened trace."""
        cycles: np.ndarray = end - begin + self.added(begin, end, self.periods)
        return cycles


@dataclass(frozen=True)
class Shortened:
    """A shortened trace, its cuts, and the IPUs that each IPU of it stands for, itself included, in order."""

    trace: Trace
    cuts: LoopCuts
    twins: Mapping[Ipu, tuple[Ipu, ...]]


class InstanceRows(NamedTuple):
    """Instances in columns: replica, IPU, segment, the first start and the last end in cycles, and how often each one
    occurs. ``twins`` are the IPUs that do the same as each IPU, itself included; it has none for a trace that is not
    folded."""

    replica: np.ndarray
    ipu: np.ndarray
    segment: np.ndarray
    start: np.ndarray
    end: np.ndarray
    times: np.ndarray
    twins: Mapping[Ipu, tuple[Ipu, ...]]

    def repeated(self, replica: np.ndarray, ipu: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row, replica and IPU of all IPUs that do the same as these."""
        keys = list(zip(replica.tolist(), ipu.tolist(), strict=True))
        all_twins = [self.twins.get(key, (key,)) for key in keys]
        row = np.repeat(np.arange(len(keys)), [len(twins) for twins in all_twins])
        pairs = np.array([twin for twins in all_twins for twin in twins], dtype=np.int64).reshape(-1, 2)
        return row, pairs[:, 0], pairs[:, 1]


def instance_rows(trace: TraceTables) -> InstanceRows:
    """The instances of a trace. Those that are repeated, and those of replicas that do the same, are one row."""
    folded = trace.folded("instances")
    if not isinstance(folded, FoldedInstances):
        table = trace.columns("instances")
        start, end = table["start"], table["start"] + table["dur"]
        once = np.ones(len(start), dtype=np.int64)
        return InstanceRows(table["replica"], table["ipu"], table["segment"], start, end, once, {})
    alone, twins = _of_each_class(folded)
    # Every process has one member here, or each of its members is followed.
    order = np.argsort(alone.arrays["of"], kind="stable")
    count = np.bincount(alone.arrays["of"], minlength=1)
    process = alone.arrays["process"]
    row, member = ranges((np.cumsum(count) - count)[process], count[process])
    member = order[member]
    arrays = alone.arrays
    replica, ipu, segment, start = (
        arrays["replica"][member],
        arrays["ipu"][member],
        arrays["segment"][row],
        arrays["start"][row],
    )
    return InstanceRows(replica, ipu, segment, start, alone.ends[row], alone.times[row], twins)


def shortened(trace: TraceTables) -> Shortened:
    """The shortened trace. A trace that is not folded is its own shortened trace."""
    folded = trace.folded("instances")
    if not isinstance(folded, FoldedInstances):
        instances = trace.columns("instances")
        ipus = np.unique(np.stack([instances["replica"], instances["ipu"]]), axis=1).T.tolist()
        return Shortened(cast("Trace", trace), LoopCuts(), {(replica, ipu): ((replica, ipu),) for replica, ipu in ipus})
    alone, twins = _of_each_class(folded)
    loops = _ShortLoops(alone)
    arrays, steps = dict(alone.arrays), trace.columns("steps")
    start, end = arrays["start"], arrays["start"] + arrays["dur"]
    around = loops.around(arrays["repeat"])
    short_start, short_end = loops.short(start, around), loops.short(end, around)
    arrays |= {"start": short_start, "dur": short_end - short_start, "count": loops.count, "period": loops.period}
    # Only instances in which an IPU waits for the end of a loop are shorter.
    shorter = np.flatnonzero(arrays["dur"] != alone.arrays["dur"])
    tables: dict[str, Any] = {}
    if len(shorter):
        shifted = _ShorterSteps(trace, loops, shorter, start, around)
        arrays["segment"] = arrays["segment"].copy()
        arrays["segment"][shorter], tables["steps"] = (
            shifted.segments,
            {name: np.concatenate([values, shifted.columns[name]]) for name, values in steps.items()},
        )
    nothing = np.zeros((1, loops.loops), dtype=bool)
    runs = trace.columns("runs")
    run_start, run_end = (loops.short(time, nothing) for time in (runs["start"], runs["start"] + runs["dur"]))
    tables["runs"] = {**runs, "start": run_start, "dur": run_end - run_start}
    tables |= {name: table for name in ("transfers", "host_events") if (table := _shorter(trace.folded(name), loops))}
    short = trace.replaced({**tables, "instances": FoldedInstances(arrays)})
    places = sorted(loops.cuts(short_start, around), key=lambda cut: cut.end - cut.begin)
    return Shortened(cast("Trace", short), LoopCuts(tuple(places)), twins)


def _shorter(table: FoldedTable | None, loops: _ShortLoops) -> Repeating | None:
    """A folded table with fewer trips; None for a table that is not repeated by the same loops."""
    if not isinstance(table, Repeating) or len(table.arrays["count"]) != loops.loops:
        return None
    around = loops.around(table.arrays["repeat"])
    start, end = (
        loops.short(time, around) for time in (table.arrays["start"], table.arrays["start"] + table.arrays["dur"])
    )
    arrays = {**table.arrays, "start": start, "dur": end - start, "count": loops.count, "period": loops.period}
    return type(table)(arrays, table.words)


def _of_each_class(folded: FoldedInstances) -> tuple[FoldedInstances, dict[Ipu, tuple[Ipu, ...]]]:
    """The instances of one replica of each class, and the IPUs that each of its IPUs stands for."""
    alone = folded.alone()
    members: dict[int, list[Ipu]] = {}
    for process, *ipu in zip(*(folded.arrays[name].tolist() for name in ("of", "replica", "ipu")), strict=True):
        members.setdefault(process, []).append((ipu[0], ipu[1]))
    twins: dict[Ipu, tuple[Ipu, ...]] = {}
    for process, *ipu in zip(*(alone.arrays[name].tolist() for name in ("of", "replica", "ipu")), strict=True):
        same = tuple(sorted(members[process]))
        # The processes of an IPU belong to the same class. Where they do not, every IPU is followed.
        if twins.setdefault((ipu[0], ipu[1]), same) != same:
            every = sorted({twin for twins in members.values() for twin in twins})
            return folded, {twin: (twin,) for twin in every}
    return alone, twins


class _ShortLoops:
    """The loops around instances, with fewer trips.

    ``count`` and ``period`` (cycles) are those of the shortened trace. A loop that is not around an instance ends
    ``removed`` cycles earlier.
    """

    def __init__(self, folded: FoldedInstances) -> None:
        self.loops = len(folded.arrays["count"])
        self._chain, self.parent = folded.loops.chain, folded.arrays["parent"]
        inside = self.around(folded.arrays["repeat"])
        start, dur = folded.arrays["start"], folded.arrays["dur"]
        count, self.period = folded.arrays["count"], folded.arrays["period"].copy()
        self.lead, self.removed = np.zeros(self.loops, dtype=np.int64), np.zeros(self.loops, dtype=np.int64)
        self._middle = np.full(self.loops, np.iinfo(np.int64).max)
        self.count = count.copy()
        # Loops inside a loop stand after it. They shorten its period.
        for loop in range(self.loops)[::-1]:
            rows = inside[:, loop]
            period = int(folded.arrays["period"][loop])
            self.lead[loop] = LEAD + int(dur[rows].max(initial=0)) // max(period, 1)
            self.count[loop] = min(int(count[loop]), 2 * int(self.lead[loop]) + 1)
            self.removed[loop] = count[loop] * period - self.count[loop] * self.period[loop]
            if rows.any():
                self._middle[loop] = int(start[rows].min()) + int(count[loop]) * period // 2
            if self.parent[loop] >= 0:
                self.period[self.parent[loop]] -= self.removed[loop]
        self._times = count - self.count + 1

    def around(self, repeat: np.ndarray) -> np.ndarray:
        """Which loops (columns) are around each row with the innermost loop ``repeat``."""
        around = np.zeros((len(repeat), self.loops + 1), dtype=bool)
        for level in range(self._chain.shape[1]):
            around[np.arange(len(repeat)), self._chain[repeat, level]] = True
        return around[:, : self.loops]

    def short(self, time: np.ndarray, around: np.ndarray) -> np.ndarray:
        """Times in the first trip of the loops around them, in the shortened trace."""
        result: np.ndarray = time.copy()
        for loop in range(self.loops):
            outer = self.parent[loop]
            beside = ~around[:, loop] & (around[:, outer] if outer >= 0 else True)
            result -= np.where(beside & (time >= self._middle[loop]), self.removed[loop], 0)
        return result

    def cuts(self, short_start: np.ndarray, around: np.ndarray) -> Iterator[Cut]:
        """The cut of each loop, in every trip of the loops around it."""
        for loop in range(self.loops):
            if self._times[loop] == 1 or not around[:, loop].any():
                continue
            begin = int(short_start[around[:, loop]].min() + self.lead[loop] * self.period[loop])
            outer_loops, outer = [], int(self.parent[loop])
            while outer >= 0:
                outer_loops.append(range(0, int(self.count[outer] * self.period[outer]), int(self.period[outer])))
                outer = int(self.parent[outer])
            for offsets in product(*outer_loops):
                first = begin + sum(offsets)
                yield Cut(first, first + int(self.period[loop]), int(self._times[loop]))


class _ShorterSteps:
    """Segments of their own for instances in which an IPU waits while a loop ends."""

    def __init__(
        self, trace: TraceTables, loops: _ShortLoops, rows: np.ndarray, start: np.ndarray, around: np.ndarray
    ) -> None:
        steps, template = trace.columns("steps"), trace.template
        folded = trace.folded("instances")
        assert folded is not None
        place = template.place(folded.arrays["segment"][rows])
        self.segments = int(steps["segment"].max(initial=0)) + 1 + np.arange(len(rows))
        which, at = ranges(template.first[place], np.where(place >= 0, template.count[place], 0))
        step, row = template.order[at], rows[which]
        begin = start[row] + steps["rel_start"][step]
        short_begin, short_end = (loops.short(time, around[row]) for time in (begin, begin + steps["dur"][step]))
        self.columns = {name: values[step] for name, values in steps.items()}
        self.columns["segment"] = self.segments[which]
        self.columns["rel_start"] = short_begin - loops.short(start[row], around[row])
        self.columns["dur"] = short_end - short_begin
