"""From a checked ``pipeline(...)`` call to a built pipeline: trace the stages now, build when replicas are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ipuperf.ir import Constant, Stream, Tensor, Variable
from ipuperf.pipelines import Data, Offload, Pipeline, Source, StageOutput, Training, build_pipeline
from ipuperf.schedules import RecomputationMode, Timetable, grouped, interleaved, sequential

from . import devices
from . import functions as f
from .accumulation import CrossReplicaOptimizer, MapGradientOptimizer, accumulator_dtype, innermost, wrappers
from .array import Array, is_traced
from .gradient_tap import tap
from .infeed import IPUInfeedQueue
from .outfeed import IPUOutfeedQueue, OutfeedStore
from .pipeline_model import OptimizerFunctionOutput, StageFunctions, StageOptions, check_optimizer
from .pipeline_rule import PipelineRule
from .program import TracedProgram
from .stages import StageLink, StagePart, StageTracer
from .state import state
from .tracing import current_frame, leaves, map_structure, use_frame

SCHEDULES: dict[str, Callable[..., Timetable]] = {
    "Grouped": grouped,
    "Interleaved": interleaved,
    "Sequential": sequential,
}


@dataclass
class PipelineRequest:
    """The arguments of ``pipeline``, checked; names as there or plain."""

    program: TracedProgram
    stages: Sequence[StageFunctions]
    default_mapping: bool
    micro_batches: int
    repeats: int
    inputs: list[Array]
    infeed_queue: IPUInfeedQueue | None
    outfeed_queue: IPUOutfeedQueue | None
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None
    schedule: str
    recompute: RecomputationMode
    options: list[StageOptions]
    accumulator_dtype: Any
    reduction: str
    outfeed_loss: bool
    outfeed_mask: list[bool] | None
    accumulate_outfeed: bool
    accumulate_outfeed_dtype: Any
    offload_state: bool | None
    shard_state: bool
    offload_activations: bool
    offload_accumulators: bool
    name: str


@dataclass
class _Traced:
    """The traced pipeline: what the deferred build needs."""

    tracer: StageTracer
    sources: dict[Tensor, Source]
    outputs: list[tuple[int, int, Stream]]
    loss: tuple[int, int] | None
    optimizer: OptimizerFunctionOutput | None
    trainable: list[Variable]
    values: dict[str, Callable[[], float]]


def request(asked: PipelineRequest) -> None:
    """Trace the stages into the program and have the pipeline built when the program is completed.

    Raises:
        NotImplementedError: inside a loop, or a second pipeline in the program.
    """
    program = asked.program
    if current_frame() is not program.main:
        raise NotImplementedError(
            "pipeline: inside a loop or another pipeline; use repeat_count to run it several times"
        )
    if program.deferred:
        raise NotImplementedError("pipeline: a program can have one pipeline; compile a program for each")
    used = [device for stage in asked.stages for device in stage.devices]
    program.minimum_shards = max(program.minimum_shards, 1 + max(used))
    program.pipeline_default_mapping = asked.default_mapping
    traced = _trace(asked)
    program.deferred.append(lambda: _build(asked, traced))


# -- tracing -----------------------------------------------------------------------------------------------------------


def _trace(asked: PipelineRequest) -> _Traced:
    tracer = StageTracer(asked.program, asked.micro_batches * asked.repeats)
    parts: list[StagePart] = []
    for number, stage in enumerate(asked.stages):
        options = asked.options[number]
        if number == 0:
            parts = tracer.first(stage.functions, stage.devices, asked.inputs, asked.infeed_queue, options)
        else:
            links = tracer.links(parts)
            parts = tracer.following(number, stage.functions, stage.devices, links, options)
    optimizer = _call_optimizer(asked, parts)
    sent = _sent(asked, parts, optimizer)
    outputs = _outputs(asked, tracer, parts, sent)
    loss = None
    if optimizer is not None:
        number = _part_of(tracer, parts, optimizer.loss.tensor)
        loss = (number, tracer.output(StageLink(number, optimizer.loss.tensor)).output)
    trainable = _trainable(asked, tracer, optimizer)
    values = {} if optimizer is None else _hyper_values(asked, tracer, optimizer)
    if optimizer is not None:
        _map_gradients(asked, tracer, optimizer, trainable)
    return _Traced(tracer, tracer.connect(), outputs, loss, optimizer, trainable, values)


def _call_optimizer(asked: PipelineRequest, parts: Sequence[StagePart]) -> OptimizerFunctionOutput | None:
    if asked.optimizer_function is None:
        return None
    arrays = [array for part in parts for array in leaves(part.outputs)]
    with use_frame(parts[-1].frame):
        return check_optimizer(asked.optimizer_function(*arrays))


def _sent(asked: PipelineRequest, parts: Sequence[StagePart], optimizer: OptimizerFunctionOutput | None) -> Any:
    """What goes to the outfeed, in its structure; None for nothing.

    Raises:
        ValueError: results without a queue, or a mask of another length.
    """
    if optimizer is not None and asked.outfeed_loss:
        return optimizer.loss
    single = parts[0].outputs if len(parts) == 1 else None
    arrays = [array for part in parts for array in leaves(part.outputs)]
    if asked.outfeed_mask is not None:
        if len(asked.outfeed_mask) != len(arrays):
            raise ValueError(
                f"The last computational stage has {len(arrays)} outputs, but the `outfeed_mask` has elements "
                f"{len(asked.outfeed_mask)} - these need to match in size."
            )
        arrays = [array for array, masked in zip(arrays, asked.outfeed_mask) if not masked]
    if not arrays:
        return None
    if asked.outfeed_queue is None:
        listed = ", ".join(str(array) for array in arrays)
        raise ValueError(
            f"The last computational stage has tensor outputs: {listed}, but no outfeed_queue has been provided."
        )
    keeps_structure = optimizer is None and not asked.accumulate_outfeed and isinstance(single, (dict, Array))
    return single if keeps_structure else arrays


def _outputs(
    asked: PipelineRequest, tracer: StageTracer, parts: Sequence[StagePart], sent: Any
) -> list[tuple[int, int, Stream]]:
    """``(part, output, stream)`` of what is enqueued."""
    if sent is None or asked.outfeed_queue is None:
        return []
    pairs = []

    def prepare(array: Array) -> Array:
        number = _part_of(tracer, parts, array.tensor)
        frame = tracer.parts[number].frame
        with use_frame(frame):
            if asked.accumulate_outfeed and asked.accumulate_outfeed_dtype is not None:
                array = f.cast(array, accumulator_dtype(asked.accumulate_outfeed_dtype, array))
            if isinstance(array.tensor, Constant) or array.tensor in frame.graph.inputs:
                array = f.identity(array, name="outfeed")
        pairs.append((number, array))
        return array

    structure = map_structure(prepare, sent)
    executions = 1 if asked.accumulate_outfeed else asked.micro_batches * asked.repeats
    with use_frame(parts[-1].frame):
        streams = asked.outfeed_queue.declare(asked.program, structure, executions)
    return [
        (number, tracer.output(StageLink(number, array.tensor)).output, stream)
        for (number, array), stream in zip(pairs, streams)
    ]


def _part_of(tracer: StageTracer, parts: Sequence[StagePart], tensor: Tensor) -> int:
    for part in parts:
        if tensor.graph is part.frame.graph:
            return tracer.parts.index(part)
    raise ValueError(
        f"tensor {tensor.id!r} is no result of the last computational stage: the loss has to be computed from the "
        "arguments of the optimizer_function"
    )


def _trainable(
    asked: PipelineRequest, tracer: StageTracer, optimizer: OptimizerFunctionOutput | None
) -> list[Variable]:
    """Main-graph variables that the optimiser changes: those that stages use, as chosen by ``var_list``."""
    if optimizer is None:
        return []
    chosen = optimizer.compute_gradients_kwargs.get("var_list")
    if chosen is None and optimizer.compute_gradients_args:
        chosen = optimizer.compute_gradients_args[0]
    used: dict[Variable, None] = {}
    for part in tracer.parts:
        for source in part.frame.sources.values():
            if isinstance(source, Data) and isinstance(source.tensor, Variable):
                used[source.tensor] = None
    program, found = asked.program, []
    for variable in used:
        if variable in program.arguments:
            continue
        handle = program.handle(variable)
        if handle.trainable if chosen is None else any(handle is v for v in chosen):
            found.append(variable)
    if not found:
        raise ValueError("No variables to optimize.")
    return found


def _hyper_values(
    asked: PipelineRequest, tracer: StageTracer, optimizer: OptimizerFunctionOutput
) -> dict[str, Callable[[], float]]:
    """Functions that give the present value of each hyper-parameter.

    Raises:
        NotImplementedError: one that is computed in a stage.
    """
    values: dict[str, Callable[[], float]] = {}
    for name, value in innermost(optimizer.opt).hyper_parameters().items():
        if not is_traced(value):
            values[name] = partial(float, value)
        elif not isinstance(value, Array):
            values[name] = partial(_value_of, value)
        else:
            values[name] = _threaded_value(asked, tracer, name, value.tensor)
    return values


def _value_of(handle: Any) -> float:
    """A variable's present value."""
    return float(handle.numpy())


