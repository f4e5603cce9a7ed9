"""Memory per tile: what is live when, and what is always there.

The main graph is walked in execution order with calls expanded; each storage root gets the half-open interval of
program steps from its definition to its last use. Variables live throughout (PopVision counts them as *not always
live*, because they are not live before the upload of weights; ``user`` classification would put them in the always-live
band: both totals are in the report). Code, vertex state, stack, headers and constants are always live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ipuperf.ir import Constant, Stream, Tensor, Variable

from . import code
from .layout import Layout
from .program import MemoryReport, Step, VariableInfo
from .tilevector import TileVector

if TYPE_CHECKING:
    from .lower import LoweredGraph, LoweredOp, Lowering

#: Alignment of a variable's piece on a tile: one interleaved 64-bit pair.
ALIGNMENT_BYTES = 16

#: Every program has these leaf steps before and after ``run``'s own: upload and download of weights.
UPLOAD_STEP = "StreamCopy weights host to device"


@dataclass
class _Storage:
    """One live stretch of one storage root."""

    tensor: Tensor | None
    name: str
    bytes: TileVector
    ipu: int
    category: str
    first: int
    last: int
    op_id: int = -1


@dataclass
class _Timeline:
    """Program steps of one IPU and the storages that lived on it."""

    names: list[str] = field(default_factory=list)
    storages: list[_Storage] = field(default_factory=list)


def _shared(item: LoweredOp) -> dict[int, int]:
    """Outputs that take no memory of their own: ``{output index: input index}``.

    In-place results share what they change. An op without steps moves nothing, so its result is its operand.
    """
    op = item.op
    if op.modified_inputs():
        return op.aliases()
    if item.steps.steps or item.shared is not None or item.joined:
        return {}
    if (
        not op.aliases()
        and len(op.inputs) == len(op.outputs) == 1
        and op.inputs[0].spec.bytes == op.outputs[0].spec.bytes
    ):
        return {0: 0}
    return op.aliases()


def aligned(bytes_each: TileVector) -> TileVector:
    """Bytes per tile rounded up to the alignment."""
    step = ALIGNMENT_BYTES
    return TileVector(bytes_each.stops, tuple(-(-v // step) * step for v in bytes_each.values))


class MemoryModel:
    """Builds the :class:`MemoryReport` of a lowered program."""

    def __init__(self, lowering: Lowering, main: LoweredGraph, ipus: int) -> None:
        self.lowering = lowering
        self.main = main
        self.chip = lowering.machine.chip
        self.ipus = range(ipus)
        self.timelines = {ipu: _Timeline() for ipu in self.ipus}
        self.persistent: list[_Storage] = []

    # -- walking ---------------------------------------------------------------------------------------------------

    def report(self) -> MemoryReport:
        """Walk the program and total up."""
        for timeline in self.timelines.values():
            timeline.names.append(UPLOAD_STEP)
        held = self._hold_data()
        self._walk(self.main, held)
        end = {ipu: len(timeline.names) for ipu, timeline in self.timelines.items()}
        for storage in self.persistent:
            storage.first, storage.last = 1, end[storage.ipu]
            self.timelines[storage.ipu].storages.append(storage)
        return self._total()

    def _hold_data(self) -> dict[Tensor, _Storage]:
        """Storages of variables (whole program) and constants; streams and remote variables take no tile memory."""
        held: dict[Tensor, _Storage] = {}
        for tensor in self.main.graph.tensors.values():
            if isinstance(tensor, Stream) or (isinstance(tensor, Variable) and tensor.remote is not None):
                continue
            if isinstance(tensor, Variable):
                storage = self._storage(tensor, self.main.layouts[tensor], self.lowering.home(tensor), "variable", 1)
                self.persistent.append(storage)
                held[tensor] = storage
        return held

    def _storage(self, tensor: Tensor, layout: Layout, ipu: int, category: str, first: int) -> _Storage:
        bytes_each = aligned(layout.bytes(tensor.dtype.size))
        return _Storage(tensor, tensor.id, bytes_each, ipu, category, first, first)

    def _walk(self, lowered: LoweredGraph, held: dict[Tensor, _Storage]) -> None:
        """Execute ``lowered`` once; ``held`` maps its tensors to storages and is filled on the way."""
        for item in lowered.ops:
            if item.calls:
                self._walk_call(item, held)
            else:
                self._walk_op(item, lowered, held)

    def _walk_op(self, item: LoweredOp, lowered: LoweredGraph, held: dict[Tensor, _Storage]) -> None:
        op, ipu = item.op, item.ipu
        timeline = self.timelines[ipu]
        first = len(timeline.names) - item.joined  # a joined copy happens in the step that is already there
        timeline.names += [step.name for step in item.steps.steps]
        if item.shared is not None:
            for party in item.shared.participants:
                self.timelines[party].names.append(item.shared.name)
        last = len(timeline.names)
        self._use(op.inputs, held)
        aliases = _shared(item)
        for index, tensor in enumerate(op.outputs):
            source = op.inputs[aliases[index]] if index in aliases else None
            if source is not None and source in held:
                held[tensor] = held[source]
            elif source is None:
                storage = self._storage(tensor, lowered.layouts[tensor], ipu, "intermediate", first)
                storage.last = last
                held[tensor] = storage
                timeline.storages.append(storage)
        if item.steps.temp is not None and last > first:
            timeline.storages.append(
                _Storage(None, f"{op.label}/temporary", aligned(item.steps.temp), ipu, "temporary", first, last)
            )

    def _use(self, tensors: Iterable[Tensor], held: dict[Tensor, _Storage]) -> None:
        """Keep the storages of ``tensors`` alive until now."""
        for tensor in tensors:
            if tensor in held:
                storage = held[tensor]
                storage.last = max(storage.last, len(self.timelines[storage.ipu].names))

    def _walk_call(self, item: LoweredOp, held: dict[Tensor, _Storage]) -> None:
        op = item.op
        self._pass(item.before)
        for body, _ in item.calls:  # every trip has the same live set, so one is enough
            inner = {
                callee: held[caller] if index not in item.copied else self._copy(body, callee)
                for index, (callee, caller) in enumerate(zip(body.graph.inputs, op.inputs, strict=True))
                if caller in held
            }
            self._walk(body, inner)
            self._pass(item.after_trip)
            self._use(op.inputs, held)
            self._use(body.graph.outputs, inner)
            for callee, caller in zip(body.graph.outputs, op.outputs, strict=True):
                if callee in inner:
                    held[caller] = inner[callee]

    def _pass(self, steps: Mapping[int, Sequence[Step]]) -> None:
        """Program steps of each IPU."""
        for ipu, own in steps.items():
            self.timelines[ipu].names += [step.name for step in own]

    def _copy(self, body: LoweredGraph, tensor: Tensor) -> _Storage:
        """Storage of an operand that is copied for the callee, alive until its last use there."""
        ipu = self.lowering.home(tensor)
        timeline = self.timelines[ipu]
        storage = self._storage(tensor, body.layouts[tensor], ipu, "intermediate", len(timeline.names))
        timeline.storages.append(storage)
        return storage

    # -- totals ----------------------------------------------------------------------------------------------------

    def _total(self) -> MemoryReport:
        categories = {ipu: self._always_live(ipu) for ipu in self.ipus}
        not_always, max_tile, argmax, peak = {}, {}, {}, {}
        for ipu, timeline in self.timelines.items():
            always = sum((v.dense() for v in categories[ipu].values()), np.zeros(self.chip.tiles, dtype=np.int64))
            result = _sweep(timeline, always, self.chip.tiles)
            not_always[ipu], max_tile[ipu], argmax[ipu], peak[ipu] = result
        return MemoryReport(
            categories=categories,
            variables=tuple(self._variables()),
            step_names={ipu: tuple(t.names) for ipu, t in self.timelines.items()},
            not_always_live=not_always,
            max_tile=max_tile,
            argmax_tile=argmax,
            peak=peak,
            bytes_per_tile=self.chip.bytes_per_tile,
        )

    def _always_live(self, ipu: int) -> dict[str, TileVector]:
        """Code of every graph once, vertex code once per type and tile, stack, constants."""
        tiles = self.chip.tiles
        total = code.CodeBytes({"stack": code.STACK_BYTES, "controlCode": code.BASE_CONTROL_BYTES,
                                "hostExchangeCode": code.BASE_HOST_EXCHANGE_BYTES})  # fmt: skip
        vertex_types: dict[str, int] = {}
        constants = np.zeros(tiles, dtype=np.int64)
        for graph, lowered in self.lowering.graphs.items():
            total += self.lowering.code_of(lowered, ipu)
            for item in lowered.ops:
                if item.ipu == ipu:
                    for name, active in item.steps.vertices.items():
                        vertex_types[name] = max(vertex_types.get(name, 0), active)
            for tensor in graph.tensors.values():
                if isinstance(tensor, Constant) and ipu in self.lowering.holders(tensor):
                    constants += aligned(lowered.layouts[tensor].bytes(tensor.dtype.size)).dense()
        vertex_code = np.zeros(tiles, dtype=np.int64)
        for name, active in vertex_types.items():
            vertex_code[:active] += code.vertex_code_bytes(name)
        total += code.CodeBytes({"vertexCode": vertex_code, "constant": constants})
        return {
            name: TileVector.of(np.broadcast_to(np.asarray(value, dtype=np.int64), (tiles,)))
            for name, value in sorted(total.parts.items())
        }

    def _variables(self) -> Iterator[VariableInfo]:
        """One row per tensor (its live stretches together) and per op's temporaries."""
        for ipu, timeline in self.timelines.items():
            merged: dict[tuple[str, str], list[_Storage]] = {}
            for storage in timeline.storages:
                merged.setdefault((storage.name, storage.category), []).append(storage)
            for (name, category), storages in merged.items():
                first = storages[0]
                intervals = tuple(sorted({(s.first, s.last) for s in storages if s.last > s.first}))
                dtype = first.tensor.dtype.name if first.tensor is not None else "bytes"
                yield VariableInfo(name, -1, category, dtype, ipu, first.bytes, intervals, False)


