"""Collectives between the processes of a program, of which there is one here: the tensor itself.

Upstream: ``tensorflow: python/ipu/distributed/host_collective_ops.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..effects import checked_kinds


@checked_kinds()
def allreduce(value: Any, reduce_op: Any, tensor_name: str | None = None) -> tf.Tensor:
    """The sum or mean over the processes.

    Args:
        value: the tensor of this process.
        reduce_op: ``tf.distribute.ReduceOp.SUM`` or ``MEAN``.
        tensor_name: name of the op.

    Raises:
        ValueError: ``reduce_op`` is something else.
    """
    if reduce_op not in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
        raise ValueError(f"allreduce: reduce_op is {reduce_op!r}; expected tf.distribute.ReduceOp.SUM or MEAN")
    return tf.identity(value, name=tensor_name)


@checked_kinds()
def broadcast(value: Any, root_rank: int = 0, tensor_name: str | None = None) -> tf.Tensor:
    """The tensor of process ``root_rank``: this one's.

    Raises:
        ValueError: there is no such process.
    """
    if root_rank != 0:
        raise ValueError(f"broadcast: root_rank is {root_rank}; there is process 0 only")
    return tf.identity(value, name=tensor_name)


@checked_kinds()
def allgather(value: Any, tensor_name: str | None = None) -> tf.Tensor:
    """The tensors of all processes joined along axis 0: this one's.

    Raises:
        ValueError: ``value`` has no axis.
    """
    tensor = tf.convert_to_tensor(value)
    if tensor.shape.rank == 0:
        raise ValueError("allgather joins along axis 0, which a tensor of shape () does not have")
    return tf.identity(tensor, name=tensor_name)
