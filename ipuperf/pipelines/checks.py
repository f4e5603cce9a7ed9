"""Checks that stage graphs, results and a timetable fit together."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import UINT32, Stream, TensorSpec
from ipuperf.pipelines.schedules import ScheduleError, Timetable, check_order

from .model import Activation, Data, HostInput, HostIo, PipelineError, Seed, StageGraph, StageOutput, Training


def check_options(copies: str, recompute: str, host_io: HostIo) -> None:
    """Raise unless these options of ``build_pipeline`` are known and compatible."""
    if copies not in ("every step", "when needed"):
        raise PipelineError(f"copies={copies!r}; allowed are 'every step' and 'when needed'")
    if recompute not in ("in one piece", "interleaved", "always"):
        raise PipelineError(f"recompute={recompute!r}; allowed are 'in one piece', 'interleaved' and 'always'")
    if host_io.overlaps and (copies == "every step" or host_io.tiles < 1):
        raise PipelineError(
            f"overlapped I/O with {host_io.tiles} I/O tiles and copies={copies!r}; it needs at least 1 I/O tile and "
            "copies='when needed' (a pipeline's stages cannot be overlapped with I/O)"
        )


def check_parts(parts: Sequence[StageGraph], timetable: Timetable, training: Training | None) -> None:
    """Raise unless parts, timetable and training fit together."""
    numbers = sorted({part.stage for part in parts})
    if numbers != list(range(timetable.stages)):
        raise PipelineError(
            f"the stage graphs have stages {numbers}, the schedule {timetable.name} has 0 to {timetable.stages - 1}"
        )
    if (training is None) != timetable.inference:
        purpose = "inference" if timetable.inference else "training"
        raise PipelineError(f"the schedule {timetable.name} is for {purpose}; training is {training is not None}")
    for number, part in enumerate(parts):
        if part.ipu not in timetable.devices[part.stage]:
            raise PipelineError(
                f"stage {part.stage} is on IPU {part.ipu}, the schedule has it on {list(timetable.devices[part.stage])}"
            )
        if len(part.sources) != len(part.graph.inputs):
            raise PipelineError(
                f"stage {part.stage}: {len(part.sources)} sources for the {len(part.graph.inputs)} inputs of its graph"
            )
        _check_recomputation(part, timetable)
        for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
            spec = _spec_of(source, parts, number)
            if spec is not None and spec != tensor.spec:
                raise PipelineError(f"stage {part.stage}: input {tensor.id!r} is {tensor.spec}, its source is {spec}")
    uses = [(source, part) for part in parts for source in part.sources]
    # Only activations order stages; host inputs and data are there from the start.
    reads = {(parts[source.part].stage, part.stage) for source, part in uses if isinstance(source, Activation)}
    try:
        check_order(timetable, sorted(reads))
    except ScheduleError as error:
        raise PipelineError(str(error)) from error
    if training is not None:
        loss_stage = parts[training.loss_part].stage
        if loss_stage != timetable.stages - 1:
            raise PipelineError(
                f"the loss is computed in stage {loss_stage}; it has to be in the last, {timetable.stages - 1}"
            )


def _check_recomputation(part: StageGraph, timetable: Timetable) -> None:
    """Raise unless a stage recomputes only ops of its own graph, and the schedule does not recompute it too."""
    for op in part.recomputed:
        if op.graph is not part.graph:
            raise PipelineError(f"stage {part.stage} recomputes {op.where()}, which is not in {part.graph.name!r}")
    for tensor in part.checkpoints:
        if tensor.graph is not part.graph:
            raise PipelineError(f"stage {part.stage} has checkpoint {tensor.id!r}, which is not in {part.graph.name!r}")
    if part.recomputed and ("R", part.stage) in timetable.kinds:
        raise PipelineError(
            f"stage {part.stage} recomputes {len(part.recomputed)} ops inside its backward pass, but the schedule "
            f"{timetable.name} runs its whole forward again; leave out one of the two"
        )


def _spec_of(source: object, parts: Sequence[StageGraph], number: int) -> TensorSpec | None:
    if isinstance(source, Data):
        return source.tensor.spec
    if isinstance(source, HostInput):
        return source.stream.spec
    if isinstance(source, Activation):
        maker = parts[source.part]
        if maker.stage >= parts[number].stage:
            raise PipelineError(
                f"stage {parts[number].stage} uses a result of stage {maker.stage}; only results of earlier stages can "
                "be used"
            )
        return maker.graph.outputs[source.output].spec
    if isinstance(source, Seed):
        return TensorSpec((2,), UINT32)
    raise PipelineError(f"stage {parts[number].stage}: unknown source {source!r}")


def check_outputs(outputs: Sequence[StageOutput], parts: Sequence[StageGraph], timetable: Timetable) -> None:
    """Raise unless the streams fit the results and the number of micro-batches."""
    for output in outputs:
        stream: Stream = output.stream
        value = parts[output.part].graph.outputs[output.output]
        if stream.direction != "d2h" or stream.spec != value.spec:
            raise PipelineError(
                f"result {value.id!r} ({value.spec}) cannot go to stream {stream.id!r} ({stream.spec}, "
                f"{stream.direction})"
            )
        if output.returned not in ("all", "final", "sum"):
            raise PipelineError(f"result {value.id!r}: returned={output.returned!r}; allowed are all, final, sum")
        count = timetable.micro_batches
        if output.every < 1 or count % output.every or (output.every > 1 and output.returned != "all"):
            raise PipelineError(
                f"result {value.id!r}: every={output.every} of {count} micro-batches with "
                f"returned={output.returned!r}; allowed are 1 and, with returned='all', other divisors of the number "
                "of micro-batches"
            )
