"""A place in a pipeline stage where the gradient of a variable is mapped, in each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import tensorflow as tf

from ipuperf.ir import Builder, GradientBuilder, Graph, Tensor, TensorSpec
from ipuperf.ir.attributes import ANYTHING, Attribute
from ipuperf.ops import Op

from .graph import Resource, resource_of, tensor_of
from .program import TracedProgram
from .tracer import TracedFunction
from .tracing import Frame, use_frame


class _MappingFrame(Frame):
    """The place of a mapping in a gradient graph: variables are the stage's."""

    def __init__(self, program: TracedProgram, builder: GradientBuilder, images: dict[Resource, Tensor]) -> None:
        super().__init__(program, builder.graph)
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
                f"MapGradientOptimizer: the mapping reads variable {self.program.name_of(resource)!r}, which the stage "
                "of the gradient does not use"
            )
        return self._forward.forward(self._stage[resource])


class GradientTap(Op):
    """Its operand, whose gradient goes through attribute ``mappings``, traced functions of it, one after the other.

    It is a name for the operand, not a computation: no work.
    """

    type: ClassVar[str] = "GradientTap"
    renames = True

    program = Attribute(ANYTHING)
    mappings = Attribute(ANYTHING)
    images = Attribute(ANYTHING)

    def infer(self) -> list[TensorSpec]:
        """The operand's spec."""
        return [self.inputs[0].spec]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Sequence[Tensor | None]:
        """The mapped gradient."""
        frame = _MappingFrame(self.program, builder, self.images)
        with use_frame(frame):
            for mapping in self.mappings:
                grad = tensor_of(_mapped(mapping, frame, grad), frame)
        return [grad]


def _mapped(mapping: TracedFunction, frame: Frame, grad: Tensor) -> object:
    """A gradient through one function."""
    captured = [resource_of(t) if not hasattr(t, "numpy") or t.dtype.name == "resource" else t.numpy()
                for t in mapping.captured]  # fmt: skip
    return mapping.build(frame, [grad], captured)[0]


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
