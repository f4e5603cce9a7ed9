"""From a traced ``pipeline(...)`` call to a built pipeline: stages are imported at once, and built when replicas are
known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
import tensorflow as tf

from ipuperf.functions import arithmetic
from ipuperf.ir import Constant, Stream, Variable
from ipuperf.pipelines import Data, Offload, Pipeline, PipelineError, StageOutput, Training, build_pipeline
from ipuperf.pipelines.schedules import RecomputationMode, Timetable, grouped, interleaved, sequential
from ipuperf.runtime.model_revision import ModelRequest, revised_model

from ..importer import Importer, Resource, Value, resource_of
from ..importer.tracer import changed_captures
from ..importer.tracing import device_dtype, frame_of, use_frame
from ..programs import devices
from ..programs.outfeed import OutfeedStore
from ..programs.program import TracedProgram
from ..state import state
from .accumulation import accumulator_dtype
from .custom_gradients import tap
from .rule import PipelineRule
from .stages import StageImporter, StageLink
from .trace import TracedPipeline, TracedTraining

SCHEDULES: dict[str, Callable[..., Timetable]] = {
    "Grouped": grouped,
    "Interleaved": interleaved,
    "Sequential": sequential,
}


class PipelineMeaning:
    """A pipeline where the op stands; its inputs are those of the pipeline, then what its graphs use from outside.

    Attributes:
        line: the user's, that its errors name.
    """

    def __init__(self, traced: TracedPipeline) -> None:
        self.traced = traced
        self.line = ""

    def changed(self) -> list[int]:
        """Inputs that are variables which the pipeline may change."""
        start, places = len(self.traced.arguments.inputs), {id(t): i for i, t in enumerate(self.traced.outside)}
        graphs = [part.traced for part in self.traced.parts]
        training = self.traced.training
        handles = [] if training is None else [v.handle for v in training.variables]
        indices = {
            start + places[id(graph.captured[i])]
            for graph in [*graphs, *([] if training is None else training.graphs)]
            for i in changed_captures(graph, 0)
            if id(graph.captured[i]) in places
        }
        trained = {resource_of(h) for h in handles}
        indices |= {
            start + i for i, t in enumerate(self.traced.outside) if t.dtype == tf.resource and resource_of(t) in trained
        }
        return sorted(indices)

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """Import the stages; the pipeline itself is built when the program is completed.

        Raises:
            NotImplementedError: inside a loop or a branch of a conditional, or a second pipeline in the program.
        """
        frame, arguments = frame_of(importer.place, "a pipeline"), self.traced.arguments
        program = frame.program
        # A timetable has its own loops and is written into the main graph only.
        if frame is not program.main:
            raise NotImplementedError(
                "pipeline: inside a loop or another pipeline; use repeat_count to run it several times"
            )
        if program.deferred:
            raise NotImplementedError("pipeline: a program can have one pipeline; compile a program for each")
        used = [device for stage in arguments.stages for device in stage.devices]
        # The device has to hold all shards, also those that no op names before the pipeline is built.
        program.minimum_shards = max(program.minimum_shards, 1 + max(used))
        program.pipeline_default_mapping = arguments.default_mapping
        writer = _Writer(program, self.traced, inputs)
        # The number of replicas is known only when the whole program is.
        program.deferred.append(lambda: self._built(writer))
        return []

    def _built(self, writer: _Writer) -> None:
        """Build it; what is wrong is on the line of the pipeline."""
        try:
            writer.build()
        except (NotImplementedError, ValueError, PipelineError) as error:
            # A subclass may take other arguments than one text, so it is passed on as it is.
            known = type(error) in (NotImplementedError, ValueError, PipelineError)
            if not known or not self.line or str(error).startswith(self.line):
                raise
            raise type(error)(f"{self.line}: {error}") from error


class _Writer:
    """One pipeline of a program."""

    def __init__(self, program: TracedProgram, traced: TracedPipeline, inputs: Sequence[Value]) -> None:
        self.program = program
        self.traced = traced
        self.arguments = traced.arguments
        start = len(self.arguments.inputs)
        outside = {id(t): value for t, value in zip(traced.outside, inputs[start:])}
        self.importer = StageImporter(program, self.arguments.executions, outside)
        self._import(inputs[:start])
        self.streams = self._declare()
        self.loss = None if traced.training is None else self._output(traced.training.loss)
        self.trainable: list[Variable] = []
        if traced.training is not None:
            self._check_numbers(traced.training)
            self.trainable = [program.variable(resource_of(v.handle)) for v in traced.training.variables]
            self._check_read_back()
            self._map_gradients(traced.training)
        # Connecting comes last, because it drops what nothing uses.
        self.sources = self.importer.connect()
        # The pipeline is written here later, when ops behind it already exist.
        self.place = len(program.ir.main_graph.ops)

    # -- importing -----------------------------------------------------------------------------------------------------

    def _import(self, inputs: Sequence[Value]) -> None:
        arguments, importer = self.arguments, self.importer
        parts = importer.first(self.traced.stages[0], inputs, arguments.infeed_queue, self, arguments.options[0])
        for number, stage in enumerate(self.traced.stages[1:], 1):
            parts = importer.following(stage, importer.links(parts), arguments.options[number])

    def _declare(self) -> list[tuple[int, int, Stream]]:
        """``(part, output, stream)`` of what is enqueued."""
        if not self.traced.sent or self.arguments.outfeed_queue is None:
            return []
        # A summed outfeed sends once in a run, however many micro-batches there are.
        executions = 1 if self.arguments.accumulate_outfeed else self.arguments.executions
        streams = self.arguments.outfeed_queue.declare(self.program, self, executions)
        return [(*self._output(t), stream) for t, stream in zip(self.traced.sent, streams)]

    def _output(self, tensor: tf.Tensor) -> tuple[int, int]:
        """A tensor of the last stage as an output of its graph: part and number."""
        place = self.importer.part_of(tensor)
        assert place is not None
        part, value = place
        frame = self.importer.parts[part].frame
        # The output has to be one of its own: inputs, and values that go to variables, get a copy.
        unmade = [*frame.graph.inputs, *frame.assigned.values(), *frame.read_back.values()]
        if isinstance(value, Constant) or value in unmade:
            with use_frame(frame):
                value = arithmetic.identity(value)
        return part, self.importer.output(StageLink(part, value)).output

    def _check_numbers(self, training: TracedTraining) -> None:
        self.numbers = {
            id(t): self._number(training, t)
            for t in training.update.captured
            if t.dtype != tf.resource and not hasattr(t, "numpy")
        }

    def _number(self, training: TracedTraining, tensor: tf.Tensor) -> Callable[[], float]:
        """The present value of a number that the update uses: an argument that the stages have passed on, or one of the
        program.

        Raises:
            NotImplementedError: it is computed in a stage.
        """
        place = self.importer.part_of(tensor)
        if place is None:
            value: Any = self.importer._outside[id(tensor)]
        else:
            link = self.importer.origin(StageLink(*place))
            source = self.importer.parts[link.part].frame.sources.get(link.tensor)
            value = (
                link.tensor
                if isinstance(link.tensor, Constant)
                else source.tensor
                if isinstance(source, Data)
                else None
            )
        if isinstance(value, np.ndarray):
            return lambda: float(value)
        if isinstance(value, (Constant, Variable)):
            return lambda: float(value.data)
        raise NotImplementedError(
            f"pipeline: a number of optimizer {training.name!r} ({tensor.name}) is computed in a stage or comes from "
            "the infeed; it has to be a number, or one of the pipeline's `inputs` passed on unchanged by every stage"
        )

    def _check_read_back(self) -> None:
        """NotImplementedError: a stage reads a trained variable after it has assigned to it."""
        for part in self.importer.parts:
            for resource in part.frame.read_back:
                if self.program.variable(resource) in self.trainable:
                    raise NotImplementedError(
                        f"pipeline: a stage assigns to variable {self.program.name_of(resource)!r}, which is trained, "
                        "and reads it afterwards, where its gradient would be another one; change it in the "
                        "optimizer's update (a constraint), or make it a variable that is not trained"
                    )

    def _map_gradients(self, training: TracedTraining) -> None:
        """Let gradients go through the optimiser's ``compute_gradients`` in each micro-batch.

        Raises:
            NotImplementedError: a variable has a gradient in several stages, whose sum no stage has.
        """
        if training.mapping is None:
            return
        changed: dict[Any, int | None] = {**training.mapping.changed()}
        for part in self.importer.parts:
            data = {
                self.program.resource(source.tensor): tensor
                for tensor, source in part.frame.sources.items()
                if isinstance(source, Data) and isinstance(source.tensor, Variable) and
                source.tensor not in self.program.arguments
            }  # fmt: skip
            for resource, tensor in data.items():
                if resource not in changed:
                    continue
                # The number goes with the first stage that has the gradient, so None marks a second one.
                number, changed[resource] = changed[resource], None
                if number is None:
                    raise NotImplementedError(
                        f"pipeline: optimizer {training.name!r} changes gradients in compute_gradients, and several "
                        f"stages have a part of that of {self.program.name_of(resource)!r}; change them in "
                        "apply_gradients"
                    )
                tap(
                    part.frame.graph, tensor, mapping=training.mapping, number=number, images=data,
                    program=self.program, executions=self.arguments.executions,
                )  # fmt: skip

    # -- building ------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Write the pipeline into the program, whose number of replicas is known."""
        program, arguments = self.program, self.arguments
        order = program.ipu_order()
        training = self._training()
        in_turn = arguments.recomputation_mode is RecomputationMode.RecomputeAndBackpropagateInterleaved or (
            arguments.recomputation_mode is RecomputationMode.Auto and arguments.pipeline_schedule.name == "Sequential"
        )
        returned = "sum" if arguments.accumulate_outfeed else "all"
        with program.main.inserting(self.place):
            built = build_pipeline(
                program.ir,
                self.importer.stage_graphs(self.sources, order, in_turn),
                self._timetable(order, training is not None),
                outputs=[StageOutput(part, output, stream, returned) for part, output, stream in self.streams],
                training=training,
                offload=_offload(self.traced, training is not None),
                repeats=arguments.repeat_count,
                seed=program.seed_number,
                recompute="interleaved" if in_turn else "in one piece",
            )
        program.pipeline = built
        self._observe_outfeed()
        if training is not None:
            assert isinstance(training.rule, PipelineRule)
            self._hold(built, training.rule)

    def _training(self) -> Training | None:
        traced, program, arguments = self.traced.training, self.program, self.arguments
        if traced is None or self.loss is None:
            return None
        # An update that reduces gradients in several ways does it itself, each where it stands.
        itself = traced.reduction == "several" and program.ir.replication_factor > 1
        # Replicas whose gradients are not reduced would train apart without an error.
        if program.ir.replication_factor > 1 and traced.reduction is None:
            raise ValueError(
                f"pipeline: {program.ir.replication_factor} replicas are trained by an optimizer that does not reduce "
                "gradients over them, so the replicas would go apart; wrap it in ipu.optimizers.CrossReplicaOptimizer"
            )
        resources = [resource_of(v.handle) for v in traced.variables]
        types = {
            program.variable(resource_of(v.handle)): device_dtype(
                accumulator_dtype(arguments.gradient_accumulation_dtype, v)
            )
            for v in traced.variables
        }
        sharded = arguments.replicated_optimizer_state_sharding and program.ir.replication_factor > 1
        rule = PipelineRule(
            program, traced.update, resources, traced.name, self.numbers, sharded, arguments.repeat_count, not itself
        )
        return Training(
            self.loss[0],
            self.loss[1],
            self.trainable,
            rule,
            joint=rule if rule.joins else None,
            reduction=arguments.reduction_method.name.lower(),
            replica_reduction="none"
            if itself
            else "mean"
            if traced.reduction == "several"
            else traced.reduction or "mean",
            accumulator_dtype=types.__getitem__,
        )

    def _timetable(self, order: Sequence[int], training: bool) -> Timetable:
        arguments = self.arguments
        config = revised_model(ModelRequest("tensorflow", copy(state().config), training)).options
        # Stages recompute only where the configuration allows it, whatever the pipeline asks for.
        recompute = arguments.recomputation_mode if training and config is not None and config.allow_recompute else None
        placed = [[order[d] for d in stage.devices] for stage in arguments.stages]
        return SCHEDULES[arguments.pipeline_schedule.name](
            len(arguments.stages), arguments.micro_batches, inference=not training, recompute=recompute, devices=placed
        )

    def _observe_outfeed(self) -> None:
        """Let the stores of the outfeed's streams hand their values to the queue as well."""
        queue = self.arguments.outfeed_queue
        if queue is None:
            return
        sinks = {stream: queue.sink(index) for index, (_, _, stream) in enumerate(self.streams)}
        # The builder makes these stores, so they are found by their streams afterwards.
        for graph in self.program.ir.all_graphs():
            for op in graph.ops:
                stream = op.attributes.get("stream")
                if stream in sinks:
                    op.__class__ = OutfeedStore  # a HostStore that the builder made, with one thing more to do
                    op.attributes["sink"] = sinks[stream]

    def _hold(self, built: Pipeline, rule: PipelineRule) -> None:
        """Tell the program which variables it changes, and where those of the optimiser are.

        Raises:
            NotImplementedError: the program itself uses a variable of the optimizer.
        """
        program = self.program
        for variable in self.trainable:
            program.changes(program.resource(variable))
        for _, name in built.state:
            self._check_own(rule.keys[name], program.holds(rule.keys[name]))
        for name in rule.keys.keys() & {name for name, _ in built.scalars}:
            self._check_own(rule.keys[name], program.is_changed(rule.keys[name]))
        for (_, name), variable in built.state.items():
            program.hold(rule.keys[name], variable)
            program.changes(rule.keys[name])
        numbers: list[tuple[str, Variable]] = []
        for (name, _), variable in built.scalars.items():
            if name in rule.keys:
                program.hold(rule.keys[name], variable)
            else:
                numbers.append((name, variable))
        # Numbers may change between runs, so they are written anew before each.
        program.before_run.append(lambda: _write_numbers(program, rule, numbers))

    def _check_own(self, resource: Resource, used: bool) -> None:
        """The program around the pipeline has no copy of a variable of the optimizer that could go another way."""
        if used:
            assert self.traced.training is not None
            raise NotImplementedError(
                f"pipeline: {self.program.name_of(resource)!r} is a variable of optimizer "
                f"{self.traced.training.name!r}, and the program around the pipeline uses it as well; use it outside "
                "of the compiled program, before or after its run"
            )


