"""The layers of a pipeline, and the same pipeline with them divided into stages otherwise."""

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
        name: of the module whose parameters they read.
        ops: in order.
        pinned: they stay in their stage, because others read their parameters too, which lie on one IPU.
    """

    name: str
    ops: Sequence[Op]
    pinned: bool = False


def obstacle(request: BuildRequest) -> str:
    """Why layers cannot move between the stages of a pipeline; "" where they can."""
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
    """The layers in order; ops before the first parameter of a stage belong to its first."""
    found: list[ModuleLayer] = []
    readers: dict[Variable, list[int]] = {}
    for part in request.parts:
        given = zip(part.graph.inputs, part.sources, strict=True)
        parameters = {t: s.tensor for t, s in given if isinstance(s, Data) and isinstance(s.tensor, Variable)}
        layers = _layers(schedule(part.graph), parameters)
        for number, layer in enumerate(layers, len(found)):
            for variable in dict.fromkeys(parameters[t] for op in layer.ops for t in op.inputs if t in parameters):
                readers.setdefault(variable, []).append(number)
        found += layers
    shared = {number for numbers in readers.values() if len(numbers) > 1 for number in numbers}
    return [replace(layer, pinned=number in shared) for number, layer in enumerate(found)]


def _layers(ops: Sequence[Op], parameters: Mapping[Tensor, Variable]) -> list[ModuleLayer]:
    """The layers of one stage: a new one begins where parameters of another module are read for the first time."""
    found: list[tuple[str, list[Op]]] = []
    seen: set[str] = set()
    for op in ops:
        modules = [_module(parameters[t]) for t in op.inputs if t in parameters]
        new = next((module for module in modules if module not in seen), "")
        if new and found and not found[-1][0]:
            found[-1] = (new, found[-1][1])
        elif new or not found:
            found.append((new, []))
        seen.update(modules)
        found[-1][1].append(op)
    return [ModuleLayer(name or "what has no parameters", tuple(ops)) for name, ops in found]


def _module(tensor: Tensor) -> str:
    """The module of a parameter: its name without the last part."""
    return re.split(r"[./][^./]*$", tensor.id)[0]


# -- another division --------------------------------------------------------------------------------------------------


@dataclass
class _Part:
    """A stage being written again."""

    number: int
    graph: Graph
    images: dict[Tensor, Tensor] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)


class _Divider:
    """Writes the ops of all stages into other ones."""

    def __init__(self, request: BuildRequest) -> None:
        self._request = request
        self._origin = {part.graph: part for part in request.parts}
        self._home: dict[Tensor, _Part] = {}
        self.parts: list[_Part] = []

    def owner(self, tensor: Tensor) -> Tensor | Source:
        """Where a tensor of an old stage comes from: itself when an op makes it, else a variable, stream or seed."""
        while tensor.producer is None and not isinstance(tensor, Constant):
            part = self._origin[tensor.graph]
            source = part.sources[part.graph.inputs.index(tensor)]
            if not isinstance(source, Activation):
                return source
            tensor = self._request.parts[source.part].graph.outputs[source.output]
        return tensor

    def write(self, ops: Sequence[Op]) -> None:
        """One more stage with these ops."""
        old = self._request.parts[len(self.parts)]
        part = _Part(len(self.parts), old.graph.ir.create_graph(f"stage{old.stage}"))
        self.parts.append(part)
        own = {t for op in ops for t in op.outputs}
        for tensor in dict.fromkeys(t for op in ops for t in op.inputs):
            if tensor not in own and not isinstance(tensor, Constant):
                part.images[tensor] = self._input(part, self.owner(tensor), own) or tensor
        pending = {t for t, image in part.images.items() if image is t}
        for op in ops:
            for tensor in op.inputs:
                if tensor in pending:  # made in this stage now, by an op that stood in an earlier one
                    part.images[tensor] = part.images[self._made(tensor)]
            copy_ops([op], part.graph, part.images, old.ipu)
        for tensor in own:
            self._home.setdefault(tensor, part)

    def _made(self, tensor: Tensor) -> Tensor:
        found = self.owner(tensor)
        assert isinstance(found, Tensor)
        return found

    def _input(self, part: _Part, owner: Tensor | Source, own: set[Tensor]) -> Tensor | None:
        """A value from outside of a stage as its input; None when an op of the stage makes it."""
        if isinstance(owner, Tensor) and owner in own:
            return None
        key, source = self._source(part, owner)
        if key not in part.images:
            part.images[key] = part.graph.add_input(key.spec, key.name)
            part.sources.append(source)
        return part.images[key]

    def _source(self, part: _Part, owner: Tensor | Source) -> tuple[Tensor, Source]:
        """What stands for a value within a stage, and where the stage gets it."""
        if isinstance(owner, Data):
            return owner.tensor, owner
        if isinstance(owner, HostInput):
            home = self._home.setdefault(owner.stream, part)
            return owner.stream, owner if home is part else self._sent(home, owner.stream)
        if isinstance(owner, Seed):
            return self._seed(part), owner
        assert isinstance(owner, Tensor)
        return owner, self._sent(self._home[owner], owner)

    def _seed(self, part: _Part) -> Tensor:
        """The seed of any old stage: each new one has its own."""
        for old in self._request.parts:
            for tensor, source in zip(old.graph.inputs, old.sources, strict=True):
                if isinstance(source, Seed):
                    return tensor
        raise AssertionError(part.number)

    def _sent(self, home: _Part, key: Tensor) -> Activation:
        """A value that another stage has, as an output of it."""
        return Activation(home.number, self.output(home, key))

    def output(self, home: _Part, key: Tensor) -> int:
        """The index of a value among the outputs of the stage that has it."""
        image = home.images[key]
        if image not in home.graph.outputs:
            home.graph.add_output(image)
        return home.graph.outputs.index(image)

    def home(self, made: Tensor) -> _Part:
        """The stage that makes a value now."""
        return self._home[made]

    def place(self, part: int, output: int) -> tuple[int, int]:
        """Part and output that an output of an old stage is now."""
        found = self.owner(self._request.parts[part].graph.outputs[output])
        key = found.stream if isinstance(found, HostInput) else found
        assert isinstance(key, Tensor)
        home = self._home[key]
        return home.number, self.output(home, key)


def divided(request: BuildRequest, division: Sequence[int]) -> BuildRequest:
    """The pipeline with so many of its layers in each stage."""
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
    """The stages with their states and checkpoints, which go where the ops have gone."""
    updates: dict[int, dict[int, Variable]] = {}
    kept: dict[int, list[Tensor]] = {}
    for number, old in enumerate(request.parts):
        for output, variable in old.updates.items():
            part, index = divider.place(number, output)
            updates.setdefault(part, {})[index] = variable
        for tensor in old.checkpoints:
            owner = divider.owner(tensor)
            if isinstance(owner, Tensor):
                home = divider.home(owner)
                divider.output(home, owner)
                kept.setdefault(home.number, []).append(home.images[owner])
    described = []
    for new, old in zip(divider.parts, request.parts, strict=True):
        states, checkpoints = updates.get(new.number, {}), kept.get(new.number, ())
        described.append(StageGraph(new.graph, old.stage, old.ipu, new.sources, states, checkpoints))
    return described