def _threaded_value(asked: PipelineRequest, tracer: StageTracer, name: str, tensor: Tensor) -> Callable[[], float]:
    """The value of an argument that the stages have passed on to the optimiser."""
    graphs = [part.frame.graph for part in tracer.parts]
    link = tracer.origin(StageLink(graphs.index(tensor.graph), tensor)) if tensor.graph in graphs else None
    if link is not None and isinstance(link.tensor, Constant):
        data = link.tensor.data
        return lambda: float(data)
    source = tracer.parts[link.part].frame.sources.get(link.tensor) if link is not None else None
    if not isinstance(source, Data) or not isinstance(source.tensor, Variable):
        raise NotImplementedError(
            f"pipeline: {name} of the optimizer ({tensor.id}) is computed in a stage or comes from the infeed; it has "
            "to be a number, or one of the pipeline's `inputs` passed on unchanged by every stage"
        )
    variable = source.tensor
    if variable in asked.program.arguments:
        return lambda: float(variable.data)
    return partial(_value_of, asked.program.handle(variable))


def _map_gradients(
    asked: PipelineRequest, tracer: StageTracer, optimizer: OptimizerFunctionOutput, trainable: Sequence[Variable]
) -> None:
    """Let gradients go through the functions of MapGradientOptimizer, innermost first, in each micro-batch."""
    mappings = [w.mapping for w in reversed(wrappers(optimizer.opt)) if isinstance(w, MapGradientOptimizer)]
    if not mappings:
        return

    def mapping(grad: Array, variable: Any) -> Array:
        for function in mappings:
            grad = function(grad, variable)
        return grad

    for part in tracer.parts:
        for tensor, source in part.frame.sources.items():
            if isinstance(source, Data) and source.tensor in trainable:
                assert isinstance(source.tensor, Variable)
                handle = asked.program.handle(source.tensor)
                tap(part.frame.graph, tensor, mapping=mapping, variable=handle, program=asked.program)


