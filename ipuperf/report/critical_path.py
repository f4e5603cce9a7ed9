"""The critical path of a run: the chain of work, transfers and syncs that sets its duration.

The path is found backwards, from the end of the run on the IPU that sets its pace. While that IPU works, it is on the
path. Where it waits, the path moves to the IPU that it waits for (:mod:`~ipuperf.report.waiting`), at the time when
that IPU stopped working. The rest of the wait is a sync. The pieces of the path cover the run without a gap.

The path goes back through the trips of a loop in steady state until it comes to an IPU and a time where it was before,
one or more trips later. From there on its pieces are the same again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import distinct, pace
from ipuperf.report.once import once
from ipuperf.report.repeated import KeyChanges, RepeatedStretch, add_times, backwards, flat, runs
from ipuperf.report.waiting import Followed, IpuLine, Waits, waits
from ipuperf.trace import KINDS, MOST_SLICES, Cut, Ipu, Trace, TraceError
from ipuperf.trace.columns import numbered
from ipuperf.trace.folded import ranges

if TYPE_CHECKING:
    import pandas as pd


class PathPiece(NamedTuple):
    """A stretch of the path on an IPU, from ``start`` to ``end`` (cycles of the shortened trace).

    ``line`` is the place of the line of its activity; ``sync``: no IPU does anything.
    """

    line: int
    ipu: Ipu
    start: int
    end: int
    sync: bool


@dataclass(frozen=True)
class CriticalPath:
    """The pieces of the path in order of time.

    ``parts`` are numbers of ``pieces``, with those that are repeated. The columns have a row for each piece of the run:
    ``replica`` and ``ipu`` say which IPU it is on, ``start`` and ``end`` are in cycles, and ``sync`` marks pieces in
    which no IPU does anything.
    """

    followed: Followed = field(repr=False)
    pieces: Sequence[PathPiece]
    parts: tuple[int | RepeatedStretch, ...]
    begin: int

    @cached_property
    def _columns(self) -> np.ndarray:
        """Replica, IPU, start, end and sync, a row for each; TraceError: they are more than can be listed at once."""
        order = np.array(list(islice(flat(self.parts), MOST_SLICES + 1)), dtype=np.int64)
        if len(order) > MOST_SLICES:
            raise TraceError(f"the critical path has more than {MOST_SLICES:,} pieces, which cannot be listed at once")
        pieces = np.array([(*p.ipu, p.end - p.start, p.sync) for p in self.pieces], dtype=np.int64).reshape(-1, 4)[
            order
        ]
        end = self.begin + np.cumsum(pieces[:, 2])
        # A piece that lasts through several trips of a loop has a part for each.
        last = np.append((pieces[1:, [0, 1, 3]] != pieces[:-1, [0, 1, 3]]).any(axis=1), True)[: len(order)]
        end, pieces = end[last], pieces[last]
        start = np.concatenate([[self.begin], end])[: len(end)]
        return np.stack([pieces[:, 0], pieces[:, 1], start, end, pieces[:, 3]])

    replica = property(lambda self: self._columns[0])
    ipu = property(lambda self: self._columns[1])
    start = property(lambda self: self._columns[2])
    end = property(lambda self: self._columns[3])
    sync = property(lambda self: self._columns[4].astype(bool))

    @property
    def ipus(self) -> list[int]:
        """The IPUs on the path, in order of their numbers."""
        return sorted({piece.ipu[1] for piece in self.pieces})

    @property
    def changes(self) -> int:
        """How often the path moves to another IPU."""
        return runs(self.parts, [KeyChanges(piece.ipu, piece.ipu, 1) for piece in self.pieces]).number - 1

    @cached_property
    def cycles(self) -> pd.DataFrame:
        """The table of :func:`path_cycles`, which all readers share."""
        return _path_cycles(self)

    def table(self) -> pd.DataFrame:
        """One row per piece: replica, ipu, start, dur (cycles), sync."""
        import pandas as pd

        columns = {"replica": self.replica, "ipu": self.ipu, "start": self.start, "dur": self.end - self.start}
        return pd.DataFrame({**columns, "sync": self.sync})


@checked
@once
def critical_path(trace: Trace, run: int | None = None) -> CriticalPath:
    """The critical path of a run (by default the last).

    Raises:
        ValueError: the trace has no such run, or nothing at all.
        TraceError: the run has more slices than can be expanded at once.
    """
    walk = _Walk(waits(trace, run), pace(trace, run))
    walk.go()
    followed = walk.followed
    begin = int(followed.cuts.true(np.array([followed.window[0]]))[0])
    return CriticalPath(followed, tuple(walk.pieces), backwards(walk.parts), begin)


@dataclass
class _Stay:
    """The path inside a cut: how many trips of it are ``left``, and where it was after earlier ones.

    ``seen`` has the number of parts and of trips left at each IPU and time.
    """

    place: int
    left: int
    seen: dict[tuple[Ipu, int], tuple[int, int]] = field(default_factory=dict)


class _Walk:
    """The walk along the path, from the end of a run to its begin.

    ``parts`` are those of the path, the latest first.
    """

    def __init__(self, run_waits: Waits, ipu: Ipu) -> None:
        self.followed, self.ipu = run_waits.followed, ipu
        lines, blames = self.followed.lines, run_waits.blames
        self._line = next((n for n, line in enumerate(lines) if (line.replica, line.ipu) == ipu), 0)
        edges = np.searchsorted(blames.line, np.arange(len(lines) + 1))
        waits_of = [slice(*edges[place : place + 2]) for place in range(len(lines))]
        # Lists, because single numbers of them are read.
        columns = (blames.begin, blames.end, blames.blamed)
        self._waits = [tuple(column[part].tolist() for column in columns) for part in waits_of]
        self._begin, self._time = self.followed.window
        self._cuts, self._periods = (
            self.followed.cuts.places,
            [end - begin for begin, end, _ in self.followed.cuts.places],
        )
        self._stays: list[_Stay] = []
        self.pieces: list[PathPiece] = []
        self.parts: list[int | RepeatedStretch] = []

    def go(self) -> None:
        """Walk to the begin of the run."""
        while self._time > self._begin:
            self._enter()
            start, sync, line = self._step()
            if start < self._time:
                self._add(start, sync)
            self._time = start
            if line != self._line:
                self.ipu, self._line = self.followed.nearest(line, *self.ipu), line
            self._leave()

    def _step(self) -> tuple[int, bool, int]:
        """The begin of the next piece, whether it is a sync, and the line on which the path goes on before it."""
        begins, ends, blamed = self._waits[self._line] if self._waits else ((), (), ())
        # The last wait that begins before this time.
        place = bisect_left(begins, self._time) - 1
        # Before its first wait the IPU has worked since the begin of the run.
        if place < 0:
            return self._begin, False, self._line
        if ends[place] < self._time:
            return ends[place], False, self._line
        begin, other = begins[place], blamed[place]
        worked_until = self._last_work(other) if other >= 0 else begin
        # If the blamed IPU did nothing during the wait, the path stays here and goes on before the wait.
        return (worked_until, True, other) if worked_until > begin else (begin, True, self._line)

    def _last_work(self, line: int) -> int:
        """The end of an IPU's latest work before the present time."""
        begins, ends, _ = self._waits[line]
        place = bisect_left(begins, self._time) - 1
        return self._time if place < 0 or ends[place] < self._time else begins[place]

    def _enter(self) -> None:
        """Note the cuts that the path comes into, the outer ones first."""
        for place in range(len(self._cuts))[::-1]:
            cut = self._cuts[place]
            if cut.begin < self._time < cut.end and all(stay.place != place for stay in self._stays):
                self._stays.append(_Stay(place, cut.times))

    def _add(self, start: int, sync: bool) -> None:
        """Add the piece from ``start`` to the present time."""
        end = self._time
        while self._stays:
            stay = self._stays[-1]
            cut, period = self._cuts[stay.place], self._periods[stay.place]
            if start > cut.begin - period:
                break
            # The piece is longer than a trip, so it lasts through all trips that are left.
            self.parts += backwards(self._split(cut.begin, end, sync, stay.place))
            if stay.left > 1:
                trip = RepeatedStretch(backwards(self._split(cut.begin, cut.end, sync, stay.place)), stay.left - 1)
                self.parts.append(trip)
            end = cut.begin
            self._stays.pop()
        within = self._stays[-1].place if self._stays else len(self._cuts)
        self.parts += backwards(self._split(start, end, sync, within))

    def _split(self, start: int, end: int, sync: bool, within: int) -> list[int | RepeatedStretch]:
        """The parts of a piece, with each cut that it contains as often as it occurs. Cuts from ``within`` on are not
        looked at."""
        parts: list[int | RepeatedStretch] = []
        for place in self._outermost(start, end, within):
            begin, stop, times = self._cuts[place]
            parts += self._plain(start, begin, sync)
            parts.append(RepeatedStretch(tuple(self._split(begin, stop, sync, place)), times))
            start = stop
        return parts + self._plain(start, end, sync)

    def _plain(self, start: int, end: int, sync: bool) -> list[int | RepeatedStretch]:
        if start >= end:
            return []
        self.pieces.append(PathPiece(self._line, self.ipu, start, end, sync))
        return [len(self.pieces) - 1]

    def _outermost(self, start: int, end: int, within: int) -> list[int]:
        """The cuts in a stretch that are not in another one of it, in order of time."""
        chosen: list[int] = []
        for place in range(within)[::-1]:
            cut: Cut = self._cuts[place]
            # Most pieces contain no cut.
            if start <= cut.begin and cut.end <= end:
                inside = any(self._cuts[n].begin <= cut.begin < self._cuts[n].end for n in chosen)
                chosen += [] if inside else [place]
        return sorted(chosen, key=lambda place: self._cuts[place].begin)

    def _leave(self) -> None:
        """At the begin of a cut go back to its end, as long as trips are left."""
        while self._stays and self._time <= self._cuts[self._stays[-1].place].begin:
            stay = self._stays[-1]
            if stay.left == 1:
                self._stays.pop()
                continue
            stay.left -= 1
            self._time += self._periods[stay.place]
            here = (self.ipu, self._time)
            if here in stay.seen:
                first, left = stay.seen.pop(here)
                trips = left - stay.left
                again = (stay.left - 1) // trips
                # The path is where it was some trips ago. What it went through since then comes again.
                self.parts[first:] = [RepeatedStretch(tuple(self.parts[first:]), again + 1)]
                stay.left -= again * trips
                stay.seen.clear()
            else:
                stay.seen[here] = (len(self.parts), stay.left)
            return


