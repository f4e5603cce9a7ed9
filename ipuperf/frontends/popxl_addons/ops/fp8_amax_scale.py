"""Scales of 8-bit floats by the largest element. Semantics of popxl-addons: popxl_addons/ops/fp8_amax_scale.py."""

from __future__ import annotations

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import Tensor, ops
from ipuperf.frontends.popxl.arguments import checked_arguments

from .fp8_utils import FpDef, float8_143_def, float8_152_def

__all__ = ["fp8_amax_scale"]


def definition_of(dtype: popxl.dtype, src: Tensor) -> FpDef:
    """The format ``dtype``.

    Raises:
        RuntimeError: ``src`` is neither float16 nor float32; ValueError: ``dtype`` is no 8-bit float.
    """
    if src.dtype not in (popxl.float16, popxl.float32):
        raise RuntimeError(f"src {src.id!r}: dtype {src.dtype} is not supported; allowed: float16, float32")
    formats = {popxl.float8_143: float8_143_def, popxl.float8_152: float8_152_def}
    if dtype not in formats:
        raise ValueError(f"dtype {dtype} is not supported; allowed: popxl.float8_143, popxl.float8_152")
    return formats[dtype]


@checked_arguments
def fp8_amax_scale(src: Tensor, dtype: popxl.dtype = popxl.float8_143) -> Tensor:
    """The largest ``log2_scale`` (int32, -31 to 31) with which no element of ``src`` is too large for ``dtype``; worked
    out in float32."""
    most = definition_of(dtype, src).max_value
    scale = ops.floor(ops.log2(most / ops.cast(ops.max(ops.abs(src)), popxl.float32)))
    return ops.cast(ops.clip(scale, -31, 31), popxl.int32)