# -- building ----------------------------------------------------------------------------------------------------------


def _build(asked: PipelineRequest, traced: _Traced) -> None:
    program = asked.program
    order = program.ipu_order()
    training = _training(asked, traced)
    timetable = _timetable(asked, order, training is not None)
    interleaved_recompute = asked.recompute is RecomputationMode.RecomputeAndBackpropagateInterleaved or (
        asked.recompute is RecomputationMode.Auto and asked.schedule == "Sequential"
    )
    returned = "sum" if asked.accumulate_outfeed else "all"
    built = build_pipeline(
        program.ir,
        traced.tracer.stage_graphs(traced.sources, order, interleaved_recompute),
        timetable,
        outputs=[StageOutput(part, output, stream, returned) for part, output, stream in traced.outputs],
        training=training,
        offload=_offload(asked, training is not None),
        repeats=asked.repeats,
        seed=state().seed,
        recompute="interleaved" if interleaved_recompute else "in one piece",
    )
    program.pipeline = built
    _observe_outfeed(asked, [stream for _, _, stream in traced.outputs])
    if training is not None:
        program.changed.update(program.handle(v) for v in traced.trainable)
        program.before_run.append(lambda: _write_scalars(program, built, traced.values))


def _training(asked: PipelineRequest, traced: _Traced) -> Training | None:
    optimizer, loss, program = traced.optimizer, traced.loss, asked.program
    if optimizer is None or loss is None:
        return None
    if program.ir.replication_factor > 1 and not any(
        isinstance(w, CrossReplicaOptimizer) for w in wrappers(optimizer.opt)
    ):
        raise ValueError(
            f"pipeline: {program.ir.replication_factor} replicas are trained by an optimizer that does not reduce "
            "gradients over them, so the replicas would go apart; wrap it in ipu.optimizers.CrossReplicaOptimizer"
        )
    choice = asked.accumulator_dtype
    arguments = (optimizer.apply_gradients_args, optimizer.apply_gradients_kwargs)
    return Training(
        loss[0],
        loss[1],
        traced.trainable,
        PipelineRule(program, optimizer.opt, traced.values, arguments),
        reduction=asked.reduction,
        replica_reduction="mean",
        accumulator_dtype=lambda variable: accumulator_dtype(choice, program.handle(variable)),
    )


