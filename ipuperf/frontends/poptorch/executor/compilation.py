"""From a module and its options to an executable: export, partition, schedule, pipeline, machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import torch

from ipuperf.base.collector import collector_paused
from ipuperf.frontends.popart.engine_options import callback_threads
from ipuperf.ir import FLOAT16, Graph, Stream, Variable
from ipuperf.lowering import DoesNotFitError, NewValues
from ipuperf.machine import MachineError, TooFewIpusError
from ipuperf.pipelines import (
    HostIo,
    Offload,
    Pipeline,
    PipelineError,
    StageGraph,
    StageOutput,
    Training,
    build_pipeline,
)
from ipuperf.runtime.executable import Executable, HostOptions, LoweringOptions, RunOptions
from ipuperf.runtime.settings import AUTO, current_settings
from ipuperf.runtime.weight_copies import Direction

from ..aten.lowering import Norms
from ..enums import OutputMode, OverlapMode, ReductionType, SyncPattern
from ..errors import Error, UnsupportedError
from ..export.checks import check_replicated_buffers, tell_of_late_changes
from ..export.module import ExportedModel, OutputSpec, export_model
from ..export.trace import Traced
from ..optimisers.classes import OptimiserSpec
from ..optimisers.streams import new_values_of
from ..optimisers.update_rules import TorchRule
from ..options import Options
from ..options.strategies import PhasedExecution, PipelinedExecution, ShardedExecution
from .anchors import Anchor, Anchors
from .partition import IPUS_OF_A_PROCESS
from .timetables import is_pipelined, plan, recomputes_in_pipeline, recomputing_parts

_SYNC_PATTERNS = {
    SyncPattern.Full: "full",
    SyncPattern.SinglePipeline: "single_pipeline",
    SyncPattern.ReplicaAndLadder: "replica_and_ladder",
}


@dataclass(frozen=True)
class CompiledModel:
    """A compiled model.

    Attributes:
        exported: how arguments and results map to the program.
        executable: the program on its machine.
        pipeline: its stages and schedule.
        rule: the optimiser (training).
        streams: the stream of each tensor of the result, None for a constant.
        written: the stream of each input that the program changes, by its number; None for a constant.
        anchors: the tensors of ``Options.anchorTensor``, by their short names.
        kept_period: of what the streams bring, the host keeps one slice in so many (output mode ``EveryN``).
        micro_batches: micro-batches of one call on one replica.
        compilation_time: real seconds it took to compile.
    """

    exported: ExportedModel
    executable: Executable
    pipeline: Pipeline
    rule: TorchRule | None
    streams: tuple[Stream | None, ...]
    written: Mapping[int, Stream | None]
    anchors: Mapping[str, Anchor]
    kept_period: int
    micro_batches: int
    compilation_time: timedelta

    def copied_weights(self, direction: Direction, only: Sequence[Variable] | None = None) -> None:
        """PopART has copied ``only`` these variables, or all but numbers of the optimiser and random states (they are
        no weights of its), ``h2d`` to the IPUs or ``d2h`` to the host: simulated time passes."""
        others = {*self.pipeline.scalars.values(), *self.pipeline.seeds}
        weights = [variable for variable in self.executable.ir.variables() if variable not in others]
        self.executable.copied_weights(direction, weights if only is None else only)


@collector_paused()
def compile_model(
    module: torch.nn.Module,
    options: Options,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    optimiser: OptimiserSpec | None,
    name: str,
    samples: int | None = None,
    traced: Traced | None = None,
    grouped: Mapping[str, Any] = MappingProxyType({}),
) -> CompiledModel:
    """Compile ``module`` for micro-batches like those in ``args`` and ``kwargs``.

    Args:
        samples: how many samples a call takes, over all replicas.
        traced: an export of the module for such arguments, instead of another.
        grouped: parameters that differ between groups of replicas (:mod:`~ipuperf.poptorch.optimisers.replica_groups`).

    Raises:
        Error: the export, the partition, the schedule, the machine or strict memory do not allow the program.
    """
    began = time.perf_counter()
    # What options alone decide is refused before the export, which takes far longer.
    _check_period(options)
    exported = _exported(module, options, args, kwargs, training, traced, grouped)
    parts = _stages(exported, options)
    # A training program whose parameters are all frozen has no backward pass.
    trains = training and bool(exported.parameters)
    timetable, copies, repeats = plan(options, parts, training, exported.phases, forward_only=not trains)
    # One call runs the timetable several times (device iterations of a training program).
    count = repeats * timetable.micro_batches
    sent = _Sent(exported, options, training, timetable.micro_batches)
    # Anchors add outputs to the stages' graphs, so they come before the pipeline is built.
    anchors = Anchors(exported, options, training, count)
    rule, how = (None, None) if optimiser is None else _training(exported, options, optimiser, anchors)
    try:
        pipeline = build_pipeline(
            exported.ir,
            recomputing_parts(exported, options, parts) if trains else parts,
            timetable,
            outputs=[*sent.outputs, *anchors.outputs],
            variables=anchors.variables,
            training=how,
            offload=_offload(options),
            repeats=repeats,
            seed=options.random_seed or 0,
            copies=copies,
            recompute="always" if trains and recomputes_in_pipeline(options, parts) else "interleaved",
            host_io=_host_io(exported, options, sent.results, alone=timetable.micro_batches == 1),
        )
    except PipelineError as error:
        raise Error(str(error)) from error
    new_values = None if rule is None else new_values_of(exported, pipeline, rule)
    executable = _executable(exported, options, name, training, samples, new_values)
    passed = timedelta(seconds=time.perf_counter() - began)
    return CompiledModel(
        exported, executable, pipeline, rule, sent.results, sent.written, anchors.found, sent.kept_period, count, passed
    )


def _exported(
    module: torch.nn.Module,
    options: Options,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    training: bool,
    traced: Traced | None,
    grouped: Mapping[str, Any],
) -> ExportedModel:
    """The export of a model, checked against the options."""
    exported = export_model(
        module,
        args,
        kwargs,
        strategy=options.execution_strategy,
        training=training,
        replication_factor=options.replication_factor,
        auto_round_num_ipus=options.auto_round_num_ipus,
        norms=Norms(options._norm_replicas, options._Popart.strided_groups, options._Popart.stable_norms),
        cache=options.cache_dir,
        traced=traced,
        grouped=grouped,
    )
    _check_overlap(exported, options, training)
    # An export from a file was checked when it was made.
    if traced is None:
        check_replicated_buffers(exported.parts, exported.variables, module, options)
    if type(options.execution_strategy) is PipelinedExecution:
        tell_of_late_changes(exported.parts)
    return exported


def _stages(exported: ExportedModel, options: Options) -> list[StageGraph]:
    """The stages of a model, with what the options say of their ops.

    Stages without ops drop out of the count: numbers follow each other.
    """
    numbers = {stage: index for index, stage in enumerate(sorted({part.stage for part in exported.parts}))}
    parts = [replace(part, stage=numbers[part.stage]) for part in exported.parts]
    _apply_precision(parts, options)
    for scope, convolutions in exported.multi_convs:
        scope.apply(convolutions)
    return parts


def _executable(
    exported: ExportedModel,
    options: Options,
    name: str,
    training: bool,
    samples: int | None,
    new_values: NewValues | None,
) -> Executable:
    """The program on its machine."""
    needed = exported.num_ipus * options.replication_factor
    if needed > IPUS_OF_A_PROCESS and options._host_processes == 1 and current_settings().machine == AUTO:
        raise Error(
            f"Too many IPUs requested ({needed}). Experiments that need over {IPUS_OF_A_PROCESS} take several "
            "processes (poprun), or here a machine that is named (ipuperf run --machine pod128)"
        )
    try:
        executable = Executable(
            exported.ir,
            name=name,
            report_name="training" if training else "inference",
            lowering=LoweringOptions(
                _SYNC_PATTERNS[SyncPattern(options.sync_pattern)],
                options._Popart.collective_merging,
                options._Popart.outlining,
                # Programs that differ in counts alone are lowered once (lowering/again.py).
                again=True,
                kept_in=options.cache_dir,
            ),
            host=HostOptions(
                options._Popart.prefetch_depth,
                callback_threads=callback_threads(options._Popart.engine_options),
                host_processes=options._host_processes,
                copies_weights=not options._Popart.synthetic_data,
            ),
            options=RunOptions(
                samples,
                new_values,
                floating_point_exceptions=bool(options._Popart.options.get("enableFloatingPointChecks", False)),
            ),
        )
        # Lowering is put off until somebody asks for time, but strict memory wants its error now.
        if executable.settings.strict_memory:
            _ = executable.device_program
    except MachineError as error:
        prefix = f"The model has {len(exported.parts)} stage(s) on {exported.num_ipus} IPU(s) per replica. "
        if isinstance(error, TooFewIpusError):
            prefix += f"Too many IPUs requested ({needed}). Experiments that need as many take another machine: "
        raise Error(f"{prefix}{error}") from error
    except DoesNotFitError as error:
        raise Error(f"{error}. What may help: {'; '.join(memory_advice(options, training, exported))}") from error
    return executable


def memory_advice(options: Options, training: bool, exported: ExportedModel) -> list[str]:
    """What a user could still do about a program that does not fit: only what the options do not ask for already."""
    strategy = options.execution_strategy
    phased = isinstance(strategy, PhasedExecution)
    pipelined = is_pipelined(options, len(exported.parts))
    kinds = {kind: options.TensorLocations.location(kind, not phased) for kind in _KINDS}
    off_chip = "(poptorch.TensorLocationSettings().useOnChipStorage(False))"
    advice = ["a smaller micro-batch", "more stages on more IPUs, or other blocks in the stage of the IPU named above"]
    if training and pipelined and options._Popart.recomputation == "None":
        advice.append("recomputation of the forward pass: leave out _Popart.set('autoRecomputation', 0)")
    if training and not phased and not pipelined and options._Popart.recomputation in (None, "None"):
        advice.append(
            "recomputation between poptorch.recomputationCheckpoint()s: _Popart.set('autoRecomputation', 4), or with "
            "automatic checkpoints: 1"
        )
    if training and kinds["optimizer"].on_chip:
        advice.append(f"optimiser state in Streaming Memory: TensorLocations.setOptimizerLocation{off_chip}")
    if training and options.replication_factor > 1 and not kinds["optimizer"].sharded:
        advice.append("optimiser state sharded over the replicas: useReplicatedTensorSharding()")
    if training and pipelined and kinds["activation"].on_chip:
        advice.append(f"stashed activations in Streaming Memory: TensorLocations.setActivationLocation{off_chip}")
    if kinds["weight"].on_chip:
        advice.append(f"weights in Streaming Memory: TensorLocations.setWeightLocation{off_chip}")
    advice.append("less temporary memory: setAvailableMemoryProportion({'IPU0': 0.2, ...})")
    return advice


def _check_period(options: Options) -> None:
    """``EveryN`` as ``popart:willow/src/dataflow.cpp``: the batches per step are PopTorch's device iterations."""
    modes = {"outputMode": (options.output_mode, options.output_return_period)}
    for name, (_, follows, mode, period) in options.anchored_tensors.items():
        modes |= {} if follows else {f"anchorTensor({name!r})": (mode, period)}
    for name, (mode, period) in modes.items():
        if OutputMode(mode) is OutputMode.EveryN and options.device_iterations % period:
            raise Error(
                f"{name} EveryN: the return period must be a factor of the number of batches per step: "
                f"output_return_period is {period}, deviceIterations {options.device_iterations}"
            )


