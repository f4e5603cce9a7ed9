"""The differences between two traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuperf.trace import fold
from ipuperf.trace.operations import op_kind_cycles
from ipuperf.trace.schema import KINDS
from ipuperf.trace.summary import link_totals
from ipuperf.trace.tables import TraceTables, fullest_tile

if TYPE_CHECKING:
    import pandas as pd

Figures = dict[tuple[str, str, str], float]
"""A figure by (table, key, unit)."""


def figures(trace: TraceTables) -> Figures:
    """The figures by which two traces are compared.

    These are runs by name, totals by kind and by op and kind (all stored IPUs together), tile memory by IPU and
    category, the fullest tile of each IPU, peaks of liveness, and bytes of each link. Identifiers are not compared, so
    that the traces may be of two programs. Runs with the same name are told apart by their number.
    """
    result: Figures = {("meta", "clock", "Hz"): float(trace.meta["clock_hz"])}
    runs = trace.columns("runs")
    for order, (name, dur) in enumerate(zip(runs["name"], runs["dur"], strict=True)):
        result["runs", f"{order}: {name}", "cycles"] = int(dur)
    cycles = fold.ipu_totals(trace).cycles.sum(axis=0)
    for code, kind in enumerate(KINDS):
        result["kinds", kind, "cycles"] = int(cycles[code])
    for (name, kind), value in op_kind_cycles(trace).items():
        result["ops", f"{name} / {kind}", "cycles"] = value
    result.update(_memory_figures(trace))
    for link in link_totals(trace):
        result["links", link["name"], "bytes"] = link["bytes"]
    return result


def _memory_figures(trace: TraceTables) -> Figures:
    result: Figures = {}
    memory, liveness = trace.columns("tile_memory"), trace.columns("liveness")
    for ipu in np.unique(memory["ipu"]).tolist():
        rows = memory["ipu"] == ipu
        for category in sorted(set(memory["category"][rows])):
            total = memory["bytes"][rows & (memory["category"] == category)].sum()
            result["tile_memory", f"IPU {ipu} / {category}", "bytes"] = int(total)
        fullest = fullest_tile({key: values[rows] for key, values in memory.items()})
        result["tile_memory", f"IPU {ipu} / max tile", "bytes"] = fullest[2] if fullest else 0
    for ipu in np.unique(liveness["ipu"]).tolist():
        rows = liveness["ipu"] == ipu
        for column in ("always_live", "not_always_live", "max_tile"):
            result["liveness", f"IPU {ipu} / {column} peak", "bytes"] = int(liveness[column][rows].max())
    return result


def diff(source: TraceTables, target: TraceTables, rtol: float = 0.0) -> pd.DataFrame:
    """Figures that differ by more than ``rtol`` times the larger of the two, the largest relative change first.

    Columns: table, key, unit, source, target, diff (target - source), ratio (target / source, NaN where source is 0). A
    figure that one trace does not have counts as 0 there. An empty frame means that nothing differs. Raises
    ``ValueError`` for a negative ``rtol``, ``TypeError`` for an argument that is not a trace.
    """
    import pandas as pd

    for role, trace in (("source", source), ("target", target)):
        if not isinstance(trace, TraceTables):
            raise TypeError(f"diff: the {role} is {trace!r} ({type(trace).__name__}), expected a Trace")
    if not (isinstance(rtol, (int, float)) and rtol >= 0):
        raise ValueError(f"rtol {rtol!r}: expected a number of at least 0")
    source_figures, target_figures = figures(source), figures(target)
    # `place` sorts figures with equal changes: those of the source first, in its order.
    rows = []
    for place, key in enumerate(dict.fromkeys([*source_figures, *target_figures])):
        old, new = source_figures.get(key, 0), target_figures.get(key, 0)
        scale = max(abs(old), abs(new))
        # A strict test leaves out two zeros even without a tolerance, so the scale below is never 0.
        if abs(new - old) > rtol * scale:
            rows.append((-abs(new - old) / scale, place, (*key, old, new, new - old, new / old if old else np.nan)))
    names = ["table", "key", "unit", "source", "target", "diff", "ratio"]
    return pd.DataFrame([row for _, _, row in sorted(rows, key=lambda row: row[:2])], columns=names)
