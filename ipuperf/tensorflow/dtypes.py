"""Element types: the types of the IR under TensorFlow's names, and conversion of host data to what an IPU can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf.ir import (
    ALL_DTYPES,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)

NARROWED = {FLOAT64: FLOAT32, INT64: INT32, UINT64: UINT32}
"""64-bit types of the host and what they become on the device (TensorFlow proper refuses them at compile time)."""


def as_dtype(value: Any) -> DType:
    """The :class:`DType` meant by a DType, a name, or a NumPy type; 64-bit types are narrowed to 32 bits.

    Raises:
        TypeError: no such type; the message lists the allowed ones.
    """
    found = value if isinstance(value, DType) else None
    if found is None:
        try:
            found = ALL_DTYPES.get(np.dtype(value).name)
        except TypeError:
            found = None
    if found is None:
        raise TypeError(f"{value!r} is not an element type of the IPU; allowed: {', '.join(ALL_DTYPES)}")
    return NARROWED.get(found, found)


def to_host(value: Any, dtype: Any = None) -> np.ndarray:
    """``value`` as an array of a type that the IPU has (float64 becomes float32, int64 int32).

    Raises:
        TypeError: strings, objects and other data without an IPU type.
    """
    array = np.asarray(value)
    wanted = as_dtype(dtype if dtype is not None else array.dtype)
    return array if array.dtype == wanted.numpy else array.astype(wanted.numpy)


class HostArray(np.ndarray):
    """A NumPy array that also has TensorFlow's ``numpy()``: what queues, sessions and ``tf.constant`` give the host."""

    def numpy(self) -> np.ndarray:
        """The values as a plain array."""
        return np.asarray(self)


def host_array(value: Any, dtype: Any = None) -> HostArray:
    """:func:`to_host` as a :class:`HostArray`."""
    return to_host(value, dtype).view(HostArray)


__all__ = [
    "BOOL",
    "FLOAT16",
    "FLOAT32",
    "INT8",
    "INT16",
    "INT32",
    "NARROWED",
    "UINT8",
    "UINT16",
    "UINT32",
    "DType",
    "HostArray",
    "as_dtype",
    "host_array",
    "to_host",
]
