"""Ops of addons."""

from ipuperf.frontends.popxl.package import refuse as _refuse

from .cross_entropy import cross_entropy, cross_entropy_with_grad
from .fp8_amax_scale import fp8_amax_scale
from .streams import host_load, host_store

__all__ = ["cross_entropy", "cross_entropy_with_grad", "fp8_amax_scale", "host_load", "host_store"]
__getattr__ = _refuse(__name__, __all__)
