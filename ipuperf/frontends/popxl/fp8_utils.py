"""8-bit floats on the host (popart: python/popxl/python_files/fp8_utils.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipuperf.ir import float8
from ipuperf.ops.products.fp8_scale import least_error_scale

from . import dtypes
from .utils import checked_scale, host_array


def _format(dtype: dtypes.dtype) -> dtypes.dtype:
    if dtype not in (dtypes.float8_143, dtypes.float8_152):
        raise RuntimeError(f"dtype {dtype!r} is not supported; allowed: popxl.float8_143, popxl.float8_152")
    return dtype


def host_pow2scale_cast_to_fp8(
    src: Any, dtype: dtypes.dtype = dtypes.float8_143, log2_scale: int = 0, nan_on_overflow: bool = True
) -> np.ndarray:
    """``src * 2**log2_scale`` as 8-bit floats; what is too large gives NaN, or the largest value.

    Raises:
        RuntimeError: ``dtype`` is no 8-bit float, or ``src`` none of float16, float32, float64. ValueError:
            ``log2_scale`` outside of -32 to 31.
    """
    scale, data = checked_scale(log2_scale, "host_pow2scale_cast_to_fp8"), host_array(src, "src")
    if data.dtype.kind != "f":
        raise RuntimeError(f"src is {data.dtype}; allowed: float16, float32, float64")
    return float8.encoded(data, _format(dtype)._ir, scale, nan_on_overflow)


def host_pow2scale_cast_from_fp8(
    src: np.ndarray, dtype: dtypes.dtype = dtypes.float32, log2_scale: int = 0
) -> np.ndarray:
    """``src * 2**log2_scale`` as ``dtype``; ``src`` is an array of 8-bit floats.

    Raises:
        RuntimeError: ``src`` is no array of 8-bit floats, or ``dtype`` is none of float16, float32, float64.
        ValueError: ``log2_scale`` outside of -32 to 31.
    """
    if not isinstance(src, np.ndarray):
        raise RuntimeError(f"src {src!r} is no array; allowed: arrays of popxl.float8_143 or popxl.float8_152")
    source = _format(dtypes.dtype.as_dtype(src.dtype))
    if dtype not in (dtypes.float16, dtypes.float32, dtypes.float64):
        raise RuntimeError(f"dtype {dtype!r} is not supported; allowed: popxl.float16, popxl.float32, popxl.float64")
    scale = checked_scale(log2_scale, "host_pow2scale_cast_from_fp8")
    with np.errstate(over="ignore"):
        return np.ldexp(float8.decoded(src, source._ir).astype(np.float64), scale).astype(dtype.as_numpy())


def host_fp8_mse_scale(src: np.ndarray, dtype: dtypes.dtype = dtypes.float8_143) -> tuple[float, int]:
    """The ``log2_scale`` with which ``src`` loses least when it is cast: the mean square error, and the scale.

    All scales from -31 to 31 are tried with the cast itself, what is too large saturates; among equal ones the one in
    the middle is taken. (Upstream estimates the errors from a histogram of exponents; its scale may differ.)

    Raises:
        RuntimeError: ``dtype`` is no 8-bit float, or ``src`` is neither float16 nor float32.
    """
    kind, data = _format(dtype)._ir, host_array(src, "src")
    if data.dtype not in (np.float16, np.float32):
        raise RuntimeError(f"src is {data.dtype}; allowed: float16, float32")
    return least_error_scale(data, kind)


def host_fp8_mse_scale_pb(src: np.ndarray, dtype: dtypes.dtype = dtypes.float8_143) -> int:
    """The scale of :func:`host_fp8_mse_scale` (upstream: the same from C++)."""
    return host_fp8_mse_scale(src, dtype)[1]
