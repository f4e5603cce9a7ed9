"""A trace in a notebook: its main figures as a short table."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ipuperf.trace.schema import KINDS

if TYPE_CHECKING:
    from ipuperf.trace.trace import Trace

MOST_IPUS = 8
"""IPUs in the table; the rest is said to be left out."""


def html(trace: Trace) -> str:
    """Machine, time, memory, and of each IPU the share of its time by kind, as two tables without scripts."""
    summary = trace.summary()
    memory = summary["memory"]
    rows = [
        ("machine", f"{summary['machine']}, {summary['num_ipus']} IPUs, {summary['replicas']} replicas"),
        ("program", str(trace.meta.get("program", ""))),
        ("time", f"{summary['total_cycles']:,} cycles = {1e3 * summary['seconds']:,.4g} ms"),
        ("runs", f"{len(summary['runs'])}"),
    ]
    if memory["max_tile"] is not None:
        top, limit = memory["max_tile"], memory["bytes_per_tile"]
        verdict = "fits" if memory["fits"] else "does not fit"
        words = f"{top['bytes']:,} of {limit:,} bytes (IPU {top['ipu']}, tile {top['tile']}): {verdict}"
        rows.append(("fullest tile", words))
    rows += [("warning", warning) for warning in summary["warnings"]]
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{facts}</table>{_shares(trace)}"


def _shares(trace: Trace) -> str:
    totals = trace.totals()
    kinds = [kind for kind in KINDS if totals[kind].any()]
    head = "".join(f"<th>{escape(kind)}</th>" for kind in kinds)
    body = ""
    for _, row in totals.head(MOST_IPUS).iterrows():
        cells = "".join(f"<td>{100 * row[kind] / max(row['elapsed'], 1):.1f} %</td>" for kind in kinds)
        body += f"<tr><th>{int(row['ipu'])}</th><td>{int(row['elapsed']):,}</td>{cells}</tr>"
    left_out = len(totals) - MOST_IPUS
    note = f"<p>{left_out} more IPUs are in trace.totals().</p>" if left_out > 0 else ""
    return f"<table><tr><th>IPU</th><th>cycles</th>{head}</tr>{body}</table>{note}"
