"""A checked ``pipeline(...)`` call as graphs of TensorFlow: its stages, its optimiser, what goes to the outfeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ..importer import resource_of
from ..importer.collectives import reductions_of
from ..importer.tracer import TracedFunction, resource_variables, trace
from ..programs.infeed import as_arguments
from .accumulation import (
    CrossReplicaOptimizer,
    accumulator_dtype,
    check_types,
    innermost,
    wrappers,
)
from .arguments import PipelineArguments
from .model import OptimizerFunctionOutput, check_optimizer
from .own_gradients import GradientMapping, trace_gradients, with_own_gradients
from .stages import TracedStage, not_a_resource


@dataclass
class TracedTraining:
    """The optimiser of a traced pipeline.

    Attributes:
        loss: a tensor of the last stage.
        variables: those that it trains.
        update: its ``apply_gradients``; the arguments are the gradients.
        mapping: what its ``compute_gradients`` makes of gradients; None: they stay as they are.
        reduction: of gradients over the replicas: ``mean``, ``sum``, ``several`` (some in another way than others, as
            one replica may); None: they are not reduced.
        name: its name, for errors.
    """

    loss: tf.Tensor
    variables: list[Any]
    update: TracedFunction
    mapping: GradientMapping | None
    reduction: str | None
    name: str

    @property
    def graphs(self) -> list[TracedFunction]:
        """What it does besides the stages."""
        return [self.update, *([] if self.mapping is None else [self.mapping.traced])]


@dataclass
class TracedPipeline:
    """Everything that TensorFlow has traced of a pipeline.

    Attributes:
        stages: by number, the functions of each stage.
        sent: the tensors of the outfeed's elements.
        outside: tensors and handles from outside that all of it uses, each once.
    """

    arguments: PipelineArguments
    stages: list[list[TracedStage]]
    sent: list[tf.Tensor]
    training: TracedTraining | None
    outside: list[tf.Tensor] = field(default_factory=list)

    @property
    def parts(self) -> list[TracedStage]:
        """All stage functions."""
        return [part for stage in self.stages for part in stage]


def trace_pipeline(arguments: PipelineArguments) -> TracedPipeline:
    """Trace the stages, the optimiser and its update.

    Raises:
        ValueError: a stage uses a tensor from outside, results without a queue, nothing to train.
    """
    stages = _stages(arguments)
    final = stages[-1]
    optimizer, sent, training = None, [], None
    # The loss and what is sent are traced in the last stage, so that they run on its IPU.
    with final[-1].traced.graph.as_default(), resource_variables():
        if arguments.optimizer_function is not None:
            tensors = [t for part in final for t in part.traced.tensors]
            optimizer = check_optimizer(arguments.optimizer_function(*tensors))
        sent = _sent(arguments, final, optimizer)
        if optimizer is not None:
            training = _training(arguments, [part for stage in stages for part in stage], optimizer)
    # After both traces: only now is it known what the outfeed and the update need of the last stage.
    _want(final, sent, training)
    pipeline = TracedPipeline(arguments, stages, sent, training)
    _collect(pipeline)
    return pipeline


def _stages(arguments: PipelineArguments) -> list[list[TracedStage]]:
    stages: list[list[TracedStage]] = []
    operands: list[Any] = list(arguments.inputs)
    named: dict[str, Any] = {}
    if arguments.infeed_queue is not None:
        positional, named = as_arguments(arguments.infeed_queue.element_spec)
        operands += positional
    for number, stage in enumerate(arguments.stages):
        parts = [
            TracedStage(trace(f"stage_{number}", function, operands, named), number, device)
            for function, device in zip(stage.functions, stage.devices)
        ]
        for part in parts:
            # The next stage takes tensors by position, and a dictionary has names.
            if isinstance(part.traced.structure, dict) and number < len(arguments.stages) - 1:
                raise TypeError(f"stage {number} returns a dictionary; only the last stage of an inference may")
        operands = [t for part in parts for t in part.traced.tensors]
        # Only the first stage gets arguments by name: those of the infeed.
        named = {}
        stages.append(parts)
    return stages


def _sent(
    arguments: PipelineArguments, final: Sequence[TracedStage], optimizer: OptimizerFunctionOutput | None
) -> list[tf.Tensor]:
    """What goes to the outfeed, declared to it; the default graph is that of the last stage.

    Raises:
        ValueError: results without a queue, or a mask of another length.
    """
    tensors = [t for part in final for t in part.traced.tensors]
    if optimizer is not None and arguments.outfeed_loss:
        structure: Any = optimizer.loss
    else:
        if arguments.outfeed_mask is not None:
            mask = _flat_mask(arguments.outfeed_mask, final)
            if len(mask) != len(tensors):
                raise ValueError(
                    f"The last computational stage has {len(tensors)} outputs, but the `outfeed_mask` has elements "
                    f"{len(mask)} - these need to match in size."
                )
            tensors = [t for t, masked in zip(tensors, mask) if not masked]
        if not tensors:
            return []
        if arguments.outfeed_queue is None:
            listed = ", ".join(str(t) for t in tensors)
            raise ValueError(
                f"The last computational stage has tensor outputs: {listed}, but no outfeed_queue has been provided."
            )
        single = final[0].traced.structure if len(final) == 1 else None
        # Dictionaries and single tensors keep their form in the outfeed; all else is a flat list.
        keeps = optimizer is None and not arguments.accumulate_outfeed and isinstance(single, (dict, tf.Tensor))
        structure = single if keeps else tensors
    if arguments.outfeed_queue is None:
        return []
    return arguments.outfeed_queue.described(tf.nest.map_structure(lambda t: _sendable(arguments, t), structure))


def _flat_mask(mask: Sequence[bool], final: Sequence[TracedStage]) -> list[bool]:
    """An element for each tensor of a mask that has one for each output of the stage, which may be nested."""
    outputs = final[0].traced.structure if len(final) == 1 else None
    if not isinstance(outputs, (list, tuple)) or len(outputs) != len(mask):
        return list(mask)
    return [masked for masked, output in zip(mask, outputs) for _ in tf.nest.flatten(output)]


def _sendable(arguments: PipelineArguments, tensor: tf.Tensor) -> tf.Tensor:
    """A tensor of its own in its stage's graph, in the type of the accumulated outfeed."""
    with tensor.graph.as_default():
        if arguments.accumulate_outfeed and arguments.accumulate_outfeed_dtype is not None:
            return tf.cast(tensor, accumulator_dtype(arguments.accumulate_outfeed_dtype, tensor))
        # An identity makes a tensor of its own, also where two results are one tensor.
        return tf.identity(tensor, name="outfeed")


