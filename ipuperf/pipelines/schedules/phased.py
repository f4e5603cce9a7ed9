"""PopTorch's phased executions: phases one after the other, tensors off chip in between.

Source: ``docs/reference/pipelines.md`` 4, which traces
``poptorch:popart_compiler/source/Compiler.cpp:604-645`` and ``:1257-1276`` and
``popart:willow/src/transforms/autodiff/gradgrowerop.cpp:70-74``. Forward phase ``k`` of P gets the PopART phase
``stride * k``; PopART is told ``phases = stride * (P-1) + 1``, plus 3 if tensors leave the chip, else plus 1 for a
separate backward phase (the source has these as if and else-if); the backward of PopART phase ``p`` is phase
``2 * phases - 2 - p``. A time step of the timetable is one PopART phase; phases without a cell are the gaps in which
tensors go off chip and come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from .assembly import Placement, assemble
from .checks import check_counts, check_devices
from .stretching import stretched
from .timetable import Cell, ScheduleError, Timetable

Turns = Sequence[Sequence[int]]


class Liveness(Enum):
    """``poptorch.Liveness``: when activations leave the chip (``docs/reference/pipelines.md`` 4.2)."""

    AlwaysLive = "AlwaysLive"
    OffChipAfterFwd = "OffChipAfterFwd"
    OffChipAfterFwdNoOverlap = "OffChipAfterFwdNoOverlap"
    OffChipAfterEachPhase = "OffChipAfterEachPhase"


_STRIDE = {
    Liveness.AlwaysLive: 1,
    Liveness.OffChipAfterFwd: 1,
    Liveness.OffChipAfterFwdNoOverlap: 2,
    Liveness.OffChipAfterEachPhase: 4,
}


@dataclass(frozen=True)
class PhaseNumbers:
    """PopART's numbers: ``executionPhaseSettings.phases`` and each forward phase's own and backward number."""

    phases: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]


def phase_numbers(
    phases: int, liveness: Liveness = Liveness.AlwaysLive, separate_backward_phase: bool = False
) -> PhaseNumbers:
    """PopART phase numbers of ``phases`` forward phases.

    ``separate_backward_phase`` matters with ``AlwaysLive`` only: the other modes leave a gap of three anyway.

    Raises:
        ScheduleError: no phase, or an unknown liveness.
    """
    check_counts("phased", phases, 1, "phases")
    if not isinstance(liveness, Liveness):
        names = ", ".join(mode.name for mode in Liveness)
        raise ScheduleError(f"phased: liveness {liveness!r}; allowed are the members of Liveness: {names}")
    forward = tuple(_STRIDE[liveness] * phase for phase in range(phases))
    count = forward[-1] + 1
    if liveness is not Liveness.AlwaysLive:
        count += 3
    elif separate_backward_phase:
        count += 1
    return PhaseNumbers(count, forward, tuple(2 * count - 2 - phase_number for phase_number in forward))


def _phased(
    name: str,
    micro_batches: int,
    groups: tuple[tuple[int, ...], ...],
    numbers: PhaseNumbers,
    inference: bool,
    turns: Turns | None,
) -> Timetable:
    length, forward, backward = _steps(numbers, turns or [(0,)] * len(groups), inference)

    def cells(count: int) -> Iterator[Placement]:
        for micro_batch in range(count):
            for stage, step in enumerate(forward):
                yield micro_batch * length + step, 0, Cell("F", stage, micro_batch)
                if not inference:
                    yield micro_batch * length + backward[stage], 1, Cell("B", stage, micro_batch)

    if turns is not None:
        # With turns, each stage has a number of its own.
        groups = tuple((ipu,) for group in groups for ipu in group)
    return stretched(
        lambda count: assemble(
            name,
            count,
            groups,
            cells(count),
            length * count,
            (0,) * len(groups),
            stashed="nothing",
            inference=inference,
            ramp=0,
            period=length,
            reads=None if turns is None else (),  # stages of one turn do not read each other
        ),
        micro_batches,
    )


def _steps(numbers: PhaseNumbers, turns: Turns, inference: bool) -> tuple[int, list[int], list[int]]:
    """The number of time steps, and the step of each stage's forward and of its backward.

    A phase without stages has one step. Where the last forward and the first backward are one phase, they share the
    step of the last turn.
    """
    counts = [max(phase_turns) + 1 for phase_turns in turns]
    # The first forward phase has the last backward phase.
    last_phase = numbers.forward[-1] if inference else numbers.backward[0]
    # A phase has one step for each turn of its stages; gaps between phases have one step.
    widths = [1] * (last_phase + 1)
    for number, back, count in zip(numbers.forward, numbers.backward, counts, strict=True):
        widths[number] = count
        if not inference:
            widths[back] = 2 * count - 1 if back == number else count
    begins = [sum(widths[:number]) for number in range(len(widths))]
    forward = [
        begins[number] + turn
        for number, phase_turns in zip(numbers.forward, turns, strict=True)
        for turn in phase_turns
    ]
    if inference:
        return sum(widths), forward, []
    # Backward the turns of a phase run in the opposite order, so they count from its end.
    ends = [begins[backward_number] + widths[backward_number] - 1 for backward_number in numbers.backward]
    return (
        sum(widths),
        forward,
        [end - turn for end, phase_turns in zip(ends, turns, strict=True) for turn in phase_turns],
    )


def phased_serial(
    phases: int,
    micro_batches: int,
    *,
    stages_per_phase: int = 1,
    ipus: Sequence[Sequence[int]] | None = None,
    liveness: Liveness = Liveness.AlwaysLive,
    separate_backward_phase: bool = False,
    turns: Turns | None = None,
    inference: bool = False,
) -> Timetable:
    """``SerialPhasedExecution``: phase by phase on one group of IPUs, the stages of a phase side by side.

    Stash is 0 on chip: activations, weights, optimiser state and accumulators are off chip by default. Any M.

    Args:
        phases: forward phases.
        micro_batches: M, run one after the other.
        stages_per_phase: IPUs of the group (0..n-1), if ``ipus`` is not given.
        ipus: per phase the IPUs of its stages, of which the group is made.
        turns: per phase the turn of each of its stages, from 0: those of a later turn may use results of those of an
            earlier one. Each stage then has a number of its own, and an IPU may have several stages in different turns.
        liveness, separate_backward_phase: see :func:`phase_numbers`.
        inference: forward phases only.

    Raises:
        ScheduleError: counts below 1, or two stages of a phase on one IPU.
    """
    name = "phased_serial"
    check_counts(name, phases, micro_batches, "phases")
    check_counts(name, stages_per_phase, micro_batches, "stages per phase")
    group = tuple(range(stages_per_phase))
    groups = _groups(name, phases, ipus if ipus is not None else [group] * phases, turns)
    numbers = phase_numbers(phases, liveness, separate_backward_phase)
    return _phased(name, micro_batches, groups, numbers, inference, turns)


def phased_parallel(
    phases: int,
    micro_batches: int,
    *,
    stages_per_phase: int = 1,
    ipus: Sequence[Sequence[int]] | None = None,
    turns: Turns | None = None,
    inference: bool = False,
) -> Timetable:
    """``ParallelPhasedExecution`` ("ping-pong"): even phases on even IPUs, odd phases on odd IPUs.

    The phases still follow one another for a micro-batch; the idle group loads and stores meanwhile. Always live, last
    forward and first backward in one phase. Any M.

    Args:
        phases, micro_batches, turns, inference: as in :func:`phased_serial`.
        stages_per_phase: stages side by side in a phase, on IPUs ``0, 2, 4 ...`` or ``1, 3, 5 ...``.
        ipus: per phase the IPUs of its stages instead.

    Raises:
        ScheduleError: counts below 1, or an even phase on an odd IPU or the reverse.
    """
    name = "phased_parallel"
    check_counts(name, phases, micro_batches, "phases")
    check_counts(name, stages_per_phase, micro_batches, "stages per phase")
    default = [tuple(2 * k + phase % 2 for k in range(stages_per_phase)) for phase in range(phases)]
    groups = _groups(name, phases, ipus if ipus is not None else default, turns)
    for phase, used in enumerate(groups):
        wrong = [ipu for ipu in used if ipu % 2 != phase % 2]
        if wrong:
            parity = "odd" if phase % 2 else "even"
            raise ScheduleError(
                f"{name}: phase {phase} is on IPU {wrong[0]}; {parity} phases are allowed on {parity} IPUs only"
            )
    return _phased(name, micro_batches, groups, phase_numbers(phases), inference, turns)


def _groups(name: str, phases: int, ipus: Sequence[Sequence[int]], turns: Turns | None) -> tuple[tuple[int, ...], ...]:
    """The IPUs of each phase, checked. Stages of different turns may share an IPU."""
    if turns is None:
        return check_devices(name, phases, ipus, concurrent=True)
    for phase, (group, phase_turns) in enumerate(zip(ipus, turns, strict=True)):
        check_devices(name, len(group), [(ipu,) for ipu in group], concurrent=False)
        if not group or len(set(zip(group, phase_turns, strict=True))) < len(group) or min(phase_turns) < 0:
            raise ScheduleError(
                f"{name}: phase {phase} has stages on IPUs {list(group)} in turns {list(phase_turns)}; at least one is "
                "needed, and an IPU has one stage in a turn"
            )
    return tuple(tuple(group) for group in ipus)
