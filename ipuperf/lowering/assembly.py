"""From lowered graphs to the device program: a list of steps for each IPU, and functions for the graphs it calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipuperf.ops.transfers.io_tile_copy import IoTileCopy

from .fitting import DoesNotFitError, memory_warnings
from .lowered import LoweredGraph, LoweredOp
from .program import DeviceProgram, ProgramWarning
from .steps import Call, ExternalSync, IoTiles, Repeat, Sequence, Step
from .steps.sync_groups import SyncGroups
from .tile_sets import IO

if TYPE_CHECKING:
    from .compilation import Compilation


def assemble(program: Compilation) -> Compilation:
    """The pass that puts the device program together.

    Each graph becomes one function on each IPU that takes part in it.

    Raises:
        DoesNotFitError: a tile's memory is exceeded, and ``strict_memory`` was asked for.
    """
    ir, syncs, machine = program.ir, program.syncs, program.machine
    main = program.graphs[ir.main_graph]
    warnings = [ProgramWarning("low confidence", f"low confidence: {name}") for name in program.low_confidence]
    warnings += memory_warnings(program.memory, machine, outlined=program.outlining is not None)
    program.device_program = DeviceProgram(
        name=program.name,
        machine=machine.name,
        replicas=ir.replication_factor,
        placement=program.placement,
        ipus=tuple(Sequence(-1, "main", tuple(steps)) for steps in _steps_of(main, syncs).values()),
        functions={
            f"{graph.name}@{ipu}": Sequence(-1, graph.name, tuple(steps))
            for graph, lowered in program.graphs.items()
            if not graph.is_main
            for ipu, steps in _steps_of(lowered, syncs).items()
        },
        ops=tuple(program.ops),
        memory=program.memory,
        streams={stream.id: (stream.direction, stream.spec.bytes) for stream in ir.streams()},
        warnings=tuple(warnings),
        io_tiles=program.places.tile_sets.io_tiles,
        plans=program.plans,
    )
    # The program is complete first, so that the error can say what the warnings say.
    problems = program.device_program.texts("does not fit")
    if program.strict_memory and problems:
        raise DoesNotFitError("; ".join(problems))
    return program


def participants(lowered: LoweredGraph, syncs: SyncGroups) -> frozenset[int]:
    """IPUs that take part in a completely lowered graph or in the graphs it calls."""
    # The graph is complete, so the answer stays the same.
    if lowered.participants is None:
        ipus = {lowered_op.ipu for lowered_op in lowered.ops if not lowered_op.calls}
        for lowered_op in lowered.ops:
            # The I/O tiles synchronise apart, so their steps make no other IPU wait.
            if lowered_op.tile_set != IO:
                for step in lowered_op.steps.steps:
                    ipus.update(step.meets(lowered_op.ipu, syncs))
            if lowered_op.shared is not None:
                ipus.update(lowered_op.shared.meets(lowered_op.ipu, syncs), lowered_op.shared.parties())
            ipus.update([ipu for ipu, copies in lowered_op.copies.before.items() if copies])
            ipus.update(*[participants(body, syncs) for body, _ in lowered_op.calls])
        lowered.participants = frozenset(ipus)
    return lowered.participants


def _steps_of(lowered: LoweredGraph, syncs: SyncGroups) -> dict[int, list[Step]]:
    """The steps of a graph on each IPU."""
    steps: dict[int, list[Step]] = {ipu: [] for ipu in syncs.ipus}
    for lowered_op in lowered.ops:
        # A condition is read and sent before the other IPUs read it, and the calls come last.
        _add_steps(steps, lowered_op, syncs)
        for ipu, copies in lowered_op.copies.before.items():
            steps[ipu] += copies
        _add_calls(steps, lowered_op, syncs)
    return steps


def _add_steps(steps: dict[int, list[Step]], lowered_op: LoweredOp, syncs: SyncGroups) -> None:
    """Add the steps of an op."""
    ipu, ipu_steps = lowered_op.ipu, steps[lowered_op.ipu]
    # A copy between the tile sets belongs to both, so it stands outside of IoTiles.
    if lowered_op.tile_set == IO and not isinstance(lowered_op.op, IoTileCopy):
        ipu_steps += [IoTiles(-1, "I/O tiles", (step,)) for step in lowered_op.steps.steps]
    else:
        for step in lowered_op.steps.steps:
            meeting = step.meets(ipu, syncs)
            if meeting:
                _add_sync(steps, step, meeting)
            ipu_steps.append(step)
    shared = lowered_op.shared
    if shared is not None:
        _add_sync(steps, shared, shared.meets(ipu, syncs))
        for party in shared.parties():
            steps[party].append(shared)


def _add_sync(steps: dict[int, list[Step]], step: Step, meeting: tuple[int, ...]) -> None:
    """Add a sync before ``step`` on every IPU of the ``meeting``."""
    sync = ExternalSync(step.op_id, step.name, meeting)
    for party in meeting:
        steps[party].append(sync)


def _add_calls(steps: dict[int, list[Step]], lowered_op: LoweredOp, syncs: SyncGroups) -> None:
    """Add the calls of an op; each is a :class:`Call` of the callee's function on each IPU."""
    for body, trips in lowered_op.calls:
        name, after = body.graph.name, lowered_op.copies.after_trip
        # Only IPUs that take part in the callee, or that copy after it, have something to run.
        for ipu in participants(body, syncs).union([ipu for ipu, copies in after.items() if copies]):
            trip = (Call(-1, name, f"{name}@{ipu}"), *after.get(ipu, ()))
            steps[ipu] += trip if trips == 1 else [Repeat(-1, name, trips, Sequence(-1, "body", trip))]
