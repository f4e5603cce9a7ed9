"""The calls of a model's layers in the order in which they run, their pipeline stages, and the stages as functions.

A :class:`Call` is one call of a layer, wherever it stands: calls inside a model that is a layer of another one are
listed as calls of their own. A tensor between calls is known by a :data:`Key`: the calls of models around it and
Keras' number for it.

The function of stage 0 takes an element of the dataset, each later one what the one before it hands on: the tensors
that it or a later stage reads (each once), their masks, targets and sample weights, and the losses of layers so far.
The last stage computes the losses and metrics, or returns the predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import base_layer
from tf_keras.src.utils.losses_utils import cast_losses_to_common_dtype

from .data import Element
from .graphs import assert_compatible, graph_of, within_call

Key = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes:
        node: Keras' record of it.
        path: the nodes of the models around it, by ``id``, outermost first.
        stage: its pipeline stage.
    """

    node: Any
    path: tuple[int, ...]
    stage: int

    @property
    def layer(self) -> Any:
        """The layer that is called."""
        return self.node.layer

    def reads(self) -> list[Key]:
        """The tensors it takes."""
        return [(self.path, name) for name in self.node.flat_input_ids]

    def writes(self) -> list[Key]:
        """The tensors it makes."""
        return [(self.path, name) for name in self.node.flat_output_ids]


@dataclass(frozen=True)
class Alias:
    """A name for another tensor: an input of an inner model (``reference``: its Keras input, which says shape and type)
    or a result of one."""

    of: Key
    model: Any = None
    reference: Any = None


@dataclass
class StagedModel:
    """A model as calls in stages.

    Attributes:
        graph: the functional model.
        calls: in the order of stages, and within a stage in an order in which they can run.
        aliases: names of tensors at the borders of inner models.
        later: nodes without an assignment, and the models around them.
    """

    graph: Any
    calls: list[Call] = field(default_factory=list)
    aliases: dict[Key, Alias] = field(default_factory=dict)
    later: list[tuple[Any, tuple[int, ...]]] = field(default_factory=list)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return 1 + max(call.stage for call in self.calls)

    @property
    def inputs(self) -> list[Key]:
        """The inputs of the model."""
        return [((), str(id(tensor))) for tensor in self.graph.inputs]

    @property
    def outputs(self) -> list[Key]:
        """The results of the model."""
        return [((), str(id(tensor))) for tensor in self.graph.outputs]

    def origin(self, key: Key) -> Key:
        """The tensor that ``key`` is a name for."""
        while key in self.aliases:
            key = self.aliases[key].of
        # A result of an inner model may be the input of the next one, so aliases form chains.
        return key

    def passed(self, stage: int) -> list[Key]:
        """What stage number ``stage`` hands on: what later stages read and it or an earlier stage has, each once."""
        there = {*self.inputs, *(key for call in self.calls if call.stage <= stage for key in call.writes())}
        later = [key for call in self.calls if call.stage > stage for key in call.reads()] + self.outputs
        return list(dict.fromkeys(origin for key in later if (origin := self.origin(key)) in there))


def graph_nodes(graph: Any) -> list[Any]:
    """The calls (Keras nodes) of a functional model without its inputs and what only adds a loss or metric, each after
    those that it reads."""
    return [node for node in _all_nodes(graph) if not isinstance(node.layer, ADDITIONS)]


def _all_nodes(graph: Any) -> list[Any]:
    there = {str(id(tensor)) for tensor in graph.inputs}
    nodes = []
    # Keras counts depth from the outputs, so the deepest calls run first.
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            # A layer may have been called elsewhere too; those calls read what this graph does not have.
            if node.is_input or not there.issuperset(node.flat_input_ids):
                continue
            nodes.append(node)
            there.update(node.flat_output_ids)
    return nodes


ADDITIONS = (base_layer.AddLoss, base_layer.AddMetric)
"""Layers that Keras makes of a model's ``add_loss`` and ``add_metric``."""


def is_model(layer: Any) -> bool:
    """Whether ``layer`` is a model, whose layers have stages of their own."""
    return isinstance(layer, tf_keras.Model)


def lay_out(graph: Any, assignments: Sequence[Any]) -> StagedModel:
    """The calls of ``graph`` (a functional model), with the stages that ``assignments`` (one for each of its nodes, in
    order) say.

    Raises:
        ValueError: stages are missing, or a call reads what a later stage makes.
    """
    layout = StagedModel(graph)
    _add(layout, graph, assignments, ())
    _check_numbers(layout)
    # Additions go where their operands are, so all other calls are placed before.
    _place_additions(layout)
    layout.calls.sort(key=lambda call: call.stage)  # stable: the order within a stage is kept
    _check_order(layout)
    return layout


