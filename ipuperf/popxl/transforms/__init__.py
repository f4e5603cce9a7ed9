"""Graph transforms (upstream ``popxl.transforms``)."""

from __future__ import annotations

from typing import Any

from ..errors import unsupported
from ..package import functions_win
from .autodiff import ExpectedConnection, ExpectedConnectionType, GradGraphInfo, autodiff
from .exchange import decompose_sum, io_tile_exchange, merge_exchange

__all__ = [
    "ExpectedConnection",
    "ExpectedConnectionType",
    "GradGraphInfo",
    "autodiff",
    "decompose_sum",
    "io_tile_exchange",
    "merge_exchange",
]

functions_win(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl.transforms.{name}", __all__)
