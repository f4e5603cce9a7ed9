"""``DeviceProgram``: the plain value between compiling and simulating.

It has a tree of steps (:mod:`.steps`) for each IPU of one replica, the subgraph functions they call, the op of each
step, and the memory of every tile. All replicas run the same program. Times are cycles of the tile clock, sizes bytes.
Steps that touch something shared (links, DDR, host) say what they move, not how long it takes; the simulation finds
that out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from .planner.plan import ConvolutionPlan
from .steps import Call, ControlStep, Cost, LocalStep, Repeat, Sequence, Step
from .steps.control import indented
from .tilevector import TileVector
from .timeline import LiveIntervals, Timeline


class OpInfo(NamedTuple):
    """The op that a step came from.

    ``phase`` is its purpose (:mod:`ipuperf.ir.phase`), ``line`` where the user made it (``file:line``, or empty),
    ``dtype`` the type it computes with (empty: none), and ``module`` the path of the user's module it belongs to
    (:mod:`ipuperf.ir.sources`; the graph where none is known).
    """

    op_id: int
    name: str
    type: str
    graph: str
    phase: str
    flops: int
    line: str = ""
    dtype: str = ""
    module: str = ""


WarningKind = Literal["low confidence", "does not fit"]
"""A cost has no primary source; the memory of an IPU is exceeded."""


class ProgramWarning(NamedTuple):
    """A warning to the user about a program: its ``kind``, and a ``text`` of one line for reports."""

    kind: WarningKind
    text: str


class VariableInfo(NamedTuple):
    """A tensor of the memory report: where it lies and when it is live.

    ``op_id`` is the op that makes it, of a variable the first op of a module that reads it (-1: none). ``intervals``
    are half-open ranges of program steps; ``bytes`` is per tile.
    """

    name: str
    op_id: int
    category: str
    dtype: str
    ipu: int
    bytes: TileVector
    intervals: LiveIntervals
    always_live: bool
    location: str = "tile"


class CodeInfo(NamedTuple):
    """Always-live memory of an op: code, vertex state, packet headers, or a constant.

    ``op_id`` is -1 where no op has it. ``category`` is one of always-live memory; ``bytes`` is per tile.
    """

    op_id: int
    ipu: int
    category: str
    bytes: TileVector


@dataclass(frozen=True)
class MemoryReport:
    """Memory of one replica.

    Attributes:
        categories: ``{ipu: {category: bytes per tile}}`` of always-live memory (code, state, constants, stack ...).
        variables: tensors with their live intervals.
        step_names: program step names, the index of the live intervals, per IPU.
        not_always_live: per IPU, bytes at each step.
        max_tile, argmax_tile: per IPU, bytes on the fullest tile at each step (always live included) and which it is.
        peak: ``{ipu: int64[tiles]}`` not-always-live bytes per tile, at the step of the IPU's highest total.
        bytes_per_tile: the limit.
        code: the same bytes by op; what ops share counts for the first of them.
        step_ops: per IPU, op (with the user's file and line) of each program step, "" where there is none.
    """

    categories: Mapping[int, Mapping[str, TileVector]]
    variables: tuple[VariableInfo, ...]
    step_names: Mapping[int, Timeline]
    not_always_live: Mapping[int, Timeline]
    max_tile: Mapping[int, Timeline]
    argmax_tile: Mapping[int, Timeline]
    peak: Mapping[int, np.ndarray]
    bytes_per_tile: int
    code: tuple[CodeInfo, ...] = ()
    step_ops: Mapping[int, Timeline] = field(default_factory=dict)

    def op_of_step(self, ipu: int, step: int) -> str:
        """The op of a program step, "" if there is none or it is not known."""
        ops = self.step_ops.get(ipu, ())
        return str(ops[step]) if step < len(ops) else ""

    def always_live_bytes(self, ipu: int = 0) -> int:
        """Always-live bytes of the IPU (code, state, constants ...; variables excluded as PopVision counts them)."""
        return sum(v.total for v in self.categories[ipu].values())

    def peak_not_always_live(self, ipu: int = 0) -> int:
        """Highest not-always-live total of the IPU over the program."""
        return self.not_always_live[ipu].max(initial=0)


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
        warnings: warnings to the user.
        io_tiles: tiles of each IPU that are set aside for I/O, its last ones. Their steps stand in the tree of the IPU
            inside :class:`IoTiles`; vectors over tiles in there count from the first I/O tile.
        plans: how products and convolutions are split over the tiles, by op; of an op in the order of its work.
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
    plans: Mapping[int, tuple[ConvolutionPlan, ...]] = field(default_factory=dict)

    def walk(self, ipu: int = 0) -> Iterator[Step]:
        """Every leaf step that IPU ``ipu`` executes in one run, in order, with calls and repeats expanded."""
        yield from self._walk(self.ipus[ipu])

    def leaves(self, ipu: int = 0) -> Iterator[Step]:
        """Every leaf step that IPU ``ipu`` executes, in order, with calls expanded and the body of a repeat once."""
        yield from self._walk(self.ipus[ipu], repeat=False)

    def _walk(self, step: Step, *, repeat: bool = True) -> Iterator[Step]:
        if not isinstance(step, ControlStep):
            yield step
            return
        for _ in range(step.count if repeat and isinstance(step, Repeat) else 1):
            for child in self.inside(step):
                yield from self._walk(child, repeat=repeat)

    def inside(self, step: Step) -> tuple[Step, ...]:
        """Steps directly inside ``step``; a call contains the body of its function, a leaf nothing."""
        if isinstance(step, Call):
            return (self.functions[step.function],)
        return step.inside if isinstance(step, ControlStep) else ()

    def texts(self, kind: WarningKind) -> list[str]:
        """The warnings of one kind."""
        return [warning.text for warning in self.warnings if warning.kind == kind]

    def costs(self, ipu: int = 0) -> dict[int, Cost]:
        """Cost of all local phases and syncs of one run by op (index into :attr:`ops`), without transfers."""
        total: dict[int, Cost] = {}
        for step in self.walk(ipu):
            # The time of other steps depends on traffic, which only the simulation knows.
            if isinstance(step, LocalStep):
                total[step.op_id] = total.get(step.op_id, Cost()) + step.cost
        return total

    def describe(self) -> str:
        """The tree of steps as text."""
        lines = [f"DeviceProgram {self.name!r} on {self.machine}, {self.replicas} replicas"]
        for ipu, sequence in enumerate(self.ipus):
            lines.append(f"IPU {ipu}:")
            lines += indented(sequence.describe())
        for name, sequence in self.functions.items():
            lines.append(f"function {name}:")
            lines += indented(sequence.describe())
        return "\n".join(lines)
