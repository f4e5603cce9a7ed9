"""Gradients that a program defines itself (``tf.custom_gradient``, ``gradient_override_map``) in stages that ipuperf
differentiates.

TensorFlow puts an ``IdentityN`` behind the results, arguments and variables of a ``tf.custom_gradient``, and registers
the gradient for that op. It is traced where the op is imported; what it reads of the forward are operands.

A :class:`GradientTap` is a place where the gradient of a variable is mapped, in each micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf
from tensorflow.python.framework import ops as tf_ops

from ipuperf.ir import Builder, GradientBuilder, Graph, Tensor, TensorSpec
from ipuperf.ir.attributes import ANYTHING, INTEGER, Attribute
from ipuperf.ops import Op

from ..importer import Resource, Value, resource_of, tensor_of
from ..importer.arranged import plain
from ..importer.markers import is_marker
from ..importer.node import Node
from ..importer.tracer import TracedFunction, trace
from ..importer.tracing import Frame, use_frame
from ..programs.program import TracedProgram


class _GradientFrame(Frame):
    """The place of such a gradient in a gradient graph: variables are what the forward read."""

    def __init__(self, program: object, builder: GradientBuilder, read: dict[Resource, Tensor]) -> None:
        super().__init__(program, builder.graph)  # type: ignore[arg-type]  # an attribute holds anything
        self._read = read

    def shard(self, op: tf.Operation, changed: Sequence[Resource]) -> int | None:
        """None: the pipeline places its graphs."""
        return None

    def read(self, resource: Resource) -> Tensor:
        """A variable as the forward read it."""
        return self._read[resource]


class CustomGradient(Op):
    """Its first operand, whose gradient a function of the program divides among the others.

    Attributes:
        traced: the function of the result's gradient; of what it returns the first entry is None, as the result itself
            has no gradient, the others belong to the operands of TensorFlow's op.
        operands: by their number, the input that each of these operands is.
        captured: what the function takes of the forward: numbers of inputs, arrays, and resources.
        read: by resource, the input that a variable has been read as.

    It is a name for the operand, not a computation: no work.
    """

    type: ClassVar[str] = "CustomGradient"
    renames = True

    program = Attribute(ANYTHING)
    traced = Attribute(ANYTHING)
    operands = Attribute(ANYTHING)
    captured = Attribute(ANYTHING)
    read = Attribute(ANYTHING)

    def infer(self) -> list[TensorSpec]:
        """The first operand's spec."""
        return [self.inputs[0].spec]

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Sequence[Tensor | None]:
        """What the function makes of ``grad``."""
        reads = {resource: builder.forward(self.inputs[i]) for resource, i in self.read.items()}
        frame = _GradientFrame(self.program, builder, reads)
        values = [builder.forward(self.inputs[c]) if isinstance(c, int) else c for c in self.captured]
        with use_frame(frame):
            results = iter(self.traced.build(frame, [grad], values))
            operand_grads = [None if t is None else tensor_of(next(results), frame) for t in self.traced.structure]
        grads: list[Tensor | None] = [None] * len(self.inputs)
        for number, index in self.operands.items():
            grads[index] = operand_grads[number]
        return grads


def with_custom_gradient(frame: Frame, node: Node, operands: Sequence[Value], results: Sequence[Value]) -> list[Value]:
    """The results of an op with a gradient of its own; those of markers have the gradients of the ops that they become.

    Raises:
        GraphError: there are several results, or the gradient reads a variable that the program does not use.
    """
    # The gradient's function expects the axes of TensorFlow's tensor, whatever a convolution made of them.
    op, result = node.op, plain(results[0])
    if not isinstance(result, Tensor) or is_marker(op.inputs[0].op):
        return list(results)
    traced = _traced(node)
    inputs = [result]

    def place(tensor: Tensor) -> int:
        inputs.append(tensor)
        return len(inputs) - 1

    skipped = int(op.type == "IdentityN")  # whose first operand is the result
    placed = {i: place(v) for i, v in enumerate(operands) if i >= skipped and isinstance(v, Tensor)}
    operands_read = [plain(_taken(node, t)) for t in traced.captured]
    read = {v: place(_read(frame, node, v)) for v in operands_read if isinstance(v, Resource)}
    captured = [place(v) if isinstance(v, Tensor) else v for v in operands_read]
    op_made = frame.create(
        CustomGradient,
        inputs,
        [result.name],
        program=frame.program,
        traced=traced,
        operands=placed,
        captured=captured,
        read=read,
    )
    return [op_made.outputs[0], *results[1:]]


def _traced(node: Node) -> TracedFunction:
    """The op's gradient, a function of that of its first result."""
    op = node.op
    function = tf_ops.get_gradient_function(op)

    def gradients(grad: tf.Tensor) -> list[Any]:
        grads = function(op, grad, *(tf.zeros(t.shape, t.dtype) for t in op.outputs[1:]))
        return list(grads) if isinstance(grads, (list, tuple)) else [grads]

    with op.graph.as_default():
        traced = trace("custom_gradient", gradients, [op.outputs[0]], automatic=False)
    if op.type == "IdentityN":
        single = len(traced.structure) > 1 and traced.structure[0] is None and traced.structure[1] is not None
    else:
        single = len(op.outputs) == 1
    if not single and any(t is not None for t in traced.structure):
        raise node.error("in a pipeline stage what has a custom gradient has one result, and its first argument a "
                         "gradient")  # fmt: skip
    return traced


def _taken(node: Node, tensor: tf.Tensor) -> Value:
    """What the gradient's function takes from outside of its graph."""
    if not hasattr(tensor, "numpy"):
        return node.importer.value(tensor)
    return resource_of(tensor) if tensor.dtype == tf.resource else tensor.numpy()


def _read(frame: Frame, node: Node, resource: Resource) -> Tensor:
    """A variable that the gradient reads, as the stage has it."""
    if resource not in {resource_of(handle) for handle in frame.program.handles}:
        raise node.error("its custom gradient reads a variable that the program itself does not use")
    return frame.read(resource)


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
        grads = [grad] * len(traced.arguments)
        with use_frame(frame):
            mapped = traced.build(frame, grads, captured, [traced.tensors[number]], self.mapping.effects[number])
            return [tensor_of(mapped[0], frame)]


def tap(graph: Graph, tensor: Tensor, **attributes: object) -> None:
    """Let all ops of ``graph`` that read its input ``tensor`` read it through a :class:`GradientTap`."""
    readers = [op for op in graph.ops if tensor in op.inputs]
    tapped = Builder(graph).create(GradientTap, [tensor], [f"{tensor.name}_tapped"], **attributes)
    graph.ops.insert(0, graph.ops.pop())
    for op in readers:
        op.inputs = [tapped.outputs[0] if t is tensor else t for t in op.inputs]
    tapped.outputs[0].consumers += [op for op in tensor.consumers if op is not tapped]
    tensor.consumers = [tapped]
