"""Tracing the stages of a pipeline into the stage graphs that :mod:`ipuperf.pipelines` takes.

What a stage passes on unchanged is connected to where it comes from, so no stage keeps what it only hands through; it
is still copied from IPU to IPU in every step, as upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipuperf.ir import UINT32, Constant, Tensor, TensorSpec, Variable
from ipuperf.pipelines import Activation, Data, HostInput, Seed, Source, StageGraph

from .array import Array, convert
from .infeed import IPUInfeedQueue, as_arguments
from .pipeline_model import StageOptions
from .program import Infeed
from .tracing import Frame, Operation, leaves, map_structure, use_frame

if TYPE_CHECKING:
    from .program import TracedProgram


@dataclass(frozen=True)
class StageLink:
    """A value between stages: a tensor of the graph of part number ``part``."""

    part: int
    tensor: Tensor


class StageFrame(Frame):
    """A stage's graph: variables come in as data, everything else only as an argument.

    Attributes:
        sources: where each graph input comes from.
        checkpoints: tensors given to ``recomputation_checkpoint``.
    """

    def __init__(self, program: TracedProgram, number: int, executions: int) -> None:
        super().__init__(program, program.ir.create_graph(f"stage_{number}"), None, executions)
        self.sources: dict[Tensor, Source | StageLink] = {}
        self.checkpoints: list[Tensor] = []

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
        if not isinstance(tensor, Variable) or tensor in self.program.arguments:
            raise ValueError(
                f"Trying to capture the tensor {tensor.id} which is not a resource. This tensor needs to be passed as "
                "either part of the `input` or `infeed_queue` of the pipeline."
            )
        return self.add_argument(tensor.spec, tensor.name.replace("/", "_"), Data(tensor))

    def seed(self) -> Tensor:
        """The stage's random seed."""
        if self._seed is None:
            self._seed = self.add_argument(TensorSpec((2,), UINT32), "seed", Seed())
        return self._seed


@dataclass
class StagePart:
    """A traced stage function.

    Attributes:
        stage, device: its place.
        outputs: the arrays that it returned, in their structure.
    """

    frame: StageFrame
    stage: int
    device: int
    outputs: Any = None


class StageTracer:
    """Traces the stages of one pipeline in order.

    Args:
        program: the program.
        executions: micro-batches in a run.
    """

    def __init__(self, program: TracedProgram, executions: int) -> None:
        self.program = program
        self.executions = executions
        self.parts: list[StagePart] = []

    def first(
        self,
        functions: Sequence[Callable[..., Any]],
        devices: Sequence[int],
        inputs: Sequence[Array],
        infeed_queue: IPUInfeedQueue | None,
        options: StageOptions,
    ) -> list[StagePart]:
        """Stage 0: arguments are ``inputs`` and an element of the queue; concurrent functions all get them."""
        made = []
        feed: Infeed | None = None
        for function, device in zip(functions, devices):
            part = self._open(0, device)
            arguments = [self._fixed(part, array, i) for i, array in enumerate(inputs)]
            positional, named = list[Any](), dict[str, Any]()
            if infeed_queue is not None:
                if feed is None:
                    feed = infeed_queue.streams(part.frame)
                    streams = feed.streams
                else:
                    streams = [
                        self.program.stream(s.name, s.shape, s.dtype, "h2d", self.executions) for s in feed.streams
                    ]
                    feed.copies.append(streams)
                loaded = [Array(part.frame.add_argument(s.spec, s.name, HostInput(s))) for s in streams]
                positional, named = as_arguments(infeed_queue.pack(loaded))
            self._trace(part, function, [*arguments, *positional], named, options)
            made.append(part)
        return made

    def following(
        self,
        stage: int,
        functions: Sequence[Callable[..., Any]],
        devices: Sequence[int],
        links: Sequence[StageLink],
        options: StageOptions,
    ) -> list[StagePart]:
        """A later stage: arguments are the results of the stage before."""
        made = []
        for function, device in zip(functions, devices):
            part = self._open(stage, device)
            arguments = [self._received(part, link, i) for i, link in enumerate(links)]
            self._trace(part, function, arguments, {}, options)
            made.append(part)
        return made

    def _open(self, stage: int, device: int) -> StagePart:
        part = StagePart(StageFrame(self.program, stage, self.executions), stage, device)
        self.parts.append(part)
        return part

    def _fixed(self, part: StagePart, array: Array, index: int) -> Array:
        """An argument of the pipeline: a constant or an argument of the program."""
        tensor = array.tensor
        if isinstance(tensor, Constant):
            return Array(part.frame.graph.constant(tensor.data, tensor.dtype, tensor.name))
        if not isinstance(tensor, Variable):
            raise NotImplementedError(
                f"pipeline: input {index} ({tensor.id}) is computed before the pipeline; inputs can be host data, "
                "arguments of the compiled function, or variables"
            )
        return Array(part.frame.add_argument(tensor.spec, tensor.name.replace("/", "_"), Data(tensor)))

    def _received(self, part: StagePart, link: StageLink, index: int) -> Array:
        tensor = link.tensor
        if isinstance(tensor, Constant):
            return Array(part.frame.graph.constant(tensor.data, tensor.dtype, tensor.name))
        return Array(part.frame.add_argument(tensor.spec, f"input_{index}", link))

    def _trace(
        self,
        part: StagePart,
        function: Callable[..., Any],
        positional: Sequence[Any],
        named: dict[str, Any],
        options: StageOptions,
    ) -> None:
        program = self.program
        kept = program.matmul_options, program.convolution_options
        program.matmul_options, program.convolution_options = options
        try:
            with use_frame(part.frame):
                part.outputs = _arrays(part.frame, function(*positional, **named))
        finally:
            program.matmul_options, program.convolution_options = kept

    # -- descriptions ------------------------------------------------------------------------------------------------

    def links(self, parts: Sequence[StagePart]) -> list[StageLink]:
        """Results of a stage, those of concurrent functions one after the other.

        Raises:
            TypeError: a dictionary, which the next stage could not take as arguments.
        """
        found = []
        for part in parts:
            if isinstance(part.outputs, dict):
                raise TypeError(f"stage {part.stage} returns a dictionary; only the last stage of an inference may")
            number = self.parts.index(part)
            found += [StageLink(number, array.tensor) for array in leaves(part.outputs)]
        return found

    def origin(self, link: StageLink) -> StageLink:
        """Where a value that stages only pass on comes from."""
        source = self.parts[link.part].frame.sources.get(link.tensor)
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
        for part in reversed(self.parts):
            graph = part.frame.graph
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
                checkpoints=tuple(part.frame.checkpoints) if checkpoints else (),
            )
            for part in self.parts
        ]


def _arrays(frame: StageFrame, outputs: Any) -> Any:
    """What a stage returned, as arrays of its graph: one, a list, or a dictionary; operations are left out."""
    if outputs is None or isinstance(outputs, Operation):
        return []
    if isinstance(outputs, (list, tuple)):
        outputs = [o for o in outputs if o is not None and not isinstance(o, Operation)]
    return map_structure(lambda value: Array(frame.get(convert(value).tensor)), outputs)
