"""Scales of 8-bit floats by the square error. Semantics of popxl-addons: popxl_addons/ops/fp8_mse_scale."""

from __future__ import annotations

from ipuperf import ops as _k
from ipuperf.frontends import popxl
from ipuperf.frontends.popxl import Tensor
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.custom_ops import custom_op

from .fp8_amax_scale import definition_of

__all__ = ["fp8_mse_scale"]


@checked_arguments
def fp8_mse_scale(src: Tensor, dtype: popxl.dtype = popxl.float8_143) -> Tensor:
    """The ``log2_scale`` (int32) with which ``src`` loses least as ``dtype``, as ``popxl.fp8_utils.host_fp8_mse_scale``
    finds it (upstream estimates it from a histogram)."""
    definition_of(dtype, src)
    scale: Tensor = custom_op(_k.Fp8Scale, src, names=["scaling_bias"], data_type=dtype._ir)
    return scale
