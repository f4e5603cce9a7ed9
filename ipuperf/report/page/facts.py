"""The facts of a page as plain data: columns of numbers and strings, ready for JSON."""

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
"""The largest number of pieces of the critical path that are drawn."""

_FOLLOWED = 400_000
"""The number of slices up to which live bytes are followed over time. Longer traces show a window from the start."""

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

PART_NAMES: dict[str, str] = {
    "compute": "compute",
    "exchange": "exchange between tiles",
    "sync": "syncs and waiting for other IPUs",
    "links": "IPU-Links",
    "ddr": "Streaming Memory",
    "host": "the host",
}
"""The names of parts of a run in which waiting has no owner."""


def page_facts(trace: Trace, most: int) -> dict[str, Any]:
    """All facts of a page. The time line shows at most ``most`` executions and transfers from the start."""
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
    """The parts of the last run's time, its waiting by owner, and its critical path."""
    time = step_time(trace)
    path = critical_path(trace, known_waits=time.waits)
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
    """The parts of the last run's time if it has too many steps to follow: by kind of step, without owners of waits."""
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
