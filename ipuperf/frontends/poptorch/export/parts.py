"""The parts of a program under construction, one for each stage, and the values that pass between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ipuperf.ir import UINT32, Graph, Stream, Tensor, TensorSpec, Variable, prune
from ipuperf.ops import Detach, Identity
from ipuperf.pipelines import Activation, Data, HostInput, MovingAverage, Seed, Source, StageGraph

from ..aten.lowering import PLAIN_NORMS, Lowering, Norms, ir_dtype
from ..errors import PartitionError, UnsupportedError
from .bodies import Body, refuse


@dataclass(frozen=True, order=True)
class Place:
    """Where a block runs."""

    stage: int
    ipu: int


@dataclass(eq=False)
class Flow:
    """One value of the program.

    Attributes:
        origin: the variable or stream it is, or the part (or body in it) that makes it.
        tensor: the tensor of that part's graph (for variables and streams None).
        needs_grad: whether it depends on a trainable parameter.
        blocked: whether gradients stop here (``detach``, ``no_grad``).
        home: for a host input, the part that loads it (the first that uses it); others get it from there.
        name: for messages.
        constant_if_shared: a variable that may become a constant on each of several IPUs.
    """

    origin: Variable | Stream | Part | Body | np.ndarray
    tensor: Tensor | None = None
    needs_grad: bool = False
    blocked: bool = False
    home: Part | None = None
    name: str = ""
    constant_if_shared: bool = False


@dataclass(eq=False)
class Part:
    """One stage under construction."""

    index: int
    place: Place
    graph: Graph
    training: bool
    next_key: Callable[[], int]
    norms: Norms = PLAIN_NORMS
    sources: list[Source] = field(default_factory=list)
    images: dict[Any, Tensor] = field(default_factory=dict)
    detached: dict[Tensor, Tensor] = field(default_factory=dict)
    updates: dict[int, Variable] = field(default_factory=dict)
    checkpoints: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lowering = Lowering(
            self.graph,
            training=self.training,
            seed=self.seed,
            next_key=self.next_key,
            norms=self.norms,
        )

    def _input(self, key: Any, spec: TensorSpec, name: str, source: Source) -> Tensor:
        if key not in self.images:
            self.images[key] = self.graph.add_input(spec, name)
            self.sources.append(source)
        return self.images[key]

    def seed(self) -> Tensor:
        """The seed of the random ops."""
        return self._input("seed", TensorSpec((2,), UINT32), "seed", Seed())

    def get(self, flow: Flow) -> Tensor:
        """A value in this part's graph."""
        origin = flow.origin
        if isinstance(origin, np.ndarray):
            return self.lowering.constant(origin, ir_dtype(torch.from_numpy(origin).dtype, flow.name))
        if isinstance(origin, Variable):
            tensor = self._input(origin, origin.spec, origin.name.replace(".", "_"), Data(origin))
            if flow.needs_grad:
                self.lowering.parameters.add(tensor)
            return tensor
        if isinstance(origin, Stream):
            home = flow.home
            assert home is not None
            if home is self:
                return self._input(origin, origin.spec, origin.name, HostInput(origin))
            # A later stage gets the input by a copy between stages, as it gets any activation.
            return self._from(home, home.get(flow), origin, origin.name)
        if isinstance(origin, Body):
            refuse(flow, self.lowering.location)
        assert isinstance(origin, Part)
        assert flow.tensor is not None
        if origin is self:
            return flow.tensor
        return self._from(origin, flow.tensor, flow.tensor, flow.tensor.name)

    def _from(self, producer: Part, tensor: Tensor, key: Any, name: str) -> Tensor:
        if producer.place.stage >= self.place.stage:
            raise PartitionError(
                f"{self.lowering.location}: {self.lowering.target} in stage {self.place.stage} (IPU {self.place.ipu}) "
                f"uses {name!r}, which stage {producer.place.stage} (IPU {producer.place.ipu}) makes; "
                "data flows to later stages only"
            )
        return self._input(key, tensor.spec, name, Activation(producer.index, producer.output(tensor)))

    def operand(self, flow: Flow, gradients: bool) -> Tensor:
        """A value for an op of this part; detached where gradients must stop."""
        tensor = self.get(flow)
        # Without a backward pass no gradient has to stop, so inference has no such ops.
        if not (gradients and self.training and flow.blocked and flow.needs_grad):
            return tensor
        if tensor not in self.detached:
            self.detached[tensor] = self.lowering.op(Detach, [tensor])
        return self.detached[tensor]

    def output(self, tensor: Tensor) -> int:
        """The index of ``tensor`` among the graph's outputs."""
        if tensor not in self.graph.outputs:
            self.graph.add_output(tensor)
        return self.graph.outputs.index(tensor)

    def result(self, flow: Flow) -> int:
        """A value as an output made by this part (a copy of what is only passed through)."""
        tensor = self.get(flow)
        if tensor in self.graph.inputs or tensor.producer is None:
            key = ("copy", tensor)
            if key not in self.images:
                self.images[key] = self.lowering.op(Identity, [tensor])
            tensor = self.images[key]
        return self.output(tensor)

    def copied(self, flow: Flow) -> int:
        """A copy of a value as an output of its own."""
        return self.output(self.lowering.op(Identity, [self.get(flow)]))

    def description(self, stage: int) -> StageGraph:
        """The stage, as number ``stage``, for the pipeline builder."""
        # Inputs of a stage wait for the backward pass anyway, so marking them changes nothing.
        marked = [t for t in self.checkpoints if t not in self.graph.inputs]
        for tensor in marked:
            self.output(tensor)
        averages = [self._average(*tensors) for tensors in self.lowering.averages]
        # Pruning comes last: by now all that results, updates and marks need is an output.
        self.sources = prune(self.graph, self.sources)
        return StageGraph(self.graph, stage, self.place.ipu, self.sources, self.updates, marked, averages=averages)

    def _average(self, weight: Tensor, mean: Tensor, factor: Tensor) -> MovingAverage:
        """A running mean of this part's graph, by the variables that are its operands."""
        sources = dict(zip(self.graph.inputs, self.sources, strict=True))

        def variable_of(tensor: Tensor) -> Variable:
            source = sources.get(_detached(tensor))
            if isinstance(source, Data) and isinstance(source.tensor, Variable):
                return source.tensor
            raise UnsupportedError(
                f"ExpMovAvg: {tensor.id!r} is computed by the model; in training a mean and what it follows are "
                "parameters or buffers"
            )

        factor_output = self.output(self.lowering.op(Identity, [factor]))
        return MovingAverage(variable_of(mean), variable_of(weight), factor_output)


def _detached(tensor: Tensor) -> Tensor:
    """What a tensor without a gradient was detached from."""
    return tensor.producer.inputs[0] if isinstance(tensor.producer, Detach) else tensor
