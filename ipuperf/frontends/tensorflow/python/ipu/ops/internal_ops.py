"""What looks into a program, and hints to its compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.frontends.tensorflow.kinds import checked_kinds
from ipuperf.functions import make
from ipuperf.ops import PrintTensor

from ....importer import Importer, Value, marker, tensor_of
from ....refusals import refused


class _Print:
    """A tensor that is printed when the program gets there."""

    def __init__(self, title: str) -> None:
        self._title = title

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """The op."""
        make(PrintTensor, tensor_of(inputs[0], importer.place), name="printed", title=self._title)
        return []


@checked_kinds()
def print_tensor(input: Any, name: str = "") -> tf.Operation:
    """Print a tensor while the program runs."""
    tensor = tf.convert_to_tensor(input)
    if not isinstance(ops.get_default_graph(), FuncGraph) or tf.executing_eagerly():
        return tf.print(name, tensor)
    marker("print_tensor", _Print(name or tensor.op.name), [tensor], [])
    return ops.get_default_graph().get_operations()[-1]


@checked_kinds()
def remap(x: Any, name: str | None = None) -> tf.Tensor:
    """``x``: where it lies is the mapping's to say."""
    return tf.identity(x, name=name)


@checked_kinds()
def remap_deduce(x: Any, name: str | None = None) -> tf.Tensor:
    """``x``: where it lies is the mapping's to say."""
    return tf.identity(x, name=name)


get_current_iteration_counter = refused(
    "internal_ops.get_current_iteration_counter", "carry a counter through the loop (inputs of loops.repeat)"
)

__all__ = ["get_current_iteration_counter", "print_tensor", "remap", "remap_deduce"]
