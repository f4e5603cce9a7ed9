"""Memory per tile: what is live when (:mod:`.liveness`), and what is always there.

Variables live throughout (PopVision counts them as *not always live*, because they are not live before the upload of
weights; ``user`` classification would put them in the always-live band: both totals are in the report). Code, vertex
state, stack, headers and constants are always live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ir import Constant, Graph, Tensor, Variable, data_of

from .code import CodeBytes, call_code, minimal_code, vertex_code_bytes
from .code_loading import CodeOf, split
from .layout import Layout
from .liveness import LivenessWalk, Profile, StorageKind, aligned
from .program import MemoryReport, VariableInfo
from .starts import LinearStarts
from .sweep import sweep
from .tile_sets import COMPUTE, IO
from .tilevector import TileVector

if TYPE_CHECKING:
    from ipuperf.machine import Chip

    from .function_calls import FunctionCall, SharedCode
    from .lowered import LoweredGraph, LoweredOp
    from .places import Places

#: Every program has these leaf steps before and after ``run``'s own: upload and download of weights.
UPLOAD_STEP = "StreamCopy weights host to device"


@dataclass
class _Held:
    """What is always live on one tile set of an IPU: code (how often each piece) and tiles of each vertex type, by the
    tile that they begin on; constants."""

    code: dict[tuple[int, int], tuple[CodeBytes, int]] = field(default_factory=dict)
    vertices: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    constants: dict[TileVector, int] = field(default_factory=dict)

    def add_code(self, piece: CodeBytes, start: int = 0) -> None:
        """One more piece of code; pieces that are the same object are added up at the end."""
        key = (id(piece), start)
        count = self.code[key][1] if key in self.code else 0
        self.code[key] = (piece, count + 1)

    def add_vertices(self, active: dict[str, int], start: int = 0) -> None:
        """Vertex types of an op; ops that are alike share one object."""
        self.vertices[id(active), start] = active

    def total(self, chip: Chip) -> dict[str, TileVector]:
        """Bytes per tile by category."""
        tiles, parts = chip.tiles, dict(minimal_code(chip).parts)
        for (_, start), (piece, count) in self.code.items():
            for name, value in piece.parts.items():
                there = np.roll(value, start) if start and isinstance(value, np.ndarray) else value
                parts[name] = parts.get(name, 0) + there * count
        constants = np.zeros(tiles, dtype=np.int64)
        tile = 0
        for vector, count in self.constants.items():
            if vector.active == 1:  # PopART puts one after the other on the next tile
                np.add.at(constants, np.arange(tile, tile + count) % tiles, vector.max)
                tile += count
            else:
                constants += vector.dense() * count
        parts.update({"vertexCode": self.vertex_code(chip), "constant": constants})
        return {
            name: TileVector.of(np.broadcast_to(np.asarray(value, dtype=np.int64), (tiles,)))
            for name, value in sorted(parts.items())
        }

    def vertex_code(self, chip: Chip) -> np.ndarray:
        """Bytes per tile: each type once on every tile that has a vertex of it."""
        present: dict[str, np.ndarray] = {}
        for (_, start), found in self.vertices.items():
            for name, active in found.items():
                there = present.setdefault(name, np.zeros(chip.tiles, dtype=bool))
                stop = start + active
                there[start:stop] = True
                there[: max(0, stop - chip.tiles)] = True
        code = np.zeros(chip.tiles, dtype=np.int64)
        for name, there in present.items():
            code += there * vertex_code_bytes(chip, name)
        return code


class MemoryModel:
    """Builds the :class:`MemoryReport` of a lowered program.

    Args:
        places: where its tensors lie.
        graphs: its graphs, lowered.
        ipus: IPUs of a replica.
        loaded: code that is not always live (:mod:`.code_loading`).
        shared: all other code, by IPU and tile set.
    """

    def __init__(
        self,
        places: Places,
        graphs: Mapping[Graph, LoweredGraph],
        ipus: int,
        loaded: Mapping[Graph, CodeOf],
        shared: Mapping[tuple[int, str], SharedCode],
    ) -> None:
        self.places = places
        self.graphs = graphs
        self.main = graphs[places.ir.main_graph]
        self.chip = places.machine.chip
        self.ipus = range(ipus)
        self.loaded = loaded
        self.shared = shared
        self.starts = LinearStarts(places)

    def report(self) -> MemoryReport:
        """Walk the program and total up."""
        liveness = LivenessWalk(self.places, self.ipus, self.loaded, self.starts)
        variables: dict[Tensor, Layout] = {
            tensor: self.main.layouts[tensor]
            for tensor in data_of(self.main.graph)
            if isinstance(tensor, Variable) and tensor.remote is None
        }
        profile = liveness.walk(self.main, UPLOAD_STEP, variables)
        kinds = liveness.kinds
        numbers: dict[TileVector, int] = {}
        vector_of = np.array([numbers.setdefault(kind.bytes, len(numbers)) for kind in kinds], dtype=np.int64)
        categories = self._always_live()
        totals = {}
        for ipu, names in profile.names.items():
            always = np.stack([vector.dense() for vector in categories[ipu].values()]).sum(axis=0)
            live = profile.rows[ipu].copy()
            live[:, 0] = vector_of[live[:, 0]]
            totals[ipu] = sweep(len(names), list(numbers), live, always)
        return MemoryReport(
            categories=categories,
            variables=tuple(_variables(kinds, profile)),
            step_names={ipu: tuple(names) for ipu, names in profile.names.items()},
            not_always_live={ipu: found.total for ipu, found in totals.items()},
            max_tile={ipu: found.fullest for ipu, found in totals.items()},
            argmax_tile={ipu: found.where for ipu, found in totals.items()},
            peak={ipu: found.peak for ipu, found in totals.items()},
            bytes_per_tile=self.chip.bytes_per_tile,
            step_ops={ipu: tuple(ops) for ipu, ops in profile.ops.items()},
        )

    def _always_live(self) -> dict[int, dict[str, TileVector]]:
        """Code of every graph once (repeated stretches once when outlining), vertex code once per type and tile, stack,
        constants."""
        held = {ipu: _Held() for ipu in self.ipus}
        sets = self.places.tile_sets
        beside = {ipu: _Held() for ipu in self.ipus}  # the same on the I/O tiles
        for graph, lowered in self.graphs.items():
            for item in lowered.ops:
                own, other = held[item.ipu], beside[item.ipu]
                if item.tile_set == IO:
                    own, other = other, own
                steps = item.steps
                if graph in self.loaded:
                    own.add_code(split(steps.code)[1])
                if steps.sender is not None:
                    other.add_code(steps.sender)
                for ipu, piece in steps.elsewhere.items():
                    held[ipu].add_code(piece)
                if steps.vertices:
                    own.add_vertices(steps.vertices, self._start(item))
            for tensor in data_of(graph):
                if isinstance(tensor, Constant):
                    size = aligned(lowered.layouts[tensor].bytes(tensor.dtype.size), self.chip)
                    for ipu in self.places.holders(tensor):
                        held[ipu].constants[size] = held[ipu].constants.get(size, 0) + 1
        for (ipu, tile_set), shared in self.shared.items():
            own = (beside if tile_set == IO else held)[ipu]
            for item in shared.kept:
                own.add_code(item.steps.code, self._start(item))
            chip = sets.chip(tile_set)
            own.add_code(call_code(chip, len(shared.calls), self._copied(shared.calls, chip.tiles)))
        if not sets.io_tiles:
            return {ipu: own.total(self.chip) for ipu, own in held.items()}
        parts = {ipu: ((held[ipu], COMPUTE), (beside[ipu], IO)) for ipu in self.ipus}
        totals = {
            ipu: [(name, sets.whole(vector, tiles)) for own, tiles in pair
                  for name, vector in own.total(sets.chip(tiles)).items()]
            for ipu, pair in parts.items()
        }  # fmt: skip
        return {ipu: _joined(own) for ipu, own in totals.items()}

    def _start(self, item: LoweredOp) -> int:
        """The tile on which the vertices of an op begin: that of the variable or buffer it changes or reads."""
        tensors = [item.op.inputs[index] for index in item.op.modified_inputs()] or item.op.inputs
        return max([self.starts.of(tensor) for tensor in tensors], default=0)

    def _copied(self, calls: Iterable[FunctionCall], tiles: int) -> np.ndarray:
        """How many of the tensors that calls copy have a part on each of the tiles."""
        count = np.zeros(tiles, dtype=np.int64)
        copied = Counter(
            (call.layout(tensor), self.starts.of(tensor))
            for call in calls
            for tensor in (*call.operands, *call.results)
        )
        for (layout, start), number in copied.items():
            count += np.roll(layout.elements.dense() > 0, start) * number
        return count


def _joined(parts: Iterable[tuple[str, TileVector]]) -> dict[str, TileVector]:
    """Bytes per tile by category, added up."""
    found: dict[str, TileVector] = {}
    for name, vector in parts:
        found[name] = found[name] + vector if name in found else vector
    return dict(sorted(found.items()))


def _variables(kinds: list[StorageKind], profile: Profile) -> Iterator[VariableInfo]:
    """One row per tensor (its live stretches together) and per op's temporaries."""
    for ipu, rows in profile.rows.items():
        numbers: dict[tuple[str, str], int] = {}
        first: list[StorageKind] = []
        of_kind = np.full(len(kinds), -1, dtype=np.int64)
        used, place = np.unique(rows[:, 0], return_index=True)
        for kind in used[np.argsort(place)].tolist():
            name, category, *_ = kinds[kind]
            of_kind[kind] = numbers.setdefault((name, category), len(numbers))
            if len(numbers) > len(first):
                first.append(kinds[kind])
        found = _intervals(rows, of_kind[rows[:, 0]], len(first))
        for (name, category, dtype, size), intervals in zip(first, found, strict=True):
            yield VariableInfo(name, -1, category, dtype, ipu, size, intervals, False)


def _intervals(rows: np.ndarray, number: np.ndarray, count: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Live intervals of each of ``count`` variables, sorted, each once; ``number`` is the variable of each row."""
    live = rows[:, 2] > rows[:, 1]
    table = np.stack([number[live], rows[live, 1], rows[live, 2]], axis=1)
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
    if len(table):
        table = table[np.append(True, (table[1:] != table[:-1]).any(axis=1))]
    stops = np.searchsorted(table[:, 0], np.arange(count + 1)).tolist()
    pairs = list(zip(table[:, 1].tolist(), table[:, 2].tolist(), strict=True))
    return (tuple(pairs[a:b]) for a, b in zip(stops, stops[1:], strict=False))
