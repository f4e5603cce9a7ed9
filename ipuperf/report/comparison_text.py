"""A comparison of runs as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ipuperf.report.arguments import checked
from ipuperf.report.comparison import COMPARED, Comparison
from ipuperf.report.step_time import TIME_PARTS
from ipuperf.report.text import duration

if TYPE_CHECKING:
    import pandas as pd


LISTED = 12
"""The largest number of rows of a group that the text lists, those that differ most."""

_LABEL = 52
_WIDTH = 18


@checked
def comparison_text(comparison: Comparison) -> str:
    """The differences in words, and a column of figures for each run. Ends with a newline."""
    runs = comparison.runs
    lines = ["Runs:"]
    for place, run in enumerate(runs, start=1):
        meta = run.trace.meta
        ipus = f"{meta['num_ipus']} IPU{'s' if meta['num_ipus'] > 1 else ''} of {meta['machine']}"
        lines.append(f"  {place}. {run.name}: {duration(run.seconds)} on {ipus}, bound by {run.time.bound[0]}")
        lines.append(f"     {run.throughput.sentence()}")
    if comparison.notes:
        lines += ["", *(f"Note: {note}." for note in comparison.notes)]
    lines += ["", *comparison.sentences()]
    for group, title in COMPARED.items():
        rows = comparison.changed(group)
        if len(rows):
            lines += ["", f"{title}:", _head(comparison)]
            lines += [_row(comparison, row) for row in rows.head(LISTED).to_dict("records")]
        if len(rows) > LISTED:
            lines.append(f"  ... and {len(rows) - LISTED:,} more that differ less")
    if not any(len(comparison.changed(group)) for group in COMPARED):
        lines += ["", "No figure differs."]
    return "\n".join(lines) + "\n"


def label(group: str, key: str) -> str:
    """The name of a figure in texts."""
    return TIME_PARTS[key] if group == "time" else key


def number(value: float) -> str:
    """A figure with separators; one that is not whole has four digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def _head(comparison: Comparison) -> str:
    places = "".join(f"{f'({place})':>{_WIDTH}}" for place in range(1, len(comparison.runs) + 1))
    return f"  {'':<{_LABEL}}{places}{'last - first':>{_WIDTH}}"


def _row(comparison: Comparison, row: dict[Any, Any]) -> str:
    text = f"{label(row['group'], row['key'])} ({row['unit']})"
    # The end of a long name tells figures apart. Its begin is the scopes that many share.
    if len(text) > _LABEL - 1:
        text = "..." + text[-(_LABEL - 4) :]
    values = "".join(f"{number(row[run.name]):>{_WIDTH}}" for run in comparison.runs)
    change = "" if math.isnan(row["ratio"]) else f"  {row['ratio'] - 1:+.1%}"
    return f"  {text:<{_LABEL}}{values}{('+' if row['diff'] > 0 else '') + number(row['diff']):>{_WIDTH}}{change}"


@checked
def comparison_values(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values, ready for JSON: runs, notes, sentences, growth (shares) and every figure with its
    values in the order of the runs."""
    runs = comparison.runs
    names = [run.name for run in runs]
    return {
        "runs": [
            {
                "name": run.name,
                "machine": run.trace.meta["machine"],
                "program": str(run.trace.meta.get("program", "")),
                "cycles": run.time.total,
                "seconds": run.seconds,
                "interval": list(run.interval),
                "throughput": asdict(run.throughput),
                "ratio": run.seconds / runs[0].seconds if runs[0].seconds else None,
                "ratio_interval": list(run.ratio_to(runs[0])),
                "ipu": run.time.ipu,
                "bound_by": run.time.sentence(),
                "peak_tile_bytes": run.peak,
            }
            for run in runs
        ],
        "notes": list(comparison.notes),
        "sentences": comparison.sentences(),
        # JSON has no infinity.
        "growth": {name: share if math.isfinite(share) else None for name, share in comparison.growth.items()},
        "figures": _figures(comparison.table, names),
    }


def _figures(table: pd.DataFrame, names: list[str]) -> list[dict[str, Any]]:
    return [
        {"group": row["group"], "key": row["key"], "unit": row["unit"], "values": [_plain(row[name]) for name in names]}
        for row in table.to_dict("records")
    ]


def _plain(value: Any) -> float:
    """A whole number as int."""
    return int(value) if float(value).is_integer() else float(value)
