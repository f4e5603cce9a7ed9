"""The stored tables of a trace, and what every question needs of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from ipuperf.base.near_names import did_you_mean
from ipuperf.trace.columns import Stored, Words, check_names, code_of, coerce_table, lookup
from ipuperf.trace.errors import TraceError
from ipuperf.trace.folded import FoldedInstances, FoldedTable, FoldedTransfers, SteadyLoop
from ipuperf.trace.loops import Loops, build_loops, check_loops
from ipuperf.trace.meta import complete_meta
from ipuperf.trace.schema import KINDS, NO_OP, TABLES
from ipuperf.trace.shortened import Shortened, shortened
from ipuperf.trace.template import Template, Window, build_template, check_window

if TYPE_CHECKING:
    import pandas as pd

Self = TypeVar("Self", bound="TraceTables")
Columns = Mapping[str, Any]
Given = Columns | FoldedTable

_UNIQUE: Mapping[str, str] = MappingProxyType(
    {"ops": "op_id", "programs": "program_id", "loops": "loop", "instances": "instance", "runs": "run"}
)


class TraceTables:
    """The tables of one simulation, checked once and then read only: what is stored, and what follows from one table.

    ``meta`` says what was simulated and in which units (see ``META_KEYS``). ``tables`` maps the name of a table to its
    columns (arrays or lists, see ``schema.TABLES``), to a folded table (:mod:`.folded`), or to a function that returns
    either and is called when somebody first asks for the table. Tables other than ``steps`` and ``instances`` may be
    left out and are then empty. Times are cycles of the tile clock, on one time base for all IPUs and the host; memory
    is in bytes. Arrays are copied, unless the caller gives them away with ``copy=False``.

    Raises :class:`TraceError` naming table, column and value for anything the schema does not allow. In a table that a
    function makes, this happens when it is made. Whether the figures agree with each other is a different question: see
    :func:`ipuperf.trace.check`.
    """

    def __init__(
        self, meta: Mapping[str, Any], tables: Mapping[str, Given | Callable[[], Given]], *, copy: bool = True
    ) -> None:
        check_names(tables)
        self._copy = copy
        self._later = {name: table for name, table in tables.items() if callable(table)}
        self._folded: dict[str, FoldedTable] = {}
        self._stored: dict[str, dict[str, Stored]] = {}
        # Tables that are left out are empty, so that no reader has to ask for them first.
        for name in TABLES:
            table = tables.get(name, {})
            if not callable(table):
                self._keep(name, table)
        self.meta: dict[str, Any] = complete_meta(meta, oom=False)
        # This makes tile_memory at once, even where it was given as a function.
        if "oom" not in meta:
            fullest = fullest_tile(self.columns("tile_memory"))
            self.meta["oom"] = fullest is not None and fullest[2] > self.meta["bytes_per_tile"]

    def _keep(self, name: str, table: Given) -> None:
        """Check a table and store it."""
        if isinstance(table, FoldedTable):
            self._folded[name] = table
            return
        columns = coerce_table(TABLES[name], table, copy=self._copy)
        if name in _UNIQUE:
            _require_unique(name, _UNIQUE[name], columns[_UNIQUE[name]])
        if name == "loops":
            check_loops(cast(dict[str, np.ndarray], columns))  # a table of numbers
        self._stored[name] = columns

    def stored(self, name: str) -> dict[str, Stored]:
        """A table as it is stored: strings may be words."""
        return self._table(name)

    def _table(self, name: str) -> dict[str, Stored]:
        """A table as it is stored; a table that is made by a function or folded is made now."""
        self._make(name)
        if name not in self._stored:
            # Both forms are kept, because windows and counts use the folded one.
            self._keep(name, self._folded[name].columns())
        return self._stored[name]

    def _make(self, name: str) -> None:
        """Make a table now if it was given as a function."""
        if name in self._later:
            self._keep(name, self._later[name]())
            del self._later[name]

    def folded(self, name: str) -> FoldedTable | None:
        """A table in its folded form; None for a table that is not folded."""
        self._make(name)
        return self._folded.get(name)

    def rows(self, name: str) -> int:
        """The number of rows of a table; the rows of a folded table are not made."""
        folded = self.folded(name)
        return len(next(iter(self._table(name).values()))) if folded is None else folded.rows

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickles: tables given as functions are made now, folded tables stay folded."""
        # The rows of a folded table are left out, because its folded form can make them again.
        for name in TABLES:
            self._make(name)
        unfolded = {name: columns for name, columns in self._stored.items() if name not in self._folded}
        return {"meta": self.meta, "_copy": self._copy, "_later": {}, "_folded": self._folded, "_stored": unfolded}

    @property
    def repeats(self) -> list[SteadyLoop]:
        """The loops in steady state whose iterations were folded, by start; empty if there are none."""
        folded = self.folded("instances")
        return folded.repeats() if isinstance(folded, FoldedInstances) else []

    @property
    def replicas(self) -> dict[int, int]:
        """For each simulated replica, how many replicas do the same, itself included (1 where that is not known)."""
        folded = self.folded("instances")
        if not isinstance(folded, FoldedInstances):
            return dict.fromkeys(np.unique(self.columns("instances")["replica"]).tolist(), 1)
        # `of` names the simulated process. Its first replica stands for all that do the same.
        alike: dict[int, set[int]] = {}
        first_replica: dict[int, int] = {}
        for process, replica in zip(folded.arrays["of"].tolist(), folded.arrays["replica"].tolist(), strict=True):
            alike.setdefault(first_replica.setdefault(process, replica), set()).add(replica)
        return {replica: len(same) for replica, same in alike.items()}

    def of_each_class(self: Self) -> Self:
        """This trace with one replica of each class of replicas that do the same (:attr:`replicas`).

        It holds the instances of these replicas, and the transfers over the links that their IPUs use.
        """
        folded = self.folded("instances")
        if not isinstance(folded, FoldedInstances):
            return self
        tables: dict[str, Any] = {"instances": folded.alone()}
        transfers = self.folded("transfers")
        if isinstance(transfers, FoldedTransfers):
            # Most readers follow instances alone.
            tables["transfers"] = lambda: transfers.over_links_of(tables["instances"].arrays["ipu"])
        return self.replaced(tables)

    @cached_property
    def short(self) -> Shortened:
        """This trace with few trips of loops in steady state, computed once; see :mod:`~ipuperf.trace.shortened`."""
        return shortened(self)

    @cached_property
    def derived(self) -> dict[Hashable, Any]:
        """What readers have computed from this trace, and share as long as it lives."""
        return {}

    def within(self: Self, window: Window) -> Self:
        """This trace with only those instances, transfers and host events that touch ``window`` (cycles).

        They are whole, and numbered anew. Repeated rows are made for the window only, so this works for runs of any
        length.
        """
        check_window(window)
        # Most readers of a window need only its instances.
        return self.replaced(
            {
                name: lambda name=name: self._rows_within(name, window)
                for name in ("instances", "transfers", "host_events")
            }
        )

    def _rows_within(self, name: str, window: Window) -> Columns:
        """The rows of a table with times that touch ``window``."""
        folded = self.folded(name)
        if folded is not None:
            return folded.columns(window)
        columns = self.columns(name)
        start, dur = columns["start"], columns["dur"]
        # Rows without duration have no inside, so their start decides, as for slices.
        inside = (start < window[1]) & np.where(dur > 0, start + dur > window[0], start >= window[0])
        return {key: values[inside] for key, values in columns.items()}

    def replaced(self: Self, tables: Mapping[str, Any]) -> Self:
        """This trace with other tables in place of its own."""
        # Functions make no table before somebody asks. The default binds the name, because calls come after the loop.
        others = {
            name: (lambda name=name: self.folded(name) or self._table(name)) for name in TABLES if name not in tables
        }
        part = type(self)(self.meta, {**others, **tables}, copy=False)
        if "steps" not in tables:
            for name in (
                "template",
                "loops",
                "kind_codes",
                "step_ops",
                "step_programs",
            ):  # these follow from the steps alone
                part.__dict__[name] = getattr(self, name)
        return part

    def transfer_ops(self) -> set[tuple[int, str]]:
        """The op and the kind of all transfers; the rows of a folded table are not made."""
        folded = self.folded("transfers")
        if isinstance(folded, FoldedTransfers):
            kinds = [folded.words["kinds"][kind] for kind in folded.arrays["kind"].tolist()]
            return set(zip(folded.arrays["op_id"].tolist(), kinds, strict=True))
        transfers = self.columns("transfers")
        return set(zip(transfers["op_id"].tolist(), transfers["kind"].tolist(), strict=True))

    # -- access ------------------------------------------------------------------------------------------------------

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """The columns of a table as read-only arrays. Strings are object arrays, made when somebody first asks."""
        if name not in TABLES:
            raise TraceError(
                f"trace has no table {name!r}{did_you_mean(name, TABLES)}, the tables are {', '.join(TABLES)}"
            )
        stored = self._table(name)
        columns = {key: v.strings() if isinstance(v, Words) else v for key, v in stored.items()}
        # The strings replace the words, so that each column is decoded once.
        stored.update(columns)
        return columns

    def table(self, name: str) -> pd.DataFrame:
        """A table as a new DataFrame; writing to it does not change the trace."""
        import pandas as pd

        return pd.DataFrame({key: values.copy() for key, values in self.columns(name).items()})

    def seconds(self, cycles: Any) -> Any:
        """Cycles as seconds: a float for a number, an array of float64 for an array."""
        if np.ndim(cycles) == 0:
            return float(cycles) / float(self.meta["clock_hz"])
        return np.asarray(cycles, dtype=np.float64) / float(self.meta["clock_hz"])

    @cached_property
    def template(self) -> Template:
        """The steps sorted by segment, computed once."""
        return build_template(self.columns("steps"), self.loops)

    @cached_property
    def loops(self) -> Loops:
        """The loops inside segments, computed once."""
        return build_loops(self.columns("loops"))

    @cached_property
    def kind_codes(self) -> np.ndarray:
        """The kind of each row of ``steps`` as an index into ``KINDS`` (int64)."""
        return code_of(self.columns("steps")["kind"], KINDS)

    @cached_property
    def step_ops(self) -> np.ndarray:
        """Name of the op of each row of ``steps`` (object array), "" where there is none."""
        ops = self.columns("ops")
        return lookup(self.columns("steps")["op_id"], ops["op_id"], ops["name"], "")

    @cached_property
    def step_programs(self) -> np.ndarray:
        """Name of the program of each row of ``steps`` (object array), "" where there is none."""
        programs = self.columns("programs")
        return lookup(self.columns("steps")["program_id"], programs["program_id"], programs["name"], "")


