"""The stages of a pipeline: traced into graphs of TensorFlow, then imported into the stage graphs of
:mod:`ipuperf.pipelines`.

What a stage passes on unchanged is connected to where it comes from, so no stage keeps what it only hands through; it
is still copied from IPU to IPU in every step, as upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ipuperf.ir import UINT32, Constant, Tensor, TensorSpec, Variable
from ipuperf.ops import DetachInplace
from ipuperf.pipelines import Activation, Data, HostInput, Seed, Source, StageGraph

from ..importer import GraphError, Resource, Value, tensor_of
from ..importer.node import Node
from ..importer.tracer import TracedFunction
from ..importer.tracing import Frame, use_frame
from ..programs.elements import Infeed
from ..programs.infeed import IPUInfeedQueue
from ..programs.program import TracedProgram
from .custom_gradients import with_custom_gradient
from .model import StageOptions


@dataclass(frozen=True)
class StageLink:
    """A value between stages: a tensor of the graph of part number ``part``."""

    part: int
    tensor: Tensor


class StageFrame(Frame):
    """A stage's graph: variables come in as data, everything else only as an argument; nothing changes in place.

    Attributes:
        sources: where each graph input comes from.
        checkpoints: tensors given to ``recomputation_checkpoint``.
        assigned: the values that the stage gives to variables.
        read_back: the same where the stage reads the variables again: no gradient flows through an assignment.
    """

    differentiated = True

    def __init__(self, program: TracedProgram, number: int, executions: int) -> None:
        super().__init__(program, program.ir.create_graph(f"stage_{number}"), None, executions)
        self.sources: dict[Tensor, Source | StageLink] = {}
        self.checkpoints: list[Tensor] = []
        self.assigned: dict[Resource, Tensor] = {}
        self.read_back: dict[Resource, Tensor] = {}

    def add_argument(self, spec: TensorSpec, name: str, source: Source | StageLink) -> Tensor:
        """A new graph input."""
        tensor = self.graph.add_input(spec, name)
        self.sources[tensor] = source
        return tensor

    def capture(self, tensor: Tensor) -> Tensor:
        """Variables and constants only.

        Raises:
            ValueError: another tensor.
        """
        if isinstance(tensor, Constant):
            return super().capture(tensor)
        # Arguments of the program are variables as well, but a stage gets them through the pipeline's inputs.
        if not isinstance(tensor, Variable) or tensor in self.program.arguments:
            raise ValueError(not_a_resource(tensor.id))
        return self.add_argument(tensor.spec, tensor.name.replace("/", "_"), Data(tensor))

    def shard(self, op: tf.Operation, changed: Sequence[Resource]) -> int | None:
        """None: the pipeline places its graphs."""
        return None

    def read(self, resource: Resource) -> Tensor:
        """The variable, or the value that the stage has given to it."""
        if resource not in self.assigned:
            return super().read(resource)
        if resource not in self.read_back:
            value = self.assigned[resource]
            # Integers have no gradient to stop, so they need no op.
            differs = value.dtype.is_floating_point
            self.read_back[resource] = (
                self.create(DetachInplace, [value], [value.name]).outputs[0] if differs else value
            )
        return self.read_back[resource]

    def assign(self, resource: Resource, value: Tensor) -> None:
        """The variable's value after the stage."""
        self.program.variable(resource)
        self.program.changes(resource)
        self.assigned[resource] = value
        # What was read back belongs to the value before, so the next read makes it anew.
        self.read_back.pop(resource, None)

    def in_place(self, resource: Resource) -> Tensor | None:
        """Nothing changes in place."""
        return None

    def custom_gradient(self, node: Node, operands: Sequence[Value], results: Sequence[Value]) -> list[Value]:
        """The results of an op with a gradient of the program's own, which they have."""
        return with_custom_gradient(self, node, operands, results)

    def seed(self) -> Tensor:
        """The stage's random seed."""
        if self._seed is None:
            self._seed = self.add_argument(TensorSpec((2,), UINT32), "seed", Seed())
        return self._seed


def not_a_resource(name: str) -> str:
    """The message for a tensor from outside that a stage uses."""
    return (
        f"Trying to capture the tensor {name} which is not a resource. This tensor needs to be passed as "
        "either part of the `input` or `infeed_queue` of the pipeline."
    )


@dataclass
class TracedStage:
    """One function of a stage in a graph of TensorFlow.

    Attributes:
        stage, device: its place.
        needed: tensors of its graph that are needed besides its results.
    """

    traced: TracedFunction
    stage: int
    device: int
    needed: list[tf.Tensor] = field(default_factory=list)


@dataclass
class StagePart:
    """An imported stage function.

    Attributes:
        values: by the identity of TensorFlow's tensors.
        results: what it returned.
    """

    frame: StageFrame
    stage: int
    device: int
    values: dict[int, Tensor]
    results: list[Tensor]


