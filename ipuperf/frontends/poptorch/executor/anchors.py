"""``Options.anchorTensor``: tensors of a program, by name, that the host gets besides the model's results.

Names, where upstream's documentation says them: a parameter or buffer as in the module (its value after the call),
``UpdatedVar___fc.weight`` (a parameter after the last weight update of the call, the same), ``Gradient___fc.weight``
(the gradient of a parameter, or of an activation, as each micro-batch has it: times the loss scale, before it is
accumulated and reduced over replicas), and activations. Those have the names of the traced graph (``relu``,
``linear_1``), which stand for upstream's (``fc1/Gemm:0``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from ipuperf.base.near_names import near_names
from ipuperf.ir import Stream, Tensor, TensorSpec, Variable
from ipuperf.pipelines import Data, GradientOutput, StageOutput, VariableOutput

from ..aten.lowering import TORCH_DTYPES
from ..enums import OutputMode
from ..errors import Error, UnsupportedError
from ..export.module import ExportedModel
from ..options import Options

_NUMBER = re.compile(r"__t\d+$")
GRADIENT, UPDATED = "Gradient___", "UpdatedVar___"


@dataclass(frozen=True)
class Anchor:
    """An anchored tensor of a compiled model: its stream, and which of the slices that this brings are kept."""

    stream: Stream
    mode: OutputMode
    period: int

    @property
    def dtype(self) -> torch.dtype:
        """PyTorch's type."""
        return TORCH_DTYPES[self.stream.dtype]


class Anchors:
    """What the options anchor of a model.

    Attributes:
        found: by short name.
        outputs, gradients, variables: what the pipeline has to send.

    Raises:
        Error: there is no tensor of this name; the message has candidates.
        UnsupportedError: a variable in another mode than ``Final`` where there are several micro-batches.
    """

    def __init__(self, exported: ExportedModel, options: Options, training: bool, micro_batches: int) -> None:
        self._exported = exported
        self._training = training
        self._micro_batches = micro_batches
        self.found: dict[str, Anchor] = {}
        self.outputs: list[StageOutput] = []
        self.gradients: list[GradientOutput] = []
        self.variables: list[VariableOutput] = []
        for short, (long, follows, mode, period) in options.anchored_tensors.items():
            chosen = options.resolved_output_mode(training) if follows else OutputMode(mode)
            if chosen is OutputMode.EveryN and follows:
                period = options.output_return_period
            self.found[short] = self._anchored(short, long, chosen, period)

    def _anchored(self, short: str, long: str, mode: OutputMode, period: int) -> Anchor:
        returned = {OutputMode.Final: "final", OutputMode.Sum: "sum"}.get(mode, "all")
        activations, trained = activations_of(self._exported), trained_of(self._exported)
        variable = self._variable(long)
        if variable is not None:
            if mode is not OutputMode.Final and self._micro_batches > 1:
                raise UnsupportedError(
                    f"anchorTensor({short!r}, {long!r}): {mode.name} of a variable is unsupported; allowed: Final"
                )
            stream = self._stream(variable.spec)
            self.variables.append(VariableOutput(variable, stream))
        elif long in activations:
            part, tensor = activations[long]
            outputs = self._exported.parts[part].graph.outputs
            if tensor not in outputs:
                self._exported.parts[part].graph.add_output(tensor)
            stream = self._stream(tensor.spec)
            self.outputs.append(StageOutput(part, outputs.index(tensor), stream, returned))
        elif self._training and long.removeprefix(GRADIENT) in {**activations, **trained} and long.startswith(GRADIENT):
            part, tensor = {**activations, **trained}[long.removeprefix(GRADIENT)]
            stream = self._stream(tensor.spec)
            self.gradients.append(GradientOutput(part, tensor, stream, returned))
        else:
            names = list(names_of(self._exported, self._training))
            near = near_names(long, names, 8, 0.3) or names[:8]
            raise Error(
                f"anchorTensor({short!r}, {long!r}): the program has no tensor of this name; candidates: "
                f"{', '.join(near)} (getTensorNames() has all)"
            )
        return Anchor(stream, mode, period)

    def _variable(self, long: str) -> Variable | None:
        if self._training and long.removeprefix(UPDATED) in self._exported.parameters:
            long = long.removeprefix(UPDATED)
        return self._exported.variables.get(long)

    def _stream(self, spec: TensorSpec) -> Stream:
        graph = self._exported.ir.main_graph
        stream = Stream(graph.tensor_id(f"anchored_{len(self.found)}"), spec, graph, "d2h")
        graph.add(stream)
        return stream


def activations_of(exported: ExportedModel) -> dict[str, tuple[int, Tensor]]:
    """What nodes of the traced graph give (the last tensor of a name), by name, and the number of the stage."""
    activations: dict[str, tuple[int, Tensor]] = {}
    for number, part in enumerate(exported.parts):
        for op in part.graph.ops:
            for tensor in op.outputs:
                activations[_NUMBER.sub("", tensor.name)] = (number, tensor)
    return activations


def trained_of(exported: ExportedModel) -> dict[str, tuple[int, Tensor]]:
    """Trainable parameters by name: the stage that uses them, and its input that stands for them."""
    inputs: Mapping[Variable, tuple[int, Tensor]] = {
        source.tensor: (number, tensor)
        for number, part in enumerate(exported.parts)
        for tensor, source in zip(part.graph.inputs, part.sources, strict=True)
        if isinstance(source, Data) and isinstance(source.tensor, Variable)
    }
    return {name: inputs[exported.variables[name]] for name in exported.parameters}


def names_of(exported: ExportedModel, training: bool) -> Iterator[str]:
    """All names that can be anchored."""
    yield from exported.variables
    if training:
        yield from (f"{GRADIENT}{name}" for name in exported.parameters)
        yield from (f"{UPDATED}{name}" for name in exported.parameters)
    yield from activations_of(exported)
    if training:
        floating = ((name, tensor) for name, (_, tensor) in activations_of(exported).items())
        yield from (f"{GRADIENT}{name}" for name, tensor in floating if tensor.dtype.is_floating_point)
