"""Facts on operations: the cost of each, what bounds it, its share of the peak, and the plans of its products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.page.encoding import Columns, Tables, lists, summed
from ipuperf.trace.columns import lookup
from ipuperf.trace.loops import product
from ipuperf.trace.variables import VariableRows

if TYPE_CHECKING:
    import pandas as pd


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


def able_flops(ops: Columns, peaks: Mapping[str, int], table: pd.DataFrame) -> list[int]:
    """The FLOP that the IPU of each row could do with the op's data type in its cycles.

    ``peaks`` has the FLOP a cycle of each data type; where it has none, the result is 0.
    """
    types = dict(zip(ops["name"].tolist(), ops["dtype"].tolist(), strict=True))
    return [
        peaks.get(types.get(name, ""), 0) * int(cycles)
        for name, cycles in zip(table["op"].tolist(), table["cycles"].tolist(), strict=True)
    ]


def op_facts(
    tables: Tables, variables: VariableRows, operations: pd.DataFrame, peaks: Mapping[str, int]
) -> dict[str, Any]:
    """The costliest rows of ``operations`` (:meth:`Trace.operations_by_ipu` of each class), with their totals."""
    shown = operations.head(SHOWN_OPS).copy()
    shown["bound"] = bounds(shown)
    shown["memory"] = _memory(variables.columns, tables["ops"], shown)
    columns = ["op", "type", "phase", "module", "line", "ipu", "ipus", "kind", "bound", "cycles", "waiting_cycles"]
    facts = lists(shown[[*columns, "share", "imbalance_cycles", "memory"]])
    facts["share"] = [round(value, 6) for value in facts["share"]]
    for name in ("flops", "bytes", "exchange_bytes"):
        facts[name] = [int(value) for value in shown[name]]
    facts["able"] = able_flops(tables["ops"], peaks, shown)
    plans = _plans(tables["plans"], tables["ops"])
    total = sum(product(operations["cycles"].to_numpy(), operations["ipus"].to_numpy()).tolist())
    return {**facts, "rows": len(operations), "total_cycles": total, "plans": plans}


def _memory(variables: Columns, ops: Columns, shown: pd.DataFrame) -> list[int]:
    """Bytes in tile memory of the results and temporary variables of each op on its IPU."""
    rows = np.flatnonzero((variables["location"] == "tile") & (variables["op_id"] >= 0))
    # Op and IPU make one key: the upper and the lower 32 bits.
    key = variables["op_id"][rows].astype(np.int64) << 32 | variables["ipu"][rows]
    keys, size = summed(key, variables["bytes"][rows])
    names = lookup(keys >> 32, ops["op_id"], ops["name"], "")
    # Several ops may have one name.
    bytes_of_op: dict[tuple[str, int], int] = {}
    for name, ipu, count in zip(names.tolist(), (keys & 0xFFFFFFFF).tolist(), size.tolist(), strict=True):
        bytes_of_op[name, ipu] = bytes_of_op.get((name, ipu), 0) + count
    return [bytes_of_op.get(key, 0) for key in zip(shown["op"].tolist(), shown["ipu"].tolist(), strict=True)]


def _plans(plans: Columns, ops: Columns) -> dict[str, Any]:
    """The rows of table ``plans`` by op, with numbers of distinct plans: cycles, tiles, bytes, vertex and text."""
    # Many products have one plan, so each plan is written once.
    number_of: dict[tuple[Any, ...], int] = {}
    by_op: dict[str, list[list[int]]] = {}
    columns = [plans[name].tolist() for name in ("cycles", "tiles", "temp_bytes", "vertex", "plan")]
    names = lookup(plans["op_id"], ops["op_id"], ops["name"], "").tolist()
    for name, number_of_product, rank, *plan in zip(
        names, plans["product"].tolist(), plans["rank"].tolist(), *columns, strict=True
    ):
        number = number_of.setdefault(tuple(plan), len(number_of))
        by_op.setdefault(name, []).append([number_of_product, rank, number])
    return {"distinct": [list(plan) for plan in number_of], "by_op": by_op}
