"""``get_``, ``set_``, ``reset_pipeline_stage_assignment`` and the summary: which kinds of assignments a model takes,
and what is checked.

Upstream: ``keras: keras/ipu/extensions/{functional,model,sequential}_extensions.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .graphs import graph_of, has_graph, is_functional, is_sequential
from .scopes import stage_of
from .stages import graph_nodes, is_model, lay_out


class _OfOneCall:
    """The part of an assignment that says which call of a layer or an inner model it is of."""

    _called: Any
    _node_index: int

    @property
    def node_index(self) -> int:
        """Which call is assigned."""
        return self._node_index

    @property
    def inbound_layers(self) -> list[Any]:
        """The layers whose results this call reads."""
        return [node.layer for node in self._called._inbound_nodes[self._node_index].parent_nodes]


class SequentialLayerPipelineStageAssignment:
    """The stage of a layer of a ``Sequential`` model.

    Args:
        layer: the layer.
        pipeline_stage: number of its stage, from 0; None: not assigned yet.
    """

    is_nested_model = False

    def __init__(self, layer: Any, pipeline_stage: int | None = None) -> None:
        self._layer = layer
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> Any:
        """The layer that is assigned."""
        return self._layer

    def __str__(self) -> str:
        return f"Layer: {self.layer.name} is assigned to pipeline stage: {self.pipeline_stage}"


class ModelLayerPipelineStageAssignment(_OfOneCall, SequentialLayerPipelineStageAssignment):
    """The stage of one call of a layer in a subclass of ``Model``.

    Args:
        layer: the layer.
        node_index: which of its calls: 0 is the first one.
        pipeline_stage: number of its stage, from 0; None: not assigned yet.
    """

    def __init__(self, layer: Any, node_index: int, pipeline_stage: int | None = None) -> None:
        super().__init__(layer, pipeline_stage)
        self._called, self._node_index = layer, node_index

    def __str__(self) -> str:
        return (
            f"Layer: {self.layer.name} (node index {self.node_index}) is assigned to pipeline stage: "
            f"{self.pipeline_stage}"
        )


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """The stage of one call of a layer in a ``Functional`` model."""


class SequentialNestedModelPipelineStageAssignment:
    """The stages of the layers of a model that is a layer of a ``Sequential`` model.

    Args:
        nested_model: the inner model.
        pipeline_stage_assignments: one for each of its layers.
    """

    is_nested_model = True

    def __init__(self, nested_model: Any, pipeline_stage_assignments: Sequence[Any]) -> None:
        self._nested_model = nested_model
        self._assignments = list(pipeline_stage_assignments)

    @property
    def nested_model(self) -> Any:
        """The inner model."""
        return self._nested_model

    @property
    def pipeline_stage_assignments(self) -> list[Any]:
        """The assignments of its layers."""
        return list(self._assignments)

    def __str__(self) -> str:
        return f"Model: {self.nested_model.name} has the following pipeline stage assignments:" + self._lines()

    def _lines(self) -> str:
        return "".join(f"\n  {assignment}" for assignment in self._assignments)


class NestedModelPipelineStageAssignment(_OfOneCall, SequentialNestedModelPipelineStageAssignment):
    """The stages of the layers of one call of a model inside a subclass of ``Model``.

    Args:
        nested_model: the inner model.
        node_index: which of its calls: 0 is the first one.
        pipeline_stage_assignments: one for each call of its layers.
    """

    def __init__(self, nested_model: Any, node_index: int, pipeline_stage_assignments: Sequence[Any]) -> None:
        super().__init__(nested_model, pipeline_stage_assignments)
        self._called, self._node_index = nested_model, node_index

    def __str__(self) -> str:
        return (
            f"Model: {self.nested_model.name} (node index {self.node_index}) has the following pipeline stage "
            "assignments:" + self._lines()
        )


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """The stages of the layers of one call of a model inside a ``Functional`` model."""


_KINDS = {
    "functional": (FunctionalLayerPipelineStageAssignment, FunctionalNestedModelPipelineStageAssignment),
    "sequential": (SequentialLayerPipelineStageAssignment, SequentialNestedModelPipelineStageAssignment),
    "model": (ModelLayerPipelineStageAssignment, NestedModelPipelineStageAssignment),
}


def kind(model: Any) -> str:
    """What a model is to its assignments."""
    return "functional" if is_functional(model) else "sequential" if is_sequential(model) else "model"


def unassigned(model: Any) -> list[Any]:
    """An assignment without a stage for each call of a layer, in order. RuntimeError: the model is not built."""
    return _assignments(model, lambda node: None)


def find_scoped(model: Any) -> list[Any]:
    """The stages that ``PipelineStage`` blocks gave; empty: they gave none.

    Raises:
        ValueError: they gave stages to some layers only.
    """
    assignments = _assignments(model, stage_of)
    leaves = list(flat(assignments))
    # No stage at all means that the model is not pipelined, which is no error.
    if all(leaf.pipeline_stage is None for leaf in leaves):
        return []
    for leaf in leaves:
        if leaf.pipeline_stage is None:
            raise ValueError(
                "All layers of a pipelined model must have an associated pipeline stage. However, "
                f"{leaf.layer.name} has not been assigned to one. Pipeline stages can be assigned when a layer is "
                "constructed, or each time a layer is called. Different pipeline stages can assigned to each call."
            )
    # Laying out checks the stages; its result is made anew when the model runs.
    lay_out(graph_of(model), assignments)
    return assignments


def flat(assignments: Sequence[Any]) -> Iterator[Any]:
    """The assignments of layers, those in inner models included."""
    for assignment in assignments:
        if assignment.is_nested_model:
            yield from flat(assignment.pipeline_stage_assignments)
        else:
            yield assignment


def checked(model: Any, assignments: Any) -> list[Any]:
    """The argument of ``set_pipeline_stage_assignment``, checked for ``model``.

    Raises:
        ValueError: it is no valid assignment.
    """
    if not isinstance(assignments, list):
        raise ValueError("`pipeline_stage_assignment` needs to be a list")
    return _checked_sequential(model, assignments) if is_sequential(model) else _checked_graph(model, assignments)


# -- graphs ------------------------------------------------------------------------------------------------------------


def _assignments(model: Any, stage: Callable[[Any], int | None]) -> list[Any]:
    layer_kind, model_kind = _KINDS[kind(model)]
    if is_sequential(model):
        return [
            model_kind(layer, _inner(layer, stage)) if is_model(layer) and has_graph(layer) else layer_kind(layer)
            for layer in model.layers
        ]
    assignments = []
    for node in graph_nodes(graph_of(model)):
        layer, index = node.layer, node.layer._inbound_nodes.index(node)
        # A stage given to the call of an inner model holds for the whole of it.
        if is_model(layer) and has_graph(layer) and stage(node) is None:
            assignments.append(model_kind(layer, index, _inner(layer, stage)))
        else:
            assignments.append(layer_kind(layer, index, stage(node)))
    return assignments


def _inner(model: Any, stage: Callable[[Any], int | None]) -> list[Any]:
    """Assignments of a model that is a layer: its own ones are the default."""
    from .extension import extension, on_ipu

    assignments = extension(model).assignments if on_ipu(model) else []
    if not assignments:
        return _assignments(model, stage)
    # Copies: the outer model's stages must not change those of the inner one.
    return _copied(assignments)


def _copied(assignments: Sequence[Any]) -> list[Any]:
    copies = []
    for assignment in assignments:
        index = [assignment.node_index] if hasattr(assignment, "node_index") else []
        if assignment.is_nested_model:
            copies.append(
                type(assignment)(assignment.nested_model, *index, _copied(assignment.pipeline_stage_assignments))
            )
        else:
            copies.append(type(assignment)(assignment.layer, *index, assignment.pipeline_stage))
    return copies


def _checked_graph(model: Any, assignments: list[Any]) -> list[Any]:
    nodes = graph_nodes(graph_of(model))
    kinds = _KINDS[kind(model)]
    if len(assignments) != len(nodes):
        raise ValueError(
            f"The size of the provided `pipeline_stage_assignment` ({len(assignments)}) does not match the total "
            f"number of invocations of layers in the model (currently {len(nodes)}). Each invocation of a layer in a "
            "model needs to be assigned to a pipeline stage (excluding input layers)."
        )
    _check_kinds(assignments, kinds, f"`{kinds[0].__name__}`")
    for assignment in flat(assignments):
        if assignment.pipeline_stage is None:
            index = f" with node index {assignment.node_index}" if hasattr(assignment, "node_index") else ""
            raise ValueError(f"Layer {assignment.layer.name}{index} has not been assigned a pipeline stage.")
    ordered = _in_order(nodes, assignments)
    lay_out(graph_of(model), ordered)
    return ordered


def _check_kinds(assignments: Sequence[Any], kinds: tuple[type, ...], named: str) -> None:
    if not all(isinstance(assignment, kinds) for assignment in assignments):
        raise ValueError(f"All elements of `pipeline_stage_assignment` need to be instances of {named}.")


def _in_order(nodes: Sequence[Any], assignments: Sequence[Any]) -> list[Any]:
    """One assignment for each node; they may come in any order."""
    by_node: dict[int, Any] = {}
    for assignment in assignments:
        layer = assignment.nested_model if assignment.is_nested_model else assignment.layer
        calls = layer._inbound_nodes
        if not 0 <= assignment.node_index < len(calls):
            raise ValueError(
                f"Layer {layer.name} has {len(calls)} invocation(s) in the graph, but `pipeline_stage_assignment` "
                f"contains an assignment for node_index {assignment.node_index}."
            )
        if id(calls[assignment.node_index]) in by_node:
            raise ValueError(
                f"Duplicate assignment for layer {layer.name} with node index {assignment.node_index}. Each layer "
                "invocation can only be assigned to a single pipeline stage."
            )
        by_node[id(calls[assignment.node_index])] = assignment
    for node in nodes:
        if id(node) not in by_node:
            raise ValueError(
                f"`pipeline_stage_assignment` has no assignment for layer {node.layer.name} with node index "
                f"{node.layer._inbound_nodes.index(node)}; it has one for a layer that is not called in the model."
            )
    return [by_node[id(node)] for node in nodes]


# -- lists of layers ---------------------------------------------------------------------------------------------------


def _checked_sequential(model: Any, assignments: list[Any]) -> list[Any]:
    layers = model.layers
    if len(assignments) != len(layers):
        raise ValueError(
            f"The size of the provided `pipeline_stage_assignment` ({len(assignments)}) does not match the number "
            f"of layers in the model (currently {len(layers)}). Each layer in a Sequential model needs to be assigned "
            "to a pipeline stage."
        )
    if all(isinstance(assignment, int) and not isinstance(assignment, bool) for assignment in assignments):
        assignments = [
            SequentialLayerPipelineStageAssignment(layer, stage) for layer, stage in zip(layers, assignments)
        ]
    _check_kinds(assignments, _KINDS["sequential"], "either `int` or `SequentialLayerPipelineStageAssignment`")
    for i, (assignment, layer) in enumerate(zip(assignments, layers)):
        assigned = assignment.nested_model if assignment.is_nested_model else assignment.layer
        if assigned is not layer:
            raise ValueError(
                f"The provided assignment at index {i} `pipeline_stage_assignment` is for layer {assigned.name}, but "
                f"the layer in the Sequential model at index {i} is {layer.name}."
            )
    _check_sequence(list(flat(assignments)))
    return assignments


def _check_sequence(assignments: Sequence[Any]) -> None:
    previous = 0
    for i, assignment in enumerate(assignments):
        stage, name = assignment.pipeline_stage, assignment.layer.name
        if stage is None:
            raise ValueError(f"Layer {name} has not been assigned a pipeline stage.")
        if i == 0 and stage != 0:
            raise ValueError(
                "The first layer in a pipelined sequential model needs to be assigned to the 0th pipeline stage, "
                f"however it was assigned to {stage}."
            )
        # Layers are a chain here, so a stage can only stay or go up by one.
        if stage not in (previous, previous + 1):
            raise ValueError(
                f"Layer {name} has been assigned to pipeline stage {stage}, but the layer before it is in stage "
                f"{previous}: layers of a Sequential model are in the stage of the layer before or in the next one."
            )
        previous = stage


# -- summary -----------------------------------------------------------------------------------------------------------


def print_summary(model: Any, assignments: Sequence[Any], line_length: int | None, print_fn: Any) -> None:
    """Print a table of the stages of ``model``; ``line_length``: characters of a line."""
    say = print if print_fn is None else print_fn
    if is_sequential(model):
        headers, columns, length = ["Layer (type)", "Pipeline Stage"], [0.5, 1.0], line_length or 60
    else:
        headers = ["Layer (type) (node index)", "Input Layers", "Pipeline Stage"]
        columns, length = [0.4, 0.8, 1.0], line_length or 89
    ends = [int(length * column) for column in columns]
    say(f'Model: "{model.name}"')
    say("_" * length)
    say(_row(headers, ends))
    say("=" * length)
    for i, assignment in enumerate(assignments):
        for fields in _fields(assignment, ""):
            say(_row(fields, ends))
        say(("=" if i == len(assignments) - 1 else "_") * length)


def _row(fields: Sequence[str], ends: Sequence[int]) -> str:
    """Fields cut and filled so that each ends where its column does, with a space before the next."""
    line = ""
    for field, end in zip(fields, ends):
        line = (line[:-1] + " " if line else "") + field
        line = line[:end].ljust(end)
    return line


def _fields(assignment: Any, indent: str) -> Iterator[list[str]]:
    layer = assignment.nested_model if assignment.is_nested_model else assignment.layer
    name = f"{indent}{layer.name} ({type(layer).__name__})"
    stage = "" if assignment.is_nested_model else str(assignment.pipeline_stage)
    if hasattr(assignment, "node_index"):
        inputs = [inbound.name for inbound in assignment.inbound_layers]
        yield [f"{name} ({assignment.node_index})", inputs[0] if inputs else "", stage]
        yield from (["", inbound, ""] for inbound in inputs[1:])
    else:
        yield [name, stage]
    if assignment.is_nested_model:
        for inbound in assignment.pipeline_stage_assignments:
            yield from _fields(inbound, indent + "  ")
