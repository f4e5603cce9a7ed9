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
        ipu: the IPU on which it runs.
        phase: the phase of its ops, where all have the same.
    """

    def __init__(self, ir: Ir, name: str, ipu: int, phase: Phase | None = None) -> None:
        super().__init__(ir.create_named_graph(name), phase=phase, ipu=ipu)
        self.arguments: dict[Hashable, Tensor] = {}
        self.results: dict[Hashable, Tensor] = {}
        self.local: dict[Hashable, Tensor] = {}  # values that several ops of this graph share
        self._captured_in: dict[Scope, dict[Tensor, Tensor]] = {}  # captured tensors as those of each caller

    def argument(self, key: Hashable, spec: TensorSpec, name: str) -> Tensor:
        """The argument with this key; its first use makes a new input."""
        if key not in self.arguments:
            tensor = self.graph.add_input(spec, name)
            tensor.ipu = self.ipu
            self.arguments[key] = tensor
        return self.arguments[key]

    def give(self, key: Hashable, tensor: Tensor) -> None:
        """Make ``tensor`` of this graph the result with this key."""
        if key not in self.results:
            self.results[key] = tensor
            self.graph.add_output(tensor)

    def call(self, scope: Scope, values: Mapping[Hashable, Tensor]) -> dict[Hashable, Tensor]:
        """Call the routine from ``scope``; gives the results as tensors of ``scope``. ``values`` holds (at least) its
        arguments."""
        # A window after the other calls the routine with the same tensors around it.
        captured = self._captured_in.get(scope)
        if captured is None or len(captured) != len(self.captured):
            captured = {image: scope.get(tensor) for tensor, image in self.captured.items()}
            self._captured_in[scope] = captured
        operand = {**captured, **{image: values[key] for key, image in self.arguments.items()}}
        # Operands follow the order of the graph's inputs, which arguments and captured tensors share.
        operands = [operand[tensor] for tensor in self.graph.inputs]
        names = [tensor.name for tensor in self.results.values()]
        with scope.on(self.ipu), CONTEXT.phase(self.phase):
            call = scope.create(Call, operands, names, callee=self.graph)
        return dict(zip(self.results, call.outputs, strict=True))
