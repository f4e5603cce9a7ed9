"""``DeviceProgram``: what lies between compiling and simulating, as a plain value.

For each IPU of one replica a tree of steps, the subgraph functions they call, the op each step came from, and the
memory of every tile. All replicas run the same program. Times are cycles of the tile clock, sizes bytes; steps that
touch something shared (links, DDR, host) state what they move, not how long it takes: that is for the
simulation to find out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from .tilevector import TileVector


@dataclass(frozen=True)
class Cost:
    """What local work costs on one IPU; add two to have both.

    ``cycles`` are those of the slowest tile of each phase, syncs included; ``bytes_in`` / ``bytes_out`` go over the
    internal exchange; ``flops`` are floating-point operations.
    """

    cycles: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    flops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.cycles + other.cycles,
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.flops + other.flops,
        )


@dataclass(frozen=True)
class Step:
    """Base of all steps. ``op_id`` is the index into :attr:`DeviceProgram.ops` (-1: none); ``name`` is for people."""

    op_id: int
    name: str

    def for_op(self, op_id: int) -> Step:
        """The same step of another op."""
        if op_id == self.op_id:
            return self
        step = object.__new__(type(self))
        fields = step.__dict__
        fields.update(self.__dict__)  # dataclasses.replace takes four times as long
        fields["op_id"] = op_id
        return step


@dataclass(frozen=True)
class Phase(Step):
    """One phase of a superstep on all tiles of an IPU.

    Attributes:
        kind: ``compute`` or ``exchange``.
        cycles: per tile; the phase lasts as long as its slowest tile.
        bytes_in, bytes_out: received and sent over the internal exchange in all (exchange phases).
        flops: floating-point operations in all (compute phases).
        vertex: vertex type (compute phases).
        launch: the part of ``cycles`` in which a tile that has vertices launches them (compute phases).
    """

    kind: str
    cycles: TileVector
    bytes_in: int = 0
    bytes_out: int = 0
    flops: int = 0
    vertex: str = ""
    launch: int = 0

    @property
    def slowest(self) -> int:
        """Cycles of the slowest tile after its launch: its vertices, or what arrives there."""
        return self.cycles.max - self.launch

    @property
    def cost(self) -> Cost:
        """As a value to add up."""
        return Cost(self.cycles.max, self.bytes_in, self.bytes_out, self.flops)


@dataclass(frozen=True)
class Sync(Step):
    """Internal sync: every tile of the IPU waits for the others, for ``cycles``."""

    cycles: int

    @property
    def cost(self) -> Cost:
        """As a value to add up."""
        return Cost(self.cycles)


@dataclass(frozen=True)
class IpuTransfer:
    """``bytes`` from IPU ``source`` to IPU ``destination`` of one replica."""

    source: int
    destination: int
    bytes: int


@dataclass(frozen=True)
class InterIpuCopy(Step):
    """One exchange between IPUs of a replica: all ``copies`` (each pair of IPUs at most once) start together.

    Every IPU that sends or receives has this step at its place and goes on when its own transfers are done.
    """

    copies: tuple[IpuTransfer, ...]

    @property
    def participants(self) -> tuple[int, ...]:
        """IPUs of the replica that send or receive, ascending."""
        return tuple(sorted({end for copy in self.copies for end in (copy.source, copy.destination)}))

    def received(self, ipu: int) -> int:
        """Bytes that ``ipu`` receives."""
        return sum(copy.bytes for copy in self.copies if copy.destination == ipu)

    def sent(self, ipu: int) -> int:
        """Bytes that ``ipu`` sends."""
        return sum(copy.bytes for copy in self.copies if copy.source == ipu)


@dataclass(frozen=True)
class Collective(Step):
    """A collective of ``bytes`` (whole tensor of one replica) in replica groups, as rounds of sends.

    Attributes:
        kind: ``all_reduce``, ``reduce_scatter`` or ``all_gather``.
        bytes: unsharded bytes on one replica.
        groups: members (replica numbers) of each group.
        reduce_cycles: cycles to add one received chunk of ``bytes / group size`` on the tiles (0 for a gather).
        method: ``auto``, or one of the algorithms of :mod:`ipuperf.simulation.algorithms`.
    """

    kind: str
    bytes: int
    groups: tuple[tuple[int, ...], ...]
    reduce_cycles: int
    method: str = "auto"


@dataclass(frozen=True)
class RemoteTransfer(Step):
    """``bytes`` per replica between Streaming Memory and this IPU; ``direction`` is ``load`` or ``store``.

    ``wire_bytes`` counts what the DDR really moves (fragments below the smallest efficient access are rounded up).
    """

    direction: str
    bytes: int
    wire_bytes: int
    buffer_id: int


@dataclass(frozen=True)
class StreamCopy(Step):
    """``bytes`` per replica between host and this IPU; ``direction`` is ``h2d`` or ``d2h``; one slice of ``stream``."""

    direction: str
    bytes: int
    stream: str


@dataclass(frozen=True)
class HostCopy:
    """``bytes`` per replica between host and IPU ``ipu`` of the replica; otherwise as :class:`StreamCopy`."""

    ipu: int
    direction: str
    bytes: int
    stream: str


@dataclass(frozen=True)
class HostExchange(Step):
    """Stream copies during which all ``participants`` (IPUs of the replica) stand, also those that copy nothing.

    They meet, each does its own ``copies``, and they meet again before anyone goes on: what host I/O is under the sync
    patterns ``full`` (all IPUs of the replica) and ``replica_and_ladder`` (one side of the ladder). An IPU asks for
    all its slices at once and transfers them together.
    """

    copies: tuple[HostCopy, ...]
    participants: tuple[int, ...]

    def of(self, ipu: int) -> tuple[HostCopy, ...]:
        """The copies of one IPU, in order."""
        return tuple(copy for copy in self.copies if copy.ipu == ipu)


@dataclass(frozen=True)
class Sequence(Step):
    """Steps in order."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class IoTiles(Sequence):
    """Steps that run on the I/O tiles while the compute tiles go on; the two sets meet at each :class:`TileSetCopy`."""


