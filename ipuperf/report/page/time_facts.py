"""Facts on the time line: templates of steps with their loops, their executions, and the transfers of links.

They are folded like the trace. The steps of a segment are there once, loops have their trips, and an execution is a
start and a segment. The page expands only what it shows. So it can show a run of 10^12 steps down to single supersteps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.page.encoding import Columns, Tables, groups, numbered, runs_of, steps_up, stretches
from ipuperf.trace import KINDS, PHASES, Window
from ipuperf.trace.columns import code_of, lookup

if TYPE_CHECKING:
    from ipuperf.report.marks import Arrow
    from ipuperf.trace.template import Template

_LINKS = 64
"""The largest number of links with a lane, the busiest ones."""


@dataclass(frozen=True)
class Executions:
    """What the time line shows.

    Attributes:
        window: the cycles shown; None: everything.
        begin: the cycle at which the view begins.
        tables: the trace's tables by name.
        template: the steps by segment.
        step_ops: the name of the op of each step.
        copies: the copies between IPUs that leave within the window.
    """

    window: Window | None
    begin: int
    tables: Tables
    template: Template
    step_ops: np.ndarray
    copies: Sequence[Arrow]


def page_window(tables: Tables, most: int) -> Window | None:
    """The window from the start in which at most ``most`` executions of segments and transfers begin; None: all."""
    starts = np.sort(np.concatenate([tables[name]["start"] for name in ("instances", "transfers")]), kind="stable")
    # A window has at least one cycle, also where more than that many begin at once.
    return (int(starts[0]), int(max(starts[most], starts[0] + 1))) if len(starts) > most else None


def timeline(executions: Executions) -> dict[str, Any]:
    """Segments, executions by row, copies between IPUs, and lanes of links, of those that begin in the window."""
    instances, window = executions.tables["instances"], executions.window
    rows = np.flatnonzero(executions.template.place(instances["segment"]) >= 0)
    if window is not None:
        rows = rows[instances["start"][rows] < window[1]]
    segments = np.unique(instances["segment"][rows])
    names, templates = _templates(executions, segments)
    return {
        "window": list(window) if window is not None else None,
        "begin": executions.begin,
        "ops": names,
        "segments": templates,
        "rows": _rows(executions, rows, segments),
        "flows": _flows(executions.copies),
        "lanes": _lanes(executions.tables, window),
    }


def _templates(executions: Executions, segments: np.ndarray) -> tuple[list[str], dict[str, Any]]:
    """The names of ops, and the steps of the given segments in columns.

    ``first`` says where the steps of each segment begin, ``rel`` is the start relative to the previous step, and
    ``loop`` is a row of ``loops`` (-1: none).
    """
    steps, ops, template = executions.tables["steps"], executions.tables["ops"], executions.template
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
    names, name = numbered(executions.step_ops[step])
    loop, loops = _loops(executions.tables["loops"], steps["loop"][step])
    return names, {
        "first": first_step.tolist(),
        "rel": (start - previous_start).tolist(),
        "dur": steps["dur"][step].tolist(),
        "kind": code_of(steps["kind"][step], KINDS).tolist(),
        "phase": code_of(lookup(steps["op_id"][step], ops["op_id"], ops["phase"], "other"), PHASES).tolist(),
        "op": name,
        "mean": np.round(steps["dur_mean"][step], 1).tolist(),
        "tiles": steps["active_tiles"][step].tolist(),
        "slowest": steps["argmax_tile"][step].tolist(),
        "bytes_in": steps["bytes_in"][step].tolist(),
        "bytes_out": steps["bytes_out"][step].tolist(),
        "flops": [int(count) for count in steps["flops"][step].tolist()],
        "lane": steps["lane"][step].tolist(),
        "loop": loop,
        "loops": loops,
    }


def _loops(loops: Columns, step_loops: np.ndarray) -> tuple[list[int], dict[str, list[int]]]:
    """The number of each step's loop (-1: none), and the loops with these numbers in columns.

    Only loops of the shown steps are written, and numbered again from 0.
    """
    row = {loop: place for place, loop in enumerate(loops["loop"].tolist())}
    used = sorted({row[loop] for loop in np.unique(step_loops).tolist() if loop >= 0})
    parents = [row.get(parent, -1) for parent in loops["parent"].tolist()]
    for loop in used:  # the list grows here, because the loops around a used one are used too
        if parents[loop] >= 0 and parents[loop] not in used:
            used.append(parents[loop])
    number = {loop: place for place, loop in enumerate(used)} | {-1: -1}
    return [number[row.get(loop, -1)] for loop in step_loops.tolist()], {
        "parent": [number[parents[loop]] for loop in used],
        "count": [int(loops["count"][loop]) for loop in used],
        "period": [int(loops["period"][loop]) for loop in used],
    }


def _rows(executions: Executions, rows: np.ndarray, segments: np.ndarray) -> list[dict[str, Any]]:
    """The executions of each replica, IPU and lane, in order of time."""
    instances, steps, template = executions.tables["instances"], executions.tables["steps"], executions.template
    place = np.searchsorted(segments, instances["segment"][rows])
    lanes_of: list[set[int]] = []
    for segment_index in template.place(segments).tolist():
        first_step = template.first[segment_index]
        selected = template.order[first_step : first_step + template.count[segment_index]]
        lanes_of.append(set(steps["lane"][selected[steps["dur"][selected] > 0]].tolist()))
    lane_rows = []
    for lane in sorted(set().union(*lanes_of)):
        has_lane = np.array([lane in lanes for lanes in lanes_of], dtype=bool)
        selected = np.flatnonzero(has_lane[place])
        # Replica and IPU make one key: the upper and the lower 32 bits.
        key = instances["replica"][rows[selected]].astype(np.int64) << 32 | instances["ipu"][rows[selected]]
        for packed_key, part in groups(key):
            chosen = selected[part]
            chosen = chosen[np.argsort(instances["start"][rows[chosen]], kind="stable")]
            lane_rows.append(
                {
                    "replica": packed_key >> 32,
                    "ipu": packed_key & 0xFFFFFFFF,
                    "lane": int(lane),
                    "start": steps_up(instances["start"][rows[chosen]]),
                    "segment": place[chosen].tolist(),
                    "micro_batch": runs_of(instances["micro_batch"][rows[chosen]]),
                }
            )
    return sorted(lane_rows, key=lambda row: (row["replica"], row["ipu"], row["lane"]))


def _flows(copies: Sequence[Arrow]) -> dict[str, list[int]]:
    """The copies between IPUs in order of start, with duration, source and target."""
    copies = sorted(copies, key=lambda arrow: (arrow.start, arrow.source, arrow.target))
    return {
        "start": steps_up(np.array([arrow.start for arrow in copies], dtype=np.int64)),
        "dur": [arrow.end - arrow.start for arrow in copies],
        "source": [arrow.source for arrow in copies],
        "target": [arrow.target for arrow in copies],
    }


def _lanes(tables: Tables, window: Window | None) -> list[dict[str, Any]]:
    """The stretches without a gap in which each link is in use, for the busiest links.

    Each stretch has its bytes, its number of transfers, and the op of its first transfer.
    """
    links, transfers, ops = tables["links"], tables["transfers"], tables["ops"]
    chosen = np.flatnonzero(transfers["dur"] > 0)
    if window is not None:
        chosen = chosen[transfers["start"][chosen] < window[1]]
    row_of = {link: row for row, link in enumerate(links["link_id"].tolist())}
    lanes = []
    for link, part in groups(transfers["link_id"][chosen]):
        rows = chosen[part]
        rows = rows[np.argsort(transfers["start"][rows], kind="stable")]
        first, start, end = stretches(transfers["start"][rows], transfers["dur"][rows])
        names, name = numbered(lookup(transfers["op_id"][rows[first]], ops["op_id"], ops["name"], ""))
        lanes.append(
            {
                "name": str(links["name"][row_of[link]]),
                "kind": str(links["kind"][row_of[link]]),
                "start": steps_up(start),
                "dur": (end - start).tolist(),
                "bytes": [int(count) for count in np.add.reduceat(transfers["bytes"][rows], first).tolist()],
                "count": np.diff(first, append=len(rows)).tolist(),
                "ops": names,
                "op": name,
            }
        )
    return sorted(lanes, key=lambda lane: -sum(lane["dur"]))[:_LINKS]
