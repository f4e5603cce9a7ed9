"""The layers of a pipeline, and the same pipeline with another division of layers into stages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from ipuperf.ir import Constant, Graph, Op, Tensor, Variable, schedule
from ipuperf.pipelines import (
    Activation,
    BuildRequest,
    Data,
    HostInput,
    Seed,
    Source,
    StageGraph,
)
from ipuperf.pipelines.inlining import copy_ops


@dataclass(frozen=True)
class ModuleLayer:
    """Ops that stay together.

    Attributes:
        name: the name of the module whose parameters they read.
        ops: the ops in order.
        pinned: they stay in their stage, because other layers read the same parameters, which lie on one IPU.
    """

    name: str
    ops: Sequence[Op]
    pinned: bool = False


def obstacle(request: BuildRequest) -> str:
    """Why layers cannot move between the stages of a pipeline; "" if they can."""
    parts = request.parts
    stages = [part.stage for part in parts]
    if len(parts) == 1:
        return "there is one stage"
    if stages != sorted(set(stages)):
        return "several parts run at the same time in one stage"
    if not all(part.graph.ops for part in parts):
        return "a stage has no ops"
    return "its ops are recomputed one by one" if any(part.recomputed for part in parts) else ""


def layers_of(request: BuildRequest) -> list[ModuleLayer]:
    """The layers in order. Ops before the first parameter of a stage belong to its first layer."""
    layers: list[ModuleLayer] = []
    readers: dict[Variable, list[int]] = {}
    for part in request.parts:
        inputs = zip(part.graph.inputs, part.sources, strict=True)
        parameters = {
            tensor: source.tensor
            for tensor, source in inputs
            if isinstance(source, Data) and isinstance(source.tensor, Variable)
        }
        stage_layers = _layers(schedule(part.graph), parameters)
        for number, layer in enumerate(stage_layers, len(layers)):
            # A layer that reads a variable several times counts as one reader.
            for variable in dict.fromkeys(
                parameters[tensor] for op in layer.ops for tensor in op.inputs if tensor in parameters
            ):
                readers.setdefault(variable, []).append(number)
        layers += stage_layers
    # A parameter lies on one IPU, so all layers that read it must stay where they are.
    shared = {number for numbers in readers.values() if len(numbers) > 1 for number in numbers}
    return [replace(layer, pinned=number in shared) for number, layer in enumerate(layers)]


def _layers(ops: Sequence[Op], parameters: Mapping[Tensor, Variable]) -> list[ModuleLayer]:
    """The layers of one stage. A layer begins where the parameters of another module are read for the first time."""
    groups: list[tuple[str, list[Op]]] = []
    seen: set[str] = set()
    for op in ops:
        modules = [_module(parameters[tensor]) for tensor in op.inputs if tensor in parameters]
        new_module = next((module for module in modules if module not in seen), "")
        # A layer without a name holds ops before the first parameter; it becomes that parameter's layer.
        if new_module and groups and not groups[-1][0]:
            groups[-1] = (new_module, groups[-1][1])
        elif new_module or not groups:
            groups.append((new_module, []))
        seen.update(modules)
        groups[-1][1].append(op)
    return [ModuleLayer(name or "what has no parameters", tuple(ops)) for name, ops in groups]


def _module(tensor: Tensor) -> str:
    """The module of a parameter: the parameter's name without its last part."""
    return re.split(r"[./][^./]*$", tensor.id)[0]


# -- another division --------------------------------------------------------------------------------------------------


@dataclass
class _Part:
    """A new stage while it is being written."""

    number: int
    graph: Graph
    images: dict[Tensor, Tensor] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)


