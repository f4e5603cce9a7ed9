"""When storages are live: the main graph is walked in execution order with calls expanded.

Each storage root gets the half-open interval of program steps from its definition to its last use. A called graph is
walked once for each set of IPUs that its operands lie on. The walk gives a :class:`Profile` relative to the begin of
the call, and every call inserts that profile at its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ipuperf.ir import Graph, Op, Tensor
from ipuperf.machine import Chip
from ipuperf.ops.transfers.code_load import RemoteCodeLoad

from .layout import Layout
from .starts import LinearStarts, turned
from .steps import Step
from .tile_sets import COMPUTE
from .tilevector import TileVector
from .timeline import Block, Placed, Storage

if TYPE_CHECKING:
    from .code import CodeOf
    from .lowered import LoweredGraph, LoweredOp
    from .places import Places


class StorageKind(NamedTuple):
    """A kind of storage: its ``category`` in the report, aligned ``bytes`` per tile, and the ``op`` that makes it."""

    name: str
    category: str
    dtype: str
    bytes: TileVector
    op: Op | None


@dataclass(frozen=True)
class Profile:
    """Live memory during one call of a graph, relative to its begin.

    Attributes:
        blocks: on each IPU where there are steps or storages.
        uses: per input, its last use (-1: none).
        outputs: per output, the input it shares storage with, or its storage, or None.
    """

    blocks: Mapping[int, Block]
    uses: tuple[int, ...]
    outputs: tuple[int | Storage | None, ...]


def shared_outputs(lowered_op: LoweredOp) -> dict[int, int]:
    """Outputs that take no memory of their own: ``{output index: input index}``.

    In-place results share the storage they change. An op without steps moves nothing, so its result is its operand or a
    view of it.
    """
    op = lowered_op.op
    if op.modified_inputs():
        return op.aliases()
    if lowered_op.steps.steps or lowered_op.shared is not None or lowered_op.joined:
        return {}
    if (
        not op.aliases()
        and len(op.inputs) == len(op.outputs) == 1
        and op.inputs[0].spec.bytes == op.outputs[0].spec.bytes
    ):
        return {0: 0}
    return op.aliases() or op.views()


def _add(track: Block, steps: Sequence[Step], op: str = "") -> None:
    """Append the steps of one op."""
    track.add([step.name for step in steps], op)


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
        self._tracks: dict[int, Block] = defaultdict(Block)

    def walk(
        self, main: LoweredGraph, upload: str, variables: Mapping[Tensor, Layout], readers: Mapping[Tensor, Op]
    ) -> Profile:
        """Walk the whole program after the step ``upload``; ``variables`` live from that step to the end.

        A variable belongs to the op in ``readers``.
        """
        for ipu in self._ipus:
            self._tracks[ipu].add([upload])
        storages = {
            tensor: self._storage(tensor, layout, "variable", 1, readers.get(tensor))
            for tensor, layout in variables.items()
        }
        variable_storages = list(storages.values())
        self._walk(main, storages)
        for storage in variable_storages:
            storage.end = self._now(storage.ipu)
            self._tracks[storage.ipu].entries.append(storage)
        return self._finish((), ())

    # -- frames ----------------------------------------------------------------------------------------------------

    def _now(self, ipu: int) -> int:
        """Program steps of ``ipu`` until now."""
        return self._tracks[ipu].length

    def _finish(self, inputs: Sequence[Storage | None], outputs: Sequence[Storage | None]) -> Profile:
        """The finished walk as a profile; ``inputs`` and ``outputs`` are the storages of the graph's tensors."""
        places = {storage: index for index, storage in enumerate(inputs) if storage is not None}
        handed = frozenset(storage for storage in outputs if storage is not None and storage not in places)
        blocks = {ipu: block for ipu, block in sorted(self._tracks.items()) if block.length or block.entries}
        for ipu, block in blocks.items():
            block.handed = frozenset(storage for storage in handed if storage.ipu == ipu)
        return Profile(
            blocks,
            tuple(-1 if storage is None else storage.end for storage in inputs),
            tuple(None if storage is None else places.get(storage, storage) for storage in outputs),
        )

    def _profile(self, body: LoweredGraph, homes: tuple[int | None, ...]) -> Profile:
        """The profile of ``body`` with inputs on the IPUs ``homes`` (None: they take no tile memory), walked once."""
        # Lowered graphs have no hash; they outlive the walk, so their identities stay unique.
        key = (id(body), homes)
        if key not in self._profiles:
            # On tracks of its own the steps of the graph count from 0.
            caller_tracks, self._tracks = self._tracks, defaultdict(Block)
            # An end of -1 remains where the callee never reads the input.
            inputs = [None if ipu is None else Storage(-1, ipu, 0, -1) for ipu in homes]
            storages = {
                tensor: storage
                for tensor, storage in zip(body.graph.inputs, inputs, strict=True)
                if storage is not None
            }
            self._walk(body, storages)
            self._profiles[key] = self._finish(inputs, [storages.get(tensor) for tensor in body.graph.outputs])
            self._tracks = caller_tracks
        return self._profiles[key]

    def _place(self, profile: Profile, operands: Sequence[Storage | None]) -> list[Storage | None]:
        """Insert a call's profile at the current step; return the storages of its results."""
        tracks = self._tracks
        for storage, use in zip(operands, profile.uses, strict=True):
            # One tensor may be several operands, so its last use is the latest of theirs.
            if storage is not None and use >= 0 and (end := tracks[storage.ipu].length + use) > storage.end:
                storage.end = end
        placed = {ipu: self._tracks[ipu].place(block) for ipu, block in profile.blocks.items()}
        return [self._result(output, operands, placed) for output in profile.outputs]

    def _result(
        self, output: int | Storage | None, operands: Sequence[Storage | None], placed: Mapping[int, Placed]
    ) -> Storage | None:
        if output is None or isinstance(output, int):
            return None if output is None else operands[output]
        call = placed[output.ipu]
        if output not in call.open:
            begin, end = call.offset + output.begin, call.offset + call.block.length
            call.open[output] = Storage(output.kind, output.ipu, begin, end)
        return call.open[output]

    # -- walking ---------------------------------------------------------------------------------------------------

    def _kind(self, name: str, category: str, dtype: str, bytes_each: TileVector, op: Op | None) -> int:
        self.kinds.append(StorageKind(name, category, dtype, bytes_each, op))
        return len(self.kinds) - 1

    def _storage(
        self, tensor: Tensor, layout: Layout, category: str, first: int, op: Op | None, ipu: int | None = None
    ) -> Storage:
        dtype, places = tensor.spec.dtype, self._places
        bytes_each = aligned(layout.bytes(dtype.size), places.machine.chip)  # cached by the layout's vector
        # Only variables and buffers get first tiles of their own (:mod:`.starts`).
        if tensor.producer is None or not tensor.producer.inputs:
            bytes_each = turned(bytes_each, self._starts.give(tensor, layout))
        if places.tile_sets.io_tiles:
            bytes_each = places.tile_sets.whole(bytes_each, places.tile_set_of.get(tensor, COMPUTE))
        home = places.home(tensor) if ipu is None else ipu
        return Storage(self._kind(tensor.id, category, dtype.name, bytes_each, op), home, first, first)

    def _walk(self, lowered: LoweredGraph, storages: dict[Tensor, Storage]) -> None:
        """Walk ``lowered`` once; ``storages`` maps its tensors to storages and is filled on the way."""
        for lowered_op in lowered.ops:
            if lowered_op.calls:
                self._walk_call(lowered_op, storages)
            else:
                self._walk_op(lowered_op, lowered, storages)

    def _walk_op(self, lowered_op: LoweredOp, lowered: LoweredGraph, storages: dict[Tensor, Storage]) -> None:
        op, ipu = lowered_op.op, lowered_op.ipu
        track = self._tracks[ipu]
        # A joined copy happens in the step that is already there.
        begin = track.length - lowered_op.joined
        steps = lowered_op.steps
        if steps.steps or lowered_op.shared is not None:
            where = f"{op.label} at {op.location}" if op.location else op.label
            _add(track, steps.steps, where)
            if lowered_op.shared is not None:
                for party in lowered_op.shared.parties():
                    _add(self._tracks[party], (lowered_op.shared,), where)
        if isinstance(op, RemoteCodeLoad):
            self._pass(lowered_op.copies.before)
            self._load_code(op.code, op)
        end = track.length
        self._use(op.inputs, storages)
        aliases = shared_outputs(lowered_op)
        for index, tensor in enumerate(op.outputs):
            if index not in aliases:
                storage = self._storage(tensor, lowered.layouts[tensor], "intermediate", begin, op, ipu)
                storage.end = end
                storages[tensor] = storage
                track.entries.append(storage)
            # Constants and remote variables have no storage here, and neither do their views.
            elif (source := op.inputs[aliases[index]]) in storages:
                storages[tensor] = storages[source]
        # Without a program step there is no time in which temporaries could live.
        if steps.temp is not None and end > begin:
            temp = self._places.tile_sets.whole(aligned(steps.temp, self._places.machine.chip), lowered_op.tile_set)
            kind = self._kind(f"{op.label}/temporary", "temporary", "bytes", temp, op)
            track.entries.append(Storage(kind, ipu, begin, end))

    def _use(self, tensors: Iterable[Tensor], storages: Mapping[Tensor, Storage]) -> None:
        """Keep the storages of ``tensors`` alive until now."""
        for tensor in tensors:
            storage = storages.get(tensor)
            if storage is not None:
                storage.end = self._tracks[storage.ipu].length

    def _walk_call(self, lowered_op: LoweredOp, storages: dict[Tensor, Storage]) -> None:
        op = lowered_op.op
        copied = lowered_op.copies.copied
        _add(self._tracks[lowered_op.ipu], lowered_op.steps.steps)
        if lowered_op.shared is not None:
            self._pass(dict.fromkeys(lowered_op.shared.parties(), (lowered_op.shared,)))
        self._pass(lowered_op.copies.before)
        # The copy reads the operand here, and the callee reads the copy.
        self._use([lowered_op.operands[index] for index in copied], storages)
        # Every trip has the same live set, so one trip is enough.
        for body, trips in lowered_op.calls:
            operands = list(map(storages.get, lowered_op.operands))
            for index in sorted(copied):
                if operands[index] is not None:
                    operands[index] = self._copy(body, body.graph.inputs[index], op)
            profile = self._profile(body, tuple(None if storage is None else storage.ipu for storage in operands))
            results = self._place(profile, operands)
            self._pass(lowered_op.copies.after_trip)
            for code in self._code_of.get(body.graph, ()):
                code.end = self._now(code.ipu)
            if trips > 1:
                # The next trip reads the operands again. Without one, their last use is in the callee.
                self._use(op.inputs, storages)
            elif len(op.inputs) > len(lowered_op.operands):
                # The branch of a conditional that is not charged reads the other operands.
                self._use(set(op.inputs).difference(lowered_op.operands), storages)
            for caller, storage in zip(op.outputs, results, strict=True):
                if storage is not None:
                    storage.end = self._now(storage.ipu)
                    storages[caller] = storage

    def _load_code(self, graph: Graph, op: Op) -> None:
        """Code that is loaded now lives until the last call before it is loaded again."""
        self._code_of[graph] = []
        for ipu, share in self._loaded.get(graph, {}).items():
            size = self._places.tile_sets.whole(share, COMPUTE)
            kind = self._kind(f"{graph.name}/code", "code", "bytes", size, op)
            # The code takes memory from the step of its transfer on.
            storage = Storage(kind, ipu, self._now(ipu) - 1, self._now(ipu))
            self._tracks[ipu].entries.append(storage)
            self._code_of[graph].append(storage)

    def _pass(self, steps: Mapping[int, Sequence[Step]]) -> None:
        """Append program steps on each IPU."""
        for ipu, ipu_steps in steps.items():
            _add(self._tracks[ipu], ipu_steps)

    def _copy(self, body: LoweredGraph, tensor: Tensor, call: Op) -> Storage:
        """A new storage for an operand that is copied for the callee; it lives until its last use there."""
        ipu = self._places.home(tensor)
        storage = self._storage(tensor, body.layouts[tensor], "intermediate", self._now(ipu), call, ipu)
        self._tracks[ipu].entries.append(storage)
        return storage
