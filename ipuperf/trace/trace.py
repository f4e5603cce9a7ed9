"""``Trace``: the folded, columnar record of a simulated program."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.trace import fold, store
from ipuperf.trace.check import damages
from ipuperf.trace.code import code
from ipuperf.trace.compare import diff
from ipuperf.trace.errors import TraceError
from ipuperf.trace.html import html
from ipuperf.trace.modules import modules
from ipuperf.trace.operations import operations, operations_by_ipu
from ipuperf.trace.schema import KINDS, TABLES
from ipuperf.trace.sql import sql
from ipuperf.trace.summary import summary
from ipuperf.trace.tables import TraceTables
from ipuperf.trace.template import Window

if TYPE_CHECKING:
    import pandas as pd


class Trace(TraceTables):
    """Tables of one simulation, checked once and then read only.

    :class:`~ipuperf.trace.tables.TraceTables` says how one is made. Here are its files and the questions asked of it.
    """

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {self.rows(name)}" for name in TABLES)
        return f"<Trace of {self.meta['machine']}, {self.meta['num_ipus']} IPUs: {rows}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return self.meta == other.meta and all(
            np.array_equal(values, theirs[key])
            for name in TABLES
            for theirs in [other.columns(name)]
            for key, values in self.columns(name).items()
        )

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one ``.ipt`` file (zip of ``meta.json`` and one npz per table), all or nothing.

        Raises ``OSError``: the folder does not exist, or ``path`` is one."""
        store.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, most_bytes: int = store.MOST_BYTES) -> Trace:
        """Read a file written by :meth:`save`. Unpacked, its contents may take ``most_bytes`` (default: 2 GiB).

        Raises :class:`TraceError` naming the file and the reason, also for numbers out of range and for identifiers
        without a row."""
        meta, tables = store.load(path, most_bytes)
        try:
            trace = cls(meta, tables)
            # The other rules of `check` make the rows of folded tables, which a file may have too many of.
            for problem in damages(trace):
                raise TraceError(problem)
            return trace
        except TraceError as error:
            raise TraceError(f"cannot read trace {os.fspath(path)}: {error}") from None

    # -- questions ---------------------------------------------------------------------------------------------------

    def expand(self, window: Window | None = None, kinds: Collection[str] = KINDS, clip: bool = False) -> pd.DataFrame:
        """The slices as a DataFrame, sorted by replica, IPU, lane and start.

        ``window`` (cycles) selects the slices that touch it, ``kinds`` the slices of these kinds. Slices are whole, so
        their cycles can exceed the window. With ``clip``, start and dur describe the part inside the window; bytes are
        still those of the whole slice.

        Columns: ipu, replica, lane, start, dur (cycles), kind, op (name), program (name), micro_batch, iteration,
        op_id, program_id, instance, bytes_in, bytes_out. kind, op and program are categorical; op and program are ""
        where a step has none. iteration is the iteration of the innermost loop around the step. micro_batch is -1 for
        steps of the weight update, whatever else their instance has.

        Raises :class:`TraceError` for more than ``fold.MOST_SLICES`` rows, with their number: give a window then.
        ``ValueError`` for an invalid window, and for ``clip`` without one.
        """
        import pandas as pd

        if clip and window is None:
            raise ValueError("expand: clip=True cuts slices at the edges of a window, and no window is given")
        steps, instances = self.columns("steps"), self.columns("instances")
        # The default itself stands for all kinds and needs no mask over steps.
        slices = fold.slices(self, window, steps=None if kinds is KINDS else np.isin(steps["kind"], list(kinds)))
        # The last key counts first. Of slices with equal starts, those without duration come first.
        keys = [
            slices.dur > 0,
            slices.start,
            steps["lane"][slices.step],
            *(instances[key_name][slices.instance] for key_name in ("ipu", "replica")),
        ]
        slices = slices.take(np.lexsort(keys))
        start, end = slices.start, slices.start + slices.dur
        if clip and window is not None:
            start, end = np.clip(start, *window), np.clip(end, *window)
        data: dict[str, Any] = {
            "ipu": instances["ipu"][slices.instance],
            "replica": instances["replica"][slices.instance],
            "lane": steps["lane"][slices.step],
            "start": start,
            "dur": end - start,
            "kind": pd.Categorical.from_codes(fold.kind_codes(self)[slices.step], categories=pd.Index(KINDS)),
        }
        for name in ("op", "program"):
            # Names are looked up for each step, as slices are far more numerous.
            codes, words = pd.factorize(getattr(self, f"step_{name}s"))
            data[name] = pd.Categorical.from_codes(codes[slices.step], categories=pd.Index(words))
        ops = self.columns("ops")
        updates = np.isin(steps["op_id"], ops["op_id"][ops["phase"] == "update"])
        data["micro_batch"] = np.where(updates[slices.step], -1, instances["micro_batch"][slices.instance])
        data["iteration"] = np.where(slices.trip < 0, instances["iteration"][slices.instance], slices.trip)
        for name in ("op_id", "program_id"):
            data[name] = steps[name][slices.step]
        data["instance"] = instances["instance"][slices.instance]
        for name in ("bytes_in", "bytes_out"):
            data[name] = steps[name][slices.step]
        return pd.DataFrame(data)

    def totals(self) -> pd.DataFrame:
        """Cycles by kind for each stored IPU.

        Columns: replica, ipu, one column per kind, and elapsed (from the first start to the last end). The cycles equal
        the sums over the expanded slices. Overlapping lanes all count, so that the kinds of an IPU with I/O tiles may
        add up to more than elapsed.
        """
        import pandas as pd

        totals = fold.ipu_totals(self)
        data = {"replica": totals.replica, "ipu": totals.ipu}
        data.update({kind: totals.cycles[:, code] for code, kind in enumerate(KINDS)})
        return pd.DataFrame({**data, "elapsed": totals.last - totals.first})

    def operations(self) -> pd.DataFrame:
        """One row per op, the costliest first; see :func:`ipuperf.trace.operations.operations`."""
        return operations(self)

    def operations_by_ipu(self, rows: np.ndarray | None = None, *, of_each_class: bool = False) -> pd.DataFrame:
        """One row per op and IPU, with the cycles of each kind, over all or the given rows of table ``instances``; see
        :func:`ipuperf.trace.operations.operations_by_ipu`."""
        return operations_by_ipu(self, rows, of_each_class=of_each_class)

    def modules(self) -> pd.DataFrame:
        """One row per module of the user's program, as a tree; see :func:`ipuperf.trace.modules.modules`."""
        return modules(self)

    def code(self) -> pd.DataFrame:
        """What is always live on tiles, by op, IPU and category; see :func:`ipuperf.trace.code.code`."""
        return code(self)

    def summary(self) -> dict[str, Any]:
        """The main figures as plain Python, ready for JSON; see :func:`ipuperf.trace.summary.summary`."""
        return summary(self)

    def sql(self, query: str) -> pd.DataFrame:
        """The answer to an SQL query over the tables, with DuckDB (extra ``[sql]``); see :func:`ipuperf.trace.sql.sql`.

        Units are those of ``schema.TABLES``, in SQL the table ``units``: times in cycles, sizes in bytes."""
        return sql(self, query)

    def _repr_html_(self) -> str:
        """The main figures as a table, for notebooks; see :func:`ipuperf.trace.html.html`."""
        return html(self)

    def diff(self, other: Trace, rtol: float = 0.0) -> pd.DataFrame:
        """The differences from this trace (source) to ``other`` (target); see :func:`ipuperf.trace.compare.diff`."""
        return diff(self, other, rtol)