def fullest_tile(tile_memory: Mapping[str, np.ndarray]) -> tuple[int, int, int] | None:
    """(ipu, tile, bytes) of the tile with the most bytes, gaps included; the lowest such tile; None for no rows."""
    if len(tile_memory["bytes"]) == 0:
        return None
    ipu, tile, total = tile_totals(tile_memory)
    row = int(np.argmax(total))
    return int(ipu[row]), int(tile[row]), int(total[row])


def tile_totals(tile_memory: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """IPU, tile and bytes of all categories together (gaps included), one row per tile that has any, sorted."""
    # IPU and tile in one number, so that they are a single key.
    key = tile_memory["ipu"].astype(np.int64) << 32 | tile_memory["tile"].astype(np.int64)
    tiles, row = np.unique(key, return_inverse=True)
    total = np.zeros(len(tiles), dtype=np.int64)
    np.add.at(total, row.reshape(-1), tile_memory["bytes"])
    return tiles >> 32, tiles & 0xFFFFFFFF, total


def _require_unique(table: str, key: str, values: Stored) -> None:
    assert isinstance(values, np.ndarray)
    ids, count = np.unique(values, return_counts=True)
    if (count > 1).any():
        raise TraceError(f"trace table {table!r}, column {key!r}: {int(ids[np.argmax(count)])} appears more than once")
    if key in ("op_id", "program_id", "loop") and len(ids) and ids[0] <= NO_OP:
        raise TraceError(f"trace table {table!r}, column {key!r}: {int(ids[0])} is negative, which means 'none'")