def _timetable(asked: PipelineRequest, order: Sequence[int], training: bool) -> Timetable:
    config = state().config
    recompute = asked.recompute if training and config is not None and config.allow_recompute else None
    placed = [[order[d] for d in stage.devices] for stage in asked.stages]
    return SCHEDULES[asked.schedule](
        len(asked.stages), asked.micro_batches, inference=not training, recompute=recompute, devices=placed
    )


def _offload(asked: PipelineRequest, training: bool) -> Offload:
    """What goes to Streaming Memory.

    Raises:
        ValueError: it is asked for and the machine has none.
    """
    supported = devices.remote_buffers_supported()
    for name, wanted in (
        ("offload_weight_update_variables", asked.offload_state),
        ("offload_activations", asked.offload_activations),
        ("offload_gradient_accumulation_buffers", asked.offload_accumulators),
    ):
        if wanted and not supported:
            raise ValueError(f"pipeline: {name}=True, but the machine has no Streaming Memory (remote buffers)")
    return Offload(
        optimiser_state=training and (supported if asked.offload_state is None else asked.offload_state),
        activations=asked.offload_activations,
        accumulators=training and asked.offload_accumulators,
        shard_optimiser_state=training and asked.shard_state,
        min_elements=math.ceil(devices.minimum_remote_bytes(state().config) / 4),
    )


def _observe_outfeed(asked: PipelineRequest, streams: Sequence[Stream]) -> None:
    """Let the stores of the outfeed's streams hand their values to the queue as well."""
    if asked.outfeed_queue is None:
        return
    sinks = {stream: asked.outfeed_queue.sink(index) for index, stream in enumerate(streams)}
    for graph in asked.program.ir.all_graphs():
        for op in graph.ops:
            stream = op.attributes.get("stream")
            if stream in sinks:
                op.__class__ = OutfeedStore  # a HostStore that the builder made, with one thing more to do
                op.attributes["sink"] = sinks[stream]


def _write_scalars(program: TracedProgram, built: Pipeline, values: dict[str, Callable[[], float]]) -> None:
    """Bring hyper-parameters that have changed to the device."""
    for (name, _), variable in built.scalars.items():
        value = values[name]()
        if float(variable.data) != value:
            program.write(variable, variable.data.dtype.type(value).reshape(()))