def _write_numbers(program: TracedProgram, rule: PipelineRule, numbers: Sequence[tuple[str, Variable]]) -> None:
    """Bring numbers that updates use to the device."""
    if not numbers:
        return
    assert program.executable is not None
    values = rule.scalars()
    for name, variable in numbers:
        variable.data[...] = values[name]
    program.executable.evaluator.load_variables([variable for _, variable in numbers])


def _offload(traced: TracedPipeline, training: bool) -> Offload:
    """What goes to Streaming Memory.

    Raises:
        ValueError: it is asked for and the machine has none.
    """
    arguments, supported = traced.arguments, devices.remote_buffers_supported()
    for name in ("offload_weight_update_variables", "offload_activations", "offload_gradient_accumulation_buffers"):
        if getattr(arguments, name) and not supported:
            raise ValueError(f"pipeline: {name}=True, but the machine has no Streaming Memory (remote buffers)")
    state_option = arguments.offload_weight_update_variables
    return Offload(
        optimiser_state=training and (supported if state_option is None else state_option),
        activations=bool(arguments.offload_activations),
        accumulators=training and bool(arguments.offload_gradient_accumulation_buffers),
        shard_optimiser_state=training and bool(arguments.replicated_optimizer_state_sharding),
        min_elements=math.ceil(devices.minimum_remote_bytes(state().config) / 4),
    )
