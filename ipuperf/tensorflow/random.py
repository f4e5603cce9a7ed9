"""``tf.random``: the seed, and random tensors inside programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipuperf import ops as _k
from ipuperf.functions import make
from ipuperf.ir import FLOAT32

from .array import Array
from .dtypes import as_dtype
from .state import state
from .tracing import current_frame


def set_seed(seed: int) -> None:
    """Seed of initialisers and of random ops in programs that run for the first time later."""
    state().seed = seed


def _draw(op_class: type[_k.Op], shape: Sequence[int], dtype: Any, seed: int | None, **attributes: float) -> Array:
    frame = current_frame()
    key = frame.program.random_key() if seed is None else int(seed)
    found = make(
        op_class, frame.seed(), name="random", shape=tuple(shape), dtype=as_dtype(dtype), key=key, **attributes
    )
    return Array(found)


def normal(
    shape: Sequence[int], mean: float = 0.0, stddev: float = 1.0, dtype: Any = FLOAT32, seed: int | None = None
) -> Array:
    """Normally distributed numbers, others in each iteration, micro-batch, replica and run."""
    return _draw(_k.RandomNormal, shape, dtype, seed, mean=mean, std=stddev)


def uniform(
    shape: Sequence[int], minval: float = 0.0, maxval: float = 1.0, dtype: Any = FLOAT32, seed: int | None = None
) -> Array:
    """Uniformly distributed numbers, others in each iteration, micro-batch, replica and run."""
    return _draw(_k.RandomUniform, shape, dtype, seed, low=minval, high=maxval)