# -- results -----------------------------------------------------------------------------------------------------------


class _Sent:
    """What the IPUs send to the host: a stream for each tensor of a stage, and for each way to send it.

    ``EveryN`` sends every N-th micro-batch. Simplification: where N does not divide the micro-batches of a weight
    update, all are sent and the host picks (each update is the same program; upstream's counts on the device).

    Attributes:
        outputs: for the pipeline builder.
        results: a stream per tensor of the result.
        written: a stream per changed input: each micro-batch changes its own samples, so all are sent.
        kept_period: the host keeps one slice in so many.
    """

    def __init__(self, exported: ExportedModel, options: Options, training: bool, micro_batches: int) -> None:
        self.exported = exported
        self.outputs: list[StageOutput] = []
        self._known: dict[tuple[int, int, str, int], Stream] = {}
        mode = options.resolved_output_mode(training)
        period = options.output_return_period if mode is OutputMode.EveryN else 1
        sending_period = period if micro_batches % period == 0 else 1
        # What the device could not leave out the host drops; both together keep one in `period`.
        self.kept_period = period // sending_period
        returned = {OutputMode.Final: "final", OutputMode.Sum: "sum"}.get(mode, "all")
        self.results = tuple(self._stream(spec, returned, sending_period) for spec in exported.outputs)
        self.written = {number: self._stream(spec, "all", 1) for number, spec in exported.written.items()}

    def _stream(self, spec: OutputSpec, returned: str, sending_period: int) -> Stream | None:
        if spec.constant is not None:
            return None
        tensor = self.exported.parts[spec.part].graph.outputs[spec.output]
        how = returned if tensor.dtype.is_floating_point or returned == "final" else "all"
        # Results that are one tensor share a stream: it is sent once.
        key = (spec.part, spec.output, how, sending_period)
        if key not in self._known:
            graph = self.exported.ir.main_graph
            stream = Stream(graph.tensor_id(f"output_{len(self._known)}"), tensor.spec, graph, "d2h")
            graph.add(stream)
            self._known[key] = stream
            self.outputs.append(StageOutput(spec.part, spec.output, stream, how, sending_period))
        return self._known[key]


