"""PopART's schedules, which PopTorch and popxl.addons use: the pipeline and sharded execution.

Source: ``docs/reference/pipelines.md`` 3 and 4, which traces ``popart:willow/src/transforms/pipeline.cpp``. PopART
merges the last forward with the first backward, so there are ``P = 2N - 1`` stages in training (``N`` in inference):
forward stage ``i`` has position ``i``, backward stage ``i`` position ``2N - 2 - i``, and position ``s`` is active in
pipeline cycle ``c`` iff ``s <= c < s + G``. Inside a cycle positions run ascending: F, then recompute, then B.
"""

from __future__ import annotations

from collections.abc import Iterator

from .assembly import Placement, assemble
from .checks import Devices, check_at_least, check_counts, check_devices
from .registry import schedule
from .stretching import stretched
from .timetable import Cell, ScheduleError, Timetable


def _cells(stages: int, starts: range, inference: bool, recompute: bool, last_position: int) -> Iterator[Placement]:
    """The cells of all micro-batches; backward stage ``i`` runs ``last_position - i`` steps after ``starts``."""
    for micro_batch, start in enumerate(starts):
        for stage in range(stages):
            yield start + stage, stage, Cell("F", stage, micro_batch)
            if inference:
                continue
            position = last_position - stage
            # Positions run in ascending order, so backward ranks follow all forward ranks.
            rank = 2 * stages - 1 - stage
            yield start + position, rank, Cell("B", stage, micro_batch)
            # The last stage runs its backward right after its forward, so nothing is lost there.
            if recompute and stage < stages - 1:
                # Recomputation comes directly before its backward.
                yield start + position, rank - 0.5, Cell("R", stage, micro_batch)


@schedule(recompute=True)
def popart_pipeline(
    stages: int,
    micro_batches: int,
    *,
    inference: bool = False,
    recompute: bool = False,
    devices: Devices | None = None,
) -> Timetable:
    """PopART (PopTorch): ``G + 2N - 2`` pipeline cycles, forward before backward; G at least ``2N - 1``, any value.

    Inference: ``G + N - 1`` cycles, G (the batches per step, PopTorch's device iterations) at least N. Stash
    ``2(N-1-i) + 1``, none on the last stage. ``recompute`` repeats the forward before the backward in the same cycle on
    all stages but the last; PopTorch turns it on for pipelines by default, so its front end passes ``True``.

    The tutorial (``examples:tutorials/tutorials/pytorch/pipelining/README.md:87``) says that a pipeline is full after
    ``2N + 1`` steps. That is true for N = 4 only: see :func:`tutorial_columns_before_full`. In the pipeline cycles of
    this table ``2N - 2`` cycles go by before the first full one (``pipeline.cpp:2278-2306``).

    Args:
        stages: N, the forward stages after merging neighbours on one IPU.
        micro_batches: G, the gradient accumulation factor.
        inference, recompute: see above.
        devices: per stage its IPU; an IPU may come again later (its stages run one after the other), not at once.

    Raises:
        ScheduleError: an illegal G or device mapping, or recomputation in inference.
    """
    name = "popart_pipeline"
    check_counts(name, stages, micro_batches)
    groups = check_devices(name, stages, devices, concurrent=False)
    _check_neighbours(name, groups)
    if inference and recompute:
        raise ScheduleError(f"{name}: recompute=True in inference, which has no backward; allowed is False")
    if inference:
        check_at_least(name, stages, micro_batches, stages, "N", "device iterations (batches per step)")
    else:
        check_at_least(name, stages, micro_batches, 2 * stages - 1, "2N - 1", "gradient accumulation")
    # The last forward and the first backward are one stage in PopART.
    positions = stages if inference else 2 * stages - 1
    # The last stage's backward follows its forward in the same cycle, so nothing waits there.
    stash = tuple(
        0 if inference or stage_number == stages - 1 else 2 * (stages - 1 - stage_number) + 1
        for stage_number in range(stages)
    )
    return stretched(
        lambda count: assemble(
            name,
            count,
            groups,
            _cells(stages, range(count), inference, recompute, 2 * stages - 2),
            count + positions - 1,
            stash,
            stashed="stage inputs" if recompute else "activations",
            inference=inference,
            ramp=positions - 1,
            period=1,
        ),
        micro_batches,
    )


def _check_neighbours(name: str, groups: tuple[tuple[int, ...], ...]) -> None:
    for stage in range(1, len(groups)):
        if groups[stage] == groups[stage - 1]:
            raise ScheduleError(
                f"{name}: stages {stage - 1} and {stage} are both on IPU {groups[stage][0]}; PopART merges such "
                "neighbours: pass them as one stage"
            )


def tutorial_columns_before_full(stages: int) -> int:
    """Columns before the first full one when F and B are drawn in separate columns, as in the tutorial's figure.

    ``3N - 3``: N - 1 columns with forwards alone, then N - 1 pairs of a forward and a backward column. The tutorial's
    text says ``2N + 1``, which is the same number for N = 4 only (9); N = 2, 3, 5, 8 give 3, 6, 12, 21 and not 5, 7,
    11, 17 (``docs/reference/pipelines.md`` 3.3).
    """
    check_counts("tutorial_columns_before_full", stages, 1)
    return 3 * stages - 3


@schedule(copies="when needed")
def sharded(stages: int, micro_batches: int, *, inference: bool = False, devices: Devices | None = None) -> Timetable:
    """PopTorch's ``ShardedExecution``: one micro-batch at a time, F0..F(N-1), B(N-1)..B0; any M, no stash.

    ``2NM`` steps (inference ``NM``), one stage of one IPU in each. Activations of the one micro-batch stay where they
    are. An IPU may have any of the stages.

    Raises:
        ScheduleError: counts below 1 or an illegal device mapping.
    """
    check_counts("sharded", stages, micro_batches)
    groups = check_devices("sharded", stages, devices, concurrent=False)
    length = stages if inference else 2 * stages
    return stretched(
        lambda count: assemble(
            "sharded",
            count,
            groups,
            _cells(stages, range(0, length * count, length), inference, False, 2 * stages - 1),
            length * count,
            (0,) * stages,
            stashed="nothing",
            inference=inference,
            ramp=0,
            period=length,
        ),
        micro_batches,
    )
