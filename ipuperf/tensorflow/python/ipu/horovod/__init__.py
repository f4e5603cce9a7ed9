"""Horovod for TensorFlow, of one process."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..distributed import popdist_strategy


def init() -> None:
    """Nothing: there is one process."""


def size() -> int:
    """Number of processes: 1."""
    return 1


def rank() -> int:
    """Number of this process: 0."""
    return 0


local_size, local_rank = size, rank


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """The tensor of process ``root_rank``: this one's.

    Raises:
        ValueError: there is no such process.
    """
    if root_rank != 0:
        raise ValueError(f"broadcast: root_rank is {root_rank}; there is process 0 only")
    return tf.identity(tensor, name=name)


def allreduce(tensor: Any, op: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> tf.Tensor:
    """The sum or mean over the processes: the tensor times both factors."""
    from ....effects import EFFECTS

    EFFECTS.given("ipu.horovod.allreduce(op)", op)
    return tf.convert_to_tensor(tensor) * (prescale_factor * postscale_factor)


__all__ = ["allreduce", "broadcast", "init", "local_rank", "local_size", "popdist_strategy", "rank", "size"]