# -- overlapped and synthetic host I/O --------------------------------------------------------------------------------


def _check_overlap(exported: ExportedModel, options: Options, training: bool) -> None:
    """What upstream asks for with overlapped I/O, in its words (``poptorch:source/Compiler.cpp``)."""
    modes = [spec.overlap for spec in exported.inputs] + [spec.overlap for spec in exported.outputs]
    if all(mode is OverlapMode.NoOverlap for mode in modes):
        return
    strategy = options.execution_strategy
    if isinstance(strategy, PhasedExecution):
        raise UnsupportedError(
            f"overlapped I/O with {type(strategy).__name__} is not supported; allowed: poptorch.ShardedExecution"
        )
    if not isinstance(strategy, ShardedExecution):
        raise Error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution; poptorch.ShardedExecution overlaps, also "
            "on a single IPU"
        )
    if not options.TensorLocations.num_io_tiles:
        raise Error(
            "Overlapped IO runs on IO tiles, and the options set none aside: call "
            "poptorch.Options().TensorLocations.numIOTiles with 32 or more"
        )
    mode = options.resolved_output_mode(training)
    if mode not in (OutputMode.Sum, OutputMode.All):
        raise Error(
            f"Unsupported output mode for overlapped IO: {mode.name}; allowed are OutputMode.All and OutputMode.Sum"
        )


