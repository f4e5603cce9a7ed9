"""Graph transforms (upstream ``popxl.transforms``)."""

from __future__ import annotations

from typing import Any

from ..errors import unsupported
from ..package import functions_win
from .autodiff import ExpectedConnection, ExpectedConnectionType, GradGraphInfo, autodiff

__all__ = ["ExpectedConnection", "ExpectedConnectionType", "GradGraphInfo", "autodiff"]

functions_win(__name__)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    raise unsupported(f"popxl.transforms.{name}", __all__)