PATH_PLACES: tuple[str, ...] = ("tiles", "links", "ddr", "host", "sync")
"""The places of a path: tiles of its IPU, links, Streaming Memory, the host, or a sync of all IPUs."""

_PLACE = {
    **{"link": "links", "remote_load": "ddr", "remote_store": "ddr"},
    **{"host_begin": "host", "host_mid": "host", "host_end": "host", "host_run": "host"},
    **{"sync_external": "sync", "idle": "sync"},
}


class PathStretches(NamedTuple):
    """The pieces of a path by place: the first rows in order of time, and the number of all rows."""

    table: pd.DataFrame
    total: int


def path_stretches(path: CriticalPath, most: int = MOST_SLICES) -> PathStretches:
    """The pieces of the path by place, in order of time. They cover the run without a gap.

    The table has the columns ipu, place (of :data:`PATH_PLACES`), start and dur (cycles), and at most ``most`` rows.
    """
    import pandas as pd

    stretches = _Stretches.of(path)
    parts, numbers = [np.empty((2, 0), dtype=np.int64)], flat(path.parts)
    rows = 0
    # Neighbours of one place are one row, so that more pieces may be needed. One row more shows that the last is whole.
    while rows <= most and len(chunk := np.fromiter(islice(numbers, most + 1), dtype=np.int64)):
        parts.append(stretches.inside(chunk))
        rows += 1 + int(np.count_nonzero(np.diff(parts[-1][0])))
    key, dur = np.concatenate(parts, axis=1)
    begins = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(key)])
    start = path.begin + np.cumsum(dur) - dur
    length = np.add.reduceat(dur, begins) if len(begins) else dur
    ipu, place = np.divmod(key[begins], len(PATH_PLACES))
    names = np.array(PATH_PLACES, dtype=object)[place]
    table = pd.DataFrame({"ipu": ipu, "place": names, "start": start[begins], "dur": length}).head(most)
    return PathStretches(table, runs(path.parts, stretches.changes()).number if path.parts else 0)


