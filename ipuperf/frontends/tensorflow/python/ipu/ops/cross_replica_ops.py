"""Reductions over the replicas of a program."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....effects import EFFECTS
from ....functions.collectives import all_reduce


@checked_kinds()
def cross_replica_sum(x: Any, replica_group_size: int | None = None, name: str | None = None) -> tf.Tensor:
    """The sum of ``x`` over groups of ``replica_group_size`` successive replicas (default: all); outside of a program
    ``x``."""
    return all_reduce(x, "add", name, replica_group_size)


@checked_kinds()
def cross_replica_mean(x: Any, replica_group_size: int | None = None, name: str | None = None) -> tf.Tensor:
    """The mean of ``x`` over groups of ``replica_group_size`` successive replicas (default: all); outside of a program
    ``x``."""
    return all_reduce(x, "mean", name, replica_group_size)


@checked_kinds()
def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """``tensors`` themselves: the compiler here needs no such promise."""
    EFFECTS.given("ipu.cross_replica_ops.assume_equal_across_replicas(inplace)", inplace)
    return tf.nest.map_structure(tf.identity, tensors)


__all__ = ["assume_equal_across_replicas", "cross_replica_mean", "cross_replica_sum"]
