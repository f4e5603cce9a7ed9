"""The critical path of a run: the chain of work, transfers and syncs that sets its duration.

The path is found backwards, from the end of the run on the IPU that sets its pace. While that IPU works, it is on the
path. Where it waits, the path moves to the IPU that it waits for (:mod:`~ipuperf.report.waiting`), at the time when
that IPU stopped working. The rest of the wait is a sync. The pieces of the path cover the run without a gap.

The path goes back through the trips of a loop in steady state until it comes to an IPU and a time where it was before,
one or more trips later. From there on its pieces are the same again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipuperf.report.arguments import checked
from ipuperf.report.breakdown import distinct, pace
from ipuperf.report.once import once
from ipuperf.report.repeated import KeyChanges, RepeatedStretch, add_times, backwards, flat, runs
from ipuperf.report.waiting import Followed, Waits, waits
from ipuperf.trace import MOST_SLICES, TraceError

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.report.waiting import IpuLine
    from ipuperf.trace import Cut, Ipu, Trace


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


_SYNC = ((len(PATH_PLACES) - 1,), (0,), 0, 1)
"""The only place of a sync, as :func:`_stretches` tells it."""


class PathStretches(NamedTuple):
    """The pieces of a path by place: the first rows in order of time, and the number of all rows."""

    table: pd.DataFrame
    total: int


def path_stretches(path: CriticalPath, most: int = MOST_SLICES) -> PathStretches:
    """The pieces of the path by place, in order of time. They cover the run without a gap.

    The table has the columns ipu, place (of :data:`PATH_PLACES`), start and dur (cycles), and at most ``most`` rows.
    """
    import pandas as pd

    kinds = path.followed.trace.columns("steps")["kind"]
    # The last entry, which index -1 picks too, is for syncs and times without a step.
    places = np.array([PATH_PLACES.index(_PLACE.get(kind, "tiles")) for kind in kinds] + [len(PATH_PLACES) - 1])
    lines = {piece.line for piece in path.pieces}
    changes = {line: _places(path.followed.lines[line], places) for line in lines}
    keys, rows = [], []
    for piece in path.pieces:
        place, _, low, high = _stretches(piece, changes[piece.line])
        keys.append(KeyChanges((piece.ipu[1], place[low]), (piece.ipu[1], place[high - 1]), high - low))
    last, begin = None, path.begin
    for number in flat(path.parts):
        piece = path.pieces[number]
        place, begins, low, high = _stretches(piece, changes[piece.line])
        edges = [piece.start, *begins[low + 1 : high], piece.end]
        for at, dur in zip(place[low:high], map(sub, edges[1:], edges), strict=False):
            if (piece.ipu[1], at) != last:
                last = (piece.ipu[1], at)
                rows.append([*last, begin, 0])
            rows[-1][3] += dur
            begin += dur
        if len(rows) > most:
            break
    table = pd.DataFrame(np.array(rows[:most], dtype=np.int64).reshape(-1, 4), columns=["ipu", "place", "start", "dur"])
    table["place"] = np.array(PATH_PLACES, dtype=object)[table["place"].to_numpy()]
    return PathStretches(table, runs(path.parts, keys).number if path.parts else 0)


def _places(line: IpuLine, places: np.ndarray) -> tuple[list[int], list[int]]:
    """The places of a line in order of time, and where each begins."""
    place = places[line.step]
    changes = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
    return place[changes].tolist(), line.edges[changes].tolist()


def _stretches(piece: PathPiece, of_line: tuple[list[int], list[int]]) -> tuple[Sequence[int], Sequence[int], int, int]:
    """The places of a piece in order of time, where each begins, and the first and the end of those in it."""
    if piece.sync:
        return _SYNC
    place, begins = of_line
    return place, begins, bisect_right(begins, piece.start) - 1, bisect_left(begins, piece.end)


@checked
def path_cycles(trace: Trace, path: CriticalPath) -> pd.DataFrame:
    """Cycles of the path by IPU, kind of step and op, the largest first. They sum to the path.

    The columns are ipu, kind, op and cycles. For the host's own run, op says which run it is ("": that of the call).
    """
    import pandas as pd

    kinds = path.followed.trace.columns("steps")["kind"]
    names = np.where(kinds == "host_run", path.followed.trace.step_programs, path.followed.trace.step_ops)
    # The last two entries are for syncs, and for times without a step, which index -1 picks.
    kinds, names = np.append(kinds, ["sync_external", "idle"]), np.append(names, ["", ""])
    times = [0] * len(path.pieces)
    add_times(path.parts, times)
    of_line: dict[tuple[int, int, bool], list[tuple[int, int, int]]] = {}
    for piece, repeated in zip(path.pieces, times, strict=True):
        of_line.setdefault((piece.line, piece.ipu[1], piece.sync), []).append((piece.start, piece.end, repeated))
    costs: dict[tuple[int, str, str], int] = {}
    for (place, ipu, sync), pieces in of_line.items():
        step, inside = _cycles_inside(path.followed.lines[place], *np.array(pieces, dtype=np.int64).T)
        cycles = np.zeros(len(kinds), dtype=np.int64)
        np.add.at(cycles, np.full(len(step), -2) if sync else step, inside)
        steps = np.flatnonzero(cycles)
        for kind, name, count in zip(kinds[steps], names[steps], cycles[steps].tolist(), strict=True):
            costs[ipu, kind, name] = costs.get((ipu, kind, name), 0) + count
    rows = sorted(((*key, count) for key, count in costs.items()), key=lambda row: (-row[3], row))
    return pd.DataFrame(rows, columns=["ipu", "kind", "op", "cycles"])


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
