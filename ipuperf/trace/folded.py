"""Folded tables, which hold repeated rows only once, in memory and on disk.

What a run repeats (iterations in steady state, replicas that do the same) is stored as a template: a row with its first
start, the loops around it (``parent``, ``count`` and ``period`` of each, as in table ``loops``), and what a trip adds
to its counters. A folded table makes the rows of the schema's table when somebody asks for them: all rows, or those of
a window. It needs memory for its templates but not for the trips. It consists of arrays of integers and lists of words,
so that it can be written and read as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ipuperf.trace.columns import Words
from ipuperf.trace.errors import TraceError
from ipuperf.trace.loops import Loops, build_loops, check_loops, unrolled
from ipuperf.trace.schema import BELOW

MOST_ROWS = 20_000_000
"""Largest number of rows that a folded table makes at once; a few gigabytes."""

Columns = dict[str, Any]
Arrays = Mapping[str, np.ndarray]

REPEATS: dict[str, str] = {"parent": "loops", "count": "loops", "period": "loops"}
"""The arrays that say how rows are repeated. For each loop: the loop around it (an earlier one, or -1), the number of
trips, and the cycles from the start of a trip to the start of the next."""


def ranges(begin: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``row`` and ``begin[row] + 0, 1, ...`` for each of the ``count`` places of each row.

    >>> ranges(np.array([5, 9]), np.array([2, 1]))
    (array([0, 0, 1]), array([5, 6, 9]))
    """
    row = np.repeat(np.arange(len(count)), count)
    return row, np.arange(len(row)) + (begin - np.cumsum(count) + count)[row]


def _whole(values: np.ndarray) -> np.ndarray:
    """Whole numbers as ``int64``; files hold them in fewer bytes."""
    # From 2^63 on, uint64 would turn negative. Such arrays keep their type, which the table then refuses.
    fits = values.dtype.kind in "iu" and not (values.dtype == np.uint64 and values.size and values.max() >= 2**63)
    # Tables that follow from others share their arrays, which are never written to.
    return values.astype(np.int64, copy=False) if fits else values


class SteadyLoop(NamedTuple):
    """A loop in steady state.

    Attributes:
        start: start of its first trip, in cycles.
        end: end of its last period, in cycles.
        trips: number of trips.
        period: cycles of a trip.
        depth: how many loops are around it.
    """

    start: int
    end: int
    trips: int
    period: int
    depth: int


class FoldedTable(ABC):
    """A folded table.

    Args:
        arrays: the arrays that :attr:`ARRAYS` lists, ``int64``; the arrays of a group have equal lengths.
        words: the lists of words that :attr:`WORDS` names.

    Class attributes:
        TABLE: the name of the table in the schema.
        ARRAYS: the name of each array, and its group.
        INDICES: the arrays that hold places in a group or in a list of words.
        WORDS: the names of the lists of words.

    Raises:
        TraceError: arrays are missing, have a wrong shape, or hold places that do not exist.
    """

    TABLE: ClassVar[str]
    ARRAYS: ClassVar[Mapping[str, str]]
    INDICES: ClassVar[Mapping[str, str]]
    WORDS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, arrays: Arrays, words: Mapping[str, Sequence[str]] | None = None) -> None:
        self.words = {name: tuple(texts) for name, texts in (words or {}).items()}
        self.arrays = {name: _whole(np.asarray(values)) for name, values in arrays.items()}
        self._require(self.arrays.keys() == self.ARRAYS.keys(), f"arrays {', '.join(self.arrays)}")
        self._require(set(self.words) == set(self.WORDS), f"words {', '.join(self.words)}")
        self._require(
            all(type(word) is str for texts in self.words.values() for word in texts), "words that are no strings"
        )
        sizes = {name: len(texts) for name, texts in self.words.items()}
        for name, values in self.arrays.items():
            # Steps of counters have a column for each loop around the row.
            shape = (2 if name.endswith("_steps") else 1, np.dtype(np.int64))
            self._require((values.ndim, values.dtype) == shape, f"{name} is {values.ndim}-dimensional {values.dtype}")
            # Sums of two numbers must fit into int64, hence the bound.
            large = np.flatnonzero((values >= BELOW) | (values <= -BELOW)).tolist()[:1]
            self._require(not large, f"{name} is too large in row {large}")
            # The first array of a group sets the group's size.
            size = sizes.setdefault(self.ARRAYS[name], len(values))
            self._require(len(values) == size, f"{name} has {len(values)} rows, others have {size}")
        for name, group in self.INDICES.items():
            values = self.arrays[name]
            inside = not len(values) or (values.min() >= 0 and values.max() < sizes[group])
            self._require(inside, f"{name} points outside of the {sizes[group]} {group}")
        self._check()

    def _require(self, holds: object, fault: str) -> None:
        if not holds:
            raise TraceError(f"trace table {self.TABLE!r}, folded: {fault}")

    def _require_parts(self, begin: str, count: str, group: int) -> None:
        """Check that the ``count`` places from ``begin`` on, of each row, are among the ``group`` places there are."""
        begins, number = self.arrays[begin], self.arrays[count]
        if len(begins):
            self._require(
                begins.min() >= 0 and number.min() >= 0 and (begins + number).max() <= group, f"{count} is wrong"
            )

    def _require_some(self, *names: str) -> None:
        """Check that no number in these arrays is negative."""
        for name in names:
            rows = np.flatnonzero(self.arrays[name] < 0).tolist()
            self._require(not rows, f"{name} is negative in row {', '.join(map(str, rows[:3]))}")

    @abstractmethod
    def _check(self) -> None:
        """Raise :class:`TraceError` for impossible contents."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of the table."""

    def columns(self, window: tuple[int, int] | None = None) -> Columns:
        """The columns of the table in its order. Of rows that have times, only those that touch ``window`` (cycles).

        Raises:
            TraceError: the table has more than :data:`MOST_ROWS` rows, and no window is given.
        """
        if window is None and self.rows > MOST_ROWS:
            raise TraceError(
                f"trace table {self.TABLE!r} has {self.rows:,} rows, at most {MOST_ROWS:,} can be made at once: look "
                "at a window=(start, stop) in cycles (Trace.within)"
            )
        return self._columns(window)

    @abstractmethod
    def _columns(self, window: tuple[int, int] | None) -> Columns:
        """See :meth:`columns`."""


