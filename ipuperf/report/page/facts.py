"""The facts of a page as plain data: columns of numbers and strings, ready for JSON.

Each view has a module that takes the figures of its view; none of them reads the trace.
"""

from __future__ import annotations

from typing import Any

from ipuperf.report.faults import fault_facts
from ipuperf.report.intervals import interval, throughput
from ipuperf.report.limits import limits
from ipuperf.report.page.encoding import lists
from ipuperf.report.page.figures import Figures
from ipuperf.report.page.link_facts import link_facts
from ipuperf.report.page.memory_facts import code_of, liveness, tile_memory, variables_of
from ipuperf.report.page.op_facts import op_facts
from ipuperf.report.page.run_facts import UNTOLD, long_run_facts, run_facts
from ipuperf.report.page.time_facts import timeline
from ipuperf.report.palette import CATEGORY_COLOURS, KIND_COLOURS, KIND_LABELS, PHASE_COLOURS
from ipuperf.trace import KINDS, PHASES, Trace

SAFE_COLOURS: dict[str, str] = {
    "compute": "#d55e00",
    "exchange": "#56b4e9",
    "sync": "#f0e442",
    "link": "#009e73",
    "remote_load": "#0072b2",
    "remote_store": "#7fb6d8",
    "host_begin": "#dddddd",
    "host_mid": "#cc79a7",
    "host_end": "#e6bcd3",
    "host_run": "#8a6d3b",
    "sync_external": "#555555",
    "idle": "#555555",
}
"""Colours of kinds of steps that colour-blind readers can tell apart (those of Okabe and Ito)."""

SAFE_PHASES: dict[str, str] = {
    "fwd": "#009e73",
    "recompute": "#8fd3bd",
    "bwd": "#e69f00",
    "update": "#0072b2",
    "io": "#cc79a7",
    "other": "#bbbbbb",
}
"""Such colours for phases of ops."""

SAFE_CATEGORIES: tuple[str, ...] = (
    *("#d55e00", "#0072b2", "#e69f00", "#009e73", "#8fd3bd", "#f0e442", "#56b4e9"),
    *("#999999", "#cc79a7", "#7fb6d8", "#555555", "#e6bcd3", "#8a6d3b", "#e4e4e4"),
)
"""Such colours for categories of memory, in the order of :data:`~ipuperf.report.palette.CATEGORY_COLOURS`."""


def legend() -> dict[str, list[dict[str, str]]]:
    """Kinds of steps, phases of ops and categories of memory, in the order of their codes."""
    return {
        "kinds": [
            {"name": kind, "label": KIND_LABELS[kind], "colour": KIND_COLOURS[kind], "safe": SAFE_COLOURS[kind]}
            for kind in KINDS
        ],
        "phases": [{"name": phase, "colour": PHASE_COLOURS[phase], "safe": SAFE_PHASES[phase]} for phase in PHASES],
        "categories": [
            {"name": name, "colour": colour, "safe": safe}
            for (name, colour), safe in zip(CATEGORY_COLOURS.items(), SAFE_CATEGORIES, strict=True)
        ],
    }


_META = ("machine", "clock_hz", "num_ipus", "replicas", "tiles_per_ipu")


def page_facts(trace: Trace, most: int, figures: Figures | None = None) -> dict[str, Any]:
    """All facts of a page. The time line shows at most ``most`` executions and transfers from the start.

    ``figures`` are those of the trace, if there are any yet.
    """
    figures = figures or Figures(trace)
    tables, summary, variables = figures.tables, figures.summary, figures.variables
    return {
        "meta": _meta(trace.meta),
        "total_cycles": summary["total_cycles"],
        "flops": int(summary["flops"]),
        "tile_balance": summary["tile_balance"],
        "max_tile": summary["memory"]["max_tile"],
        "fits": summary["memory"]["fits"],
        "verdicts": figures.verdicts,
        "warnings": summary["warnings"],
        "assumptions": summary["assumptions"],
        "runs": lists(tables["runs"]),
        "faults": fault_facts(trace.meta),
        **legend(),
        **_executed(figures, most),
        "memory": tile_memory(tables["tile_memory"]),
        "liveness": liveness(tables, variables.columns, figures.live, figures.live_window),
        "variables": variables_of(variables, tables["live_intervals"], tables["ops"]),
        "code": code_of(figures.code),
        "limits": limits(trace, summary, figures.operations),
        "modules": lists(figures.modules),
        "links": link_facts(figures.trace.short, summary["links"], figures.link_use, summary["total_cycles"]),
    }


def _meta(meta: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: meta[key] for key in _META},
        "bytes_per_tile": int(meta["bytes_per_tile"]),
        "oom": bool(meta["oom"]),
        "version": meta["ipuperf_version"],
        "program": str(meta.get("program", "")),
        "peak_flops_per_cycle": meta["peak_flops_per_cycle"],
        "peak_exchange_bytes_per_cycle": meta["peak_exchange_bytes_per_cycle"],
    }


def _executed(figures: Figures, most: int) -> dict[str, Any]:
    """The facts on what was executed; all are None if nothing was."""
    if not figures.executed:
        return {"time": None, "interval": "", "throughput": "", "untold": "", "timeline": None, "operations": None}
    trace = figures.trace
    if figures.followed:
        time = run_facts(figures.time, figures.path, figures.path_cycles)
    else:
        time = long_run_facts(*figures.pace, figures.breakdown)
    return {
        "time": time,
        "interval": interval(trace).sentence(),
        "throughput": throughput(trace).sentence(),
        "untold": "" if figures.followed else UNTOLD,
        "timeline": timeline(trace, figures.summary["links"], most),
        "operations": op_facts(
            figures.tables, figures.variables, figures.operations, trace.meta["peak_flops_per_cycle"]
        ),
    }
