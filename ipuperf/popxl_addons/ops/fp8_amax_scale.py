"""How far a tensor can be scaled before it is cast to 8-bit floats.

Source: popxl-addons: popxl_addons/ops/fp8_amax_scale.py.
"""

from __future__ import annotations

from ipuperf import popxl
from ipuperf.popxl import ops

#: The largest 8-bit floats.
LARGEST = {popxl.float8_143: 240.0, popxl.float8_152: 57344.0}
#: Scales that the device has: -31 to 31.
BOUND = 31


def fp8_amax_scale(src: popxl.Tensor, dtype: popxl.dtype = popxl.float8_143) -> popxl.Tensor:
    """The power of two by which the largest magnitude of ``src`` can be multiplied and still fit ``dtype``: int32,
    shape (), from -31 to 31. Worked out in float32.

    Raises:
        RuntimeError: ``src`` is neither float16 nor float32; ValueError: ``dtype`` is no 8-bit float.
    """
    if src.dtype not in (popxl.float16, popxl.float32):
        raise RuntimeError(f"fp8_amax_scale: {src.id!r} is {src.dtype}; allowed: popxl.float16, popxl.float32")
    if dtype not in LARGEST:
        raise ValueError(f"fp8_amax_scale: dtype is {dtype!r}; allowed: popxl.float8_143, popxl.float8_152")
    power = ops.floor(ops.log2(LARGEST[dtype] / ops.cast(ops.max(ops.abs(src)), popxl.float32)))
    return ops.cast(ops.clip(power, -BOUND, BOUND), popxl.int32)


__all__ = ["fp8_amax_scale"]
