"""Memory per tile: live tensors at each step (:mod:`.liveness`), and always-live memory.

Code, vertex state, stack, headers and constants are always live. Variables live throughout the program, but PopVision
counts them as *not always live*, because they are not live before the upload of weights. Its ``user`` classification
would put them in the always-live band; both totals are in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ir import Constant, Op, Tensor, Variable, data_of

from .code import CodeBytes, call_code, minimal_code, vertex_code_bytes
from .code_loading import split
from .layout import Layout
from .liveness import LivenessWalk, Profile, StorageKind, aligned
from .program import MemoryReport, VariableInfo
from .starts import LinearStarts
from .sweep import sweep
from .tile_sets import COMPUTE, IO
from .tilevector import TileVector
from .timeline import Block, LiveIntervals

if TYPE_CHECKING:
    from ipuperf.machine import Chip

    from .compilation import Compilation
    from .lowered import LoweredOp
    from .outlining import FunctionCall

#: Every program has these leaf steps before and after ``run``'s own: upload and download of weights.
UPLOAD_STEP = "StreamCopy weights host to device"


@dataclass
class _AlwaysLive:
    """Always-live memory on one tile set of an IPU.

    Attributes:
        code: pieces of code with how often each is there, by identity and first tile.
        vertices: number of tiles of each vertex type, by identity and first tile.
        constants: how many constants lie alike.
    """

    code: dict[tuple[int, int], tuple[CodeBytes, int]] = field(default_factory=dict)
    vertices: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    constants: dict[TileVector, int] = field(default_factory=dict)

    def add_code(self, piece: CodeBytes, start: int = 0) -> None:
        """Count a piece of code; a piece that is added several times is multiplied at the end."""
        # Equal ops share one object, so identity finds their pieces without comparing vectors.
        key = (id(piece), start)
        count = self.code[key][1] if key in self.code else 0
        self.code[key] = (piece, count + 1)

    def add_vertices(self, active: dict[str, int], start: int = 0) -> None:
        """Note the vertex types of an op; ops that are alike share one ``active`` object."""
        self.vertices[id(active), start] = active

    def total(self, chip: Chip) -> dict[str, TileVector]:
        """Bytes per tile by category."""
        tiles, parts = chip.tiles, dict(minimal_code(chip).parts)
        for (_, start), (piece, count) in self.code.items():
            for name, value in piece.parts.items():
                placed = np.roll(value, start) if start and isinstance(value, np.ndarray) else value
                parts[name] = parts.get(name, 0) + placed * count
        # Equal layouts are counted together and multiplied.
        constants = np.zeros(tiles, dtype=np.int64)
        tile = 0
        for vector, count in self.constants.items():
            # PopART puts constants that fit on one tile on successive tiles.
            if vector.active == 1:
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
        for (_, start), vertex_tiles in self.vertices.items():
            for name, active in vertex_tiles.items():
                has_vertex = present.setdefault(name, np.zeros(chip.tiles, dtype=bool))
                stop = start + active
                has_vertex[start:stop] = True
                # Tiles beyond the last one wrap around to tile 0.
                has_vertex[: max(0, stop - chip.tiles)] = True
        code = np.zeros(chip.tiles, dtype=np.int64)
        for name, has_vertex in present.items():
            code += has_vertex * vertex_code_bytes(chip, name)
        return code


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
        categories = self._always_live()
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
            step_ops={ipu: block.ops for ipu, block in profile.blocks.items()},
        )

    def _always_live(self) -> dict[int, dict[str, TileVector]]:
        """Always-live bytes of each IPU by category.

        The code of a graph counts once, the code of repeated stretches once when outlining, and the code of a vertex
        type once per tile.
        """
        # Compute tiles and I/O tiles are counted apart and joined at the end.
        on_compute_tiles = {ipu: _AlwaysLive() for ipu in self.ipus}
        sets = self.places.tile_sets
        on_io_tiles = {ipu: _AlwaysLive() for ipu in self.ipus}
        for graph, lowered in self.graphs.items():
            for lowered_op in lowered.ops:
                set_memory, other_set_memory = on_compute_tiles[lowered_op.ipu], on_io_tiles[lowered_op.ipu]
                if lowered_op.tile_set == IO:
                    set_memory, other_set_memory = other_set_memory, set_memory
                steps = lowered_op.steps
                if graph in self.loaded:
                    # The code itself is loaded from Streaming Memory and is not always live.
                    set_memory.add_code(split(steps.code)[1])
                # The sender of a copy between the tile sets has its code on the other set.
                if steps.sender is not None:
                    other_set_memory.add_code(steps.sender)
                # A copy between IPUs needs code on its sender as well.
                for ipu, piece in steps.elsewhere.items():
                    on_compute_tiles[ipu].add_code(piece)
                if steps.vertices:
                    set_memory.add_vertices(steps.vertices, self._start(lowered_op))
            for tensor in data_of(graph):
                if isinstance(tensor, Constant):
                    size = aligned(lowered.layouts[tensor].bytes(tensor.dtype.size), self.chip)
                    for ipu in self.places.holders(tensor):
                        on_compute_tiles[ipu].constants[size] = on_compute_tiles[ipu].constants.get(size, 0) + 1
        for (ipu, tile_set), shared in self.shared.items():
            set_memory = (on_io_tiles if tile_set == IO else on_compute_tiles)[ipu]
            for lowered_op in shared.kept:
                set_memory.add_code(lowered_op.steps.code, self._start(lowered_op))
            chip = sets.chip(tile_set)
            set_memory.add_code(call_code(chip, len(shared.calls), self._copied(shared.calls, chip.tiles)))
        if not sets.io_tiles:
            return {ipu: set_memory.total(self.chip) for ipu, set_memory in on_compute_tiles.items()}
        parts = {ipu: ((on_compute_tiles[ipu], COMPUTE), (on_io_tiles[ipu], IO)) for ipu in self.ipus}
        totals = {
            ipu: [
                (name, sets.whole(vector, tiles))
                for set_memory, tiles in set_memories
                for name, vector in set_memory.total(sets.chip(tiles)).items()
            ]
            for ipu, set_memories in parts.items()
        }
        return {ipu: _joined(set_totals) for ipu, set_totals in totals.items()}

    def _start(self, lowered_op: LoweredOp) -> int:
        """The tile on which the vertices of an op begin: where the variable or buffer it changes or reads begins."""
        tensors = [lowered_op.op.inputs[index] for index in lowered_op.op.modified_inputs()] or lowered_op.op.inputs
        return max([self.starts.of(tensor) for tensor in tensors], default=0)

    def _copied(self, calls: Iterable[FunctionCall], tiles: int) -> np.ndarray:
        """For each tile, how many of the tensors that calls copy have a part there."""
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
    """Bytes per tile by category, summed over ``parts``."""
    totals: dict[str, TileVector] = {}
    for name, vector in parts:
        totals[name] = totals[name] + vector if name in totals else vector
    return dict(sorted(totals.items()))


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
