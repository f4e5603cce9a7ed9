"""Exchanges between replicas."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....functions import collectives


@checked_kinds()
def all_to_all(
    x: Any, split_dimension: int, concat_dimension: int, replication_factor: int, name: str | None = None
) -> tf.Tensor:
    """Each replica gets, of every replica in order, the part of ``x`` that has its own number.

    Args:
        x: is split into equal parts along axis ``split_dimension``; parts are joined along ``concat_dimension``.
        replication_factor: replicas of a group.

    Raises:
        ValueError: an axis that is not there, or that the replicas do not divide. RuntimeError: outside of a program.
    """
    return collectives.all_to_all(x, split_dimension, concat_dimension, replication_factor, name or "all_to_all")


@checked_kinds()
def all_gather(x: Any, replication_factor: int, name: str | None = None) -> tf.Tensor:
    """The tensors ``x`` of ``replication_factor`` replicas, along a new first axis.

    Raises:
        RuntimeError: outside of a program.
    """
    return collectives.all_gather(x, replication_factor, name or "all_gather")


__all__ = ["all_gather", "all_to_all"]
