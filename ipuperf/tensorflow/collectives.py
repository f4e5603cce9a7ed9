"""Reductions over the replicas of a program, as markers in TensorFlow's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf import ops as _k
from ipuperf.functions import make

from .graph import Importer, Value, marker, tensor_of
from .graph.markers import is_marker, meaning_of
from .tracing import Frame


class AllReduce:
    """The sum or the mean of a tensor over the replicas."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The collective; the operand itself in a frame whose gradients have been reduced."""
        frame = importer.place
        assert isinstance(frame, Frame)
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
        if is_marker(op) and isinstance(meaning_of(op), AllReduce):
            found.append(meaning_of(op).kind)
        elif op.type in ("Identity", "Cast"):
            found += reductions_of(op.outputs[0])
    return found


