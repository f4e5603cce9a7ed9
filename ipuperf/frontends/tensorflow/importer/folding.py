"""Ops whose operands are known when the program is compiled: TensorFlow computes them on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute

#: Attributes that say where or how an op runs, not what it computes.
_IGNORED = ("_", "parallel_iterations")


def _attribute(value: Any) -> Any:
    if isinstance(value, tf.DType):
        return value.as_datatype_enum
    if isinstance(value, (list, tuple)):
        return [_attribute(v) for v in value]
    if isinstance(value, tf.TensorShape):
        return value.as_list() if value.rank is not None else None
    if type(value).__name__ == "TensorShapeProto":
        return _attribute(tf.TensorShape(value))
    return value


def fold(op: tf.Operation, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of ``op`` for these operands."""
    attributes: list[Any] = []
    for name in op.node_def.attr:
        if not name.startswith(_IGNORED):
            attributes += [name, _attribute(op.get_attr(name))]
    with context.eager_mode(), tf.device("/CPU:0"):
        eager = [tf.convert_to_tensor(a, t.dtype) for a, t in zip(operands, op.inputs, strict=True)]
        found = execute.execute(
            op.type.encode(), len(op.outputs), inputs=eager, attrs=tuple(attributes), ctx=context.context()
        )
        return [np.asarray(t.numpy()) for t in found]
