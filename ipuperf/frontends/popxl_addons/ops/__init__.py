"""Ops of addons."""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.frontends.popxl.package import offer as _offer

from .cross_entropy import cross_entropy, cross_entropy_with_grad
from .fp8_amax_scale import fp8_amax_scale
from .streams import host_load, host_store

__all__, __getattr__ = _offer(__name__)