def _host_io(exported: ExportedModel, options: Options, streams: Sequence[Stream | None], *, alone: bool) -> HostIo:
    """Where host I/O happens. With ``alone``, one micro-batch per weight update, there is one loop, which both modes
    overlap. Sums are sent once, at the end of a run, and not overlapped with anything."""
    tiles = options.TensorLocations.num_io_tiles
    if options._Popart.synthetic_data:
        return HostIo(tiles, synthetic=True)

    def chosen(pairs: Iterable[tuple[Stream | None, OverlapMode]]) -> dict[Stream, bool]:
        return {
            stream: alone or mode is OverlapMode.OverlapDeviceIterationLoop
            for stream, mode in pairs
            if stream is not None and mode is not OverlapMode.NoOverlap
        }

    return HostIo(
        tiles,
        chosen((spec.stream, spec.overlap) for spec in exported.inputs),
        chosen((stream, spec.overlap) for stream, spec in zip(streams, exported.outputs, strict=True)),
    )


# -- training ----------------------------------------------------------------------------------------------------------


def _training(
    exported: ExportedModel, options: Options, optimiser: OptimiserSpec, anchors: Anchors
) -> tuple[TorchRule, Training | None]:
    """The optimiser and how it trains; None where the model has nothing to train (all parameters are frozen, or the
    loss depends on none): the program then runs forward only."""
    if exported.loss is None:
        raise Error("Couldn't find a loss in graph!")
    groups = _groups(exported, optimiser)
    reduction = ReductionType(options.Training.accumulation_and_replication_reduction_type)
    # A mean is over all micro-batches of a weight update, on all replicas.
    summed, mean = options.Training.gradient_accumulation * options.replication_factor, reduction is ReductionType.Mean
    automatic = options._Popart.automatic_loss_scale
    rule = TorchRule(optimiser, groups, summed if mean else 1.0, automatic=automatic is not None)
    if not groups:
        return rule, None
    if reduction is ReductionType.NoReduction:
        raise UnsupportedError("ReductionType.NoReduction is not supported; use Sum or Mean")
    if automatic is not None and optimiser.use_combined_accum:
        raise UnsupportedError(
            "Training.setAutomaticLossScaling with use_combined_accum, which has its loss scaling compiled in, is not "
            "supported; use the separate variant (use_combined_accum=False)"
        )
    words = "mean" if mean else "sum"
    part, output = exported.loss
    return rule, Training(
        part,
        output,
        list(groups),
        rule,
        reduction=words,
        replica_reduction=words,
        loss_scale=optimiser.loss_scaling,
        variable_loss_scale=optimiser.variable_loss_scaling or automatic is not None,
        automatic_loss_scale=automatic,
        accumulator_dtype=lambda variable: optimiser.accum_dtype,
        max_grad_norm=optimiser.max_grad_norm,
        combined=rule if optimiser.use_combined_accum else None,
        gradients=anchors.gradients,
        joins_pads=options._Popart.joins_pads,
    )