def _add(layout: StagedModel, graph: Any, assignments: Sequence[Any], path: tuple[int, ...]) -> None:
    nodes = _all_nodes(graph)
    assigned = _by_node(nodes, assignments)
    for node in nodes:
        if id(node) not in assigned:
            continue
        assignment = assigned[id(node)]
        if assignment.is_nested_model:
            nested = graph_of(assignment.nested_model)
            inside = (*path, id(node))
            sources = [(path, str(id(t))) for t in _arguments(nested, node)]
            # Calls in an inner model are told apart by the call of that model, as it may be called twice.
            for reference, key in zip(nested.inputs, sources):
                layout.aliases[inside, str(id(reference))] = Alias(key, nested, reference)
            _add(layout, nested, assignment.pipeline_stage_assignments, inside)
            for outer, result in zip(node.flat_output_ids, nested.outputs):
                layout.aliases[path, outer] = Alias((inside, str(id(result))))
        else:
            layout.calls.append(Call(node, path, assignment.pipeline_stage))
    layout.later += [(node, path) for node in nodes if id(node) not in assigned]


def _by_node(nodes: Sequence[Any], assignments: Sequence[Any]) -> dict[int, Any]:
    """The assignment of each node that has one."""
    by_node: dict[int, Any] = {}
    for assignment in assignments:
        layer = assignment.nested_model if assignment.is_nested_model else assignment.layer
        if hasattr(assignment, "node_index"):
            node = layer._inbound_nodes[assignment.node_index]
        else:
            # A Sequential model assigns layers, not calls, so the first free call of the layer is meant.
            node = next(node for node in nodes if node.layer is layer and id(node) not in by_node)
        by_node[id(node)] = assignment
    return by_node


def _place_additions(layout: StagedModel) -> None:
    """What ``add_loss`` and ``add_metric`` of a model have added since it was divided: each call stands where the last
    of its operands is made, a metric at the end, where metrics are read."""
    stages_by_key = {key: call.stage for call in layout.calls for key in call.writes()}
    last_stage = layout.stages - 1
    for node, path in layout.later:
        stages = [stages_by_key.get(layout.origin((path, name)), 0) for name in node.flat_input_ids]
        stage = last_stage if isinstance(node.layer, base_layer.AddMetric) else max(stages, default=0)
        call = Call(node, path, stage)
        layout.calls.append(call)
        stages_by_key.update(dict.fromkeys(call.writes(), stage))


def _arguments(graph: Any, node: Any) -> list[Any]:
    """The Keras tensors of the call ``node`` of model ``graph``, one for each of its inputs."""
    inputs = node.call_args[0] if node.call_args else next(iter(node.call_kwargs.values()))
    tensors: list[Any] = graph._flatten_to_reference_inputs(inputs)
    if any(not hasattr(tensor, "_keras_history") for tensor in tensors):
        raise ValueError(
            f"Model {graph.name} is called with a value that is no Keras tensor; a model inside a pipelined model "
            "takes results of layers only. Put the call into one stage with `PipelineStage`."
        )
    return tensors


