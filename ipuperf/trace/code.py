"""What is always live on tiles, by op: code, vertex state, packet headers, stack and constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuperf.trace.columns import numbered
from ipuperf.trace.folded import FoldedCode
from ipuperf.trace.operations import op_facts

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.trace.tables import Columns, TraceTables


def code_rows(trace: TraceTables) -> Columns:
    """The bytes of each op on each IPU by category: columns op_id, ipu, category and bytes, in this order.

    The runs of tiles of a folded table are added up, not made.
    """
    folded = trace.folded("code")
    if isinstance(folded, FoldedCode):
        table, words = folded.arrays, list(folded.words["categories"])
        before = np.concatenate([[0], np.cumsum(table["bytes"])])
        size, place = before[table["first"] + table["runs"]] - before[table["first"]], table["category"]
    else:
        table = trace.columns("code")
        size, (words, place) = table["bytes"], numbered(table["category"])
    keys = np.stack([table["op_id"], table["ipu"], place], axis=1)
    pieces, row = np.unique(keys, axis=0, return_inverse=True)
    total = np.zeros(len(pieces), dtype=np.int64)
    np.add.at(total, row.reshape(-1), size)
    op_id, ipu, category = pieces.T
    return {"op_id": op_id, "ipu": ipu, "category": np.array([*words, ""], dtype=object)[category], "bytes": total}


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
