"""The timetable of a model's stages, as its execution strategy and options ask for it."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.pipelines import Activation, StageGraph, recomputing
from ipuperf.pipelines.schedules import (
    Liveness,
    ScheduleError,
    Timetable,
    phased_parallel,
    phased_serial,
    popart_pipeline,
    sharded,
)

from ..errors import Error
from ..export.module import ExportedModel
from ..log import logger
from ..options import Options
from ..options.popart import RECOMPUTATION_TYPES
from ..options.strategies import ParallelPhasedExecution, PhasedExecution, ShardedExecution


def plan(
    options: Options,
    parts: Sequence[StageGraph],
    training: bool,
    phases: Sequence[int] = (),
    *,
    forward_only: bool | None = None,
) -> tuple[Timetable, str, int]:
    """The timetable, how stages copy, and how often it runs in one call.

    Pipelined: PopART's pipeline, in training with recomputation unless ``autoRecomputation`` is 0 (PopTorch's default
    for pipelines on several IPUs); inference takes the device iterations as the micro-batches of one pipeline run.
    ``phases``: of each stage, in a phased execution.
    ``forward_only``: there is no backward pass (default: in inference), as in a training program whose parameters are
    all frozen.

    Raises:
        Error: too little gradient accumulation or too few device iterations, with upstream's words.
    """
    strategy = options.execution_strategy
    devices = [part.ipu for part in parts]
    stages, iterations = len(parts), options.device_iterations
    accumulation = options.Training.gradient_accumulation
    _check_accumulation(accumulation, training)
    forward_only = not training if forward_only is None else forward_only
    micro_batches, repeats = (accumulation, iterations) if training else (iterations, 1)
    try:
        if isinstance(strategy, PhasedExecution):
            return _phased(strategy, parts, phases, micro_batches, not forward_only), "when needed", repeats
        if not is_pipelined(options, stages):
            table = sharded(stages, micro_batches, inference=forward_only, devices=devices)
            return table, "when needed", repeats
        _check_pipeline(stages, micro_batches, not forward_only)
        recompute = not forward_only and recomputes_in_pipeline(options, parts)
        table = popart_pipeline(stages, micro_batches, inference=forward_only, recompute=recompute, devices=devices)
        return table, "every step", repeats
    except ScheduleError as error:
        raise Error(str(error)) from error


def is_pipelined(options: Options, stages: int) -> bool:
    """Whether PopART's pipeline runs the stages; one stage is no pipeline."""
    return stages > 1 and not isinstance(options.execution_strategy, (PhasedExecution, ShardedExecution))


def recomputes_in_pipeline(options: Options, parts: Sequence[StageGraph]) -> bool:
    """Whether the schedule recomputes stages: in pipelines, unless they are asked not to."""
    return is_pipelined(options, len(parts)) and options._Popart.recomputation != "None"


def recomputing_parts(exported: ExportedModel, options: Options, parts: list[StageGraph]) -> list[StageGraph]:
    """What ``autoRecomputation`` asks for, without which nothing is recomputed outside pipelines.

    In pipelines the schedule recomputes, see :func:`plan`, whole stages whatever the type (a simplification that a
    warning tells); phases are never annotated (``popart:willow/src/ir.cpp``).

    Raises:
        Error: a pipeline's recomputation without a pipeline.
    """
    how = options._Popart.recomputation or "None"
    if is_pipelined(options, len(parts)):
        if how not in ("None", "Pipeline"):
            logger.warning(
                "poptorch.Options()._Popart.set('autoRecomputation', %d): recomputation %s is done as 3 (Pipeline) in "
                "a pipeline of several stages",
                RECOMPUTATION_TYPES.index(how),
                how,
            )
        return parts
    if how == "Pipeline":
        raise Error(
            "_Popart.set('autoRecomputation', 3): recomputation Pipeline without a pipeline of several stages; allowed "
            "are 0 (None), 1 (Standard), 2 (NormOnly) and 4 (RecomputeAll)"
        )
    if isinstance(options.execution_strategy, PhasedExecution) or exported.loss is None:
        return parts
    return recomputing(parts, how, exported.loss, explicit=options._Popart.explicit_recomputation)


def _check_accumulation(accumulation: int, training: bool) -> None:
    if not training and accumulation != 1:
        raise Error(
            f"poptorch.Options().Training.gradientAccumulation is {accumulation}; an inference model accumulates "
            "nothing, so it has to be 1"
        )


def _check_pipeline(stages: int, micro_batches: int, training: bool) -> None:
    # The last forward stage and its backward count as one.
    needed = 2 * stages - 1 if training else stages
    if micro_batches >= needed:
        return
    if training:
        raise Error(
            f"poptorch.Options().Training.gradientAccumulation is {micro_batches}, the pipeline needs {needed} or "
            f"more: in training {stages} forward stages become {needed}, with those of the backward pass"
        )
    raise Error(
        f"poptorch.Options().deviceIterations is {micro_batches}, the pipeline needs {needed} or more, one a stage"
    )


def _phased(
    strategy: PhasedExecution, parts: Sequence[StageGraph], phases: Sequence[int], micro_batches: int, training: bool
) -> Timetable:
    used = sorted(set(phases))
    of_stage, turn = {part.stage: part.ipu for part in parts}, _turns(parts, phases)
    members = [[stage for stage, phase in enumerate(phases) if phase == number] for number in used]
    ipus = [[of_stage[stage] for stage in of_phase] for of_phase in members]
    turns = [[turn[stage] for stage in of_phase] for of_phase in members]
    if isinstance(strategy, ParallelPhasedExecution):
        return phased_parallel(len(used), micro_batches, ipus=ipus, turns=turns, inference=not training)
    return phased_serial(
        len(used),
        micro_batches,
        ipus=ipus,
        turns=turns,
        liveness=Liveness[strategy.liveness.name],
        separate_backward_phase=strategy.separate_backward_phase,
        inference=not training,
    )


def _turns(parts: Sequence[StageGraph], phases: Sequence[int]) -> list[int]:
    """The turn of each stage within its phase: after the stages there whose results it uses and, on its IPU, after
    those before it."""
    turns = [0] * len(phases)
    # Stages come in order, so that the turns of all predecessors are known.
    for part in sorted(parts, key=lambda part: part.stage):
        used = {parts[source.part].stage for source in part.sources if isinstance(source, Activation)}
        predecessors = {earlier.stage for earlier in parts if earlier.ipu == part.ipu and earlier.stage < part.stage}
        turns_before = [turns[stage] for stage in used | predecessors if phases[stage] == phases[part.stage]]
        turns[part.stage] = 1 + max(turns_before, default=-1)
    return turns
