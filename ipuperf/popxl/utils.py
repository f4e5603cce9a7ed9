"""Host data to NumPy arrays, with the upstream narrowing of 64-bit types (``docs/reference/popxl.md`` 8).

(The module name is upstream's.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf.ir import float8

from . import dtypes

downcast_np_dtypes: dict[np.dtype, np.dtype] = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("float64"): np.dtype("float32"),
}


def host_array(x: Any, what: str) -> np.ndarray:
    """``x`` (scalar, nested list, NumPy array, torch tensor) as an array in the byte order of this machine.

    Raises:
        ValueError: ragged lists, masked arrays, elements that are no numbers.
    """
    if hasattr(x, "detach") and hasattr(x, "cpu"):
        x = x.detach().cpu().numpy()
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(f"{what}: a masked array; the IPU has no masks, give `.filled(value)` or `.data`")
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{what}: elements of dtype {array.dtype}; real numbers or bools are needed")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def converted(array: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
    """``array`` as ``dtype``; what becomes an integer loses its fraction, as in NumPy.

    Raises:
        ValueError: values that an integer ``dtype`` cannot hold.
    """
    if array.dtype == dtype:
        return array
    if dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, dtype):
        bounds, low, high = np.iinfo(dtype), array.min().item(), array.max().item()
        if not (bounds.min - 1 < low and high < bounds.max + 1):  # NaN is not below anything
            raise ValueError(
                f"{what}: values from {low} to {high} do not fit {dtype.name}, in which the IPU holds them "
                f"({bounds.min} to {bounds.max})"
            )
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def to_numpy(
    x: Any, dtype: dtypes.dtype | None = None, downcast: bool = True, copy: bool = True, *, what: str = "data"
) -> np.ndarray:
    """``x`` (scalar, nested list, NumPy array, torch tensor) as a contiguous array.

    Args:
        dtype: wanted type; ``None`` infers it and, with ``downcast``, narrows 64-bit types to 32 bits.
        copy: always return new memory.
        what: name of the data for the error message.

    Raises:
        ValueError: empty data, ragged lists, masked arrays, a type that the IPU does not have, or integers that do not
            fit the type.
    """
    if isinstance(x, np.ndarray) and x.dtype.names and dtype is not None and x.dtype == dtype.as_numpy():
        return np.array(x, order="C", copy=copy or None)
    array = host_array(x, what)
    if array.size == 0:
        raise ValueError(f"{what}: empty data of shape {array.shape} cannot live on the IPU; give at least one element")
    if dtype in (dtypes.float8_143, dtypes.float8_152):
        return float8.encoded(array, dtype._ir)
    narrow = downcast_np_dtypes.get(array.dtype, array.dtype) if downcast else array.dtype
    found = converted(array, narrow if dtype is None else dtype.as_numpy(), what)
    dtypes.dtype.as_dtype(found.dtype)
    if copy and found is array:
        found = found.copy()
    return np.ascontiguousarray(found).reshape(found.shape)


def table_to_string(rows: list[list[Any]], delimiter: str = "  ") -> str:
    """Rows of cells as left-aligned columns."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(delimiter.join(str(c).ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)