@dataclass(frozen=True)
class _Stretches:
    """The stretches of a path's pieces by place.

    ``place`` and ``begin`` have a row for each change of place of the lines that the path is on, one line after the
    other, and a last row for syncs. The others have a row for each piece: the rows ``low`` to ``high`` are those in it.
    """

    place: np.ndarray
    begin: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ipu: np.ndarray
    start: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, path: CriticalPath) -> _Stretches:
        """Those of a path."""
        followed = path.followed
        of_kind = np.array([PATH_PLACES.index(_PLACE.get(kind, "tiles")) for kind in KINDS])
        # The last entry, which index -1 picks too, is for syncs and times without a step.
        places = np.append(of_kind[followed.trace.kind_codes], len(PATH_PLACES) - 1)
        pieces = [(piece.line, piece.ipu[1], piece.start, piece.end, piece.sync) for piece in path.pieces]
        line, ipu, start, end, sync = np.array(pieces, dtype=np.int64).reshape(-1, 5).T
        low, high = np.zeros(len(line), dtype=np.int64), np.zeros(len(line), dtype=np.int64)
        parts, begins, rows = [], [], 0
        for number in np.unique(line).tolist():
            place = places[followed.lines[number].step]
            changes = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
            parts.append(place[changes])
            begins.append(followed.lines[number].edges[changes])
            of_line = np.flatnonzero(line == number)
            low[of_line] = rows + np.searchsorted(begins[-1], start[of_line], side="right") - 1
            high[of_line] = rows + np.searchsorted(begins[-1], end[of_line])
            rows += len(changes)
        low[sync == 1], high[sync == 1] = rows, rows + 1
        every_place = np.concatenate([*parts, [len(PATH_PLACES) - 1]])
        return cls(every_place, np.concatenate([*begins, [0]]), low, high, ipu, start, end)

    def inside(self, numbers: np.ndarray) -> np.ndarray:
        """For pieces one after the other, the key (IPU and place) and the cycles of each stretch, as two rows."""
        row, change = ranges(self.low[numbers], (self.high - self.low)[numbers])
        piece = numbers[row]
        first = np.append(True, row[1:] != row[:-1])[: len(row)]
        begin = np.where(first, self.start[piece], self.begin[change])
        end = np.where(np.append(first[1:], True)[: len(row)], self.end[piece], np.append(begin[1:], 0)[: len(row)])
        return np.stack([self.ipu[piece] * len(PATH_PLACES) + self.place[change], end - begin])

    def changes(self) -> list[KeyChanges]:
        """How often the key changes in each piece."""
        keys = self.ipu * len(PATH_PLACES)
        ends = (keys + self.place[self.low], keys + self.place[self.high - 1], self.high - self.low)
        return [KeyChanges(*piece) for piece in zip(*(column.tolist() for column in ends), strict=True)]


