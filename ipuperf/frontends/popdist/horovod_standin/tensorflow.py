"""``horovod.tensorflow`` for one process: each collective returns its value in a job of size 1.

A reduction or gather of one process's tensor equals that tensor; Adasum does too. In an instance that ``poprun``
launches beside others, :func:`init` raises the error of :func:`ipuperf.popdist.init`. What wraps optimizers and tapes
is not here. Names and arguments: Horovod 0.28, ``horovod.tensorflow``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from . import job
from .job import *  # noqa: F403 - the names of `job.__all__`
from .job import has_root, known_op, ready


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = None,
) -> tf.Tensor:
    """Return ``tensor`` reduced over one process, times both factors.

    Devices, ``name``, ``compression`` (on the wire) and ``process_set`` make no difference with one process.
    """
    known_op(average, op)
    reduced = tf.identity(tensor)
    factor = prescale_factor * postscale_factor
    # Integer tensors keep their type unless a factor changes them.
    return reduced if factor == 1.0 else reduced * factor


def grouped_allreduce(tensors: Iterable[Any], *arguments: Any, **named: Any) -> list[tf.Tensor]:
    """:func:`allreduce` of each tensor."""
    return [allreduce(tensor, *arguments, **named) for tensor in tensors]


def allgather(tensor: Any, name: str | None = None, process_set: Any = None) -> tf.Tensor:
    """The tensors of all processes joined along axis 0: this one's."""
    ready()
    gathered = tf.identity(tensor)
    if gathered.shape.rank == 0:
        raise ValueError("horovod: allgather joins along axis 0, which a tensor of shape () does not have")
    return gathered


def broadcast(tensor: Any, root_rank: int, name: str | None = None, process_set: Any = None) -> tf.Tensor:
    """The root's tensor. ValueError: the root is no process of the job."""
    has_root(root_rank)
    return tf.identity(tensor)


def broadcast_variables(variables: Iterable[tf.Variable], root_rank: int, process_set: Any = None) -> None:
    """The root's values in the variables of all processes: nothing has to be moved."""
    has_root(root_rank)


__all__ = [
    *job.__all__,
    *("allgather", "allreduce", "broadcast", "broadcast_variables", "grouped_allreduce"),
]
