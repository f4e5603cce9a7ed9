"""Facts on memory: tiles by category, live bytes by step and over time, and the largest variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.live import live_memory
from ipuperf.report.page.encoding import grouped, runs_of, thinned
from ipuperf.report.palette import CATEGORY_COLOURS
from ipuperf.trace.columns import lookup

if TYPE_CHECKING:
    from ipuperf.trace import Trace, Window

SHOWN_VARIABLES = 2_000
"""The largest number of listed variables, the largest ones."""
_PIECES = 1_500
"""The largest number of listed ranges of tiles of a variable."""
_POINTS = 4_000
"""The largest number of points of a curve."""


def tile_memory(trace: Trace) -> dict[str, Any]:
    """The bytes of each tile by IPU and category, run-length encoded."""
    memory = trace.columns("tile_memory")
    memory_by_ipu: dict[str, Any] = {}
    for ipu in np.unique(memory["ipu"]).tolist():
        of_ipu = memory["ipu"] == ipu
        tiles = int(memory["tile"][of_ipu].max()) + 1
        categories = {}
        for category in CATEGORY_COLOURS:
            rows = np.flatnonzero(of_ipu & (memory["category"] == category))
            values = np.zeros(tiles, dtype=np.int64)
            np.add.at(values, memory["tile"][rows], memory["bytes"][rows])
            if values.any():
                categories[category] = runs_of(values)
        memory_by_ipu[str(ipu)] = {"tiles": tiles, "categories": categories}
    return memory_by_ipu


def liveness(trace: Trace, window: Window | None) -> dict[str, Any]:
    """Liveness by IPU.

    It has program steps with the names of their programs, always live bytes, not always live bytes in all and by
    category, and the live bytes over time with the program step of each value.
    """
    table = trace.columns("liveness")
    result: dict[str, Any] = {}
    for ipu in np.unique(table["ipu"]).tolist():
        rows = np.flatnonzero(table["ipu"] == ipu)
        rows = rows[np.argsort(table["step"][rows], kind="stable")]
        step, parts = table["step"][rows], _live_by_category(trace, ipu, int(table["step"][rows[-1]]) + 1)
        names = list(parts)
        curves = thinned(
            _POINTS,
            step,
            table["always_live"][rows],
            table["not_always_live"][rows],
            *(parts[name][step] for name in names),
        )
        program = dict(zip(step.tolist(), table["program"][rows], strict=True))
        result[str(ipu)] = {
            "step": curves[0],
            "always": curves[1],
            "other": curves[2],
            "parts": dict(zip(names, curves[3:], strict=True)),
            "program": [program[each] for each in curves[0]],
            "steps": int(step[-1]) + 1,
        }
    if result:
        for (replica, ipu), (time, value) in live_memory(trace, window).items():
            if replica == 0 and str(ipu) in result:
                rows = np.flatnonzero(table["ipu"] == ipu)
                total = table["always_live"][rows] + table["not_always_live"][rows]
                times, values = thinned(_POINTS, time, value)
                # Reversed, so that of several steps with the same bytes the first one is kept.
                step_of_bytes = dict(zip(total[::-1].tolist(), table["step"][rows[::-1]].tolist(), strict=True))
                result[str(ipu)]["time"] = [times, values, [step_of_bytes.get(count, -1) for count in values]]
                result[str(ipu)]["until"] = window[1] if window is not None else None
    return result


def _live_by_category(trace: Trace, ipu: int, steps: int) -> dict[str, np.ndarray]:
    """Not always live bytes of each program step by category of the variables."""
    variables, intervals = trace.columns("variables"), trace.columns("live_intervals")
    of_ipu = (variables["ipu"] == ipu) & (variables["location"] == "tile") & ~variables["always_live"]
    bytes_by_category = {}
    for category in sorted(set(variables["category"][of_ipu])):
        rows = np.flatnonzero(of_ipu & (variables["category"] == category))
        classes, order, begins = grouped(variables["class_id"][rows])
        size = np.add.reduceat(variables["bytes"][rows][order], begins[:-1])
        place = np.minimum(np.searchsorted(classes, intervals["class_id"]), len(classes) - 1)
        live = np.where(classes[place] == intervals["class_id"], size[place], 0)
        # The bytes of an interval are added at its begin and taken away at its end.
        change = np.zeros(steps + 1, dtype=np.int64)
        np.add.at(change, np.minimum(intervals["step_from"], steps), live)
        np.add.at(change, np.minimum(intervals["step_to"], steps), -live)
        bytes_by_category[str(category)] = np.cumsum(change)[:-1]
    return bytes_by_category


def variables_of(trace: Trace) -> dict[str, Any]:
    """The largest variables in tile memory, with the steps in which they are live and the tiles that hold them."""
    variables, intervals, ops = trace.columns("variables"), trace.columns("live_intervals"), trace.columns("ops")
    rows = np.flatnonzero(variables["location"] == "tile")
    # A variable may have several rows on an IPU, one for each range of tiles, and they make one key.
    keys, order, begins = grouped(variables["var_id"][rows].astype(np.int64) << 32 | variables["ipu"][rows])
    rows = rows[order]
    total = np.add.reduceat(variables["bytes"][rows], begins[:-1]) if len(keys) else np.empty(0, dtype=np.int64)
    classes, by_class, bounds = grouped(intervals["class_id"])
    place = {number: (bounds[index], bounds[index + 1]) for index, number in enumerate(classes.tolist())}
    listed = []
    for number in np.argsort(-total, kind="stable")[:SHOWN_VARIABLES].tolist():
        variable_rows = rows[begins[number] : begins[number + 1]]
        first_row = variable_rows[0]
        always = bool(variables["always_live"][first_row])
        low, high = place.get(int(variables["class_id"][first_row]), (0, 0))
        live = by_class[low:high]
        listed.append(
            {
                "name": str(variables["name"][first_row]),
                "ipu": int(variables["ipu"][first_row]),
                "category": str(variables["category"][first_row]),
                "bytes": int(total[number]),
                "always_live": always,
                "line": str(lookup(variables["op_id"][first_row : first_row + 1], ops["op_id"], ops["line"], "")[0]),
                "live": []
                if always
                else np.stack([intervals["step_from"][live], intervals["step_to"][live]], axis=1).tolist(),
                "tiles": np.stack(
                    [variables[column][variable_rows[:_PIECES]] for column in ("tile_from", "tile_to", "bytes")], 1
                ).tolist(),
                "pieces": len(variable_rows),
            }
        )
    return {"listed": listed, "count": len(keys)}
