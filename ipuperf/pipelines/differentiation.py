"""Which gradients the stages of a pipeline need, and their gradient graphs."""

from __future__ import annotations

from collections.abc import Sequence

from ipuperf.ir import Recomputation, Variable
from ipuperf.ops import autodiff
from ipuperf.ops.control import reached_by_gradients

from .model import Activation, Data, PipelineError, StageGraph, Training
from .scope import place
from .stages import PipelineStage


def differentiate(parts: Sequence[StageGraph], stages: Sequence[PipelineStage], training: Training) -> None:
    """Give the ``stages`` their gradient graphs, last stage first, and record what each provides, passes on and trains.

    A tensor gets a gradient where it depends on a trained variable and the loss depends on it. A stage without such a
    tensor has no gradient graph.

    Raises:
        PipelineError: the loss depends on no trainable variable.
    """
    trainable = set(training.trainable)
    reachable = _depends_on(parts, trainable)
    requested_outputs: dict[int, set[int]] = {number: set() for number in range(len(parts))}
    requested_outputs[training.loss_part].add(training.loss_output)
    # The last stage comes first: its input gradients decide which outputs of earlier stages get one.
    for stage in sorted(stages, key=lambda stage_entry: -stage_entry.description.stage):
        part = stage.description
        provided = [part.graph.outputs[index] for index in sorted(requested_outputs[stage.part])]
        if not provided:
            continue
        reached = reached_by_gradients(part.graph, provided)
        for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
            if tensor not in reached:
                continue
            if isinstance(source, Data) and source.tensor in trainable:
                assert isinstance(source.tensor, Variable)
                stage.trained.append((tensor, source.tensor))
            elif isinstance(source, Activation) and (source.part, source.output) in reachable:
                stage.input_gradients.append(tensor)
                requested_outputs[source.part].add(source.output)
        required = [tensor for tensor, _ in stage.trained] + stage.input_gradients
        host_tensors = [output.tensor for output in training.gradients if output.part == stage.part]
        for tensor in host_tensors:
            if tensor not in reached:
                raise PipelineError(f"{tensor.name!r} has no gradient: the loss does not depend on it")
        if not required:
            continue
        # autodiff appends outputs to the graph, so its own are counted before.
        output_count = stage.own_outputs = len(part.graph.outputs)
        stage.provided = provided
        # Checkpoints are kept even where the op that makes them runs again.
        recomputation = Recomputation(frozenset(part.recomputed), frozenset(part.checkpoints))
        stage.derivative = autodiff(
            part.graph,
            provided,
            required,
            recomputation=recomputation,
            within=host_tensors,
            joins_pads=training.joins_pads,
        )
        place(stage.derivative.graph, part.ipu)
        # autodiff has added the forward values that the backward reads as outputs.
        for tensor in part.graph.outputs[output_count:]:
            tensor.ipu = part.ipu
    _check_trained(stages, trainable)


def _check_trained(stages: Sequence[PipelineStage], trainable: set[Variable]) -> None:
    users: dict[Variable, list[str]] = {}
    for stage in stages:
        for _, variable in stage.trained:
            users.setdefault(variable, []).append(stage.name)
    if trainable and not users:
        raise PipelineError("no trainable variable has a gradient: the loss depends on none of them")


def _depends_on(parts: Sequence[StageGraph], trainable: set[Variable]) -> set[tuple[int, int]]:
    """Outputs (part, output) that depend on a trainable variable of the same or an earlier part."""
    dependent: set[tuple[int, int]] = set()
    # Earlier stages first, as later ones depend on their outputs.
    for number in sorted(range(len(parts)), key=lambda part_number: parts[part_number].stage):
        part = parts[number]
        for index, output in enumerate(part.graph.outputs):
            reached = reached_by_gradients(part.graph, [output])
            for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
                if tensor in reached and (
                    (isinstance(source, Data) and source.tensor in trainable)
                    or (isinstance(source, Activation) and (source.part, source.output) in dependent)
                ):
                    dependent.add((number, index))
    return dependent
