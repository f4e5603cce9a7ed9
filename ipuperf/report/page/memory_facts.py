"""Facts on memory: tiles by category, live bytes by step and over time, and the largest variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.report.live import Series
from ipuperf.report.page.encoding import Columns, Tables, grouped, lists, runs_of, summed, thinned
from ipuperf.report.palette import CATEGORY_COLOURS
from ipuperf.trace import Window
from ipuperf.trace.columns import lookup
from ipuperf.trace.folded import ranges
from ipuperf.trace.variables import VariableRows

if TYPE_CHECKING:
    import pandas as pd


SHOWN_VARIABLES = 2_000
"""The largest number of listed variables, the largest ones."""
_PIECES = 1_500
"""The largest number of listed ranges of tiles of a variable."""
_OF_OP = ("module", "line")
"""What is told of the op of a variable."""
_POINTS = 4_000
"""The largest number of points of a curve."""


def tile_memory(memory: Columns) -> dict[str, Any]:
    """The bytes of each tile by IPU and category, run-length encoded, from table ``tile_memory``."""
    memory_by_ipu: dict[str, Any] = {}
    for ipu in np.unique(memory["ipu"]).tolist():
        of_ipu = np.flatnonzero(memory["ipu"] == ipu)
        tiles = int(memory["tile"][of_ipu].max()) + 1
        categories = {}
        for category in CATEGORY_COLOURS:
            rows = of_ipu[memory["category"][of_ipu] == category]
            values = np.zeros(tiles, dtype=np.int64)
            np.add.at(values, memory["tile"][rows], memory["bytes"][rows])
            if values.any():
                categories[category] = runs_of(values)
        memory_by_ipu[str(ipu)] = {"tiles": tiles, "categories": categories}
    return memory_by_ipu


def liveness(
    tables: Tables, variables: Columns, live: Mapping[tuple[int, int], Series], window: Window | None
) -> dict[str, Any]:
    """Liveness by IPU; ``variables`` has a row for each variable.

    It has program steps with the names of their programs, always live bytes, not always live bytes in all and by
    category, and the live bytes over time with the program step of each value. ``live`` has the live bytes over time
    of each (replica, ipu) in the window.
    """
    table = tables["liveness"]
    by_ipu: dict[str, Any] = {}
    for ipu in np.unique(table["ipu"]).tolist():
        rows = np.flatnonzero(table["ipu"] == ipu)
        rows = rows[np.argsort(table["step"][rows], kind="stable")]
        by_ipu[str(ipu)] = _by_step(tables, variables, ipu, rows)
        # The tables of memory are those of one replica, so the times of replica 0 go with them.
        if (0, ipu) in live:
            by_ipu[str(ipu)]["time"] = _over_time(table, np.flatnonzero(table["ipu"] == ipu), live[0, ipu])
            by_ipu[str(ipu)]["until"] = window[1] if window is not None else None
    return by_ipu


def _by_step(tables: Tables, variables: Columns, ipu: int, rows: np.ndarray) -> dict[str, Any]:
    """The curves over program steps of an IPU, whose rows of table ``liveness`` are in order of step."""
    table = tables["liveness"]
    step = table["step"][rows]
    parts = _live_by_category(variables, tables["live_intervals"], ipu, int(step[-1]) + 1)
    steps, always, other, *curves = thinned(
        _POINTS,
        step,
        table["always_live"][rows],
        table["not_always_live"][rows],
        *(values[step] for values in parts.values()),
    )
    return {
        "step": steps,
        "always": always,
        "other": other,
        "parts": dict(zip(parts, curves, strict=True)),
        "program": table["program"][rows[np.searchsorted(step, steps)]].tolist(),
        "steps": int(step[-1]) + 1,
    }


def _over_time(table: Columns, rows: np.ndarray, live: Series) -> list[list[int]]:
    """Times, live bytes from each time on, and the program step with as many bytes (-1: none)."""
    total = table["always_live"][rows] + table["not_always_live"][rows]
    times, values = thinned(_POINTS, *live)
    # Of several steps with the same bytes the first one counts.
    sizes, first = np.unique(total, return_index=True)
    return [times, values, lookup(np.array(values), sizes, table["step"][rows[first]], -1).tolist()]


def _live_by_category(variables: Columns, intervals: Columns, ipu: int, steps: int) -> dict[str, np.ndarray]:
    """Not always live bytes of each program step by category of the variables."""
    of_ipu = np.flatnonzero((variables["ipu"] == ipu) & (variables["location"] == "tile") & ~variables["always_live"])
    categories = variables["category"][of_ipu]
    bytes_by_category = {}
    for category in sorted(set(categories.tolist())):
        rows = of_ipu[categories == category]
        classes, size = summed(variables["class_id"][rows], variables["bytes"][rows])
        place = np.minimum(np.searchsorted(classes, intervals["class_id"]), len(classes) - 1)
        live = np.where(classes[place] == intervals["class_id"], size[place], 0)
        # The bytes of an interval are added at its begin and taken away at its end.
        change = np.zeros(steps + 1, dtype=np.int64)
        np.add.at(change, np.minimum(intervals["step_from"], steps), live)
        np.add.at(change, np.minimum(intervals["step_to"], steps), -live)
        bytes_by_category[str(category)] = np.cumsum(change)[:-1]
    return bytes_by_category


def variables_of(rows: VariableRows, intervals: Columns, ops: Columns) -> dict[str, Any]:
    """The largest variables in tile memory, with the steps in which they are live and the tiles that hold them."""
    variables = rows.columns
    on_tiles = np.flatnonzero(variables["location"] == "tile")
    largest = on_tiles[np.argsort(-variables["bytes"][on_tiles], kind="stable")[:SHOWN_VARIABLES]]
    classes, by_class, bounds = grouped(intervals["class_id"])
    place = {number: (bounds[index], bounds[index + 1]) for index, number in enumerate(classes.tolist())}
    steps = np.stack([intervals[name] for name in ("step_from", "step_to")], axis=1)[by_class]
    pieces = np.minimum(rows.runs[largest], _PIECES)
    tiles = np.stack([rows.tiles[name] for name in ("tile_from", "tile_to", "bytes")], axis=1)
    # Variables of one layout share their runs, so that each list of tiles is written once.
    layouts: dict[tuple[int, int], int] = {}
    of_layout = [
        layouts.setdefault(key, len(layouts)) for key in zip(rows.first[largest].tolist(), pieces.tolist(), strict=True)
    ]
    listed = {
        **{name: variables[name][largest].tolist() for name in ("name", "category", "always_live")},
        **{name: variables[name][largest] for name in ("ipu", "bytes")},
        **{name: lookup(variables["op_id"][largest], ops["op_id"], ops[name], "").tolist() for name in _OF_OP},
        "pieces": rows.runs[largest],
        "layout": np.array(of_layout, dtype=np.int64),
    }
    # A variable that is always live has no intervals.
    live = [
        (0, 0) if always else place.get(number, (0, 0))
        for number, always in zip(
            variables["class_id"][largest].tolist(), variables["always_live"][largest].tolist(), strict=True
        )
    ]
    return {
        "listed": listed,
        "live": _ragged(steps, live),
        "layouts": _ragged(tiles, [(first, first + count) for first, count in layouts]),
        "count": len(on_tiles),
    }


def code_of(code: pd.DataFrame) -> dict[str, Any]:
    """The ops with the most bytes that are always live on an IPU, with the category of most of them.

    ``code``: see :meth:`Trace.code`, the most bytes first.
    """
    of_op = code.groupby(["op", "ipu"], sort=False)
    most = of_op.first()
    most["bytes"] = of_op["bytes"].sum()
    most = most.sort_values("bytes", ascending=False, kind="stable").head(SHOWN_VARIABLES).reset_index()
    return lists(most[["op", "ipu", "bytes", "category", *_OF_OP]])


def _ragged(rows: np.ndarray, parts: Sequence[tuple[int, int]]) -> dict[str, np.ndarray]:
    """Parts of a table after each other: where each begins (``first``, with the end of the last one), and the rows."""
    low, high = np.array(parts, dtype=np.int64).reshape(-1, 2).T
    _, place = ranges(low, high - low)
    return {"first": np.concatenate([[0], np.cumsum(high - low)]), "rows": rows[place].reshape(-1)}
