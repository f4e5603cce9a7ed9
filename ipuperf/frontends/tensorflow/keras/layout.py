"""The calls of a model's layers in the order in which they run, and their pipeline stages.

A :class:`Call` is one call of a layer, wherever it stands: calls inside a model that is a layer of another one are
listed
as calls of their own. A tensor between calls is known by a :data:`Key`: the calls of models around it and Keras' number
for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tf_keras
from tf_keras.src.engine import base_layer

from .graphs import graph_of

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
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
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
