"""``tensorflow.compat.v1``: every name of :mod:`ipuperf.tensorflow`, which follows TensorFlow 1's."""

from typing import Any

from ipuperf import tensorflow as _tensorflow


def __getattr__(name: str) -> Any:
    return getattr(_tensorflow, name)


def __dir__() -> list[str]:
    return dir(_tensorflow)