class StageImporter:
    """Imports the stages of one pipeline in order.

    Args:
        program: the program.
        executions: micro-batches in a run.
        outside: values of what the stages capture, by the identity of TensorFlow's tensors.
    """

    def __init__(self, program: TracedProgram, executions: int, outside: dict[int, Value]) -> None:
        self.program = program
        self.executions = executions
        self.parts: list[StagePart] = []
        self._outside = outside

    def first(
        self,
        stages: Sequence[TracedStage],
        inputs: Sequence[Value],
        infeed_queue: IPUInfeedQueue | None,
        owner: object,
        options: StageOptions,
    ) -> list[StagePart]:
        """Stage 0: arguments are ``inputs`` and an element of the queue; concurrent functions all get them."""
        parts: list[StagePart] = []
        feed: Infeed | None = None
        for stage in stages:
            frame = StageFrame(self.program, stage.stage, self.executions)
            arguments = [self._fixed(frame, value, i) for i, value in enumerate(inputs)]
            if infeed_queue is not None:
                if feed is None:
                    feed = infeed_queue.streams(frame, owner)
                    streams = feed.streams
                else:
                    # Concurrent functions read the same element, each through streams of its own.
                    streams = [
                        self.program.stream(s.name, s.shape, s.dtype, "h2d", self.executions) for s in feed.streams
                    ]
                    feed.copies.append(streams)
                arguments += [frame.add_argument(s.spec, s.name, HostInput(s)) for s in streams]
            parts.append(self._import(stage, frame, arguments, options))
        return parts

    def following(
        self, stages: Sequence[TracedStage], links: Sequence[StageLink], options: StageOptions
    ) -> list[StagePart]:
        """A later stage: arguments are the results of the stage before."""
        parts = []
        for stage in stages:
            frame = StageFrame(self.program, stage.stage, self.executions)
            arguments = [self._received(frame, link, i) for i, link in enumerate(links)]
            parts.append(self._import(stage, frame, arguments, options))
        return parts

    def _fixed(self, frame: StageFrame, value: Value, index: int) -> Value:
        """An argument of the pipeline: a constant or an argument of the program."""
        if not isinstance(value, Tensor) or isinstance(value, Constant):
            return value
        if not isinstance(value, Variable):
            raise NotImplementedError(
                f"pipeline: input {index} ({value.id}) is computed before the pipeline; inputs can be host data, "
                "arguments of the compiled function, or variables"
            )
        return frame.add_argument(value.spec, value.name.replace("/", "_"), Data(value))

    def _received(self, frame: StageFrame, link: StageLink, index: int) -> Tensor:
        tensor = link.tensor
        # A constant costs a later stage no copy between IPUs: it gets one of its own.
        if isinstance(tensor, Constant):
            return frame.graph.constant(tensor, tensor.dtype, tensor.name)
        return frame.add_argument(tensor.spec, f"input_{index}", link)

    def _import(
        self, stage: TracedStage, frame: StageFrame, arguments: Sequence[Value], options: StageOptions
    ) -> StagePart:
        program, traced = self.program, stage.traced
        program.know(traced.variables)
        # PopLibs options are of the stage, while the program holds those of the graph around it.
        options_before = program.matmul_options, program.convolution_options
        program.matmul_options, program.convolution_options = options
        tensors_needed = [*traced.tensors, *stage.needed]
        try:
            with use_frame(frame):
                captured = [self._outside[id(t)] for t in traced.captured]
                values_built = traced.build(frame, list(arguments), captured, tensors_needed)
                tensors = [tensor_of(value, frame) for value in values_built]
        except ValueError as error:
            raise GraphError(f"stage {stage.stage}: {error}") from error
        # Options go back also after an error, as the program lives on.
        finally:
            program.matmul_options, program.convolution_options = options_before
        values = {id(t): tensor for t, tensor in zip(tensors_needed, tensors)}
        self.parts.append(StagePart(frame, stage.stage, stage.device, values, tensors[: len(traced.tensors)]))
        return self.parts[-1]

    # -- descriptions ------------------------------------------------------------------------------------------------

    def links(self, parts: Sequence[StagePart]) -> list[StageLink]:
        """Results of a stage, those of concurrent functions one after the other."""
        return [StageLink(self.parts.index(part), tensor) for part in parts for tensor in part.results]

    def part_of(self, tensor: tf.Tensor) -> tuple[int, Tensor] | None:
        """Number of the part that has a tensor of TensorFlow's among its values, and the value."""
        for number, part in enumerate(self.parts):
            if id(tensor) in part.values:
                return number, part.values[id(tensor)]
        return None

    def origin(self, link: StageLink) -> StageLink:
        """Where a value that stages only pass on comes from."""
        source = self.parts[link.part].frame.sources.get(link.tensor)
        # A stage may hand on what an earlier one handed on, so this goes back to the maker.
        return self.origin(source) if isinstance(source, StageLink) else link

    def output(self, link: StageLink) -> Activation:
        """The value as an output of its stage graph."""
        graph = self.parts[link.part].frame.graph
        if link.tensor not in graph.outputs:
            graph.add_output(link.tensor)
        return Activation(link.part, graph.outputs.index(link.tensor))

    def connect(self) -> dict[Tensor, Source]:
        """Sources of all graph inputs, with links as activations; last stage first: only what is used counts."""
        resolved: dict[Tensor, Source] = {}
        for number, part in reversed(list(enumerate(self.parts))):
            graph = part.frame.graph
            # Assignments are outputs too: the pipeline stores them in the variables after the stage.
            for value in part.frame.assigned.values():
                self.output(StageLink(number, value))
            used = {t for op in graph.ops for t in op.inputs} | set(graph.outputs)
            for tensor in list(graph.inputs):
                source = part.frame.sources[tensor]
                if tensor not in used:
                    graph.inputs.remove(tensor)
                    del graph.tensors[tensor.id]
                elif isinstance(source, StageLink):
                    resolved[tensor] = self.output(self.origin(source))
                else:
                    resolved[tensor] = source
        return resolved

    def stage_graphs(self, resolved: dict[Tensor, Source], order: Sequence[int], checkpoints: bool) -> list[StageGraph]:
        """The parts for the builder, on physical IPUs."""
        return [
            StageGraph(
                part.frame.graph,
                part.stage,
                order[part.device],
                [resolved[t] for t in part.frame.graph.inputs],
                updates={
                    part.frame.graph.outputs.index(value): self.program.variable(resource)
                    for resource, value in part.frame.assigned.items()
                },
                checkpoints=tuple(part.frame.checkpoints) if checkpoints else (),
            )
            for part in self.parts
        ]