@dataclass(frozen=True)
class TileSetCopy(Step):
    """One exchange between the compute tiles and the I/O tiles of the IPU, in which both take part.

    Whoever comes first waits; then a sync of ``sync`` cycles and an exchange of ``cycles``, the same for both.
    ``destination`` is ``io`` or ``compute``.
    """

    destination: str
    bytes: int
    sync: int
    cycles: int


@dataclass(frozen=True)
class Repeat(Step):
    """``body`` executed ``count`` times."""

    count: int
    body: Sequence


@dataclass(frozen=True)
class Call(Step):
    """The function of this name (see :attr:`DeviceProgram.functions`) executed once."""

    function: str


class OpInfo(NamedTuple):
    """The op a step came from: ``phase`` says what it is for (:mod:`ipuperf.ir.phase`)."""

    op_id: int
    name: str
    type: str
    graph: str
    phase: str
    flops: int


WarningKind = Literal["low confidence", "does not fit"]
"""A cost without a primary source; an IPU whose memory is exceeded."""


class ProgramWarning(NamedTuple):
    """What the user should know about a program; ``kind`` says which sort it is, ``text`` is one line for reports."""

    kind: WarningKind
    text: str


class VariableInfo(NamedTuple):
    """A tensor of the memory report: where it lies and when it is live.

    ``intervals`` are half-open ranges of program steps; ``bytes`` is per tile.
    """

    name: str
    op_id: int
    category: str
    dtype: str
    ipu: int
    bytes: TileVector
    intervals: tuple[tuple[int, int], ...]
    always_live: bool
    location: str = "tile"


@dataclass(frozen=True)
class MemoryReport:
    """Memory of one replica.

    Attributes:
        categories: ``{ipu: {category: bytes per tile}}`` for what is always live (code, state, constants, stack ...).
        variables: tensors with their live intervals.
        step_names: program step names, the index of the live intervals, per IPU.
        not_always_live: ``{ipu: int64[steps]}`` bytes of the IPU.
        max_tile, argmax_tile: ``{ipu: int64[steps]}`` bytes on the fullest tile (always live included) and which it is.
        peak: ``{ipu: int64[tiles]}`` bytes per tile of what is not always live, at the step of the IPU's highest total.
        bytes_per_tile: the limit.
        step_ops: per IPU, op (with the user's file and line) of each program step, "" where there is none.
    """

    categories: Mapping[int, Mapping[str, TileVector]]
    variables: tuple[VariableInfo, ...]
    step_names: Mapping[int, tuple[str, ...]]
    not_always_live: Mapping[int, np.ndarray]
    max_tile: Mapping[int, np.ndarray]
    argmax_tile: Mapping[int, np.ndarray]
    peak: Mapping[int, np.ndarray]
    bytes_per_tile: int
    step_ops: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def op_of_step(self, ipu: int, step: int) -> str:
        """The op of a program step, "" if there is none or it is not known."""
        ops = self.step_ops.get(ipu, ())
        return ops[step] if step < len(ops) else ""

    def always_live_bytes(self, ipu: int = 0) -> int:
        """Always-live bytes of the IPU (code, state, constants ...; variables excluded as PopVision counts them)."""
        return sum(v.total for v in self.categories[ipu].values())

    def peak_not_always_live(self, ipu: int = 0) -> int:
        """Highest not-always-live total of the IPU over the program."""
        return int(self.not_always_live[ipu].max(initial=0))