def _check_numbers(layout: StagedModel) -> None:
    numbers = sorted({call.stage for call in layout.calls})
    missing = sorted(set(range(numbers[-1] + 1)) - set(numbers))
    if missing or numbers[0] < 0:
        raise ValueError(
            "Pipeline stages in the graph need to be strictly increasing, found pipeline stages "
            f"{_listed(numbers)}, however the following pipeline stages are missing {_listed(missing)}."
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _check_order(layout: StagedModel) -> None:
    there = set(layout.inputs)
    for call in layout.calls:
        if any(layout.origin(key) not in there for key in call.reads()):
            raise ValueError(
                f"Layer {call.layer.name} in pipeline stage {call.stage} has a dependency from a pipeline stage which "
                "has not yet executed. Layers can only use outputs from current or previous pipeline stages."
            )
        there.update(call.writes())


@dataclass
class StageState:
    """What a stage works on.

    Attributes:
        values: tensors by key.
        targets: targets and sample weights, flat.
        losses: of layers (activity and weight regularisation, ``add_loss``).
    """

    values: dict[Key, Any]
    targets: list[Any]
    losses: list[Any]


class KerasStages:
    """The stages of ``layout`` as functions of tensors.

    Args:
        model: the model that is trained.
        layout: its calls in stages.
        element: structure of the elements of the dataset.
        training: whether layers are called for training.
        finish: makes the results of the last stage of targets, predictions, sample weights and losses; None: they are
            the predictions.
    """

    def __init__(
        self,
        model: Any,
        layout: StagedModel,
        element: Element,
        training: bool,
        finish: Callable[..., Any] | None,
    ) -> None:
        self._model = model
        self._layout = layout
        self._element = element
        self._training = training
        self._finish = finish
        self._packing: list[Callable[[Sequence[Any]], StageState]] = []

    def functions(self) -> list[Callable[..., Any]]:
        """One function for each stage."""
        return [partial(self._run, stage) for stage in range(self._layout.stages)]

    def _run(self, stage: int, *arguments: Any) -> Any:
        # Keras may trace a stage again; what later stages made of its results is then void.
        del self._packing[stage:]
        with within_call(self._model, list(arguments), self._training):
            state = self._first(arguments) if stage == 0 else self._packing[stage - 1](arguments)
            for call in self._layout.calls:
                # Predictions need neither losses nor metrics.
                if call.stage == stage and not (self._finish is None and isinstance(call.layer, ADDITIONS)):
                    self._call(call, state)
            if stage == self._layout.stages - 1:
                return self._last(state)
            tensors, unpack = self._pack(stage, state)
            self._packing.append(unpack)
            return tensors

    def _first(self, arguments: Sequence[Any]) -> StageState:
        """The state of stage 0, from an element of the dataset."""
        x, y, weights = self._element.parts(arguments)
        graph = self._layout.graph
        inputs = graph._flatten_to_reference_inputs(x)
        assert_compatible(graph, inputs)
        values = {}
        for key, reference, tensor in zip(self._layout.inputs, graph.inputs, inputs):
            values[key] = graph._conform_to_reference_input(tensor, ref_input=reference)
        return StageState(values, [t for t in tf.nest.flatten((y, weights)) if t is not None], [])

    def _call(self, call: Call, state: StageState) -> None:
        reads = call.reads()
        values = {key[1]: [self._value(key, state)] * reads.count(key) for key in reads}
        arguments, named = call.node.map_arguments(values)
        # Keras adds up a layer's losses over its calls, and only those of this call belong here.
        call.layer._clear_losses()
        outputs = call.layer(*arguments, **named)
        if self._finish is not None:
            state.losses.extend(call.layer.losses)
        for key, tensor in zip(call.writes(), tf.nest.flatten(outputs)):
            state.values[key] = tensor

    def _value(self, key: Key, state: StageState) -> Any:
        alias = self._layout.aliases.get(key)
        if alias is None:
            return state.values[key]
        value = self._value(alias.of, state)
        if alias.model is None:
            return value
        mask = getattr(value, "_keras_mask", None)
        # Conforming makes another tensor, which has lost the mask.
        value = alias.model._conform_to_reference_input(value, ref_input=alias.reference)
        if mask is not None:
            value._keras_mask = mask
        return value

    def _pack(self, stage: int, state: StageState) -> tuple[list[Any], Callable[[Sequence[Any]], StageState]]:
        """The tensors for the next stage, and what makes them a state again there."""
        keys = self._layout.passed(stage)
        masked = [key for key in keys if getattr(state.values[key], "_keras_mask", None) is not None]
        # The losses so far are one number, so each later stage hands on one tensor.
        losses = [tf.add_n(cast_losses_to_common_dtype(state.losses))] if state.losses else []
        groups = [
            [state.values[key] for key in keys],
            [state.values[key]._keras_mask for key in masked],
            state.targets,
            losses,
        ]
        return [t for group in groups for t in group], partial(_unpack, keys, masked, len(state.targets))

    def _last(self, state: StageState) -> Any:
        graph = self._layout.graph
        outputs = [self._value(key, state) for key in self._layout.outputs]
        predictions = tf.nest.pack_sequence_as(graph._nested_outputs, outputs)
        if self._finish is None:
            return predictions
        y, weights = self._element.targets(state.targets)
        return self._finish(y, predictions, weights, state.losses)


def _unpack(keys: Sequence[Key], masked: Sequence[Key], targets: int, tensors: Sequence[Any]) -> StageState:
    values = dict(zip(keys, tensors))
    for key, mask in zip(masked, tensors[len(keys) :]):
        values[key]._keras_mask = mask
    end = len(keys) + len(masked)
    return StageState(values, list(tensors[end : end + targets]), list(tensors[end + targets :]))
