"""How much of what the machine can do a program uses: matrix units, links, Streaming Memory, the host's connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ipuperf.trace import Trace
from ipuperf.trace.tables import Columns

if TYPE_CHECKING:
    import pandas as pd


LINKS = {
    "ipu_link": "busiest IPU-Link",
    "gw_link": "busiest GW-Link",
    "ddr": "busiest Streaming Memory",
    "pcie": "busiest PCIe connection of the host",
}
"""Kinds of links in words."""


def limits(trace: Trace, summary: dict[str, Any], costs: pd.DataFrame) -> list[dict[str, Any]]:
    """The share of each limit that is used over the whole trace, in the order in which a reader looks.

    FLOP count against the peak of the matrix units of all IPUs, each op at the peak of its type. A kind of link counts
    as its busiest link, by bytes over what it could carry. Each limit has name, label and share (0 to 1); limits that
    the trace does not know are left out. Simplification: of the exchange the share of the time is told, because its
    bytes have two limits, and which one counts depends on the pairs of tiles that receive the same.

    Args:
        summary: of the trace (:meth:`Trace.summary`).
        costs: of its ops on one IPU of those that do the same (:meth:`Trace.operations_by_ipu`).
    """
    used = []
    totals, peaks = trace.totals(), trace.meta["peak_flops_per_cycle"]
    cycles = int(summary["total_cycles"]) * len(totals)
    if cycles and peaks:
        share = _cycles_at_peak(trace.columns("ops"), peaks, costs) / cycles
        used.append({"name": "flops", "label": "peak FLOP/s of the matrix units", "share": share})
    if cycles:
        share = int(totals["exchange"].sum()) / cycles
        used.append({"name": "exchange", "label": "internal exchange, of the time", "share": share})
    for kind, label in LINKS.items():
        shares = [float(link["utilisation"]) for link in summary["links"] if link["kind"] == kind and link["bytes"]]
        if shares:
            used.append({"name": kind, "label": label, "share": max(shares)})
    return used


def _cycles_at_peak(ops: Columns, peaks: Mapping[str, int], costs: pd.DataFrame) -> float:
    """The cycles that the FLOP of all IPUs take at the peak of their types."""
    types = dict(zip(ops["name"].tolist(), ops["dtype"].tolist(), strict=True))
    at_peak = (
        int(flops) * int(ipus) / peaks[types[op]]
        for op, flops, ipus in zip(*(costs[name].tolist() for name in ("op", "flops", "ipus")), strict=True)
        if flops and types.get(op) in peaks
    )
    return float(sum(at_peak))
