"""Reductions over the replicas of a program, as markers in TensorFlow's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf import ops as _k
from ipuperf.functions import make
from ipuperf.ir import CONTEXT

from .graph import Importer, Resource, Value, marker, tensor_of
from .graph.markers import is_marker, meaning_of

if TYPE_CHECKING:
    from .tracing import Frame


class AllReduce:
    """The sum or the mean of a tensor over the replicas."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The collective; the operand itself in a frame whose gradients have been reduced."""
        frame = cast("Frame", importer.place)
        if frame.reduced:
            return [inputs[0]]
        tensor, group = tensor_of(inputs[0], frame), frame.program.ir.grouping()
        return [make(_k.ReplicatedAllReduce, tensor, name="reduced", op=self.kind, group=group)]


def all_reduce(x: Any, kind: str, name: str | None = None) -> tf.Tensor:
    """A tensor reduced over the replicas: ``kind`` is ``add`` or ``mean``. Outside of a program it is the tensor."""
    tensor = tf.convert_to_tensor(x)
    if not isinstance(ops.get_default_graph(), FuncGraph) or tf.executing_eagerly():
        return tf.identity(tensor, name=name)

    def gradient(op: tf.Operation, grad: tf.Tensor) -> tf.Tensor:
        return all_reduce(grad, kind)

    meaning, spec = AllReduce(kind), tf.TensorSpec(tensor.shape, tensor.dtype)
    return marker(name or f"cross_replica_{kind}", meaning, [tensor], [spec], effect=False, gradient=gradient)[0]


class _MeanAtEnd:
    """Variables, its inputs, that become their means over the replicas at the end of the program."""

    def __init__(self, count: int) -> None:
        self._count = count

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """Have it written when everything else is."""
        frame = cast("Frame", importer.place)
        resources = [value for value in inputs if isinstance(value, Resource)]
        frame.program.deferred.append(lambda: self._write(frame, resources))
        return []

    def changed(self) -> list[int]:
        """Inputs that are variables which it changes: all."""
        return list(range(self._count))

    def _write(self, frame: Frame, resources: Sequence[Resource]) -> None:
        from .tracing import use_frame

        with use_frame(frame):
            for resource in resources:
                tensor, group = frame.read(resource), frame.program.ir.grouping()
                with CONTEXT.on_ipu(frame.program.variable(resource).ipu or 0):
                    mean = make(_k.ReplicatedAllReduce, tensor, name="reduced", op="mean", group=group)
                frame.assign(resource, mean)


def mean_at_end(variables: Sequence[Any]) -> None:
    """Give ``variables`` their means over the replicas after everything else that the program does."""
    if variables:
        marker("mean_at_end", _MeanAtEnd(len(variables)), [variable.handle for variable in variables], [])


def reduces(tensor: tf.Tensor, seen: dict[int, bool] | None = None) -> bool:
    """Whether a tensor is computed from one that has been reduced over the replicas, within its graph."""
    seen = {} if seen is None else seen
    waiting = [tensor.op]
    while waiting:
        op = waiting.pop()
        if id(op) in seen:
            continue
        seen[id(op)] = True
        if is_marker(op) and isinstance(meaning_of(op), AllReduce):
            return True
        waiting += [t.op for t in op.inputs]
    return False


def reductions_of(tensor: tf.Tensor) -> list[str]:
    """Kinds of the reductions that read a tensor at once, or after it was only cast or renamed."""
    found = []
    for op in tensor.consumers():
        meaning = meaning_of(op) if is_marker(op) else None
        if isinstance(meaning, AllReduce):
            found.append(meaning.kind)
        elif op.type in ("Identity", "Cast"):
            found += reductions_of(op.outputs[0])
    return found