# -- training ----------------------------------------------------------------------------------------------------------


def _training(
    arguments: PipelineArguments, parts: Sequence[TracedStage], optimizer: OptimizerFunctionOutput
) -> TracedTraining:
    variables = _trainable(parts, optimizer)
    opt = optimizer.opt
    update = trace(
        "weight_update",
        lambda *grads: opt.apply_gradients(
            list(zip(grads, variables)), *optimizer.apply_gradients_args, **optimizer.apply_gradients_kwargs
        ),
        [tf.TensorSpec(v.shape, accumulator_dtype(arguments.gradient_accumulation_dtype, v)) for v in variables],
        automatic=True,
    )
    name = (
        innermost(opt).get_name() if hasattr(innermost(opt), "get_name") else getattr(opt, "name", type(opt).__name__)
    )
    check_types(update, name)
    gradient_optimizer = with_own_gradients(opt)
    mapping = (
        None if gradient_optimizer is None else trace_gradients(gradient_optimizer, optimizer.loss, variables, name)
    )
    return TracedTraining(optimizer.loss, variables, update, mapping, _reduction(update, opt), name)


def _reduction(update: TracedFunction, opt: Any) -> str | None:
    """How the update reduces its gradients over the replicas."""
    gradients = list(update.arguments)
    # Gradients that the update does not use say nothing about how it reduces.
    kinds = {tuple(reductions_of(t, gradients)) for t in gradients if t.consumers()}
    if len(kinds) > 1 or any(len(kind) > 1 for kind in kinds):
        return "several"
    names = [kind for (kind,) in kinds if kind] if kinds != {()} else []
    if any(isinstance(w, CrossReplicaOptimizer) for w in wrappers(opt)):
        return "mean"
    return {"add": "sum", "mean": "mean"}[names[0]] if names else None


def _trainable(parts: Sequence[TracedStage], optimizer: OptimizerFunctionOutput) -> list[Any]:
    """Variables that the optimiser changes: those that stages use, as chosen by ``var_list``.

    Raises:
        ValueError: there are none.
    """
    used: dict[Any, Any] = {}
    for part in parts:
        for variable in part.traced.variables:
            used.setdefault(resource_of(variable.handle), variable)
    captured = {resource_of(t) for part in parts for t in part.traced.captured if t.dtype == tf.resource}
    chosen = optimizer.var_list
    if chosen is None:
        # Of a variable that no stage reads there is no gradient, whatever `trainable` says.
        variables = [v for r, v in used.items() if v.trainable and r in captured]
    else:
        variables = [v for v in chosen if resource_of(v.handle) in captured]
    if not variables:
        raise ValueError("No variables to optimize.")
    return variables


# -- what is needed ----------------------------------------------------------------------------------------------------


def _want(final: Sequence[TracedStage], sent: Sequence[tf.Tensor], training: TracedTraining | None) -> None:
    """Note the tensors of the last stage that are needed besides its results.

    Raises:
        ValueError: the loss belongs to another graph.
    """
    graphs = {id(part.traced.graph): part for part in final}
    tensors = list(sent)
    if training is not None:
        if id(getattr(training.loss, "graph", None)) not in graphs:
            raise ValueError(
                f"tensor {training.loss} is no result of the last computational stage: the loss has to be computed "
                "from the arguments of the optimizer_function"
            )
        # The update may use numbers of the last stage, such as a learning rate that was passed through.
        tensors += [training.loss, *(t for t in training.update.captured if id(getattr(t, "graph", None)) in graphs)]
    for tensor in tensors:
        graphs[id(tensor.graph)].needed.append(tensor)


def _collect(pipeline: TracedPipeline) -> None:
    """List what comes from outside, each tensor once.

    Raises:
        ValueError: a stage uses a tensor that is no variable.
    """
    stage_graphs = {id(part.traced.graph) for part in pipeline.parts}
    outside: dict[int, tf.Tensor] = {}
    for part in pipeline.parts:
        for tensor in part.traced.captured:
            if tensor.dtype != tf.resource and not hasattr(tensor, "numpy"):
                # Only handles and data that are there before the run can come into a stage from outside.
                raise ValueError(not_a_resource(tensor.name))
            outside[id(tensor)] = tensor
    if pipeline.training is not None:
        for traced in pipeline.training.graphs:
            outside.update({id(t): t for t in traced.captured if id(getattr(t, "graph", None)) not in stage_graphs})
    pipeline.outside = list(outside.values())