class _Divider:
    """Writes the ops of all stages into new stages."""

    def __init__(self, request: BuildRequest) -> None:
        self._request = request
        self._origin = {part.graph: part for part in request.parts}
        self._home: dict[Tensor, _Part] = {}
        self.parts: list[_Part] = []

    def owner(self, tensor: Tensor) -> Tensor | Source:
        """The origin of a tensor of an old stage: the tensor that an op makes, or a variable, stream or seed."""
        # An activation is the output of an earlier stage, so the search goes on there.
        while tensor.producer is None and not isinstance(tensor, Constant):
            part = self._origin[tensor.graph]
            source = part.sources[part.graph.inputs.index(tensor)]
            if not isinstance(source, Activation):
                return source
            tensor = self._request.parts[source.part].graph.outputs[source.output]
        return tensor

    def write(self, ops: Sequence[Op]) -> None:
        """Write one more stage with these ops."""
        old_part = self._request.parts[len(self.parts)]
        part = _Part(len(self.parts), old_part.graph.ir.create_graph(f"stage{old_part.stage}"))
        self.parts.append(part)
        made_in_stage = {tensor for op in ops for tensor in op.outputs}
        for tensor in dict.fromkeys(tensor for op in ops for tensor in op.inputs):
            if tensor not in made_in_stage and not isinstance(tensor, Constant):
                part.images[tensor] = self._input(part, self.owner(tensor), made_in_stage) or tensor
        pending = {tensor for tensor, image in part.images.items() if image is tensor}
        for op in ops:
            for tensor in op.inputs:
                if tensor in pending:  # made in this stage now, by an op that stood in an earlier one
                    part.images[tensor] = part.images[self._made(tensor)]
            copy_ops([op], part.graph, part.images, old_part.ipu)
        for tensor in made_in_stage:
            self._home.setdefault(tensor, part)

    def _made(self, tensor: Tensor) -> Tensor:
        owner = self.owner(tensor)
        assert isinstance(owner, Tensor)
        return owner

    def _input(self, part: _Part, owner: Tensor | Source, made_in_stage: set[Tensor]) -> Tensor | None:
        """The input of a stage for a value from outside; None if an op of the stage makes the value."""
        if isinstance(owner, Tensor) and owner in made_in_stage:
            return None
        key, source = self._source(part, owner)
        if key not in part.images:
            part.images[key] = part.graph.add_input(key.spec, key.name)
            part.sources.append(source)
        return part.images[key]

    def _source(self, part: _Part, owner: Tensor | Source) -> tuple[Tensor, Source]:
        """The tensor that stands for a value within a stage, and the source from which the stage gets it."""
        if isinstance(owner, Data):
            return owner.tensor, owner
        if isinstance(owner, HostInput):
            # The first stage that reads a stream loads it; later stages get the value from that stage.
            home = self._home.setdefault(owner.stream, part)
            return owner.stream, owner if home is part else self._sent(home, owner.stream)
        if isinstance(owner, Seed):
            return self._seed(part), owner
        assert isinstance(owner, Tensor)
        return owner, self._sent(self._home[owner], owner)

    def _seed(self, part: _Part) -> Tensor:
        """The seed tensor of any old stage. Each new stage has an input of its own for it."""
        for old_part in self._request.parts:
            for tensor, source in zip(old_part.graph.inputs, old_part.sources, strict=True):
                if isinstance(source, Seed):
                    return tensor
        raise AssertionError(part.number)

    def _sent(self, home: _Part, key: Tensor) -> Activation:
        """A value of another stage, as an output of that stage."""
        return Activation(home.number, self.output(home, key))

    def output(self, home: _Part, key: Tensor) -> int:
        """The index of a value among the outputs of the stage that has it."""
        image = home.images[key]
        if image not in home.graph.outputs:
            home.graph.add_output(image)
        return home.graph.outputs.index(image)

    def home(self, tensor: Tensor) -> _Part:
        """The new stage that makes a value."""
        return self._home[tensor]

    def place(self, part: int, output: int) -> tuple[int, int]:
        """The new part and output that an output of an old stage becomes."""
        owner = self.owner(self._request.parts[part].graph.outputs[output])
        key = owner.stream if isinstance(owner, HostInput) else owner
        assert isinstance(key, Tensor)
        home = self._home[key]
        return home.number, self.output(home, key)


def divided(request: BuildRequest, division: Sequence[int]) -> BuildRequest:
    """The pipeline with ``division[n]`` of its layers in stage ``n``."""
    layers = layers_of(request)
    divider = _Divider(request)
    ends = list(accumulate(division))
    for start, end in zip([0, *ends], ends, strict=False):
        divider.write([op for layer in layers[start:end] for op in layer.ops])
    outputs = []
    for output in request.outputs:
        part, index = divider.place(output.part, output.output)
        outputs.append(replace(output, part=part, output=index))
    training = request.training
    if training is not None:
        loss_part, loss_output = divider.place(training.loss_part, training.loss_output)
        training = replace(training, loss_part=loss_part, loss_output=loss_output)
    return replace(request, parts=_described(request, divider), outputs=outputs, training=training)


def _described(request: BuildRequest, divider: _Divider) -> list[StageGraph]:
    """The new stages with their updated states and checkpoints, which follow the ops that make them."""
    updates: dict[int, dict[int, Variable]] = {}
    checkpoints_of: dict[int, list[Tensor]] = {}
    for number, old_part in enumerate(request.parts):
        for output, variable in old_part.updates.items():
            part, index = divider.place(number, output)
            updates.setdefault(part, {})[index] = variable
        for tensor in old_part.checkpoints:
            owner = divider.owner(tensor)
            if isinstance(owner, Tensor):
                home = divider.home(owner)
                divider.output(home, owner)
                checkpoints_of.setdefault(home.number, []).append(home.images[owner])
    described = []
    for new_part, old_part in zip(divider.parts, request.parts, strict=True):
        states, checkpoints = updates.get(new_part.number, {}), checkpoints_of.get(new_part.number, ())
        described.append(
            StageGraph(new_part.graph, old_part.stage, old_part.ipu, new_part.sources, states, checkpoints)
        )
    return described