def _sweep(
    timeline: _Timeline, always: np.ndarray, tiles: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Totals over time: (bytes of the IPU, bytes on the fullest tile, that tile) per step, and the tiles at the peak.

    Sorted open and close events; the per-tile vector is updated only where something opens or closes.
    """
    steps = len(timeline.names)
    opening: dict[int, list[_Storage]] = {}
    closing: dict[int, list[_Storage]] = {}
    for storage in timeline.storages:
        if storage.last > storage.first:
            opening.setdefault(storage.first, []).append(storage)
            closing.setdefault(storage.last, []).append(storage)
    live = np.zeros(tiles, dtype=np.int64)
    total = np.zeros(steps, dtype=np.int64)
    fullest = np.zeros(steps, dtype=np.int64)
    where = np.zeros(steps, dtype=np.int64)
    peak = live.copy()
    current, top, tile, highest = 0, int(always.max(initial=0)), int(always.argmax()), -1
    for step in range(steps):
        if step in opening or step in closing:
            for storage in closing.get(step, ()):
                live -= storage.bytes.dense()
            for storage in opening.get(step, ()):
                live += storage.bytes.dense()
            both = live + always
            current, tile = int(live.sum()), int(both.argmax())
            top = int(both[tile])
        total[step], fullest[step], where[step] = current, top, tile
        if current > highest:
            highest, peak = current, live.copy()
    return total, fullest, where, peak
