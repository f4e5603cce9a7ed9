"""Host data to NumPy arrays, with the upstream narrowing of 64-bit types (``reference/popxl.md`` 2.8).

(The module name is upstream's.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes

downcast_np_dtypes: dict[np.dtype, np.dtype] = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("float64"): np.dtype("float32"),
}


def to_numpy(
    x: Any, dtype: dtypes.dtype | None = None, downcast: bool = True, copy: bool = True, *, what: str = "data"
) -> np.ndarray:
    """``x`` (scalar, nested list, NumPy array, torch tensor) as a contiguous array.

    Args:
        dtype: wanted type; ``None`` infers it and, with ``downcast``, narrows 64-bit types to 32 bits.
        copy: always return new memory.
        what: name of the data for the error message.

    Raises:
        ValueError: empty data, ragged lists, or a type that the IPU does not have.
    """
    if hasattr(x, "detach") and hasattr(x, "cpu"):
        x = x.detach().cpu().numpy()
    array = np.array(x) if copy else np.asarray(x)
    if array.size == 0:
        raise ValueError(f"{what}: empty data of shape {array.shape} cannot live on the IPU; give at least one element")
    if array.dtype.kind not in "biufV":
        raise ValueError(f"{what}: {array.dtype} data ({x!r:.60}) are no numbers; give an array of a popxl dtype")
    if dtype is not None:
        return np.ascontiguousarray(array.astype(dtype.as_numpy(), copy=False)).reshape(array.shape)
    if downcast and array.dtype in downcast_np_dtypes:
        array = array.astype(downcast_np_dtypes[array.dtype])
    dtypes.dtype.as_dtype(array.dtype)
    return np.ascontiguousarray(array).reshape(array.shape)


def table_to_string(rows: list[list[Any]], delimiter: str = "  ") -> str:
    """Rows of cells as left-aligned columns."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(delimiter.join(str(c).ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)
