"""Memory tables of the trace from the program's memory report: tile memory, variables, live intervals, liveness.

All replicas hold the same, so the first replica stands for all; ``ipu`` is the number of its IPU in the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ipuperf.lowering.program import MemoryReport

Columns = dict[str, Any]

_ALWAYS = "variableAlwaysLive"
_VARYING = "variableNotAlwaysLive"


def memory_tables(memory: MemoryReport, ipus: Sequence[int]) -> dict[str, Columns]:
    """Tables ``tile_memory``, ``variables``, ``live_intervals`` and ``liveness``; ``ipus`` are those of replica 0."""
    always = {index: _always_live(memory, index) for index in memory.categories}
    variables, intervals = _variables(memory, ipus)
    return {
        "tile_memory": _tile_memory(memory, ipus, always),
        "variables": variables,
        "live_intervals": intervals,
        "liveness": _liveness(memory, ipus, always),
    }


def _always_live(memory: MemoryReport, index: int) -> dict[str, np.ndarray]:
    """Bytes per tile by category; variables that are always live are added up where the report has no total."""
    found = {name: vector.dense() for name, vector in memory.categories[index].items()}
    if _ALWAYS not in found:
        own = [v.bytes.dense() for v in memory.variables if v.always_live and v.ipu == index and v.location == "tile"]
        if own:
            found[_ALWAYS] = np.sum(own, axis=0)
    return found


def _peak(memory: MemoryReport, index: int, always: dict[str, np.ndarray]) -> np.ndarray:
    """Not-always-live bytes per tile at the highest step, raised on each step's fullest tile to what it holds then."""
    peak = np.array(memory.peak[index], dtype=np.int64)
    if len(peak) and len(memory.max_tile[index]):
        fixed = np.sum(list(always.values()), axis=0) if always else np.zeros(len(peak), dtype=np.int64)
        tile = np.asarray(memory.argmax_tile[index], dtype=np.int64)
        np.maximum.at(peak, tile, np.asarray(memory.max_tile[index], dtype=np.int64) - fixed[tile])
    return peak


def _tile_memory(memory: MemoryReport, ipus: Sequence[int], always: dict[int, dict[str, np.ndarray]]) -> Columns:
    ipu, tile, size = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    category: list[str] = []
    for index, parts in always.items():
        for name, held in {**parts, _VARYING: _peak(memory, index, parts)}.items():
            tiles = np.flatnonzero(held)
            ipu.append(np.full(len(tiles), ipus[index]))
            tile.append(tiles)
            size.append(held[tiles])
            category += [name] * len(tiles)
    return {
        "ipu": np.concatenate(ipu),
        "tile": np.concatenate(tile),
        "category": category,
        "bytes": np.concatenate(size),
    }


def _variables(memory: MemoryReport, ipus: Sequence[int]) -> tuple[Columns, Columns]:
    """One row per variable and run of equal tiles; variables with the same intervals form a class."""
    names = ("var_id", "name", "op_id", "category", "dtype", "ipu", "tile_from", "tile_to", "bytes", "always_live",
             "location", "class_id")  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    classes: dict[tuple[tuple[int, int], ...], int] = {}
    for number, variable in enumerate(memory.variables):
        group = classes.setdefault(variable.intervals, len(classes))
        begin = 0
        for stop, value in zip(variable.bytes.stops, variable.bytes.values, strict=True):
            if value:
                rows.append(
                    (number, variable.name, variable.op_id, variable.category, variable.dtype, ipus[variable.ipu],
                     begin, stop, value * (stop - begin), variable.always_live, variable.location, group)
                )  # fmt: skip
            begin = stop
    used = {row[-1] for row in rows}
    spans = [(group, a, b) for intervals, group in classes.items() if group in used for a, b in intervals if a < b]
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return (
        {name: list(values) for name, values in zip(names, columns, strict=True)},
        {name: [span[i] for span in spans] for i, name in enumerate(("class_id", "step_from", "step_to"))},
    )


def _liveness(memory: MemoryReport, ipus: Sequence[int], always: dict[int, dict[str, np.ndarray]]) -> Columns:
    numbers = ("ipu", "step", "always_live", "not_always_live", "max_tile", "argmax_tile")
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, dtype=np.int64)] for name in numbers}
    program: list[str] = []
    for index, names in memory.step_names.items():
        fixed = sum(int(held.sum()) for held in always.get(index, {}).values())
        parts["ipu"].append(np.full(len(names), ipus[index]))
        parts["step"].append(np.arange(len(names)))
        parts["always_live"].append(np.full(len(names), fixed, dtype=np.int64))
        for name in ("not_always_live", "max_tile", "argmax_tile"):
            parts[name].append(np.asarray(getattr(memory, name)[index], dtype=np.int64))
        program += names
    return {**{name: np.concatenate(values) for name, values in parts.items()}, "program": program}
