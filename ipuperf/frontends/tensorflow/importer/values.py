"""What a tensor of TensorFlow becomes while a graph is imported.

A value is a NumPy array (known when the program is compiled), a tensor of the IR, a :class:`Resource` (the handle of a
variable) or a :class:`.lists.TensorList`. Arrays keep TensorFlow's type, so that shapes are computed as there; where
one becomes a tensor, 64-bit integers are narrowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ipuperf.ir import BOOL, FLOAT16, FLOAT32, INT8, INT16, INT32, UINT8, UINT16, UINT32, DType, converted

#: Element types on the IPU of TensorFlow's.
DTYPES: Mapping[tf.DType, DType] = {
    tf.float32: FLOAT32,
    tf.float16: FLOAT16,
    tf.int64: INT32,
    tf.int32: INT32,
    tf.int16: INT16,
    tf.int8: INT8,
    tf.uint64: UINT32,
    tf.uint32: UINT32,
    tf.uint16: UINT16,
    tf.uint8: UINT8,
    tf.bool: BOOL,
}

_NARROWED = {"int64": np.int32, "uint64": np.uint32, "float64": np.float32}

#: See the module.
Value = Any


def narrowed(value: np.ndarray, dtype: DType | None = None, what: str = "a constant") -> np.ndarray:
    """Host data in a type that the IPU has: of 64-bit types the 32-bit one, or ``dtype``.

    Args:
        what: the data, for errors.

    Raises:
        ValueError: whole numbers that the type cannot hold.
    """
    target = _NARROWED.get(value.dtype.name, value.dtype) if dtype is None else dtype.numpy
    return converted(value, np.dtype(target), what)


@dataclass(frozen=True)
class Resource:
    """The handle of a variable outside of all imported graphs.

    Attributes:
        key: equal for handles of the same variable.
        handle: TensorFlow's tensor: an eager one, or one of a graph that is not imported.
    """

    key: tuple[Any, ...]
    handle: tf.Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resource) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def resource_of(handle: tf.Tensor) -> Resource:
    """The resource of a handle that is eager or belongs to a graph that is not imported."""
    if hasattr(handle, "graph"):
        return Resource((id(handle.graph), handle.op.name), handle)
    return Resource((handle._id,), handle)


class _Missing:
    """See :data:`MISSING`."""

    def __repr__(self) -> str:
        return "a value that is not there"


#: What a branch of a conditional gives where only the other one has a value.
MISSING = _Missing()
