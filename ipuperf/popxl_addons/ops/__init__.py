"""Ops of addons."""

from __future__ import annotations

from typing import Any

from ipuperf.popxl.errors import unsupported
from ipuperf.popxl.package import functions_win

from .cross_entropy import cross_entropy, cross_entropy_with_grad
from .fp8_amax_scale import fp8_amax_scale
from .streams import host_load, host_store

__all__ = ["cross_entropy", "cross_entropy_with_grad", "fp8_amax_scale", "host_load", "host_store"]

functions_win(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl_addons.ops.{name}", __all__)
