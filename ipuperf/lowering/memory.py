"""Memory per tile: live tensors at each step (:mod:`.liveness`), and always-live memory.

Code, vertex state, stack, headers and constants are always live. Variables live throughout the program, but PopVision
counts them as *not always live*, because they are not live before the upload of weights. Its ``user`` classification
would put them in the always-live band; both totals are in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.ir import Constant, Op, Tensor, Variable, data_of
from ipuperf.machine import Chip

from .code import CodeBytes, call_code, minimal_code, vertex_code_bytes
from .code_loading import split
from .layout import Layout
from .liveness import LivenessWalk, Profile, StorageKind, aligned
from .program import CodeInfo, MemoryReport, VariableInfo
from .starts import LinearStarts, turned
from .sweep import sweep
from .tile_sets import COMPUTE, IO
from .tilevector import TileVector
from .timeline import Block, LiveIntervals

if TYPE_CHECKING:
    from .compilation import Compilation
    from .lowered import LoweredOp

#: Every program has these leaf steps before and after ``run``'s own: upload and download of weights.
UPLOAD_STEP = "StreamCopy weights host to device"


@dataclass
class _AlwaysLive:
    """Always-live memory on one tile set of an IPU, and the ops that have it.

    What several ops share counts for the first of them: the code of a vertex type on a tile, what every program has.

    Attributes:
        code: pieces of code with the ops that have one each, by identity and first tile.
        vertices: number of tiles of each vertex type with the first op, by identity and first tile.
        constants: the first readers of the constants that lie alike.
        first: the first op with steps here (-1: none).
    """

    code: dict[tuple[int, int], tuple[CodeBytes, list[int]]] = field(default_factory=dict)
    vertices: dict[tuple[int, int], tuple[dict[str, int], int]] = field(default_factory=dict)
    constants: dict[TileVector, list[int]] = field(default_factory=dict)
    first: int = -1

    def add_code(self, op_id: int, piece: CodeBytes, start: int = 0) -> None:
        """Count a piece of code; a piece that is added several times is multiplied at the end."""
        # Equal ops share one object, so identity finds their pieces without comparing vectors.
        self.code.setdefault((id(piece), start), (piece, []))[1].append(op_id)

    def add_vertices(self, op_id: int, active: dict[str, int], start: int = 0) -> None:
        """Note the vertex types of an op; ops that are alike share one ``active`` object."""
        self.vertices.setdefault((id(active), start), (active, op_id))

    def shares(self, chip: Chip) -> Iterator[tuple[list[int], str, TileVector]]:
        """Ops, a category, and the bytes per tile that each of the ops has of it."""
        # An IPU without steps of its own may send.
        first = self.first if self.first >= 0 else next((ops[0] for _, ops in self.code.values()), -1)
        for name, size in minimal_code(chip).parts.items():
            yield [first], name, _vector(size, chip.tiles)
        # Pieces share vectors, and one piece may begin on many tiles.
        vectors: dict[int, TileVector] = {}
        for (_, start), (piece, ops) in self.code.items():
            for name, value in piece.parts.items():
                if id(value) not in vectors:
                    vectors[id(value)] = _vector(value, chip.tiles)
                yield ops, name, turned(vectors[id(value)], start)
        for name in ("constant", "vertexCode"):
            yield [], name, TileVector.uniform(0, chip.tiles)  # reports have them, of no bytes too
        yield from self._vertex_code(chip)
        tile = 0
        for vector, readers in self.constants.items():
            if vector.active != 1:
                yield readers, "constant", vector
                continue
            # PopART puts constants that fit on one tile on successive tiles.
            for reader in readers:
                yield [reader], "constant", TileVector((tile, tile + 1, chip.tiles), (0, vector.max, 0))
                tile = (tile + 1) % chip.tiles

    def _vertex_code(self, chip: Chip) -> Iterator[tuple[list[int], str, TileVector]]:
        """Each type once on every tile that has a vertex of it."""
        present: dict[str, np.ndarray] = {}
        for (_, start), (vertex_tiles, op_id) in self.vertices.items():
            added = None
            for name, active in vertex_tiles.items():
                has_vertex = present.setdefault(name, np.zeros(chip.tiles, dtype=bool))
                stop = start + active
                # Tiles beyond the last one wrap around to tile 0.
                for part in (slice(start, stop), slice(0, max(0, stop - chip.tiles))):
                    # Most tiles have the vertices of an earlier op.
                    if not has_vertex[part].all():
                        added = np.zeros(chip.tiles, dtype=np.int64) if added is None else added
                        added[part] += ~has_vertex[part] * vertex_code_bytes(chip, name)
                        has_vertex[part] = True
            if added is not None:
                yield [op_id], "vertexCode", TileVector.of(added)


def _vector(value: np.ndarray | int, tiles: int) -> TileVector:
    """Bytes per tile of a dense vector, or of one number for every tile."""
    return TileVector.of(value) if isinstance(value, np.ndarray) else TileVector.uniform(value, tiles)


def measure_memory(program: Compilation) -> Compilation:
    """The pass that works out the memory of every tile."""
    program.memory = MemoryModel(program).report()
    return program


class MemoryModel:
    """Builds the :class:`MemoryReport` of a lowered ``program``."""

    def __init__(self, program: Compilation) -> None:
        self.places = program.places
        self.graphs = program.graphs
        self.main = program.graphs[program.ir.main_graph]
        self.chip = program.places.machine.chip
        self.ipus = program.syncs.ipus
        self.loaded = program.loaded
        self.shared = program.shared_code
        self.starts = LinearStarts(program.places)
        self.sources = program.sources
        self.numbers = program.numbers

    def report(self) -> MemoryReport:
        """Walk the program and build the report."""
        liveness = LivenessWalk(self.places, self.ipus, self.loaded, self.starts)
        variables: dict[Tensor, Layout] = {
            tensor: self.main.layouts[tensor]
            for tensor in data_of(self.main.graph)
            if isinstance(tensor, Variable) and tensor.remote is None
        }
        profile = liveness.walk(self.main, UPLOAD_STEP, variables, self.sources.readers)
        kinds = liveness.kinds
        numbers: dict[TileVector, int] = {}
        # Kinds with equal bytes share a number, so the sweep sees no change where one replaces the other.
        vector_of = np.array([numbers.setdefault(kind.bytes, len(numbers)) for kind in kinds], dtype=np.int64)
        categories, code = self._always_live()
        totals = {}
        for ipu, block in profile.blocks.items():
            always = np.stack([vector.dense() for vector in categories[ipu].values()]).sum(axis=0)
            totals[ipu] = sweep(block, list(numbers), vector_of, always)
        return MemoryReport(
            categories=categories,
            variables=tuple(_variables(kinds, profile, self.numbers)),
            step_names={ipu: block.names for ipu, block in profile.blocks.items()},
            not_always_live={ipu: ipu_totals.total for ipu, ipu_totals in totals.items()},
            max_tile={ipu: ipu_totals.fullest for ipu, ipu_totals in totals.items()},
            argmax_tile={ipu: ipu_totals.where for ipu, ipu_totals in totals.items()},
            peak={ipu: ipu_totals.peak for ipu, ipu_totals in totals.items()},
            bytes_per_tile=self.chip.bytes_per_tile,
            code=tuple(code),
            step_ops={ipu: block.ops for ipu, block in profile.blocks.items()},
        )

    def _always_live(self) -> tuple[dict[int, dict[str, TileVector]], list[CodeInfo]]:
        """Always-live bytes of each IPU by category, and the ops that have them.

        The code of a graph counts once, the code of repeated stretches once when outlining, and the code of a vertex
        type once per tile.
        """
        sets = self.places.tile_sets
        categories: dict[int, dict[str, TileVector]] = {}
        rows: list[CodeInfo] = []
        for ipu, set_memories in self._set_memories().items():
            shares: dict[str, list[tuple[TileVector, int]]] = {}
            for tile_set, set_memory in set_memories.items():
                for ops, name, share in set_memory.shares(sets.chip(tile_set)):
                    whole = sets.whole(share, tile_set)
                    shares.setdefault(name, []).append((whole, len(ops)))
                    if whole.max:
                        rows += [CodeInfo(op_id, ipu, name, whole) for op_id in ops]
            categories[ipu] = {name: TileVector.summed(parts) for name, parts in sorted(shares.items())}
        return categories, rows

    def _set_memories(self) -> dict[int, dict[str, _AlwaysLive]]:
        """The always-live memory of each IPU and tile set."""
        numbers = self.numbers
        sets = (COMPUTE, IO) if self.places.tile_sets.io_tiles else (COMPUTE,)
        memories = {ipu: {tile_set: _AlwaysLive() for tile_set in sets} for ipu in self.ipus}
        for graph, lowered in self.graphs.items():
            for lowered_op in lowered.ops:
                of_ipu, steps, number = memories[lowered_op.ipu], lowered_op.steps, numbers[lowered_op.op]
                set_memory = of_ipu[lowered_op.tile_set]
                if steps.steps and set_memory.first < 0:
                    set_memory.first = number
                if graph in self.loaded:
                    # The code itself is loaded from Streaming Memory and is not always live.
                    set_memory.add_code(number, split(steps.code)[1])
                # The sender of a copy between the tile sets has its code on the other set.
                if steps.sender is not None:
                    of_ipu[COMPUTE if lowered_op.tile_set == IO else IO].add_code(number, steps.sender)
                # A copy between IPUs needs code on its sender as well.
                for ipu, piece in steps.elsewhere.items():
                    memories[ipu][COMPUTE].add_code(number, piece)
                if steps.vertices:
                    set_memory.add_vertices(number, steps.vertices, self._start(lowered_op))
            for tensor in data_of(graph):
                if isinstance(tensor, Constant):
                    size = aligned(lowered.layouts[tensor].bytes(tensor.dtype.size), self.chip)
                    reader = self.sources.readers.get(tensor)
                    for ipu in self.places.holders(tensor):
                        readers = memories[ipu][COMPUTE].constants.setdefault(size, [])
                        readers.append(-1 if reader is None else numbers.get(reader, -1))
        for (ipu, tile_set), shared in self.shared.items():
            set_memory, chip = memories[ipu][tile_set], self.places.tile_sets.chip(tile_set)
            for lowered_op in shared.kept:
                set_memory.add_code(numbers[lowered_op.op], lowered_op.steps.code, self._start(lowered_op))
            pieces: dict[frozenset[Any], CodeBytes] = {}
            for call in shared.calls:
                copied = Counter(
                    (call.layout(tensor), self.starts.of(tensor)) for tensor in (*call.operands, *call.results)
                )
                # Calls of one function copy equal tensors.
                key = frozenset(copied.items())
                if key not in pieces:
                    pieces[key] = call_code(chip, 1, _parts(copied, chip.tiles))
                set_memory.add_code(numbers[call.ops[0].lowered_op.op], pieces[key])
        return memories

    def _start(self, lowered_op: LoweredOp) -> int:
        """The tile on which the vertices of an op begin: where the variable or buffer it changes or reads begins."""
        tensors = [lowered_op.op.inputs[index] for index in lowered_op.op.modified_inputs()] or lowered_op.op.inputs
        return max([self.starts.of(tensor) for tensor in tensors], default=0)


def _parts(copied: Mapping[tuple[Layout, int], int], tiles: int) -> np.ndarray:
    """For each tile, how many of the tensors that a call copies have a part there."""
    count = np.zeros(tiles, dtype=np.int64)
    for (layout, start), number in copied.items():
        count += np.roll(layout.elements.dense() > 0, start) * number
    return count


def _variables(kinds: list[StorageKind], profile: Profile, numbers: Mapping[Op, int]) -> Iterator[VariableInfo]:
    """One row per tensor with all its live stretches, and one per op's temporaries."""
    for ipu, block in profile.blocks.items():
        variables: dict[tuple[str, str], int] = {}
        representatives: list[StorageKind] = []
        of_kind: dict[int, int] = {}
        # In the order in which they first live, not by the number of their kind.
        for kind in block.kinds:
            name, category, *_ = kinds[kind]
            # A tensor may have several kinds, as each walk of its graph makes one.
            of_kind[kind] = variables.setdefault((name, category), len(variables))
            if len(variables) > len(representatives):
                representatives.append(kinds[kind])
        intervals_by_variable = _intervals(block, of_kind, len(representatives))
        for (name, category, dtype, size, op), intervals in zip(representatives, intervals_by_variable, strict=True):
            number = -1 if op is None else numbers.get(op, -1)
            yield VariableInfo(name, number, category, dtype, ipu, size, intervals, False)


def _intervals(main: Block, number: Mapping[int, int], count: int) -> list[LiveIntervals]:
    """Live intervals of each of ``count`` variables; ``number`` is the variable of each kind."""
    parts: list[list[tuple[tuple[tuple[int, int], ...], np.ndarray]]] = [[] for _ in range(count)]
    for block, begins in main.begins().items():
        spans: dict[int, set[tuple[int, int]]] = {}
        for kind, begin, end in block.lives.tolist():
            spans.setdefault(number[kind], set()).add((begin, end))
        for variable, ranges in spans.items():
            parts[variable].append((tuple(sorted(ranges)), begins))
    return [LiveIntervals(tuple(found)) for found in parts]