@dataclass(frozen=True)
class DeviceProgram:
    """A compiled program.

    Attributes:
        name: the program's name.
        machine: name of the machine it was lowered for.
        replicas: replication factor.
        placement: IPUs of each replica.
        ipus: one tree of steps per IPU of a replica.
        functions: bodies of called functions, ``{(name, ipu): steps}`` flattened to ``name@ipu``.
        ops: the op table.
        memory: the memory report.
        streams: per stream name and direction, bytes of one slice on one replica.
        warnings: what the user should know.
        io_tiles: tiles of each IPU that are set aside for I/O, its last ones. Their steps stand in the tree of the IPU
            inside :class:`IoTiles`; vectors over tiles in there count from the first I/O tile.
    """

    name: str
    machine: str
    replicas: int
    placement: tuple[tuple[int, ...], ...]
    ipus: tuple[Sequence, ...]
    functions: Mapping[str, Sequence]
    ops: tuple[OpInfo, ...]
    memory: MemoryReport
    streams: Mapping[str, tuple[str, int]]
    warnings: tuple[ProgramWarning, ...] = ()
    io_tiles: int = 0

    def walk(self, ipu: int = 0) -> Iterator[Step]:
        """Every leaf step that IPU ``ipu`` executes in one run, in order, with calls and repeats expanded."""
        yield from self._walk(self.ipus[ipu])

    def _walk(self, step: Step) -> Iterator[Step]:
        if isinstance(step, Sequence):
            for inner in step.steps:
                yield from self._walk(inner)
        elif isinstance(step, Repeat):
            for _ in range(step.count):
                yield from self._walk(step.body)
        elif isinstance(step, Call):
            yield from self._walk(self.functions[step.function])
        else:
            yield step

    def texts(self, kind: WarningKind) -> list[str]:
        """The warnings of one kind."""
        return [warning.text for warning in self.warnings if warning.kind == kind]

    def costs(self, ipu: int = 0) -> dict[int, Cost]:
        """Cost of all local phases and syncs of one run by op (index into :attr:`ops`); transfers are not in it."""
        total: dict[int, Cost] = {}
        for step in self.walk(ipu):
            if isinstance(step, (Phase, Sync)):
                total[step.op_id] = total.get(step.op_id, Cost()) + step.cost
        return total

    def describe(self) -> str:
        """The tree of steps as text."""
        lines = [f"DeviceProgram {self.name!r} on {self.machine}, {self.replicas} replicas"]
        for ipu, sequence in enumerate(self.ipus):
            lines.append(f"IPU {ipu}:")
            lines.extend(_describe(sequence, 1))
        for name, sequence in self.functions.items():
            lines.append(f"function {name}:")
            lines.extend(_describe(sequence, 1))
        return "\n".join(lines)


def _describe(step: Step, depth: int) -> list[str]:
    pad = "  " * depth
    if isinstance(step, IoTiles):
        return [f"{pad}I/O tiles:", *(line for inner in step.steps for line in _describe(inner, depth + 1))]
    if isinstance(step, Sequence):
        return [line for inner in step.steps for line in _describe(inner, depth)]
    if isinstance(step, Repeat):
        return [f"{pad}Repeat x{step.count} {step.name}", *_describe(step.body, depth + 1)]
    if isinstance(step, Phase):
        return [f"{pad}{step.kind} {step.name}: {step.cycles.max} cycles, {step.cycles.active} tiles"]
    if isinstance(step, Call):
        return [f"{pad}Call {step.function}"]
    if isinstance(step, InterIpuCopy):
        moves = ", ".join(f"{c.bytes} bytes {c.source}->{c.destination}" for c in step.copies)
        return [f"{pad}InterIpuCopy {step.name}: {moves}"]
    if isinstance(step, HostExchange):
        moves = ", ".join(f"{c.direction} {c.stream} {c.bytes} bytes on IPU {c.ipu}" for c in step.copies)
        return [f"{pad}HostExchange {step.name} of IPUs {', '.join(map(str, step.participants))}: {moves}"]
    detail = {k: v for k, v in vars(step).items() if k not in ("op_id", "name")}
    return [f"{pad}{type(step).__name__} {step.name}: {detail}"]


__all__ = [
    "Call",
    "Collective",
    "Cost",
    "DeviceProgram",
    "HostCopy",
    "HostExchange",
    "InterIpuCopy",
    "IoTiles",
    "IpuTransfer",
    "MemoryReport",
    "OpInfo",
    "Phase",
    "RemoteTransfer",
    "Repeat",
    "Sequence",
    "Step",
    "StreamCopy",
    "Sync",
    "TileSetCopy",
    "TileVector",
    "VariableInfo",
]