class Repeating(FoldedTable):
    """A table of rows with a ``start``, a ``dur`` and the innermost loop around each row (``repeat``, -1: none)."""

    @cached_property
    def loops(self) -> Loops:
        """The loops around rows."""
        return build_loops({"loop": np.arange(len(self.arrays["count"])), **{k: self.arrays[k] for k in REPEATS}})

    def _check(self) -> None:
        check_loops({"loop": np.arange(len(self.arrays["count"])), **{k: self.arrays[k] for k in REPEATS}})
        repeat = self.arrays["repeat"]
        known = not len(repeat) or (repeat.min() >= -1 and repeat.max() < len(self.arrays["count"]))
        self._require(known, "a row is in a loop that is not there")
        self._require_some("dur")
        # The sum is taken in float, because it may not fit into int64.
        self._require((self.times > 0).all() and self.times.astype(float).sum() < 2**62, "too many rows")
        for name in self.arrays:
            if name.endswith("_steps"):
                self._require(self.arrays[name].shape[1] == self.loops.depth, f"{name} is not one for each loop")

    @property
    def times(self) -> np.ndarray:
        """How often each row occurs."""
        repeat = self.arrays["repeat"]
        # Index -1 finds the last row of the chains, which stands for no loop.
        return self.loops.inner[repeat, 0] if self.loops.depth else np.ones(len(repeat), dtype=np.int64)

    def repeats(self) -> list[SteadyLoop]:
        """The loops around rows: where they begin, how often they run, how long a trip is and when they end."""
        depth = (self.loops.chain[:-1] >= 0).sum(axis=1) - 1
        steady_loops = []
        for loop, level in enumerate(depth.tolist()):
            rows = np.flatnonzero(self.loops.chain[self.arrays["repeat"], level] == loop)
            if len(rows):
                trips, period = int(self.arrays["count"][loop]), int(self.arrays["period"][loop])
                start = int(self.arrays["start"][rows].min())
                steady_loops.append(SteadyLoop(start, start + trips * period, trips, period, level))
        return sorted(steady_loops)

    def _unrolled(self, window: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row, start, and trip of each loop around it, for all occurrences that touch the window."""
        return unrolled(self.loops, self.arrays["start"], self.arrays["dur"], self.arrays["repeat"], window)


def last_ends(table: Repeating) -> np.ndarray:
    """The end of the last occurrence of each row."""
    last_trip = table.loops.rest[table.arrays["repeat"], 0] if table.loops.depth else 0
    return np.asarray(table.arrays["start"] + last_trip + table.arrays["dur"])


class FoldedInstances(Repeating):
    """Table ``instances``.

    A row is an instance of a simulated ``process``. The ``members`` are the processes that do the same (``of``: the
    simulated process; ``own``: their sort key). ``number`` sorts rows of equal times. A trip of each loop adds
    ``micro_batch_steps`` and ``iteration_steps`` (rows x loops around the row, the outermost first).
    """

    TABLE = "instances"
    ARRAYS: ClassVar[Mapping[str, str]] = {
        **REPEATS,
        **dict.fromkeys(("start", "dur", "repeat", "segment", "process", "number", "micro_batch", "iteration"), "rows"),
        **dict.fromkeys(("micro_batch_steps", "iteration_steps"), "rows"),
        **dict.fromkeys(("of", "own", "replica", "ipu"), "members"),
    }
    INDICES: ClassVar[Mapping[str, str]] = {}

    def _check(self) -> None:
        super()._check()
        self._require_some("process", "of", "own", "replica", "ipu")
        self._require(np.isin(self.arrays["process"], self.arrays["of"]).all(), "a process has no members")

    @property
    def members(self) -> np.ndarray:
        """How many processes each row stands for."""
        counts = np.bincount(self.arrays["of"], minlength=1)
        return np.asarray(counts[self.arrays["process"]])

    @property
    def rows(self) -> int:
        """Rows of the table."""
        # Python's integers are summed, because the total may not fit into int64.
        return int(sum((self.times * self.members).tolist()))

    def alone(self) -> FoldedInstances:
        """The instances of the first member of each simulated process."""
        _, first_members = np.unique(self.arrays["of"], return_index=True)
        names = [name for name, group in self.ARRAYS.items() if group == "members"]
        return FoldedInstances({**self.arrays, **{name: self.arrays[name][first_members] for name in names}})

    @property
    def ends(self) -> np.ndarray:
        """The end of the last occurrence of each row."""
        return last_ends(self)

    def _columns(self, window: tuple[int, int] | None) -> Columns:
        row, start, trips = self._unrolled(window)
        # Members are sorted by process, so that those of a process are one stretch.
        order = np.argsort(self.arrays["of"], kind="stable")
        counts = np.bincount(self.arrays["of"], minlength=1)
        process = self.arrays["process"][row]
        which, place = ranges((np.cumsum(counts) - counts)[process], counts[process])
        row, start, trips, member = row[which], start[which], trips[which], order[place]
        dur = self.arrays["dur"][row]
        # The last key counts first: rows are in order of start, process, end and number.
        sort = np.lexsort((self.arrays["number"][row], start + dur, self.arrays["own"][member], start))
        row, start, trips, member, dur = row[sort], start[sort], trips[sort], member[sort], dur[sort]

        def counter(name: str) -> np.ndarray:
            return np.asarray(self.arrays[name][row] + (trips * self.arrays[f"{name}_steps"][row]).sum(axis=1))

        return {
            "instance": np.arange(len(row)),
            "segment": self.arrays["segment"][row],
            "ipu": self.arrays["ipu"][member],
            "replica": self.arrays["replica"][member],
            "micro_batch": counter("micro_batch"),
            "iteration": counter("iteration"),
            "start": start,
            "dur": dur,
            "parent": np.zeros(len(row), dtype=np.int64),
        }


class FoldedTransfers(Repeating):
    """Table ``transfers``.

    A row says that the sends of a ``template`` began and ended together. A template has ``sends`` from ``first`` on, of
    ``bytes`` each; templates may share them. A send has ``links`` from ``link_first`` on. Sends of equal times are in
    order of their template's ``owner``, their ``rank``, and their template's ``number``.
    """

    TABLE = "transfers"
    ARRAYS: ClassVar[Mapping[str, str]] = {
        **REPEATS,
        **dict.fromkeys(("start", "dur", "repeat", "template"), "rows"),
        **dict.fromkeys(("bytes", "op_id", "kind", "owner", "number", "first", "sends"), "templates"),
        **dict.fromkeys(("rank", "ipu", "link_first", "links"), "of_sends"),
        "link_id": "of_links",
    }
    INDICES: ClassVar[Mapping[str, str]] = {"template": "templates", "kind": "kinds"}
    WORDS = ("kinds",)

    def _check(self) -> None:
        super()._check()
        self._require_some("bytes")
        self._require_parts("first", "sends", len(self.arrays["rank"]))
        self._require_parts("link_first", "links", len(self.arrays["link_id"]))

    @property
    def rows(self) -> int:
        """Rows of the table."""
        # Prefix sums count the links that a template's sends cross, without a loop over sends.
        crossed_before = np.concatenate([[0], np.cumsum(self.arrays["links"])])
        first_sends, sends = self.arrays["first"], self.arrays["sends"]
        crossed = (crossed_before[first_sends + sends] - crossed_before[first_sends])[self.arrays["template"]]
        return int(sum((self.times * crossed).tolist()))

    def over_links_of(self, ipus: np.ndarray) -> FoldedTransfers:
        """The transfers over the links that transfers of these IPUs use."""
        arrays = self.arrays
        send, link = ranges(arrays["link_first"], arrays["links"])
        used = np.unique(arrays["link_id"][link[np.isin(arrays["ipu"][send], ipus)]])
        on_used_links = np.isin(arrays["link_id"], used)
        # Sends stay in place. A send that loses all its links gives no rows.
        links_before = np.concatenate([[0], np.cumsum(on_used_links)])
        first_links, end_links = arrays["link_first"], arrays["link_first"] + arrays["links"]
        changed = {
            "link_id": arrays["link_id"][on_used_links],
            "link_first": links_before[first_links],
            "links": links_before[end_links] - links_before[first_links],
        }
        return FoldedTransfers({**arrays, **changed}, self.words)

    def _columns(self, window: tuple[int, int] | None) -> Columns:
        row, start, _ = self._unrolled(window)
        template = self.arrays["template"][row]
        which, send = ranges(self.arrays["first"][template], self.arrays["sends"][template])
        of = template[which]
        rank, owner, number = self.arrays["rank"][send], self.arrays["owner"][of], self.arrays["number"][of]
        sort = np.lexsort((number, rank, owner, start[which]))
        which, send = which[sort], send[sort]
        flow, link = ranges(self.arrays["link_first"][send], self.arrays["links"][send])
        moved = which[flow]
        of = template[moved]
        return {
            # A send over several links has a row for each of them, with one number.
            "transfer": flow,
            "link_id": self.arrays["link_id"][link],
            "start": start[moved],
            "dur": self.arrays["dur"][row[moved]],
            "bytes": self.arrays["bytes"][of],
            "op_id": self.arrays["op_id"][of],
            "kind": Words(self.words["kinds"], self.arrays["kind"][of]),
            "ipu": self.arrays["ipu"][send[flow]],
        }


class FoldedHostEvents(Repeating):
    """Table ``host_events``. Each row belongs to a ``line``, which has a label; lines sort rows of equal starts."""

    TABLE = "host_events"
    ARRAYS: ClassVar[dict[str, str]] = {**REPEATS, **dict.fromkeys(("start", "dur", "repeat", "line"), "rows")}
    ARRAYS |= {"order": "labels"}
    INDICES: ClassVar[Mapping[str, str]] = {"line": "labels"}
    WORDS = ("labels",)

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(sum(self.times.tolist()))

    def _columns(self, window: tuple[int, int] | None) -> Columns:
        row, start, _ = self._unrolled(window)
        line = self.arrays["line"][row]
        sort = np.lexsort((self.arrays["order"][line], start))
        row, line = row[sort], line[sort]
        return {
            "label": Words(self.words["labels"], line),
            "channel": Words(("host",), np.zeros(len(row), dtype=np.int64)),
            "start": start[sort],
            "dur": self.arrays["dur"][row],
        }


class _OnTiles(FoldedTable):
    """A table of what lies on tiles. A row has ``runs`` runs of equal tiles from ``first`` on; rows may share runs."""

    def _check(self) -> None:
        self._require_parts("first", "runs", len(self.arrays["bytes"]))
        self._require_some("tile_from", "bytes")

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(self.arrays["runs"].sum())

    def _columns(self, window: tuple[int, int] | None) -> Columns:
        arrays = self.arrays
        row, run = ranges(arrays["first"], arrays["runs"])
        words = {name: Words(self.words[group], arrays[name][row]) for name, group in self.INDICES.items()}
        runs = ("tile_from", "tile_to", "bytes")
        others = [name for name in self.ARRAYS if name not in {"first", "runs", *runs, *words}]
        return {
            **words,
            **{name: arrays[name][row] for name in others},
            **{name: arrays[name][run] for name in runs},
        }


class FoldedVariables(_OnTiles):
    """Table ``variables``. Variables may share runs of tiles."""

    TABLE = "variables"
    ARRAYS: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("name", "op_id", "category", "dtype", "ipu", "always_live", "location", "class_id", "first", "runs"),
            "variables",
        ),
        **dict.fromkeys(("tile_from", "tile_to", "bytes"), "of_runs"),
    }
    INDICES: ClassVar[dict[str, str]] = {"name": "names", "category": "categories", "dtype": "dtypes"}
    INDICES |= {"location": "locations"}
    WORDS = ("names", "categories", "dtypes", "locations")

    def _columns(self, window: tuple[int, int] | None) -> Columns:
        columns = super()._columns(window)
        row, _ = ranges(self.arrays["first"], self.arrays["runs"])
        always_live = columns.pop("always_live") != 0
        return {"var_id": row, **columns, "always_live": always_live}


class FoldedCode(_OnTiles):
    """Table ``code``. Ops that are alike share runs of tiles."""

    TABLE = "code"
    ARRAYS: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("op_id", "category", "ipu", "first", "runs"), "pieces"),
        **dict.fromkeys(("tile_from", "tile_to", "bytes"), "of_runs"),
    }
    INDICES: ClassVar[Mapping[str, str]] = {"category": "categories"}
    WORDS = ("categories",)


FOLDED: dict[str, type[FoldedTable]] = {
    table.TABLE: table for table in (FoldedInstances, FoldedTransfers, FoldedHostEvents, FoldedVariables, FoldedCode)
}
"""The folded form of each table that has one."""
