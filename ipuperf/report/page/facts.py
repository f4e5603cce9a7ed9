"""What the page shows, as plain data: columns of numbers and strings, ready for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.breakdown import run_instances
from ipuperf.report.critical_path import critical_path, path_cycles
from ipuperf.report.live import link_use, live_memory
from ipuperf.report.palette import CATEGORY_COLOURS, KIND_COLOURS, KIND_LABELS, PHASE_COLOURS
from ipuperf.report.step_time import TIME_PARTS, followable, step_time
from ipuperf.report.text import verdicts
from ipuperf.trace import KINDS, PHASES, Window, fitting_window, slices

if TYPE_CHECKING:
    import pandas as pd

    from ipuperf.trace import Trace

SHOWN_VARIABLES = 2_000
"""Variables listed at most, the largest ones."""
SHOWN_OPS = 5_000
"""Rows of the table of operations at most, the costliest ones."""
_POINTS = 4_000
"""Points of a curve at most."""

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


def page_facts(trace: Trace, most_slices: int) -> dict[str, Any]:
    """All facts of a page; the time line in a window from the start of at most ``most_slices`` slices."""
    window = fitting_window(trace, most_slices)
    executed = trace.columns("instances")["instance"].size > 0
    summary = trace.summary()
    return {
        "meta": {key: trace.meta[key] for key in ("machine", "clock_hz", "num_ipus", "replicas", "tiles_per_ipu")}
        | {"bytes_per_tile": int(trace.meta["bytes_per_tile"]), "oom": bool(trace.meta["oom"])}
        | {"version": trace.meta["ipuperf_version"], "program": str(trace.meta.get("program", ""))},
        "total_cycles": summary["total_cycles"],
        "flops": int(summary["flops"]),
        "tile_balance": summary["tile_balance"],
        "max_tile": summary["memory"]["max_tile"],
        "fits": summary["memory"]["fits"],
        "verdicts": verdicts(trace),
        "warnings": summary["warnings"],
        "assumptions": summary["assumptions"],
        "runs": _columns(trace.table("runs")),
        "kinds": [{"name": kind, "label": KIND_LABELS[kind], "colour": KIND_COLOURS[kind], "safe": SAFE_COLOURS[kind]}
                  for kind in KINDS],
        "phases": [{"name": phase, "colour": PHASE_COLOURS[phase]} for phase in PHASES],
        "categories": [{"name": name, "colour": colour} for name, colour in CATEGORY_COLOURS.items()],
        "time": _time(trace) if executed and followable(trace) else None,
        "untold": "" if not executed or followable(trace) else "The run has too many steps to follow them one by one.",
        "timeline": _timeline(trace, window) if executed else None,
        "operations": _operations(trace) if executed else None,
        "memory": _tile_memory(trace),
        "liveness": _liveness(trace, window),
        "variables": _variables(trace),
        "links": _links(trace, summary),
        "host": _columns(trace.table("host_events")),
    }  # fmt: skip


def _columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """A table as lists by column name."""
    return {str(name): table[name].tolist() for name in table.columns}


def _time(trace: Trace) -> dict[str, Any]:
    """Where the last run goes, waiting by owner, and its critical path."""
    time = step_time(trace)
    path = critical_path(trace, found=time.waits)
    pieces = path.table()
    return {
        "ipu": time.ipu,
        "replica": time.replica,
        "total": time.total,
        "sentence": time.sentence(),
        "parts": [{"name": name, "label": TIME_PARTS[name], "cycles": cycles} for name, cycles in time.parts.items()],
        "waiting": {str(ipu): owners for ipu, owners in time.waits.by_ipu().items()},
        "path": _columns(pieces.head(_POINTS)[["ipu", "start", "dur", "sync"]]),
        "path_pieces": len(pieces),
        "path_cycles": _columns(path_cycles(trace, path).head(400)),
    }


def _timeline(trace: Trace, window: Window | None) -> dict[str, Any]:
    """Slices by IPU in time, as columns of the steps and instances they come from; delta-coded starts."""
    steps, instances, ops = trace.columns("steps"), trace.columns("instances"), trace.columns("ops")
    found = slices(trace, window)
    found = found.take(found.dur > 0)
    ipu, lane = instances["ipu"][found.instance], steps["lane"][found.step]
    rows, row = np.unique(np.stack([instances["replica"][found.instance], ipu, lane]), axis=1, return_inverse=True)
    order = np.lexsort((found.start, row.reshape(-1)))
    found, row = found.take(order), row.reshape(-1)[order]
    first = np.searchsorted(row, np.arange(rows.shape[1] + 1))
    used, step = np.unique(found.step, return_inverse=True)
    kind = np.array([KINDS.index(name) for name in steps["kind"][used]], dtype=np.int64)
    phase_of = dict(zip(ops["op_id"].tolist(), ops["phase"], strict=True))
    phase = [PHASES.index(phase_of.get(op, "other")) for op in steps["op_id"][used].tolist()]
    names, name = np.unique(trace.step_ops[used].astype(str), return_inverse=True)
    begin, _ = run_instances(trace)[0] if window is None else window
    lines = {}
    for number in range(rows.shape[1]):
        part = slice(int(first[number]), int(first[number + 1]))
        lines[number] = {
            "start": np.diff(found.start[part], prepend=0).tolist(),
            "dur": found.dur[part].tolist(),
            "step": step.reshape(-1)[part].tolist(),
            "micro_batch": _runs_of(instances["micro_batch"][found.instance[part]]),
        }
    return {
        "window": list(window) if window is not None else None,
        "begin": int(begin),
        "rows": [{"replica": int(r), "ipu": int(i), "lane": int(k), **lines[n]} for n, (r, i, k) in enumerate(rows.T)],
        "steps": {
            "kind": kind.tolist(),
            "phase": phase,
            "op": name.reshape(-1).tolist(),
            "mean": np.round(steps["dur_mean"][used], 1).tolist(),
            "tiles": steps["active_tiles"][used].tolist(),
            "slowest": steps["argmax_tile"][used].tolist(),
            "bytes_in": steps["bytes_in"][used].tolist(),
            "bytes_out": steps["bytes_out"][used].tolist(),
            "flops": [int(count) for count in steps["flops"][used].tolist()],
        },
        "ops": names.tolist(),
    }


def _runs_of(values: np.ndarray) -> list[list[int]]:
    """Values and how often each comes in a row."""
    if not len(values):
        return []
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    return [[int(values[at]), int(count)] for at, count in zip(begins, np.diff([*begins, len(values)]), strict=True)]


def _operations(trace: Trace) -> dict[str, Any]:
    table = trace.operations_by_ipu()
    shown = table.head(SHOWN_OPS)
    columns = ["op", "type", "phase", "layer", "line", "ipu", "kind", "cycles", "waiting_cycles", "share", "flops"]
    facts = _columns(shown[columns])
    facts["share"] = [round(value, 6) for value in facts["share"]]
    facts["flops"] = [int(value) for value in facts["flops"]]
    return {**facts, "rows": len(table), "total_cycles": int(table["cycles"].sum())}


def _tile_memory(trace: Trace) -> dict[str, Any]:
    """By IPU and category the bytes of each tile, as values and how often they come in a row."""
    memory = trace.columns("tile_memory")
    result: dict[str, Any] = {}
    for ipu in np.unique(memory["ipu"]).tolist():
        own = memory["ipu"] == ipu
        tiles = int(memory["tile"][own].max()) + 1
        categories = {}
        for category in CATEGORY_COLOURS:
            rows = np.flatnonzero(own & (memory["category"] == category))
            values = np.zeros(tiles, dtype=np.int64)
            np.add.at(values, memory["tile"][rows], memory["bytes"][rows])
            if values.any():
                categories[category] = _runs_of(values)
        result[str(ipu)] = {"tiles": tiles, "categories": categories}
    return result


def _thinned(step: np.ndarray, *values: np.ndarray) -> list[list[int]]:
    """The same curves with few points: the largest value of each stretch."""
    if len(step) > _POINTS:
        edges = np.linspace(0, len(step), _POINTS + 1).astype(np.int64)[:-1]
        step, values = step[edges], tuple(np.maximum.reduceat(value, edges) for value in values)
    return [step.tolist(), *(value.tolist() for value in values)]


def _liveness(trace: Trace, window: Window | None) -> dict[str, Any]:
    """By IPU: program steps, always and not always live bytes, names of programs; and live bytes over time."""
    table = trace.columns("liveness")
    result: dict[str, Any] = {}
    for ipu in np.unique(table["ipu"]).tolist():
        rows = np.flatnonzero(table["ipu"] == ipu)
        rows = rows[np.argsort(table["step"][rows], kind="stable")]
        curves = _thinned(table["step"][rows], table["always_live"][rows], table["not_always_live"][rows])
        program = dict(zip(table["step"][rows].tolist(), table["program"][rows], strict=True))
        result[str(ipu)] = {
            "step": curves[0],
            "always": curves[1],
            "other": curves[2],
            "program": [program[step] for step in curves[0]],
            "steps": int(table["step"][rows[-1]]) + 1,
        }
    if result:
        for (replica, ipu), (time, value) in live_memory(trace, window).items():
            if replica == 0 and str(ipu) in result:
                result[str(ipu)]["time"] = _thinned(time, value)
    return result


def _variables(trace: Trace) -> dict[str, Any]:
    """The largest variables in tile memory with the steps in which they live."""
    variables, intervals = trace.columns("variables"), trace.columns("live_intervals")
    ops = trace.columns("ops")
    rows = np.flatnonzero(variables["location"] == "tile")
    keys, row = np.unique(np.stack([variables["var_id"][rows], variables["ipu"][rows]]), axis=1, return_inverse=True)
    total = np.zeros(keys.shape[1], dtype=np.int64)
    np.add.at(total, row.reshape(-1), variables["bytes"][rows])
    largest = np.argsort(-total, kind="stable")[:SHOWN_VARIABLES]
    begin_of: dict[int, list[list[int]]] = {}
    for class_id, low, high in zip(
        *(intervals[key].tolist() for key in ("class_id", "step_from", "step_to")), strict=True
    ):
        begin_of.setdefault(class_id, []).append([low, high])
    lines = dict(zip(ops["op_id"].tolist(), ops["line"], strict=True))
    listed = []
    for place in largest.tolist():
        mine = rows[row.reshape(-1) == place]
        one = mine[0]
        listed.append(
            {
                "name": str(variables["name"][one]),
                "ipu": int(variables["ipu"][one]),
                "category": str(variables["category"][one]),
                "bytes": int(total[place]),
                "always_live": bool(variables["always_live"][one]),
                "line": str(lines.get(int(variables["op_id"][one]), "")),
                "live": [] if variables["always_live"][one] else begin_of.get(int(variables["class_id"][one]), []),
                "tiles": [
                    [int(variables["tile_from"][at]), int(variables["tile_to"][at]), int(variables["bytes"][at])]
                    for at in mine[:64].tolist()
                ],
            }
        )
    return {"listed": listed, "count": int(keys.shape[1])}


def _links(trace: Trace, summary: dict[str, Any]) -> dict[str, Any]:
    """Totals of each used link, its use over time, and the collectives."""
    used = sorted((link for link in summary["links"] if link["bytes"]), key=lambda link: -link["utilisation"])[:64]
    use = link_use(trace)
    for link in used:
        link["bytes"], link["utilisation"] = int(link["bytes"]), float(link["utilisation"])
        if link["name"] in use:
            time, value = use[link["name"]]
            link["use"] = _binned(time, value, summary["total_cycles"])
    transfers, ops = trace.columns("transfers"), trace.columns("ops")
    names = dict(zip(ops["op_id"].tolist(), ops["name"], strict=True))
    rounds: list[dict[str, Any]] = []
    kinds = np.isin(transfers["kind"], ("all_gather", "reduce_scatter", "all_reduce"))
    for op in np.unique(transfers["op_id"][kinds]).tolist():
        mine = np.flatnonzero(kinds & (transfers["op_id"] == op))
        rounds.append(
            {
                "op": str(names.get(op, "")),
                "kind": str(transfers["kind"][mine[0]]),
                "transfers": len(mine),
                "rounds": len(np.unique(transfers["start"][mine])),
                "bytes": int(transfers["bytes"][mine].sum()),
            }
        )
    rounds.sort(key=lambda row: -row["bytes"])
    return {"used": used, "collectives": rounds[:200]}


def _binned(time: np.ndarray, value: np.ndarray, total: int, bins: int = 400) -> list[float]:
    """Mean of a step curve in equal stretches of the whole time."""
    edges = np.linspace(0, max(total, 1), bins + 1)
    area = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(time))])
    place = np.clip(np.searchsorted(time, edges, side="right") - 1, 0, len(time) - 1)
    at = np.where(edges < time[0], 0.0, area[place] + value[place] * (edges - time[place]))
    return np.round(np.diff(at) / np.diff(edges), 2).tolist()
