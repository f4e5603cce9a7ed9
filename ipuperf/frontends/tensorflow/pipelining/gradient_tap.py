"""A place in a pipeline stage where the gradient of a variable is mapped, in each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import tensorflow as tf

from ipuperf.ir import Builder, GradientBuilder, Graph, Tensor, TensorSpec
from ipuperf.ir.attributes import ANYTHING, INTEGER, Attribute
from ipuperf.ops import Op

from ..importer import Resource, resource_of, tensor_of
from ..importer.tracing import Frame, use_frame
from ..programs.program import TracedProgram


class _MappingFrame(Frame):
    """The place of a mapping in a gradient graph: variables are the stage's."""

    def __init__(
        self, program: TracedProgram, builder: GradientBuilder, images: dict[Resource, Tensor], executions: int
    ) -> None:
        super().__init__(program, builder.graph, executions=executions)
        self._forward = builder
        self._stage = images

    def shard(self, op: tf.Operation, changed: Sequence[Resource]) -> int | None:
        """None: the pipeline places its graphs."""
        return None

    def read(self, resource: Resource) -> Tensor:
        """A variable as the stage's forward has it.

        Raises:
            ValueError: the stage does not use it.
        """
        if resource not in self._stage:
            raise ValueError(
                f"pipeline: compute_gradients of the optimizer reads variable {self.program.name_of(resource)!r}, "
                "which the stage of the gradient does not use"
            )
        return self._forward.forward(self._stage[resource])


class GradientTap(Op):
    """Its operand, whose gradient goes through number ``number`` of a :class:`GradientMapping`.

    It is a name for the operand, not a computation: no work.
    """

    type: ClassVar[str] = "GradientTap"
    renames = True

    program = Attribute(ANYTHING)
    mapping = Attribute(ANYTHING)
    number = Attribute(INTEGER)
    images = Attribute(ANYTHING)
    executions = Attribute(INTEGER)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        return [self.inputs[0].spec]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Sequence[Tensor | None]:
        """The mapped gradient; other arguments are not used by what is built."""
        traced, number = self.mapping.traced, self.number
        frame = _MappingFrame(self.program, builder, self.images, self.executions)
        captured = [resource_of(t) if t.dtype == tf.resource else t.numpy() for t in traced.captured]
        given = [grad] * len(traced.arguments)
        with use_frame(frame):
            made = traced.build(frame, given, captured, [traced.tensors[number]], self.mapping.effects[number])
            return [tensor_of(made[0], frame)]


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
