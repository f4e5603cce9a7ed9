"""When storages are live: the main graph is walked in execution order with calls expanded.

Each storage root gets the half-open interval of program steps from its definition to its last use. A graph that is
called often is walked once for each way in which its operands lie (:class:`Profile`), relative to the begin of the
call; every call then puts that profile at its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ipuperf.ir import Graph, Tensor
from ipuperf.ops.code_load import RemoteCodeLoad

from .layout import Layout
from .starts import LinearStarts, turned
from .steps import Step
from .tile_sets import COMPUTE
from .tilevector import TileVector

if TYPE_CHECKING:
    from ipuperf.machine import Chip

    from .code_loading import CodeOf
    from .lowered import LoweredGraph, LoweredOp
    from .places import Places


class StorageKind(NamedTuple):
    """What a storage is: ``bytes`` per tile, aligned; ``category`` of the report."""

    name: str
    category: str
    dtype: str
    bytes: TileVector


@dataclass(eq=False, slots=True)
class Storage:
    """One live stretch of one storage root on ``ipu``.

    ``kind`` is a number of :attr:`LivenessWalk.kinds` (-1: an operand of the graph, which the caller holds). ``row`` is
    its place in the profile, when there is one.
    """

    kind: int
    ipu: int
    first: int
    last: int
    row: int = -1


@dataclass(frozen=True)
class _Placed:
    """A profile's rows of one IPU, ``offset`` steps after the begin; ``open`` are those that the caller holds on to."""

    rows: np.ndarray
    offset: int
    open: dict[int, Storage] = field(default_factory=dict)


@dataclass
class _Track:
    """Program steps of one IPU, their ops ("" for none), and what lived on it, in order of creation."""

    names: list[str] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    entries: list[Storage | _Placed] = field(default_factory=list)

    def add(self, steps: Sequence[Step], op: str = "") -> None:
        """Steps of one op."""
        self.names += [step.name for step in steps]
        self.ops += [op] * len(steps)

    def rows(self) -> np.ndarray:
        """``int64[n, 3]``: kind, first, last of each storage; notes the row of each :class:`Storage`."""
        parts: list[np.ndarray] = [np.empty((0, 3), dtype=np.int64)]
        own: list[tuple[int, int, int]] = []
        count = 0
        for entry in self.entries:
            if isinstance(entry, Storage):
                entry.row = count
                own.append((entry.kind, entry.first, entry.last))
                count += 1
                continue
            if own:
                parts.append(np.array(own, dtype=np.int64))
                own = []
            rows = entry.rows + np.array((0, entry.offset, entry.offset), dtype=np.int64)
            for row, storage in entry.open.items():
                rows[row, 2], storage.row = storage.last, count + row
            parts.append(rows)
            count += len(rows)
        if own:
            parts.append(np.array(own, dtype=np.int64))
        return np.concatenate(parts)


@dataclass(frozen=True)
class Profile:
    """What one call of a graph does to memory, relative to its begin.

    Attributes:
        names: per IPU, names of the program steps.
        ops: per IPU, op of each.
        rows: per IPU, ``int64[n, 3]``: kind, first, last of each storage.
        uses: per input, its last use (-1: none).
        outputs: per output, the input it shares storage with, or IPU and row of its storage, or None.
    """

    names: Mapping[int, Sequence[str]]
    ops: Mapping[int, Sequence[str]]
    rows: Mapping[int, np.ndarray]
    uses: tuple[int, ...]
    outputs: tuple[int | tuple[int, int] | None, ...]


def shared_outputs(item: LoweredOp) -> dict[int, int]:
    """Outputs that take no memory of their own: ``{output index: input index}``.

    In-place results share what they change. An op without steps moves nothing, so its result is its operand, or a view
    of it.
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
    return op.aliases() or op.views()


def aligned(bytes_each: TileVector, chip: Chip) -> TileVector:
    """Bytes per tile rounded up to the alignment of a variable's piece."""
    return bytes_each.rounded_up(chip.alignment_bytes)


