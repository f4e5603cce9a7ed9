"""Loops in steady state: iterations that repeat exactly are added, not simulated.

When a loop iteration began in an instant, the folder compares the state of the simulation at the end of that instant
with earlier states. A state says where every IPU is and what it waits for, how much of every flow remains, and what is
in the host's queue and buffers. All of this is relative to the present time. Counts of iterations and slices are left
out.

The simulation is deterministic, so two equal states go on equally until some counter reaches its end. Therefore n more
periods can be added at once, as long as no loop and no stream ends within them. This is a :class:`Fold`: what ended in
(t1, t2] is copied n times at a distance of the period, what ends later is shifted, and the counters move on. The event
loop keeps its own time. Rows are moved to their true times at the end (:class:`Unfolding`).

A state may hold several loops at different depths on different IPUs; the same comparison covers them all. Everything is
simulated when there is no steady state: a queue keeps growing, or the periods of different IPUs have no common multiple
within the run.

An IPU may wait for a partner through the whole period. It is then in the same state however long it has waited, and the
added time becomes part of its wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .host import ChannelKey

if TYPE_CHECKING:
    from .ipu import IpuProcess
    from .kinds import SharedKind
    from .world import World

_KEPT = 512  # different states that are remembered for comparison
_BACKLOG = 1024  # a longer queue of the host is taken to be growing, so looking for a steady state would be in vain
_SAME = 4  # snapshots that are remembered of each state


@dataclass(frozen=True)
class Fold:
    """``count`` further copies of what ended in (``begin``, ``end``], in the time of the event loop.

    A step that is under way at ``end`` is therefore the last copy, which ends as it did in the simulation. A step that
    was under way at ``begin`` ended in the period and is copied.

    Attributes:
        begin: begin of the period.
        end: end of the period.
        count: how many periods are added.
        loop: for each process, the loop that moves on (index of its instruction, -1: none).
        trips: for each process, by how many iterations that loop moves on in a period.
        slices: for each process, how many slices of each host-to-device stream it takes in a period.
    """

    begin: int
    end: int
    count: int
    loop: tuple[int, ...]
    trips: tuple[int, ...]
    slices: tuple[Mapping[int, int], ...]


@dataclass(frozen=True)
class _Snapshot:
    """The counters of the simulation at a time; ``shift`` is how many cycles earlier folds had added by then."""

    time: int
    shift: int
    loops: tuple[tuple[int, ...], ...]
    counters: tuple[tuple[int, ...], ...]
    loaded: tuple[Mapping[int, int], ...]
    issued: Mapping[ChannelKey, int]
    waits: tuple[tuple[int, int] | None, ...]


class Folder:
    """Looks for steady states in a running simulation and folds them."""

    def __init__(self, world: World, processes: Sequence[IpuProcess], kinds: Iterable[SharedKind[Any]]) -> None:
        self._world = world
        self._kinds = tuple(kinds)
        self._processes = processes
        self._seen: OrderedDict[tuple[object, ...], list[_Snapshot]] = OrderedDict()
        self._shift = 0
        self._drawn = self._aperiodic
        self.folds: list[Fold] = []

    @property
    def _aperiodic(self) -> tuple[int, int]:
        host = self._world.host
        return host.drawn, host.trips.begun if host.trips else 0

    def look(self) -> None:
        """Compare the state at the end of this instant with earlier ones. Fold if one is equal, and remember it."""
        time, drawn = self._world.events.now, self._aperiodic
        # A period in which the host's times were drawn never comes again.
        if drawn != self._drawn:
            self._drawn = drawn
            self._seen.clear()
            return
        # In a block an IPU is not where it seems to be.
        if self._world.host.trips and self._world.host.trips.under_way:
            return
        if self._world.host.backlog(time) > _BACKLOG:
            return
        state = (*self.devices(time), self._world.host.state(time))
        present = self._snapshot(time)
        # The latest snapshot comes first, because it gives the shortest period.
        for earlier in reversed(self._seen.get(state, ())):
            if self._try(earlier, present):
                present = self._snapshot(time)
                break
        self._seen[state] = [*self._seen.get(state, ()), present][-_SAME:]
        # States that come again stay; the one that was seen least recently is dropped.
        self._seen.move_to_end(state)
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)

    def devices(self, time: int) -> tuple[object, ...]:
        """Everything but the host on which the future depends, relative to ``time``, without counts of iterations."""
        return (
            tuple(process.state(time) for process in self._processes),
            self._world.network.state(time),
            tuple(kind.state(time) for kind in self._kinds),
        )

    def _snapshot(self, time: int) -> _Snapshot:
        processes = self._processes
        return _Snapshot(
            time,
            self._shift,
            tuple(tuple(process.loops.begins) for process in processes),
            tuple(tuple(process.loops.trips) for process in processes),
            tuple(dict(process.slices.loaded) for process in processes),
            self._world.host.issued(),
            tuple((process.serial, process.parts.mark) if process.open_wait else None for process in processes),
        )

    def _try(self, earlier: _Snapshot, later: _Snapshot) -> bool:
        """Fold the stretch between two snapshots of equal state, if the counters allow it.

        Returns:
            Whether they did.
        """
        steps: list[tuple[int, int]] = []
        for earlier_trips, later_trips in zip(earlier.counters, later.counters, strict=True):
            progress = advance(earlier_trips, later_trips)
            if progress is None:
                return False
            steps.append(progress)
        # If no loop moved on, nothing would limit or count the copies.
        if not any(trips for _, trips in steps):
            return False
        same_waits = all(
            _same_wait(earlier_wait, later_wait, earlier.time, later.time)
            for earlier_wait, later_wait in zip(earlier.waits, later.waits, strict=True)
        )
        slices = {key: later.issued[key] - earlier.issued[key] for key in later.issued}
        count = self._room(steps, slices)
        if not same_waits or count < 1:
            return False
        self._fold(earlier, later, steps, slices, count)
        return True

    def _room(self, advance: Sequence[tuple[int, int]], slices: Mapping[ChannelKey, int]) -> int:
        """How many periods fit in before a loop or a stream ends."""
        rooms = []
        for process, (level, trips) in zip(self._processes, advance, strict=True):
            if trips:
                enter = process.instructions[process.loops.begins[level]]
                # Trips count from 0, and the present one is not among those that are left.
                rooms.append((enter.count - 1 - process.loops.trips[level]) // trips)  # type: ignore[union-attr]
        left = self._world.host.left()
        rooms += [left[key] // number for key, number in slices.items() if number]
        return min(rooms)

    def _fold(
        self,
        earlier: _Snapshot,
        later: _Snapshot,
        advance: Sequence[tuple[int, int]],
        slices: Mapping[ChannelKey, int],
        count: int,
    ) -> None:
        period = later.time + later.shift - earlier.time - earlier.shift
        loaded = []
        for process, (level, trips), loaded_earlier in zip(self._processes, advance, earlier.loaded, strict=True):
            if trips:
                process.loops.trips[level] += count * trips
            counted = process.slices.loaded
            change = {stream: number - loaded_earlier.get(stream, 0) for stream, number in counted.items()}
            for stream, number in change.items():
                counted[stream] += count * number
            loaded.append(change)
        for process, wait in zip(self._processes, earlier.waits, strict=True):
            if wait is not None and wait[0] == process.serial:
                # The added time belongs to the wait that is still open.
                process.parts.mark -= count * period
        self._world.host.skip({key: count * number for key, number in slices.items()})
        moving = zip(self._processes, advance, strict=True)
        loops = tuple(process.loops.begins[level] if trips else -1 for process, (level, trips) in moving)
        self.folds.append(
            Fold(earlier.time, later.time, count, loops, tuple(trips for _, trips in advance), tuple(loaded))
        )
        self._world.recorder.epoch += 1
        for process in self._processes:
            # The epoch is one of the counters, so every process needs new ones.
            process.context = -1
        self._shift += count * period
        self._world.folded = self._shift
        self._world.require_countable(later.time)
        # Folds may contain each other but must not overlap, so snapshots within this period go.
        for state, snapshots in list(self._seen.items()):
            self._seen[state] = [snapshot for snapshot in snapshots if snapshot.time <= earlier.time]
            if not self._seen[state]:
                del self._seen[state]


def advance(earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int, int] | None:
    """(level, iterations) of the only loop that moved on.

    It is (0, 0) if no loop did, and None if several did or one went back.
    """
    moved = [
        level
        for level, (earlier_trip, later_trip) in enumerate(zip(earlier, later, strict=True))
        if earlier_trip != later_trip
    ]
    if not moved:
        return (0, 0)
    level = moved[0]
    return (level, later[level] - earlier[level]) if len(moved) == 1 and later[level] > earlier[level] else None


def _same_wait(earlier: tuple[int, int] | None, later: tuple[int, int] | None, begin: int, end: int) -> bool:
    """Whether two open waits began equally long before their snapshots, or are one wait that lasts through both."""
    if earlier is None or later is None:
        return earlier is later
    return earlier[0] == later[0] or earlier[1] - begin == later[1] - end


class Unfolding:
    """Moves rows from the time of the event loop to true time, and says which rows are repeated.

    What ended in the period of a fold is the first trip of a loop; the copies are its other trips. A fold inside the
    period of a later fold is a loop inside a loop.

    >>> fold = Fold(10, 14, 2, (), (), ())
    >>> Unfolding([fold]).rows(np.array([10, 12, 15]))  # ends, and the loop of each row
    (array([10, 12, 23]), array([-1,  0, -1]))
    """

    def __init__(self, folds: Sequence[Fold]) -> None:
        self._folds = folds
        self._true: list[tuple[int, int]] = []  # begin and end of each fold when all earlier ones are applied
        for fold in folds:
            begin, end = fold.begin, fold.end
            for (true_begin, true_end), earlier in zip(self._true, folds, strict=False):
                added = earlier.count * (true_end - true_begin)
                begin += added if begin >= true_end else 0  # a moment at `last` is one after the jump
                end += added if end >= true_end else 0
            self._true.append((begin, end))

    def loops(self) -> dict[str, np.ndarray]:
        """``parent``, ``count`` and ``period`` of each loop, later folds first (so a parent precedes its children)."""
        order = range(len(self._folds) - 1, -1, -1)
        parents = [self._around(number) for number in order]
        last_number = len(self._folds) - 1
        return {
            "parent": np.array([last_number - around if around >= 0 else -1 for around in parents], dtype=np.int64),
            "count": np.array([self._folds[number].count + 1 for number in order], dtype=np.int64),
            "period": np.array([self._true[number][1] - self._true[number][0] for number in order], dtype=np.int64),
        }

    def _around(self, number: int) -> int:
        """The first later fold whose period contains this fold, -1 for none."""
        begin, end = self._true[number]
        # A fold includes its copies, so the outer period has to hold them too.
        end += self._folds[number].count * (end - begin)
        later_numbers = range(number + 1, len(self._folds))
        return next(
            (
                outer_number
                for outer_number in later_numbers
                if self._true[outer_number][0] <= begin and end <= self._true[outer_number][1]
            ),
            -1,
        )

    def _level(self, number: int) -> int:
        """How many loops are around the loop of a fold."""
        around = self._around(number)
        return 0 if around < 0 else 1 + self._level(around)

    @property
    def depth(self) -> int:
        """The largest number of nested loops."""
        return max((1 + self._level(number) for number in range(len(self._folds))), default=0)

    def rows(self, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The true end of each row in its first trip, and its innermost loop (-1: none)."""
        loop = np.full(len(end), -1, dtype=np.int64)
        for number, (begin, fold_end) in enumerate(self._true):
            inside, end = self._applied(number, end, begin, fold_end)
            # The earliest fold that repeats a row is its innermost loop.
            loop = np.where(inside & (loop < 0), len(self._folds) - 1 - number, loop)
        return end, loop

    def _applied(self, number: int, end: np.ndarray, begin: int, fold_end: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows a fold repeats, and the ends of all rows when the fold is applied."""
        later = end > fold_end
        return (end > begin) & ~later, np.where(later, end + self._folds[number].count * (fold_end - begin), end)

    def instances(
        self, process: int, end: np.ndarray, columns: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """As `rows`, for the executions of one process, whose numbers of micro-batches and iterations move on.

        Args:
            columns: ``epoch`` (folds made before the counters of the row were read), ``stream``, ``batch``, ``loop``
                and ``iteration``.

        Returns:
            True ends; and ``repeat`` (the innermost loop), ``batch``, ``iteration``, ``batch_steps`` and
            ``iteration_steps`` (what a trip of each loop around a row adds, the outermost first).
        """
        ends, repeat = self.rows(end)
        batch, iteration = columns["batch"].copy(), columns["iteration"].copy()
        steps = {name: np.zeros((len(end), self.depth), dtype=np.int64) for name in ("batch", "iteration")}
        for number, (fold, (begin, fold_end)) in enumerate(zip(self._folds, self._true, strict=True)):
            inside, moved = self._applied(number, end, begin, fold_end)
            under_way = (end > fold_end) & (columns["epoch"] <= number)  # under way when the fold was made
            moves = columns["loop"] == fold.loop[process]
            slices = sum(
                (np.where(columns["stream"] == stream, count, 0) for stream, count in fold.slices[process].items()),
                start=np.zeros(len(end), dtype=np.int64),
            )
            for name, values, added in (
                ("iteration", iteration, np.where(moves, fold.trips[process], 0)),
                ("batch", batch, slices),
            ):
                steps[name][:, self._level(number)] += np.where(inside, added, 0)
                values += np.where(under_way, fold.count * added, 0)
            end = moved
        counted = {"repeat": repeat, "batch": batch, "iteration": iteration}
        return ends, {**counted, **{f"{name}_steps": values for name, values in steps.items()}}

    def time(self, time: int) -> int:
        """True time of a moment that is not inside a folded period."""
        return int(self.rows(np.array([time]))[0][0])