@checked
def path_cycles(trace: Trace, path: CriticalPath) -> pd.DataFrame:
    """Cycles of the path by IPU, kind of step and op, the largest first. They sum to the path.

    The columns are ipu, kind, op and cycles. For the host's own run, op says which run it is ("": that of the call).
    """
    return path.cycles.copy()


def _path_cycles(path: CriticalPath) -> pd.DataFrame:
    import pandas as pd

    followed = path.followed
    runs_of_host = followed.trace.kind_codes == KINDS.index("host_run")
    names = followed.trace.step_ops.copy()
    names[runs_of_host] = followed.trace.step_programs[runs_of_host]
    # The last two entries are for syncs, and for times without a step, which index -1 picks.
    codes = np.append(followed.trace.kind_codes, [KINDS.index("sync_external"), KINDS.index("idle")])
    words, name = numbered(np.append(names, ["", ""]))
    # Kind and name make one key, by which the cycles of steps are added. Keys are in the order of both.
    kinds = sorted(KINDS)
    rank = np.array([kinds.index(kind) for kind in KINDS])[codes]
    keys, row = np.unique(rank * len(words) + name, return_inverse=True)
    times = [0] * len(path.pieces)
    add_times(path.parts, times)
    of_line: dict[tuple[int, int, bool], list[tuple[int, int, int]]] = {}
    for piece, repeated in zip(path.pieces, times, strict=True):
        of_line.setdefault((piece.line, piece.ipu[1], piece.sync), []).append((piece.start, piece.end, repeated))
    costs: dict[int, np.ndarray] = {}
    for (place, ipu, sync), pieces in of_line.items():
        step, inside = _cycles_inside(followed.lines[place], *np.array(pieces, dtype=np.int64).T)
        cycles = costs.setdefault(ipu, np.zeros(len(keys), dtype=np.int64))
        np.add.at(cycles, row[np.full(len(step), -2) if sync else step], inside)
    ipus = sorted(costs)
    of_ipus = np.concatenate([np.empty(0, dtype=np.int64), *(costs[ipu] for ipu in ipus)])
    used = np.flatnonzero(of_ipus)
    used = used[np.argsort(-of_ipus[used], kind="stable")]
    ipu_of, key = np.divmod(used, max(len(keys), 1))
    kind_of, name_of = np.divmod(keys[key], len(words))
    return pd.DataFrame(
        {
            "ipu": np.array(ipus, dtype=np.int64)[ipu_of],
            "kind": np.array(kinds, dtype=object)[kind_of],
            "op": np.array(words, dtype=object)[name_of],
            "cycles": of_ipus[used],
        }
    )


def _cycles_inside(
    line: IpuLine, start: np.ndarray, end: np.ndarray, times: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Steps of a line (-1: none) in pieces that occur ``times`` each, and the cycles of them."""
    edges = distinct(np.concatenate([line.edges, start, end]))
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, start), times)
    np.subtract.at(change, np.searchsorted(edges, end), times)
    stretch = np.searchsorted(line.edges, edges[:-1], side="right") - 1
    return line.step[np.minimum(stretch, len(line.step) - 1)], np.cumsum(change)[:-1] * np.diff(edges)
