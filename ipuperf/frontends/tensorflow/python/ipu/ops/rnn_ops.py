"""Recurrent layers of PopNN (:mod:`ipuperf.tensorflow.functions.popnn_layers`, imported with Keras on first use)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ....functions.popnn_layers import PopnnAUGRU, PopnnDynamicGRU, PopnnDynamicLSTM, PopnnGRU, PopnnLSTM

__all__ = ["PopnnAUGRU", "PopnnDynamicGRU", "PopnnDynamicLSTM", "PopnnGRU", "PopnnLSTM"]


def __getattr__(name: str) -> Any:
    """A layer."""
    if name in __all__:
        return getattr(import_module("ipuperf.frontends.tensorflow.functions.popnn_layers"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
