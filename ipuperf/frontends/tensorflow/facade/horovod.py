"""Horovod for TensorFlow, of one process.

Upstream: ``tensorflow: python/ipu/horovod``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends import popdist

from ..effects import checked_kinds
from .distributed import allgather as _gathered
from .distributed import broadcast as _from_root

Average, Sum, Adasum = "Average", "Sum", "Adasum"  # for op=


def init() -> None:
    """Nothing has to be started for one process; RuntimeError in all instances but the first."""
    popdist.init()


def shutdown() -> None:
    """Nothing: no process was started."""


def size() -> int:
    """Number of processes: 1."""
    return 1


def rank() -> int:
    """Number of this process: 0."""
    return 0


local_size, local_rank = size, rank


def is_homogeneous() -> bool:
    """Whether all hosts have as many processes."""
    return True


@checked_kinds()
def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """The tensor of process ``root_rank``: this one's.

    Raises:
        ValueError: there is no such process.
    """
    return _from_root(tensor, root_rank, name)


@checked_kinds()
def allgather(tensor: Any, name: str | None = None) -> tf.Tensor:
    """The tensors of all processes joined along axis 0: this one's.

    Raises:
        ValueError: ``tensor`` has no axis.
    """
    return _gathered(tensor, name)


@checked_kinds()
def allreduce(
    tensor: Any, op: str | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0
) -> tf.Tensor:
    """The sum or mean over the processes: the tensor times both factors.

    Raises:
        NotImplementedError: ``op`` is ``Adasum``, as upstream.
        ValueError: ``op`` is something else than ``Sum`` and ``Average``.
    """
    if op == Adasum:
        raise NotImplementedError("The Adasum reduction is not implemented.")
    if op not in (None, Sum, Average):
        raise ValueError(f"allreduce: op is {op!r}; expected {Sum} or {Average}")
    return tf.convert_to_tensor(tensor) * (prescale_factor * postscale_factor)
