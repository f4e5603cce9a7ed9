"""Host data to NumPy arrays, with the upstream narrowing of 64-bit types (``docs/reference/popxl.md`` 8).

(The module name is upstream's.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf.ir import converted, float8
from ipuperf.runtime.settings import current_settings

from . import dtypes
from .arguments import whole

downcast_np_dtypes: dict[np.dtype, np.dtype] = {
    np.dtype("int64"): np.dtype("int32"),
    np.dtype("uint64"): np.dtype("uint32"),
    np.dtype("float64"): np.dtype("float32"),
}


_EIGHT = (dtypes.np_dtype_float8_143, dtypes.np_dtype_float8_152)


def host_array(x: Any, subject: str) -> np.ndarray:
    """``x`` (scalar, nested list, NumPy array, torch tensor) as an array in the byte order of this machine.

    Raises:
        ValueError: ragged lists, masked arrays, elements that are no numbers.
    """
    if hasattr(x, "detach") and hasattr(x, "cpu"):
        x = x.detach().cpu().numpy()
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(f"{subject}: a masked array; the IPU has no masks, give `.filled(value)` or `.data`")
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(f"{subject}: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{subject}: elements of dtype {array.dtype}; real numbers or bools are needed")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def to_numpy(
    x: Any,
    dtype: dtypes.dtype | None = None,
    downcast: bool = True,
    copy: bool = True,
    log2_scale: int | None = None,
    nan_on_overflow: bool | None = None,
    *,
    subject: str = "data",
) -> np.ndarray:
    """``x`` (scalar, nested list, NumPy array, torch tensor) as a contiguous array.

    Args:
        dtype: wanted type, or its name, a Python or NumPy type; ``None`` infers it and, with
            ``downcast``, narrows 64-bit types to 32 bits.
        copy: always return new memory.
        log2_scale: for 8-bit floats: the data is multiplied by ``2**log2_scale`` first (default 0).
        nan_on_overflow: for 8-bit floats: what is too large becomes NaN (default), or the largest value.
        what: name of the data for the error message.

    Raises:
        ValueError: empty data, ragged lists, masked arrays, a type that the IPU does not have, or integers that do not
            fit the type.
        RuntimeError: ``log2_scale`` or ``nan_on_overflow`` for a type that is no 8-bit float.
    """
    dtype = None if dtype is None else dtypes.dtype.as_dtype(dtype)
    eight = dtype in (dtypes.float8_143, dtypes.float8_152)
    if not eight and (log2_scale is not None or nan_on_overflow is not None):
        raise RuntimeError(
            f"{subject}: log2_scale={log2_scale} and nan_on_overflow={nan_on_overflow} are for popxl.float8_143 and "
            f"popxl.float8_152 only; dtype is {dtype!r}"
        )
    if isinstance(x, np.ndarray) and x.dtype in _EIGHT and (dtype is None or x.dtype == dtype.as_numpy()):
        return np.array(x, order="C") if copy else np.asarray(x, order="C")
    array = host_array(x, subject)
    if array.size == 0:
        raise ValueError(
            f"{subject}: empty data of shape {array.shape} cannot live on the IPU; give at least one element"
        )
    if dtype is not None and eight:
        return float8.encoded(array, dtype._ir, checked_scale(log2_scale or 0, subject), nan_on_overflow is not False)
    narrow = downcast_np_dtypes.get(array.dtype, array.dtype) if downcast else array.dtype
    result = converted(array, narrow if dtype is None else dtype.as_numpy(), subject)
    dtypes.dtype.as_dtype(result.dtype)
    if copy and result is array:
        result = result.copy()
    return np.ascontiguousarray(result).reshape(result.shape)


def host_values(x: Any, *arguments: Any, subject: str = "data") -> np.ndarray:
    """A new array of a variable's first values; arguments and errors are those of :func:`to_numpy`.

    Where no numbers are computed, all elements are the first one, in the memory of one: so weights may be larger
    than the memory of the host. Then only that element is checked.
    """
    if current_settings().numbers or getattr(x, "dtype", None) in _EIGHT:
        return to_numpy(x, *arguments, subject=subject)
    array = host_array(x, subject)
    if not array.size:
        return to_numpy(array, *arguments, subject=subject)
    return np.broadcast_to(to_numpy(array[(0,) * array.ndim], *arguments, subject=subject), array.shape)


def checked_scale(log2_scale: int, subject: str) -> int:
    """A power of two by which 8-bit floats are scaled; ValueError outside of -32 to 31."""
    scale = whole(log2_scale, f"{subject}: log2_scale")
    if not -32 <= scale < 32:
        raise ValueError(f"{subject}: log2_scale is {scale}; allowed: -32 to 31")
    return scale


def table_to_string(rows: list[list[Any]], delimiter: str = "  ") -> str:
    """Rows of cells as left-aligned columns."""
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(delimiter.join(str(c).ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)


_CASTS = {
    "host_pow2scale_cast_to_fp8": "host_pow2scale_cast_to_fp8",
    "host_pow2scale_then_cast": "host_pow2scale_cast_to_fp8",
    "host_pow2scale_cast_from_fp8": "host_pow2scale_cast_from_fp8",
    "host_cast_then_pow2scale": "host_pow2scale_cast_from_fp8",
}


def __getattr__(name: str) -> Any:
    if name in _CASTS:  # where, and how, older versions have them
        from . import fp8_utils

        return getattr(fp8_utils, _CASTS[name])
    raise AttributeError(f"module 'popxl.utils' has no attribute {name!r}")
