"""Memory tables of the trace from the program's memory report: tile memory, variables, live intervals, liveness.

All replicas have the same memory, so the first one stands for all; ``ipu`` is the number of its IPU in the machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.lowering.timeline import interval_rows
from ipuperf.trace import FoldedCode, FoldedVariables, Words

from .rows import whole_numbers

if TYPE_CHECKING:
    from ipuperf.lowering.program import MemoryReport
    from ipuperf.lowering.tilevector import TileVector
    from ipuperf.lowering.timeline import Timeline

Columns = dict[str, Any]

_ALWAYS = "variableAlwaysLive"
_VARYING = "variableNotAlwaysLive"


class MemoryTables:
    """The tables of a memory report, made when somebody asks for them; ``ipus`` are the IPUs of replica 0."""

    def __init__(self, memory: MemoryReport, ipus: Sequence[int]) -> None:
        self._memory = memory
        self._ipus = ipus

    def makers(self) -> dict[str, Callable[[], Columns | FoldedCode | FoldedVariables]]:
        """The functions that make ``tile_memory``, ``code``, ``variables``, ``live_intervals`` and ``liveness``."""
        return {
            "tile_memory": lambda: _tile_memory(self._memory, self._ipus, self._always),
            "code": lambda: _code(self._memory, self._ipus),
            "variables": lambda: self._variables[0],
            "live_intervals": lambda: self._variables[1],
            "liveness": lambda: _liveness(self._memory, self._ipus, self._always),
        }

    def oom(self) -> bool:
        """Whether any tile holds more than it has, at any step."""
        limit = self._memory.bytes_per_tile
        return any(len(series) > 0 and int(series.max()) > limit for series in self._memory.max_tile.values())

    @cached_property
    def _always(self) -> dict[int, dict[str, np.ndarray]]:
        return {index: _always_live(self._memory, index) for index in self._memory.categories}

    @cached_property
    def _variables(self) -> tuple[FoldedVariables, Columns]:
        return _variables(self._memory, self._ipus)


def _always_live(memory: MemoryReport, index: int) -> dict[str, np.ndarray]:
    """Bytes per tile by category. Where the report has no total of the variables always live, they are added up."""
    tile_bytes = {name: vector.dense() for name, vector in memory.categories[index].items()}
    if _ALWAYS not in tile_bytes:
        variable_bytes = [
            v.bytes.dense() for v in memory.variables if v.always_live and v.ipu == index and v.location == "tile"
        ]
        if variable_bytes:
            tile_bytes[_ALWAYS] = np.sum(variable_bytes, axis=0)
    return tile_bytes


def _peak(memory: MemoryReport, index: int, always: dict[str, np.ndarray]) -> np.ndarray:
    """Not-always-live bytes of each tile at the step with the highest total.

    The fullest tile of each step is raised to its bytes in that step, so that no peak of a tile is lost.
    """
    peak = np.array(memory.peak[index], dtype=np.int64)
    if len(peak) and len(memory.max_tile[index]):
        fixed = np.sum(list(always.values()), axis=0) if always else np.zeros(len(peak), dtype=np.int64)
        tile = np.asarray(memory.argmax_tile[index], dtype=np.int64)
        np.maximum.at(peak, tile, np.asarray(memory.max_tile[index], dtype=np.int64) - fixed[tile])
    return peak


def _tile_memory(memory: MemoryReport, ipus: Sequence[int], always: dict[int, dict[str, np.ndarray]]) -> Columns:
    empty = np.empty(0, dtype=np.int64)
    parts: dict[str, list[np.ndarray]] = {name: [empty] for name in ("ipu", "tile", "code", "bytes")}
    words: dict[str, int] = {}
    for index, categories in always.items():
        for name, tile_bytes in {**categories, _VARYING: _peak(memory, index, categories)}.items():
            tiles = np.flatnonzero(tile_bytes)
            parts["ipu"].append(np.full(len(tiles), ipus[index]))
            parts["tile"].append(tiles)
            parts["code"].append(np.full(len(tiles), words.setdefault(name, len(words))))
            parts["bytes"].append(tile_bytes[tiles])
    columns: Columns = {name: np.concatenate(values) for name, values in parts.items()}
    category = Words(tuple(words), columns.pop("code"))
    return {**columns, "category": category}


def _places(vectors: Sequence[TileVector]) -> dict[str, np.ndarray]:
    """The runs of tiles of each vector (``first``, ``runs``), and these runs. One vector has its runs once."""
    by_identity = {id(vector): vector for vector in vectors}
    known = dict(zip(by_identity, range(len(by_identity)), strict=True))
    distinct, nothing = by_identity.values(), np.empty(0, dtype=np.int64)
    place = np.array([known[id(vector)] for vector in vectors], dtype=np.int64)
    stops = np.concatenate([nothing, *(vector.run_stops for vector in distinct)])
    values = np.concatenate([nothing, *(vector.run_values for vector in distinct)])
    runs = whole_numbers(len(vector.run_stops) for vector in distinct)
    begins = np.append(0, stops)[:-1]
    # The runs of a vector begin at its first tile.
    begins[np.cumsum(runs) - runs] = 0
    used = values != 0
    sizes = np.bincount(np.repeat(np.arange(len(runs)), runs)[used], minlength=len(runs))
    return {
        "first": (np.cumsum(sizes) - sizes)[place] if len(place) else place,
        "runs": sizes[place] if len(place) else place,
        "tile_from": begins[used],
        "tile_to": stops[used],
        "bytes": (values * (stops - begins))[used],
    }


def _code(memory: MemoryReport, ipus: Sequence[int]) -> FoldedCode:
    """Table ``code``: always-live memory by op."""
    # Columns at once: a large program has tens of thousands of pieces.
    op_ids, numbers, categories, vectors = zip(*memory.code, strict=True) if memory.code else ((), (), (), ())
    category = Words.of(categories)
    arrays = {
        "op_id": np.array(op_ids, dtype=np.int64),
        "category": category.codes,
        "ipu": np.array(ipus, dtype=np.int64)[np.array(numbers, dtype=np.int64)],
        **_places(vectors),
    }
    return FoldedCode(arrays, {"categories": category.words})


def _variables(memory: MemoryReport, ipus: Sequence[int]) -> tuple[FoldedVariables, Columns]:
    """Tables ``variables`` (a row for each variable and run of equal tiles) and ``live_intervals``.

    Variables with the same live intervals form a class, which has its intervals once.
    """
    variables = memory.variables
    number, ranges = interval_rows([variable.intervals for variable in variables])
    stops = np.searchsorted(number, np.arange(len(variables)), "right")
    classes: dict[bytes, int] = {}
    first: list[int] = []  # the first variable of each class
    group = []
    for variable, (begin, stop) in enumerate(itertools.pairwise([0, *stops.tolist()])):
        code = classes.setdefault(ranges[begin:stop].tobytes(), len(classes))
        if code == len(first):
            first.append(variable)
        group.append(code)
    places = _places([variable.bytes for variable in variables])
    lists = {"name": "names", "category": "categories", "dtype": "dtypes", "location": "locations"}
    words = {name: Words.of(map(attrgetter(name), variables)) for name in lists}

    # Only classes of variables with tiles are listed.
    listed = np.full(len(variables), -1)
    listed[first] = np.arange(len(first))
    used = np.isin(np.arange(len(first)), whole_numbers(group)[places["runs"] > 0])
    listed[first] = np.where(used, listed[first], -1)
    class_id = listed[number]
    # Intervals without a step say nothing.
    live = (class_id >= 0) & (ranges[:, 0] < ranges[:, 1])
    arrays = {
        "name": words["name"].codes,
        "op_id": whole_numbers(v.op_id for v in variables),
        "category": words["category"].codes,
        "dtype": words["dtype"].codes,
        "ipu": whole_numbers(ipus[v.ipu] for v in variables),
        "always_live": whole_numbers(int(v.always_live) for v in variables),
        "location": words["location"].codes,
        "class_id": whole_numbers(group),
        **places,
    }
    folded = FoldedVariables(arrays, {lists[name]: column.words for name, column in words.items()})
    return folded, {"class_id": class_id[live], "step_from": ranges[live, 0], "step_to": ranges[live, 1]}


def _liveness(memory: MemoryReport, ipus: Sequence[int], always: dict[int, dict[str, np.ndarray]]) -> Columns:
    numbers = ("ipu", "step", "always_live", "not_always_live", "max_tile", "argmax_tile")
    parts: dict[str, list[np.ndarray]] = {name: [np.empty(0, dtype=np.int64)] for name in numbers}
    program: list[Timeline] = []
    for index, names in memory.step_names.items():
        fixed = sum(int(tile_bytes.sum()) for tile_bytes in always.get(index, {}).values())
        parts["ipu"].append(np.full(len(names), ipus[index]))
        parts["step"].append(np.arange(len(names)))
        parts["always_live"].append(np.full(len(names), fixed, dtype=np.int64))
        for name in ("not_always_live", "max_tile", "argmax_tile"):
            parts[name].append(np.asarray(getattr(memory, name)[index], dtype=np.int64))
        program.append(names)
    return {
        **{name: np.concatenate(values) for name, values in parts.items()},
        "program": Words.of(itertools.chain(*program)),
    }
