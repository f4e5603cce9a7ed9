"""What is always live on tiles, by op: code, vertex state, packet headers, stack and constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuperf.trace.columns import numbered
from ipuperf.trace.folded import FoldedCode
from ipuperf.trace.operations import op_facts
from ipuperf.trace.tables import Columns, TraceTables

if TYPE_CHECKING:
    import pandas as pd


def code_rows(trace: TraceTables) -> Columns:
    """The bytes of each op on each IPU by category: columns op_id, ipu, category and bytes, in this order.

    The runs of tiles of a folded table are added up, not made.
    """
    if code_rows not in trace.derived:
        trace.derived[code_rows] = _code_rows(trace)
    rows: Columns = trace.derived[code_rows]
    return rows


def _code_rows(trace: TraceTables) -> Columns:
    folded = trace.folded("code")
    if isinstance(folded, FoldedCode):
        table, words = folded.arrays, list(folded.words["categories"])
        before = np.concatenate([[0], np.cumsum(table["bytes"])])
        size, place = before[table["first"] + table["runs"]] - before[table["first"]], table["category"]
    else:
        table = trace.columns("code")
        size, (words, place) = table["bytes"], numbered(table["category"])
    # Op, IPU and category make one key: its upper 32 bits, 24 and 8.
    keys = table["op_id"].astype(np.int64) << 32 | table["ipu"].astype(np.int64) << 8 | place
    pieces, row = np.unique(keys, return_inverse=True)
    total = np.zeros(len(pieces), dtype=np.int64)
    np.add.at(total, row.reshape(-1), size)
    category = np.array([*words, ""], dtype=object)[pieces & 0xFF]
    return {"op_id": pieces >> 32, "ipu": pieces >> 8 & 0xFFFFFF, "category": category, "bytes": total}


def code(trace: TraceTables) -> pd.DataFrame:
    """A row for each op, IPU and category of always-live memory, the most bytes first.

    Columns: those of :func:`~.operations.op_facts`; ipu; category; bytes on all tiles of the IPU, which add up to those
    of ``tile_memory``. What ops share (vertex code, and what every program has) counts for the first of them.
    """
    rows = code_rows(trace)
    frame = op_facts(trace, rows["op_id"])
    for name in ("ipu", "category", "bytes"):
        frame[name] = rows[name]
    return frame.sort_values(["bytes", "op", "ipu", "category"], ascending=[False, True, True, True], ignore_index=True)
