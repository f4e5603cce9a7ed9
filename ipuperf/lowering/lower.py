"""``lower(ir, machine) -> DeviceProgram``: graphs of ops become trees of steps on IPUs.

Lowering is a list of passes (:data:`PASSES`). Each takes the program as the passes before left it, a
:class:`.compilation.Compilation`, works out one thing more and gives it on: what is refused, where tensors lie, how
their data are laid out, the steps of the ops, code that is loaded or shared, memory, and the device program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ipuperf.base.collector import collector_paused
from ipuperf.base.kinds import checked
from ipuperf.base.near_names import instead_of
from ipuperf.ir import Ir, IrError
from ipuperf.machine import Machine, MachineError
from ipuperf.ops.products.float8 import needed_architecture

from .assembly import assemble
from .code_loading import load_code
from .collective_merging import NO_MERGING, CollectiveMerging
from .compilation import Compilation
from .draft import lay_out_data
from .function_calls import share_code
from .graph_lowering import lower_ops
from .memory import measure_memory
from .placing import place
from .steps.sync_groups import SYNC_PATTERNS
from .streaming_memory import check_streaming_memory

if TYPE_CHECKING:
    from .program import DeviceProgram


def check(program: Compilation) -> Compilation:
    """The pass that refuses what the machine cannot execute.

    Raises:
        IrError: the sync pattern is unknown.
        MachineError: Streaming Memory is missing or too small, or an op has no vertices on the machine's IPUs.
    """
    ir, machine = program.ir, program.machine
    if program.sync_pattern not in SYNC_PATTERNS:
        raise IrError(f"sync_pattern is {program.sync_pattern!r}{instead_of(program.sync_pattern, SYNC_PATTERNS)}")
    check_streaming_memory(ir, machine)
    float8_op = needed_architecture(ir)
    if float8_op is not None and machine.chip.architecture != float8_op[1]:
        raise MachineError(
            f"{float8_op[0].where()}: {machine.name} has IPUs of architecture {machine.chip.architecture}, "
            f"which compute no 8-bit floats; allowed: {float8_op[1]} (presets bow-...)"
        )
    return program


PASSES: tuple[Callable[[Compilation], Compilation], ...] = (
    check,
    place,
    lay_out_data,
    lower_ops,
    load_code,
    share_code,
    measure_memory,
    assemble,
)
"""The passes, in order. Sharing follows loading, because loaded code is not shared. Both come before the memory is
measured and the steps are assembled, because both add steps."""


@checked()
@collector_paused()
def lower(
    ir: Ir,
    machine: Machine,
    *,
    name: str = "program",
    strict_memory: bool = False,
    sync_pattern: str = "single_pipeline",
    merging: CollectiveMerging = NO_MERGING,
    outlining: float | None = None,
) -> DeviceProgram:
    """Compile ``ir`` for ``machine``.

    Args:
        ir: the program; it is not changed.
        machine: where it runs; replicas x IPUs per replica have to fit.
        name: name of the program in reports.
        strict_memory: raise :class:`DoesNotFitError` instead of a warning when a tile's memory is exceeded.
        sync_pattern: which IPUs of a replica stand while one of them does a stream copy (PopART user guide, "Sync
            patterns"). ``single_pipeline``: only that IPU; ``full``: all; ``replica_and_ladder``: those on its side of
            the ladder, that is, with even or with odd numbers. Transfers of Streaming Memory follow the pattern as
            well. All IPUs of the replica meet before copies between IPUs and collectives, whatever the pattern. Other
            replicas only take part in collectives.
        merging: which collectives become one; none by default.
        outlining: repeated stretches of ops that are worth more than this share their code (:mod:`.outlining`); with
            None no code is shared.

    Raises:
        MachineError: the replicas cannot be placed, an op has no vertices on these IPUs, or Streaming Memory is missing
            or too small.
        IrError: an op has no cost model, an operand lies on another IPU or tile set, the sync pattern is unknown, or
            there are too many I/O tiles.
        DoesNotFitError: a tile's memory is exceeded (with ``strict_memory``).
    """
    program = Compilation(ir, machine, name, strict_memory, sync_pattern, merging, outlining)
    with ir.checked(), ir.deep_calls():
        for run in PASSES:
            program = run(program)
    return program.device_program
