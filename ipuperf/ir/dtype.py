"""Data types of tensors: a closed set, one object per type.

Names follow NumPy (``float16``, ``int32``); sizes are bytes per element as the IPU stores them. The IPU computes in 8,
16 and 32 bit types; front ends narrow 64-bit host data before it reaches the IR. NumPy cannot compute with 8-bit
floats: an array of them is structured and holds one ``uint8`` code per element (:mod:`ipuperf.ir.float8`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ipuperf.base.near_names import instead_of


@dataclass(frozen=True)
class DType:
    """One element type.

    Attributes:
        name: canonical name, also what ``print_schedule`` shows.
        numpy_name: name of the NumPy type that holds its values.
        size: bytes per element on the device.
        category: ``float``, ``float8``, ``int``, ``uint`` or ``bool``.
    """

    name: str
    numpy_name: str
    size: int
    category: str

    @cached_property
    def numpy(self) -> np.dtype:
        """The NumPy dtype that holds values of this type."""
        return np.dtype([(self.name, self.numpy_name)] if self.category == "float8" else self.numpy_name)

    @property
    def is_floating_point(self) -> bool:
        """True for float16, float32 and float64."""
        return self.category == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers (not bool)."""
        return self.category in ("int", "uint")

    def __repr__(self) -> str:
        return self.name


BOOL = DType("bool", "bool", 1, "bool")
INT8 = DType("int8", "int8", 1, "int")
INT16 = DType("int16", "int16", 2, "int")
INT32 = DType("int32", "int32", 4, "int")
INT64 = DType("int64", "int64", 8, "int")
UINT8 = DType("uint8", "uint8", 1, "uint")
UINT16 = DType("uint16", "uint16", 2, "uint")
UINT32 = DType("uint32", "uint32", 4, "uint")
UINT64 = DType("uint64", "uint64", 8, "uint")
FLOAT16 = DType("float16", "float16", 2, "float")
FLOAT32 = DType("float32", "float32", 4, "float")
FLOAT64 = DType("float64", "float64", 8, "float")
FLOAT8_143 = DType("float8_143", "uint8", 1, "float8")
FLOAT8_152 = DType("float8_152", "uint8", 1, "float8")

_PLAIN = (BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT16, FLOAT32, FLOAT64)
ALL_DTYPES: dict[str, DType] = {dtype.name: dtype for dtype in (*_PLAIN, FLOAT8_143, FLOAT8_152)}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL_DTYPES.values()}


def dtype_of(array: np.ndarray | np.generic) -> DType:
    """The :class:`DType` of a NumPy array.

    Raises:
        KeyError: the IPU has no such type; the message names the NumPy type.
    """
    dtype = _BY_NUMPY.get(array.dtype)
    if dtype is not None:
        return dtype
    # Structured arrays of 8-bit floats carry their type's name as the field's name.
    name = (array.dtype.names or (array.dtype.name,))[0]
    if name not in ALL_DTYPES:
        raise KeyError(f"NumPy type {name!r} has no IPU counterpart{instead_of(name, ALL_DTYPES)}")
    return ALL_DTYPES[name]


def converted(array: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """``array`` as ``dtype``; fractions are dropped where ``dtype`` is an integer type, as in NumPy.

    Args:
        what: how the error names the array.

    Raises:
        ValueError: an integer ``dtype`` cannot hold the values.
    """
    if array.dtype == dtype:
        return array
    if dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, dtype):
        bounds, low, high = np.iinfo(dtype), array.min().item(), array.max().item()
        if not (bounds.min - 1 < low and high < bounds.max + 1):  # false for NaN, which then raises
            raise ValueError(
                f"{what}: values from {low} to {high} do not fit {dtype.name}, in which the IPU holds them "
                f"({bounds.min} to {bounds.max})"
            )
    # Floats beyond the range of float16 become infinite, as on the device.
    with np.errstate(over="ignore"):
        return array.astype(dtype)
