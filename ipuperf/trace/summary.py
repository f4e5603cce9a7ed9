"""The main figures of a trace: cycles by kind, tile balance, links, memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf.trace import fold
from ipuperf.trace.folded import Repeating, last_ends
from ipuperf.trace.loops import product
from ipuperf.trace.schema import KINDS, MEMORY_CATEGORIES
from ipuperf.trace.tables import TraceTables, fullest_tile, tile_totals
from ipuperf.trace.template import Window
from ipuperf.trace.traffic import traffic

LARGEST_VARIABLES = 5
"""How many variables a summary names when a program does not fit."""


def link_totals(trace: TraceTables) -> list[dict[str, Any]]:
    """Transfers, bytes and busy cycles (time with at least one transfer) of each link, in table order."""
    begin, end = span_of_transfers(trace)
    cuts, links = trace.short.cuts, trace.columns("links")
    totals: dict[int, tuple[int, int, int]] = {}
    for carried in traffic(trace.short.trace):
        times = cuts.times(carried.start)
        busy = union_length(cuts.elapsed(carried.start), cuts.elapsed(carried.start + carried.dur))
        of_each = int(times.sum()), int((carried.bytes * times).sum()), busy
        totals.update(dict.fromkeys(carried.links.tolist(), of_each))
    result = []
    columns = (links[name].tolist() for name in ("link_id", "name", "kind", "bandwidth_bytes_per_s"))
    for link_id, name, kind, bandwidth in zip(*columns, strict=True):
        transfers, moved, busy = totals.get(link_id, (0, 0, 0))
        # The use of a link is related to the span of the whole trace, idle time included.
        peak = float(bandwidth) * trace.seconds(end - begin)
        result.append(
            {
                "name": name,
                "kind": kind,
                "transfers": transfers,
                "bytes": moved,
                "busy_cycles": busy,
                "utilisation": moved / peak if peak > 0 else 0.0,
            }
        )
    return result


def span_of_transfers(trace: TraceTables) -> Window:
    """The span of the trace, extended if a transfer begins before it or ends after it."""
    begin, end = fold.span(trace)
    folded = trace.folded("transfers")
    if isinstance(folded, Repeating):
        start, ends = folded.arrays["start"], last_ends(folded)
    else:
        start = trace.columns("transfers")["start"]
        ends = start + trace.columns("transfers")["dur"]
    if len(start) == 0:
        return begin, end
    first_start, last_end = int(start.min()), int(ends.max())
    # Without runs and instances the span is empty and says nothing.
    return (first_start, last_end) if begin == end else (min(begin, first_start), max(end, last_end))


def union_length(start: np.ndarray, end: np.ndarray) -> int:
    """Length of the union of intervals, sorted by start."""
    if len(start) == 0:
        return 0
    # How far the intervals up to each one reach; what lies before that is counted already.
    reach = np.maximum.accumulate(end)
    covered_until = np.concatenate([start[:1], reach[:-1]])
    return int(np.maximum(reach - np.maximum(start, covered_until), 0).sum())


def tile_balance(trace: TraceTables) -> float | None:
    """Mean over max of the tiles, weighted by cycles over all compute steps executed; None if nothing computes."""
    steps, runs = trace.columns("steps"), fold.step_runs(trace)
    compute = steps["kind"] == "compute"
    longest = int((steps["dur"] * runs)[compute].sum())
    return float((steps["dur_mean"] * runs)[compute].sum()) / longest if longest else None


def _largest_variables(trace: TraceTables, ipu: int, tile: int) -> list[dict[str, Any]]:
    variables = trace.columns("variables")
    on_tile = (variables["ipu"] == ipu) & (variables["tile_from"] <= tile) & (tile < variables["tile_to"])
    rows = np.flatnonzero(on_tile & (variables["location"] == "tile"))
    # The bytes of a row are those of its whole range of tiles, taken as spread evenly.
    per_tile = variables["bytes"][rows] // np.maximum(variables["tile_to"][rows] - variables["tile_from"][rows], 1)
    best = rows[np.argsort(-per_tile, kind="stable")][:LARGEST_VARIABLES]
    sizes = np.sort(-per_tile, kind="stable")[:LARGEST_VARIABLES]
    return [
        {"name": variables["name"][row], "bytes_on_tile": int(-size)} for row, size in zip(best, sizes, strict=True)
    ]


def memory_summary(trace: TraceTables) -> dict[str, Any]:
    """Bytes by category and at the peak, and whether the program fits.

    Keys: ``categories`` (bytes over all IPUs), ``max_tile`` (ipu, tile, bytes, gaps included), ``bytes_per_tile``,
    ``fits``, ``over_bytes`` (0 if it fits), ``tiles_over``, ``largest_variables`` (on the fullest tile, if it does not
    fit), ``ipus`` (per IPU: always_live, not_always_live_peak and total_peak of table ``liveness``, bytes of
    ``tile_memory``). ``max_tile`` is None and ``fits`` is None if the trace says nothing about memory.
    """
    memory, liveness = trace.columns("tile_memory"), trace.columns("liveness")
    limit = int(trace.meta["bytes_per_tile"])
    categories = {name: int(memory["bytes"][memory["category"] == name].sum()) for name in MEMORY_CATEGORIES}
    fullest = fullest_tile(memory)
    # A trace without tile_memory may still know the fullest tile from liveness.
    if fullest is None and len(liveness["max_tile"]):
        row = int(np.argmax(liveness["max_tile"]))
        fullest = int(liveness["ipu"][row]), int(liveness["argmax_tile"][row]), int(liveness["max_tile"][row])
    over = 0 if fullest is None else max(fullest[2] - limit, 0)
    ipus = []
    for ipu in sorted({*memory["ipu"].tolist(), *liveness["ipu"].tolist()}):
        rows = liveness["ipu"] == ipu
        always, not_always = liveness["always_live"][rows], liveness["not_always_live"][rows]
        known = bool(rows.any())
        ipus.append(
            {
                "ipu": ipu,
                "bytes": int(memory["bytes"][memory["ipu"] == ipu].sum()),
                "always_live": int(always.max()) if known else None,
                "not_always_live_peak": int(not_always.max()) if known else None,
                "total_peak": int((always + not_always).max()) if known else None,
            }
        )
    return {
        "bytes_per_tile": limit,
        "categories": categories,
        "max_tile": None if fullest is None else dict(zip(("ipu", "tile", "bytes"), fullest, strict=True)),
        "fits": None if fullest is None else over == 0,
        "over_bytes": over,
        "tiles_over": int((tile_totals(memory)[2] > limit).sum()),
        "largest_variables": _largest_variables(trace, fullest[0], fullest[1]) if fullest and over else [],
        "ipus": ipus,
    }


def _traffic(trace: TraceTables, kind: str) -> dict[str, int]:
    steps, runs = trace.columns("steps"), fold.step_runs(trace)
    rows = steps["kind"] == kind
    return {
        "bytes_in": int(product(steps["bytes_in"], runs)[rows].sum()),
        "bytes_out": int(product(steps["bytes_out"], runs)[rows].sum()),
    }


def _mean_shares(totals: fold.IpuTotals, elapsed: int) -> dict[str, dict[str, float]]:
    ipus = max(len(totals.ipu), 1)
    mean = totals.cycles.sum(axis=0) / ipus
    return {
        kind: {"cycles": float(mean[code]), "share": float(mean[code]) / elapsed if elapsed else 0.0}
        for code, kind in enumerate(KINDS)
    }


def summary(trace: TraceTables) -> dict[str, Any]:
    """The main figures as plain Python, ready for JSON.

    ``total_cycles`` and ``seconds`` reach from the first start to the last end of the trace; ``runs`` lists the runs.
    ``kinds`` gives the mean over the stored IPUs of the cycles of each kind and their share of ``total_cycles`` (lanes
    overlap, so the shares may exceed 1); ``ipus`` the same for each IPU; ``tile_average`` the cycles an average tile is
    busy, by kind. ``tile_balance`` is mean over max, weighted over compute steps. ``traffic`` holds the bytes of the
    steps of each kind that moves data, ``links`` those of each link, ``memory`` what :func:`memory_summary` says.
    ``faults`` is there on a machine with faults only (:func:`ipuperf.simulation.sampled`).
    """
    begin, end = fold.span(trace)
    elapsed = end - begin
    totals = fold.ipu_totals(trace)
    # The mean over tiles in place of the slowest tile says how long an average tile is busy.
    averages = fold.ipu_totals(trace, trace.columns("steps")["dur_mean"])
    runs, steps = trace.columns("runs"), trace.columns("steps")
    flops = int(product(steps["flops"], fold.step_runs(trace)).sum())
    keys = ("schema_version", "ipuperf_version", "machine", "clock_hz", "num_ipus", "replicas", "tiles_per_ipu")
    return {
        **{key: trace.meta[key] for key in keys},
        "total_cycles": elapsed,
        "seconds": trace.seconds(elapsed),
        "runs": [
            {"run": int(run), "name": name, "cycles": int(dur), "seconds": trace.seconds(dur)}
            for run, name, dur in zip(runs["run"], runs["name"], runs["dur"], strict=True)
        ],
        "kinds": _mean_shares(totals, elapsed),
        "tile_average": _mean_shares(averages, elapsed),
        "ipus": [
            {
                "replica": int(totals.replica[row]),
                "ipu": int(totals.ipu[row]),
                "elapsed": int(totals.last[row] - totals.first[row]),
                "kinds": {kind: int(totals.cycles[row, code]) for code, kind in enumerate(KINDS)},
            }
            for row in range(len(totals.ipu))
        ],
        "tile_balance": tile_balance(trace),
        "flops": flops,
        "flops_per_s": flops / trace.seconds(elapsed) if elapsed else 0.0,
        "traffic": {k: _traffic(trace, k) for k in ("exchange", "link", "remote_load", "remote_store", "host_mid")},
        "links": link_totals(trace),
        "memory": memory_summary(trace),
        "oom": trace.meta["oom"],
        "warnings": list(trace.meta["warnings"]),
        "assumptions": list(trace.meta["assumptions"]),
        **({"faults": trace.meta["faults"]} if trace.meta.get("faults") else {}),
    }
