"""Facts on the time line: templates of steps with their loops, their executions, and the transfers of links.

They are folded like the trace. The steps of a segment are there once, loops have their trips, and an execution is a
start and a segment. The page expands only what it shows. So it can show a run of 10^12 steps down to single supersteps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.breakdown import run_instances
from ipuperf.report.marks import arrows
from ipuperf.report.page.encoding import grouped, runs_of, steps_up
from ipuperf.trace import KINDS, PHASES, Window
from ipuperf.trace.columns import code_of, lookup

if TYPE_CHECKING:
    from ipuperf.trace import Trace

_LINKS = 64
"""The largest number of links with a lane, the busiest ones."""


def page_window(trace: Trace, most: int) -> Window | None:
    """The window from the start in which at most ``most`` executions of segments and transfers begin; None: all."""
    starts = np.sort(
        np.concatenate([trace.columns("instances")["start"], trace.columns("transfers")["start"]]), kind="stable"
    )
    return (int(starts[0]), int(max(starts[most], starts[0] + 1))) if len(starts) > most else None


def timeline(trace: Trace, window: Window | None) -> dict[str, Any]:
    """Segments, executions by row, copies between IPUs, and lanes of links, of those that begin in the window."""
    instances = trace.columns("instances")
    rows = np.flatnonzero(trace.template.place(instances["segment"]) >= 0)
    if window is not None:
        rows = rows[instances["start"][rows] < window[1]]
    segments = np.unique(instances["segment"][rows])
    names, templates = _templates(trace, segments)
    begin, _ = run_instances(trace)[0] if window is None else window
    return {
        "window": list(window) if window is not None else None,
        "begin": int(begin),
        "ops": names,
        "segments": templates,
        "rows": _rows(trace, rows, segments),
        "flows": _flows(trace, window),
        "lanes": _lanes(trace, window),
    }


def _templates(trace: Trace, segments: np.ndarray) -> tuple[list[str], dict[str, Any]]:
    """The names of ops, and the steps of the given segments in columns.

    ``first`` says where the steps of each segment begin, ``rel`` is the start relative to the previous step, and
    ``loop`` is a row of ``loops`` (-1: none).
    """
    steps, ops, template = trace.columns("steps"), trace.columns("ops"), trace.template
    segment_index = template.place(segments)
    counts = template.count[segment_index]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    step = template.order[np.repeat(template.first[segment_index], counts) + within]
    owner = np.repeat(np.arange(len(segments)), counts)
    takes_time = steps["dur"][step] > 0
    step, owner = step[takes_time], owner[takes_time]
    order = np.lexsort((steps["rel_start"][step], owner))
    step, owner = step[order], owner[order]
    first_step = np.searchsorted(owner, np.arange(len(segments) + 1))
    start = steps["rel_start"][step]
    previous_start = (
        np.where(np.append(True, owner[1:] != owner[:-1]), 0, np.append(0, start[:-1])) if len(step) else start
    )
    phases = code_of(lookup(steps["op_id"][step], ops["op_id"], ops["phase"], "other"), PHASES)
    names, name = np.unique(trace.step_ops[step].astype(str), return_inverse=True)
    # Only loops of the shown segments are written, and numbered again from 0.
    loops = trace.columns("loops")
    row = {loop: number for number, loop in enumerate(loops["loop"].tolist())}
    used = sorted({row[loop] for loop in np.unique(steps["loop"][step]).tolist() if loop >= 0})
    parents = [row.get(parent, -1) for parent in loops["parent"].tolist()]
    for loop in used:  # the list grows here, because the loops around a used one are used too
        if parents[loop] >= 0 and parents[loop] not in used:
            used.append(parents[loop])
    number = {loop: position for position, loop in enumerate(used)} | {-1: -1}
    return names.tolist(), {
        "first": first_step.tolist(),
        "rel": (start - previous_start).tolist(),
        "dur": steps["dur"][step].tolist(),
        "kind": code_of(steps["kind"][step], KINDS).tolist(),
        "phase": phases.tolist(),
        "op": name.reshape(-1).tolist(),
        "mean": np.round(steps["dur_mean"][step], 1).tolist(),
        "tiles": steps["active_tiles"][step].tolist(),
        "slowest": steps["argmax_tile"][step].tolist(),
        "bytes_in": steps["bytes_in"][step].tolist(),
        "bytes_out": steps["bytes_out"][step].tolist(),
        "flops": [int(count) for count in steps["flops"][step].tolist()],
        "lane": steps["lane"][step].tolist(),
        "loop": [number[row.get(loop, -1)] for loop in steps["loop"][step].tolist()],
        "loops": {
            "parent": [number[parents[loop]] for loop in used],
            "count": [int(loops["count"][loop]) for loop in used],
            "period": [int(loops["period"][loop]) for loop in used],
        },
    }


def _rows(trace: Trace, rows: np.ndarray, segments: np.ndarray) -> list[dict[str, Any]]:
    """The executions of each replica, IPU and lane, in order of time."""
    instances, steps, template = trace.columns("instances"), trace.columns("steps"), trace.template
    place = np.searchsorted(segments, instances["segment"][rows])
    lanes_of: list[set[int]] = []
    for segment_index in template.place(segments).tolist():
        selected = template.order[
            template.first[segment_index] : template.first[segment_index] + template.count[segment_index]
        ]
        lanes_of.append(set(steps["lane"][selected[steps["dur"][selected] > 0]].tolist()))
    lane_rows = []
    for lane in sorted(set().union(*lanes_of)):
        has_lane = np.array([lane in lanes for lanes in lanes_of], dtype=bool)
        selected = np.flatnonzero(has_lane[place])
        # Replica and IPU make one key: the upper and the lower 32 bits.
        key = instances["replica"][rows[selected]].astype(np.int64) << 32 | instances["ipu"][rows[selected]]
        keys, order, begins = grouped(key)
        for number, packed_key in enumerate(keys.tolist()):
            part = selected[order[begins[number] : begins[number + 1]]]
            part = part[np.argsort(instances["start"][rows[part]], kind="stable")]
            lane_rows.append(
                {
                    "replica": packed_key >> 32,
                    "ipu": packed_key & 0xFFFFFFFF,
                    "lane": int(lane),
                    "start": steps_up(instances["start"][rows[part]]),
                    "segment": place[part].tolist(),
                    "micro_batch": runs_of(instances["micro_batch"][rows[part]]),
                }
            )
    return sorted(lane_rows, key=lambda row: (row["replica"], row["ipu"], row["lane"]))


def _flows(trace: Trace, window: Window | None) -> dict[str, list[int]]:
    """The copies between IPUs in order of start, with duration, source and target."""
    copies = sorted(arrows(trace, window), key=lambda arrow: (arrow.start, arrow.source, arrow.target))
    return {
        "start": steps_up(np.array([arrow.start for arrow in copies], dtype=np.int64)),
        "dur": [arrow.end - arrow.start for arrow in copies],
        "source": [arrow.source for arrow in copies],
        "target": [arrow.target for arrow in copies],
    }


def _lanes(trace: Trace, window: Window | None) -> list[dict[str, Any]]:
    """The stretches without a gap in which each link is in use, for the busiest links.

    Each stretch has its bytes, its number of transfers, and the op of its first transfer.
    """
    links, moved = trace.columns("links"), trace.columns("transfers")
    ops = trace.columns("ops")
    chosen = np.flatnonzero(moved["dur"] > 0)
    if window is not None:
        chosen = chosen[moved["start"][chosen] < window[1]]
    keys, order, begins = grouped(moved["link_id"][chosen])
    kind = dict(zip(links["link_id"].tolist(), zip(links["name"], links["kind"], strict=True), strict=True))
    lanes = []
    for position, link in enumerate(keys.tolist()):
        rows = chosen[order[begins[position] : begins[position + 1]]]
        rows = rows[np.argsort(moved["start"][rows], kind="stable")]
        start, end = moved["start"][rows], np.maximum.accumulate(moved["start"][rows] + moved["dur"][rows])
        stretch_begins = np.flatnonzero(np.append(True, start[1:] > end[:-1]))
        stretch_ends = np.append(stretch_begins[1:], len(rows)) - 1
        names, name = np.unique(
            lookup(moved["op_id"][rows[stretch_begins]], ops["op_id"], ops["name"], "").astype(str), return_inverse=True
        )
        lanes.append(
            {
                "name": str(kind[link][0]),
                "kind": str(kind[link][1]),
                "start": steps_up(start[stretch_begins]),
                "dur": (end[stretch_ends] - start[stretch_begins]).tolist(),
                "bytes": [
                    int(byte_count) for byte_count in np.add.reduceat(moved["bytes"][rows], stretch_begins).tolist()
                ],
                "count": (stretch_ends - stretch_begins + 1).tolist(),
                "ops": names.tolist(),
                "op": name.reshape(-1).tolist(),
            }
        )
    return sorted(lanes, key=lambda lane: -sum(lane["dur"]))[:_LINKS]
