"""Values of the two 8-bit floating-point types.

Both have a sign bit, then exponent and fraction. ``float8_143`` has 4 and 3 bits with bias 8 (largest value 240),
``float8_152`` has 5 and 2 bits with bias 16 (largest value 57344). Exponent 0 is subnormal. There is no infinity and no
negative zero: its code 0x80 is the one NaN (popart: tests/unittests/python/popxl/test_fp8_utils.py).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from .dtype import FLOAT8_143, DType

NAN = 0x80


@cache
def values(dtype: DType) -> np.ndarray:
    """The value (float32) of each of the 256 codes."""
    bits, bias = (3, 8) if dtype == FLOAT8_143 else (2, 16)
    code = np.arange(128)
    exponent, fraction = code >> bits, (code & ((1 << bits) - 1)) / (1 << bits)
    # Exponent 0 is subnormal: no hidden one, and the exponent of the smallest normal number.
    positive = np.ldexp(np.where(exponent == 0, fraction, 1 + fraction), np.maximum(exponent, 1) - bias)
    table = np.concatenate([positive, -positive]).astype(np.float32)
    table[NAN] = np.nan
    return table


def decoded(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The values (float32) of an array of codes."""
    return values(dtype)[array.view(np.uint8)].reshape(array.shape)


def encoded(
    array: np.ndarray, dtype: DType, log2_scale: int | np.ndarray = 0, nan_on_overflow: bool = False
) -> np.ndarray:
    """``array * 2**log2_scale`` rounded to nearest even.

    Args:
        nan_on_overflow: finite values that are too large give NaN instead of the largest value. NaN and infinity
            always give NaN.
    """
    table = values(dtype)[:128].astype(np.float64)
    scaled = np.ldexp(np.asarray(array, np.float64), log2_scale)
    size = np.abs(scaled)
    # Clipped, so that both neighbours are entries of the table.
    above = np.clip(np.searchsorted(table, size), 1, 127)
    # Both neighbours in the table are compared; where they are equally near, the even code is taken.
    low, high = size - table[above - 1], table[above] - size
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    # A negative number that rounds to 0 keeps code 0, as 128 is NaN.
    code = np.where((scaled < 0) & (code > 0), code + 128, code)
    # Sizes from half a step above the largest value would round to a code that does not exist.
    too_large = size >= table[127] + (table[127] - table[126]) / 2
    code = np.where(~np.isfinite(scaled) | (too_large & nan_on_overflow), NAN, code)
    return code.astype(np.uint8).view(dtype.numpy).reshape(size.shape)