def _groups(exported: ExportedModel, optimiser: OptimiserSpec) -> dict[Variable, int]:
    """The parameter group of each trainable variable; parameters that no group has are not trained."""
    # Parameters are found by identity: == of tensors compares elements.
    by_parameter = {id(p): number for number, group in enumerate(optimiser.groups) for p in group.parameters}
    numbers: dict[Variable, int] = {}
    for name, parameter in exported.trainable_tensors():
        if id(parameter) in by_parameter:
            numbers[exported.variables[name]] = by_parameter[id(parameter)]
    if exported.parameters and not numbers:
        raise Error("The optimiser has none of the parameters that the model trains")
    return numbers


def _offload(options: Options) -> Offload:
    """Tensor locations; phased executions default to Streaming Memory."""
    on_chip = not isinstance(options.execution_strategy, PhasedExecution)
    kinds = {kind: options.TensorLocations.location(kind, on_chip) for kind in _KINDS}
    state = kinds["optimizer"]
    smallest = {kind: place.min_elements_off_chip for kind, place in kinds.items() if not place.on_chip}
    # The pipeline builder has one bound for all kinds.
    if len(set(smallest.values())) > 1:
        listed = ", ".join(f"{kind} {number}" for kind, number in smallest.items())
        raise UnsupportedError(f"minElementsForOffChip has to be the same for all kinds of tensors, it is: {listed}")
    return Offload(
        optimiser_state=not state.on_chip,
        activations=not kinds["activation"].on_chip,
        accumulators=not kinds["accumulator"].on_chip,
        weights=not kinds["weight"].on_chip,
        shard_optimiser_state=state.sharded,
        min_elements=next(iter(smallest.values()), 0),
        min_elements_sharding=state.min_elements_sharding,
        sharding_domain=_sharding_domain(options),
    )


def _sharding_domain(options: Options) -> int:
    """Replicas that hold the shards of a tensor: those of an instance of ``poprun`` where there are several
    (``poptorch:popart_compiler/source/Compiler.cpp``, initSession), 0 for all."""
    replicas, processes = options.replication_factor, options._host_processes
    if replicas % processes:
        raise Error(f"{processes} instances do not divide {replicas} replicas")
    return replicas // processes if processes > 1 else 0


_KINDS = ("optimizer", "activation", "accumulator", "weight")


def _apply_precision(parts: Sequence[StageGraph], options: Options) -> None:
    """Partials type and available memory proportion of the planned ops; gradient ops take them over."""
    half = options.Precision.partials_type is torch.float16
    shares = options.available_memory_proportion
    for part in parts:
        # The option takes "IPU0" and 0 alike.
        share = shares.get(f"IPU{part.ipu}", shares.get(part.ipu))
        for op in _planned(part.graph):
            if half and "partials_dtype" in op.declared and op.inputs[0].dtype is FLOAT16:
                op.attributes["partials_dtype"] = FLOAT16
            # A proportion that the model sets for an op goes before the one of its IPU.
            if share is not None and op.attributes.get("available_memory_proportion") is None:
                op.attributes["available_memory_proportion"] = float(share)


def _planned(graph: Graph) -> list[Any]:
    planned = [op for op in graph.ops if "available_memory_proportion" in op.declared]
    # Bodies of conditionals and loops are graphs of their own.
    for callee in graph.called_graphs():
        planned += _planned(callee)
    return planned
