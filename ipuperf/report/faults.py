"""What the faults of a machine did to a run, in words; the figures come with the trace (``meta["faults"]``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipuperf.report.text import duration

NAMES = {0.5: "median", 0.9: "90th percentile", 0.99: "99th percentile"}
"""What the quantiles are called."""


def fault_facts(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """The figures for the page: ``lines`` of text, ``blame`` with shares of a run without faults; None: no faults."""
    faults = meta.get("faults")
    if not faults:
        return None
    plain = faults.get("plain", 0)
    return {
        "lines": [f"{label}: {value}" for label, value in fault_rows(meta)],
        "blame": [
            {**row, **{f"{key}_share": row[key] / max(plain, 1) for key in ("alone", "repaired")}}
            for row in faults.get("blame", ())
        ],
        "blamed": faults.get("blamed", 0),
        "cycles": faults.get("cycles", []),
        "quantiles": [{"name": NAMES[row["part"]], **row} for row in faults.get("quantiles", ())],
    }


def fault_rows(meta: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The run without faults, the distribution of the run with them, and what each fault costs: labels and values."""
    faults, clock = meta["faults"], float(meta["clock_hz"])

    def told(cycles: int) -> str:
        return f"{cycles:,} ({duration(cycles / clock)})"

    if "plain" not in faults:
        return [(text, "its cost was not simulated") for text in faults["texts"]]
    plain = faults["plain"]
    rows = [("A run without faults", told(plain))]
    if len(faults["cycles"]) == 1:
        rows.append(("Every run with them", f"{told(faults['cycles'][0])}{_more(faults['cycles'][0], plain)}"))
    for row in faults["quantiles"] if len(faults["cycles"]) > 1 else ():
        low, high = (None if row[name] is None else duration(row[name] / clock) for name in ("low", "high"))
        within = {
            (True, True): f"{low} to {high}",
            (True, False): f"{low} or more",
            (False, True): f"{high} or less",
            (False, False): "any, for so few samples",
        }[low is not None, high is not None]
        label = f"{NAMES[row['part']].capitalize()} of {faults['samples']:,} samples"
        rows.append((label, f"{told(row['cycles'])}{_more(row['cycles'], plain)}, 95 %: {within}"))
    for row in faults["blame"]:
        alone, repaired = (f"{row[key]:,}{_share(row[key], plain)}" for key in ("alone", "repaired"))
        rows.append((row["fault"], f"costs {alone} alone, saves {repaired} repaired"))
    return rows


def fault_sentences(meta: Mapping[str, Any]) -> list[str]:
    """The figures in few lines, for the end of a run; empty without faults."""
    faults, clock = meta.get("faults") or {}, float(meta["clock_hz"])
    if "plain" not in faults:
        return []
    plain = faults["plain"]
    if len(faults["cycles"]) == 1:
        said = f"{duration(faults['cycles'][0] / clock)}{_more(faults['cycles'][0], plain)}, every run alike"
    else:
        said = ", ".join(
            f"{NAMES[row['part']]} {duration(row['cycles'] / clock)}{_more(row['cycles'], plain)}"
            for row in faults["quantiles"]
        )
        said = f"{said} of {faults['samples']:,} samples"
    worst = max(faults["blame"], key=lambda row: row["repaired"])
    return [
        f"with faults: {said}; without {duration(plain / clock)}",
        f"largest fault: {worst['fault']}, to repair it saves {duration(worst['repaired'] / clock)}",
    ]


def _share(cycles: int, plain: int) -> str:
    return f" ({100 * cycles / max(plain, 1):.2f} %)"


def _more(cycles: int, plain: int) -> str:
    return f", {100 * (cycles - plain) / max(plain, 1):+.2f} %"
