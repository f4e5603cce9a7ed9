"""A place in a pipeline stage where the gradient of a variable is mapped, in each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ipuperf.ir import Builder, GradientBuilder, Graph, Tensor, TensorSpec
from ipuperf.ops import Environment, Op
from ipuperf.ops.work import Work

from .array import Array
from .tracing import Frame, use_frame


class GradientTap(Op):
    """Its operand, whose gradient goes through attribute ``mapping`` (``gradient, variable -> gradient``).

    It is a name for the operand, not a computation: no work.
    """

    type: ClassVar[str] = "GradientTap"

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        return [self.inputs[0].spec]

    def aliases(self) -> dict[int, int]:
        """The operand."""
        return {0: 0}

    def view(self, inputs: Sequence[np.ndarray], env: Environment) -> list[np.ndarray] | None:
        """The operand."""
        return [inputs[0]]

    def work(self) -> Sequence[Work]:
        """Nothing."""
        return []

    def gradient(self, builder: GradientBuilder, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The mapped gradient."""
        grad = grads[0]
        if grad is None:
            return [None]
        frame = Frame(self.attributes["program"], builder.graph)
        with use_frame(frame):
            mapped = self.attributes["mapping"](Array(grad), self.attributes["variable"])
        return [frame.get(mapped.tensor)]


def tap(graph: Graph, tensor: Tensor, **attributes: object) -> None:
    """Let all ops of ``graph`` that read its input ``tensor`` read it through a :class:`GradientTap`."""
    readers = [op for op in graph.ops if tensor in op.inputs]
    made = Builder(graph).create(GradientTap, [tensor], [f"{tensor.name}_tapped"], **attributes)
    graph.ops.insert(0, graph.ops.pop())
    for op in readers:
        op.inputs = [made.outputs[0] if t is tensor else t for t in op.inputs]
    count = tensor.consumers.count
    made.outputs[0].consumers += [op for op in tensor.consumers if op is not made]
    tensor.consumers = [made] if count(made) else []
