"""A trace in a notebook: its main figures as a short table."""

from __future__ import annotations

from html import escape

from ipuperf.trace.fold import ipu_totals
from ipuperf.trace.schema import KINDS
from ipuperf.trace.summary import summary
from ipuperf.trace.tables import TraceTables

MOST_IPUS = 8
"""IPUs in the table; the rest is said to be left out."""


def html(trace: TraceTables) -> str:
    """Machine, time, memory, and of each IPU the share of its time by kind, as two tables without scripts."""
    figures = summary(trace)
    memory = figures["memory"]
    rows = [
        ("machine", f"{figures['machine']}, {figures['num_ipus']} IPUs, {figures['replicas']} replicas"),
        ("program", str(trace.meta.get("program", ""))),
        ("time", f"{figures['total_cycles']:,} cycles = {1e3 * figures['seconds']:,.4g} ms"),
        ("runs", f"{len(figures['runs'])}"),
    ]
    if memory["max_tile"] is not None:
        top, limit = memory["max_tile"], memory["bytes_per_tile"]
        verdict = "fits" if memory["fits"] else "does not fit"
        words = f"{top['bytes']:,} of {limit:,} bytes (IPU {top['ipu']}, tile {top['tile']}): {verdict}"
        rows.append(("fullest tile", words))
    rows += [("warning", warning) for warning in figures["warnings"]]
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{facts}</table>{_shares(trace)}"


def _shares(trace: TraceTables) -> str:
    totals = ipu_totals(trace)
    kinds = [(code, kind) for code, kind in enumerate(KINDS) if totals.cycles[:, code].any()]
    head = "".join(f"<th>{escape(kind)}</th>" for _, kind in kinds)
    body = ""
    for ipu, cycles, elapsed in list(zip(totals.ipu, totals.cycles, totals.last - totals.first, strict=True))[
        :MOST_IPUS
    ]:
        cells = "".join(f"<td>{100 * cycles[code] / max(elapsed, 1):.1f} %</td>" for code, _ in kinds)
        body += f"<tr><th>{int(ipu)}</th><td>{int(elapsed):,}</td>{cells}</tr>"
    left_out = len(totals.ipu) - MOST_IPUS
    note = f"<p>{left_out} more IPUs are in trace.totals().</p>" if left_out > 0 else ""
    return f"<table><tr><th>IPU</th><th>cycles</th>{head}</tr>{body}</table>{note}"
