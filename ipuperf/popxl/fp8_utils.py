"""8-bit floats on the host (popart: python/popxl/python_files/fp8_utils.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf.ir import float8

from . import dtypes
from .utils import host_array


def _format(dtype: dtypes.dtype) -> dtypes.dtype:
    if dtype not in (dtypes.float8_143, dtypes.float8_152):
        raise TypeError(f"dtype is {dtype!r}; allowed: popxl.float8_143, popxl.float8_152")
    return dtype


def host_pow2scale_cast_to_fp8(
    src: Any, dtype: dtypes.dtype = dtypes.float8_143, log2_scale: int = 0, nan_on_overflow: bool = True
) -> np.ndarray:
    """``src * 2**log2_scale`` as 8-bit floats; what is too large gives NaN, or the largest value.

    Raises:
        TypeError: ``dtype`` is no 8-bit float.
    """
    return float8.encoded(host_array(src, "src"), _format(dtype)._ir, log2_scale, nan_on_overflow)


def host_pow2scale_cast_from_fp8(
    src: np.ndarray, dtype: dtypes.dtype = dtypes.float32, log2_scale: int = 0
) -> np.ndarray:
    """``src * 2**log2_scale`` as ``dtype``; ``src`` is an array of 8-bit floats.

    Raises:
        TypeError: ``src`` is no array of 8-bit floats.
    """
    source = _format(dtypes.dtype.as_dtype(src.dtype))
    return np.ldexp(float8.decoded(src, source._ir), log2_scale).astype(dtype.as_numpy())
