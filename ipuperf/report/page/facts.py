"""What the page shows, as plain data: columns of numbers and strings, ready for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipuperf.report.breakdown import breakdown_cycles, critical_ipu, run_instances
from ipuperf.report.critical_path import critical_path, path_cycles, path_stretches
from ipuperf.report.page.encoding import lists
from ipuperf.report.page.link_facts import link_facts
from ipuperf.report.page.memory_facts import liveness, tile_memory, variables_of
from ipuperf.report.page.op_facts import op_facts
from ipuperf.report.page.time_facts import page_window, timeline
from ipuperf.report.palette import CATEGORY_COLOURS, KIND_COLOURS, KIND_LABELS, PHASE_COLOURS
from ipuperf.report.step_time import TIME_PARTS, followable, step_time
from ipuperf.report.text import verdicts
from ipuperf.trace import KINDS, PHASES, fitting_window

if TYPE_CHECKING:
    from ipuperf.trace import Trace

_POINTS = 20_000
"""Pieces of the critical path drawn at most."""

_FOLLOWED = 400_000
"""Slices up to which live bytes are followed over time; of more a window from the start."""

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
"""Kinds of steps in colours that the colour-blind tell apart (Okabe and Ito's)."""

SAFE_PHASES: dict[str, str] = {
    "fwd": "#009e73",
    "recompute": "#8fd3bd",
    "bwd": "#e69f00",
    "update": "#0072b2",
    "io": "#cc79a7",
    "other": "#bbbbbb",
}
"""What an op is for in such colours."""

SAFE_CATEGORIES: tuple[str, ...] = (
    *("#d55e00", "#0072b2", "#e69f00", "#009e73", "#8fd3bd", "#f0e442", "#56b4e9"),
    *("#999999", "#cc79a7", "#7fb6d8", "#555555", "#e6bcd3", "#8a6d3b", "#e4e4e4"),
)
"""Categories of memory in such colours, in the order of :data:`~ipuperf.report.palette.CATEGORY_COLOURS`."""

PART_NAMES: dict[str, str] = {
    "compute": "compute",
    "exchange": "exchange between tiles",
    "sync": "syncs and waiting for other IPUs",
    "links": "IPU-Links",
    "ddr": "Streaming Memory",
    "host": "the host",
}
"""Parts of a run by kind alone."""


def page_facts(trace: Trace, most: int) -> dict[str, Any]:
    """All facts of a page; the time line in a window from the start of at most ``most`` executions and transfers."""
    window = page_window(trace, most)
    executed = trace.columns("instances")["instance"].size > 0
    summary = trace.summary()
    followed = executed and followable(trace)
    return {
        "meta": {key: trace.meta[key] for key in ("machine", "clock_hz", "num_ipus", "replicas", "tiles_per_ipu")}
        | {"bytes_per_tile": int(trace.meta["bytes_per_tile"]), "oom": bool(trace.meta["oom"])}
        | {"version": trace.meta["ipuperf_version"], "program": str(trace.meta.get("program", ""))}
        | {"peak_flops_per_cycle": trace.meta["peak_flops_per_cycle"]},
        "total_cycles": summary["total_cycles"],
        "flops": int(summary["flops"]),
        "tile_balance": summary["tile_balance"],
        "max_tile": summary["memory"]["max_tile"],
        "fits": summary["memory"]["fits"],
        "verdicts": verdicts(trace),
        "warnings": summary["warnings"],
        "assumptions": summary["assumptions"],
        "runs": lists(trace.table("runs")),
        "kinds": [{"name": kind, "label": KIND_LABELS[kind], "colour": KIND_COLOURS[kind], "safe": SAFE_COLOURS[kind]}
                  for kind in KINDS],
        "phases": [{"name": phase, "colour": PHASE_COLOURS[phase], "safe": SAFE_PHASES[phase]} for phase in PHASES],
        "categories": [{"name": name, "colour": colour, "safe": safe}
                       for (name, colour), safe in zip(CATEGORY_COLOURS.items(), SAFE_CATEGORIES, strict=True)],
        "time": _time(trace) if followed else _short_time(trace) if executed else None,
        "untold": "" if not executed or followed else "The run has too many steps to follow them one by one: whom its "
                  "IPUs wait for, and its critical path, are not told; waiting counts as sync.",
        "timeline": timeline(trace, window) if executed else None,
        "operations": op_facts(trace) if executed else None,
        "memory": tile_memory(trace),
        "liveness": liveness(trace, fitting_window(trace, _FOLLOWED)),
        "variables": variables_of(trace),
        "links": link_facts(trace, summary),
        "host": lists(trace.table("host_events")),
    }  # fmt: skip


def _time(trace: Trace) -> dict[str, Any]:
    """Where the last run goes, waiting by owner, and its critical path."""
    time = step_time(trace)
    path = critical_path(trace, found=time.waits)
    pieces = path_stretches(trace, path)
    return {
        "ipu": time.ipu,
        "replica": time.replica,
        "total": time.total,
        "sentence": time.sentence(),
        "parts": [{"name": name, "label": TIME_PARTS[name], "cycles": cycles} for name, cycles in time.parts.items()],
        "waiting": {str(ipu): owners for ipu, owners in time.waits.by_ipu().items()},
        "path": lists(pieces.head(_POINTS)),
        "path_pieces": len(pieces),
        "path_cycles": lists(path_cycles(trace, path).head(400)),
    }


def _short_time(trace: Trace) -> dict[str, Any]:
    """Where the last run goes when its steps are too many to be followed: by kind alone."""
    _, rows = run_instances(trace)
    replica, ipu = critical_ipu(trace, rows)
    parts = breakdown_cycles(trace)
    total = sum(parts.values())
    largest = max(parts, key=lambda name: parts[name])
    return {
        "ipu": int(ipu),
        "replica": int(replica),
        "total": total,
        "sentence": f"bound by {PART_NAMES[largest]} ({100 * parts[largest] / max(total, 1):.1f} % of it)",
        "parts": [{"name": name, "label": PART_NAMES[name], "cycles": cycles} for name, cycles in parts.items()],
        "waiting": {},
        "path": None,
    }
