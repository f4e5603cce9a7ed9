"""Routines: graphs that are built once and called wherever a stage runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from ipuperf.ir import CONTEXT, Ir, Phase, Tensor, TensorSpec
from ipuperf.ops import Call

from .scope import Scope


class Routine(Scope):
    """A graph on one IPU with named arguments (by value) and results, and captured tensors of the main graph.

    Args:
        ir: the program.
        name: name of the graph, unique in the program.
        ipu: where it runs.
        phase: what it is for, if one can say.
    """

    def __init__(self, ir: Ir, name: str, ipu: int, phase: Phase | None = None) -> None:
        super().__init__(ir.create_named_graph(name), phase=phase, ipu=ipu)
        self.arguments: dict[Hashable, Tensor] = {}
        self.results: dict[Hashable, Tensor] = {}
        self.local: dict[Hashable, Tensor] = {}  # values made here once, by what they are

    def argument(self, key: Hashable, spec: TensorSpec, name: str) -> Tensor:
        """The argument of this key, a new input on first use."""
        if key not in self.arguments:
            tensor = self.graph.add_input(spec, name)
            tensor.ipu = self.ipu
            self.arguments[key] = tensor
        return self.arguments[key]

    def give(self, key: Hashable, tensor: Tensor) -> None:
        """Make ``tensor`` of this graph the result of this key."""
        if key not in self.results:
            self.results[key] = tensor
            self.graph.add_output(tensor)

    def call(self, scope: Scope, values: Mapping[Hashable, Tensor]) -> dict[Hashable, Tensor]:
        """Call the routine from ``scope``; its results there. ``values`` holds (at least) its arguments."""
        operand = {image: values[key] for key, image in self.arguments.items()}
        operand.update({image: scope.get(tensor) for tensor, image in self.captured.items()})
        names = [t.name for t in self.results.values()]
        with scope.on(self.ipu), CONTEXT.phase(self.phase):
            call = scope.create(Call, [operand[t] for t in self.graph.inputs], names, callee=self.graph)
        return dict(zip(self.results, call.outputs, strict=True))
