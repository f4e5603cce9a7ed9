"""Facts on operations: the cost of each, what bounds it, its share of the peak, and the plans of its products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.page.encoding import grouped, lists
from ipuperf.trace.columns import lookup

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.trace import Trace

SHOWN_OPS = 5_000
"""The largest number of rows of the table of operations, the costliest ones."""

BOUNDS: dict[str, tuple[str, ...]] = {
    "exchange": ("exchange",),
    "sync": ("sync",),
    "IPU-Links": ("link",),
    "Streaming Memory": ("remote_load", "remote_store"),
    "host exchange": ("host_mid",),
}
"""What an op can be bound by, besides its compute and its slowest tiles, and the kinds of steps of each."""


def bounds(table: pd.DataFrame) -> np.ndarray:
    """The bound of each row of :meth:`Trace.operations_by_ipu`, which is what takes the most cycles.

    It is compute of the average tile (``compute``), the additional time of the slowest tile (``slowest tile``), one of
    :data:`BOUNDS`, or ``waiting`` if the op does nothing else.
    """
    names = ["compute", "slowest tile", *BOUNDS]
    parts = [table["compute"] - table["imbalance_cycles"], table["imbalance_cycles"]]
    parts += [sum(table[kind] for kind in kinds) for kinds in BOUNDS.values()]
    amounts = np.stack([np.asarray(part, dtype=np.float64) for part in parts], axis=1)
    chosen = np.array(names, dtype=object)[amounts.argmax(axis=1)] if len(table) else np.empty(0, dtype=object)
    return np.where(amounts.any(axis=1), chosen, "waiting")


def able_flops(trace: Trace, table: pd.DataFrame) -> list[int]:
    """The FLOP that the IPU of each row could do with the op's data type in its cycles; 0 if the peak is not known."""
    ops, peaks = trace.columns("ops"), trace.meta["peak_flops_per_cycle"]
    types = dict(zip(ops["name"].tolist(), ops["dtype"].tolist(), strict=True))
    return [
        peaks.get(types.get(name, ""), 0) * int(cycles)
        for name, cycles in zip(table["op"], table["cycles"], strict=True)
    ]


def op_facts(trace: Trace) -> dict[str, Any]:
    """The costliest rows by op and IPU, in columns, with their totals."""
    table = trace.operations_by_ipu()
    shown = table.head(SHOWN_OPS).copy()
    shown["bound"] = bounds(shown)
    shown["memory"] = _memory(trace, shown)
    columns = ["op", "type", "phase", "layer", "line", "ipu", "kind", "bound", "cycles", "waiting_cycles", "share"]
    facts = lists(shown[[*columns, "imbalance_cycles", "memory"]])
    facts["share"] = [round(value, 6) for value in facts["share"]]
    for name in ("flops", "bytes"):
        facts[name] = [int(value) for value in shown[name]]
    facts["able"] = able_flops(trace, shown)
    return {**facts, "rows": len(table), "total_cycles": int(table["cycles"].sum()), "plans": _plans(trace)}


def _memory(trace: Trace, table: pd.DataFrame) -> list[int]:
    """Bytes in tile memory of the results and temporary variables of each op on its IPU."""
    variables, ops = trace.columns("variables"), trace.columns("ops")
    rows = np.flatnonzero((variables["location"] == "tile") & (variables["op_id"] >= 0))
    # Op and IPU make one key: the upper and the lower 32 bits.
    keys, order, begins = grouped(variables["op_id"][rows].astype(np.int64) << 32 | variables["ipu"][rows])
    size = np.add.reduceat(variables["bytes"][rows][order], begins[:-1]) if len(keys) else np.empty(0, dtype=np.int64)
    names = lookup(keys >> 32, ops["op_id"], ops["name"], "")
    bytes_of_op: dict[tuple[str, int], int] = {}
    for name, ipu, count in zip(names.tolist(), (keys & 0xFFFFFFFF).tolist(), size.tolist(), strict=True):
        bytes_of_op[name, ipu] = bytes_of_op.get((name, ipu), 0) + count
    return [bytes_of_op.get(key, 0) for key in zip(table["op"].tolist(), table["ipu"].tolist(), strict=True)]


def _plans(trace: Trace) -> dict[str, Any]:
    """The rows of table ``plans`` by op, with numbers of distinct plans: cycles, tiles, bytes, vertex and text."""
    # Many products have one plan, so each plan is written once.
    plans, ops = trace.columns("plans"), trace.columns("ops")
    known: dict[tuple[Any, ...], int] = {}
    by_op: dict[str, list[list[int]]] = {}
    columns = [plans[name].tolist() for name in ("cycles", "tiles", "temp_bytes", "vertex", "plan")]
    names = lookup(plans["op_id"], ops["op_id"], ops["name"], "").tolist()
    for row, (name, product, rank) in enumerate(
        zip(names, plans["product"].tolist(), plans["rank"].tolist(), strict=True)
    ):
        number = known.setdefault(tuple(column[row] for column in columns), len(known))
        by_op.setdefault(name, []).append([product, rank, number])
    return {"distinct": [list(plan) for plan in known], "by_op": by_op}