class LivenessWalk:
    """Walks a lowered program.

    Args:
        places: where the tensors of the program lie.
        ipus: IPUs of a replica.
        loaded: code that is not always live (:mod:`.code_loading`).
        starts: gives variables and buffers (results of ops without operands) their first tiles.

    Attributes:
        kinds: all kinds of storages, by number.
    """

    def __init__(
        self, places: Places, ipus: Iterable[int], loaded: Mapping[Graph, CodeOf], starts: LinearStarts
    ) -> None:
        self._loaded = loaded
        self._starts = starts
        self._code_of: dict[Graph, list[Storage]] = {}
        self._places = places
        self._ipus = tuple(ipus)
        self.kinds: list[StorageKind] = []
        self._profiles: dict[tuple[int, tuple[int | None, ...]], Profile] = {}
        self._tracks = self._new_tracks()

    def walk(self, main: LoweredGraph, upload: str, variables: Mapping[Tensor, Layout]) -> Profile:
        """The whole program, step ``upload`` first. ``variables`` live from then to the end."""
        for track in self._tracks.values():
            track.names.append(upload)
            track.ops.append("")
        held = {tensor: self._storage(tensor, layout, "variable", 1) for tensor, layout in variables.items()}
        variable_storages = list(held.values())
        self._walk(main, held)
        for storage in variable_storages:
            storage.last = self._now(storage.ipu)
            self._tracks[storage.ipu].entries.append(storage)
        return self._finish((), ())

    # -- frames ----------------------------------------------------------------------------------------------------

    def _new_tracks(self) -> dict[int, _Track]:
        return {ipu: _Track() for ipu in self._ipus}

    def _now(self, ipu: int) -> int:
        """Program steps of ``ipu`` until now."""
        return len(self._tracks[ipu].names)

    def _finish(self, inputs: Sequence[Storage | None], outputs: Sequence[Storage | None]) -> Profile:
        """The frame as a profile; ``inputs`` and ``outputs`` are the storages of the graph's."""
        rows = {ipu: track.rows() for ipu, track in self._tracks.items()}
        places = {storage: index for index, storage in enumerate(inputs) if storage is not None}
        return Profile(
            {ipu: track.names for ipu, track in self._tracks.items()},
            {ipu: track.ops for ipu, track in self._tracks.items()},
            rows,
            tuple(-1 if storage is None else storage.last for storage in inputs),
            tuple(None if s is None else places.get(s, (s.ipu, s.row)) for s in outputs),
        )

    def _profile(self, body: LoweredGraph, homes: tuple[int | None, ...]) -> Profile:
        """``body`` walked once, its inputs lying on ``homes`` (None: they take no tile memory)."""
        key = (id(body), homes)
        if key not in self._profiles:
            outer, self._tracks = self._tracks, self._new_tracks()
            inputs = [None if ipu is None else Storage(-1, ipu, 0, -1) for ipu in homes]
            held = {t: s for t, s in zip(body.graph.inputs, inputs, strict=True) if s is not None}
            self._walk(body, held)
            self._profiles[key] = self._finish(inputs, [held.get(tensor) for tensor in body.graph.outputs])
            self._tracks = outer
        return self._profiles[key]

    def _place(self, profile: Profile, operands: Sequence[Storage | None]) -> list[Storage | None]:
        """Put a call at the present place; the storages of its results."""
        begin = {ipu: self._now(ipu) for ipu in self._ipus}
        for storage, use in zip(operands, profile.uses, strict=True):
            if storage is not None and use >= 0:
                storage.last = max(storage.last, begin[storage.ipu] + use)  # one tensor may be several operands
        placed = {}
        for ipu, rows in profile.rows.items():
            track = self._tracks[ipu]
            track.names += profile.names[ipu]
            track.ops += profile.ops[ipu]
            placed[ipu] = _Placed(rows, begin[ipu])
            if len(rows):
                track.entries.append(placed[ipu])
        return [self._result(output, operands, placed) for output in profile.outputs]

    def _result(
        self,
        output: int | tuple[int, int] | None,
        operands: Sequence[Storage | None],
        placed: Mapping[int, _Placed],
    ) -> Storage | None:
        if output is None or isinstance(output, int):
            return None if output is None else operands[output]
        ipu, row = output
        part = placed[ipu]
        if row not in part.open:
            kind, first, last = part.rows[row].tolist()
            part.open[row] = Storage(kind, ipu, part.offset + first, part.offset + last)
        return part.open[row]

    # -- walking ---------------------------------------------------------------------------------------------------

    def _kind(self, name: str, category: str, dtype: str, bytes_each: TileVector) -> int:
        self.kinds.append(StorageKind(name, category, dtype, bytes_each))
        return len(self.kinds) - 1

    def _storage(self, tensor: Tensor, layout: Layout, category: str, first: int, ipu: int | None = None) -> Storage:
        dtype, places = tensor.spec.dtype, self._places
        bytes_each = aligned(layout.bytes(dtype.size), places.machine.chip)  # kept with the layout
        if tensor.producer is None or not tensor.producer.inputs:
            bytes_each = turned(bytes_each, self._starts.give(tensor, layout))
        if places.tile_sets.io_tiles:
            bytes_each = places.tile_sets.whole(bytes_each, places.tile_set_of.get(tensor, COMPUTE))
        home = places.home(tensor) if ipu is None else ipu
        return Storage(self._kind(tensor.id, category, dtype.name, bytes_each), home, first, first)

    def _walk(self, lowered: LoweredGraph, held: dict[Tensor, Storage]) -> None:
        """Execute ``lowered`` once; ``held`` maps its tensors to storages and is filled on the way."""
        for item in lowered.ops:
            if item.calls:
                self._walk_call(item, held)
            else:
                self._walk_op(item, lowered, held)

    def _walk_op(self, item: LoweredOp, lowered: LoweredGraph, held: dict[Tensor, Storage]) -> None:
        op, ipu = item.op, item.ipu
        track = self._tracks[ipu]
        first = len(track.names) - item.joined  # a joined copy happens in the step that is already there
        steps = item.steps
        if steps.steps or item.shared is not None:
            where = f"{op.label} at {op.location}" if op.location else op.label
            track.add(steps.steps, where)
            if item.shared is not None:
                for party in item.shared.parties():
                    self._tracks[party].add((item.shared,), where)
        if isinstance(op, RemoteCodeLoad):
            self._pass(item.copies.before)
            self._load_code(op.code)
        last = len(track.names)
        self._use(op.inputs, held)
        aliases = shared_outputs(item)
        for index, tensor in enumerate(op.outputs):
            if index not in aliases:
                storage = self._storage(tensor, lowered.layouts[tensor], "intermediate", first, ipu)
                storage.last = last
                held[tensor] = storage
                track.entries.append(storage)
            elif (source := op.inputs[aliases[index]]) in held:
                held[tensor] = held[source]
        if steps.temp is not None and last > first:
            temp = self._places.tile_sets.whole(aligned(steps.temp, self._places.machine.chip), item.tile_set)
            kind = self._kind(f"{op.label}/temporary", "temporary", "bytes", temp)
            track.entries.append(Storage(kind, ipu, first, last))

    def _use(self, tensors: Iterable[Tensor], held: Mapping[Tensor, Storage]) -> None:
        """Keep the storages of ``tensors`` alive until now."""
        for tensor in tensors:
            storage = held.get(tensor)
            if storage is not None:
                storage.last = len(self._tracks[storage.ipu].names)

    def _walk_call(self, item: LoweredOp, held: dict[Tensor, Storage]) -> None:
        op = item.op
        copied = item.copies.copied
        self._tracks[item.ipu].add(item.steps.steps)
        if item.shared is not None:
            self._pass(dict.fromkeys(item.shared.parties(), (item.shared,)))
        self._pass(item.copies.before)
        self._use([item.operands[index] for index in copied], held)
        for body, trips in item.calls:  # every trip has the same live set, so one is enough
            operands = [
                None if caller not in held else self._copy(body, callee) if index in copied else held[caller]
                for index, (callee, caller) in enumerate(zip(body.graph.inputs, item.operands, strict=True))
            ]
            profile = self._profile(body, tuple(None if storage is None else storage.ipu for storage in operands))
            results = self._place(profile, operands)
            self._pass(item.copies.after_trip)
            for code in self._code_of.get(body.graph, ()):
                code.last = self._now(code.ipu)
            if trips > 1:  # the next trip reads them again; else the last use is in the callee
                self._use(op.inputs, held)
            elif len(op.inputs) > len(item.operands):  # the branch of a conditional that is not charged reads the rest
                self._use(set(op.inputs).difference(item.operands), held)
            for caller, storage in zip(op.outputs, results, strict=True):
                if storage is not None:
                    storage.last = self._now(storage.ipu)
                    held[caller] = storage

    def _load_code(self, graph: Graph) -> None:
        """Code that comes now is there until the last call before it comes again."""
        self._code_of[graph] = []
        for ipu, share in self._loaded.get(graph, {}).items():
            size = self._places.tile_sets.whole(share, COMPUTE)
            kind = self._kind(f"{graph.name}/code", "code", "bytes", size)
            storage = Storage(kind, ipu, self._now(ipu) - 1, self._now(ipu))  # during the transfer, too
            self._tracks[ipu].entries.append(storage)
            self._code_of[graph].append(storage)

    def _pass(self, steps: Mapping[int, Sequence[Step]]) -> None:
        """Program steps of each IPU."""
        for ipu, own in steps.items():
            self._tracks[ipu].add(own)

    def _copy(self, body: LoweredGraph, tensor: Tensor) -> Storage:
        """Storage of an operand that is copied for the callee, alive until its last use there."""
        ipu = self._places.home(tensor)
        storage = self._storage(tensor, body.layouts[tensor], "intermediate", self._now(ipu), ipu)
        self._tracks[ipu].entries.append(storage)
        return storage
