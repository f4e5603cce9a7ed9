"""The replicas of a program: exchanges, reductions, and which replica this is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.base.near_names import instead_of

from ..effects import EFFECTS, checked_kinds
from ..importer import Importer, MadeBy, Value, collectives, marker
from ..importer.collectives import all_reduce
from ..importer.tracing import Frame


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


#: Kinds of reductions by upstream's names.
KINDS = {
    "COLLECTIVE_OP_ADD": "add",
    "COLLECTIVE_OP_MEAN": "mean",
    "COLLECTIVE_OP_MUL": "mul",
    "COLLECTIVE_OP_MIN": "min",
    "COLLECTIVE_OP_MAX": "max",
    "COLLECTIVE_OP_LOGICAL_AND": "and",
    "COLLECTIVE_OP_LOGICAL_OR": "or",
    "COLLECTIVE_OP_SQUARE_ADD": "square_add",
    "COLLECTIVE_OP_LOCAL": "local",
}


@checked_kinds()
def reduce_scatter(x: Any, replication_factor: int, op: str = "COLLECTIVE_OP_ADD", name: str | None = None) -> Any:
    """A replica's part of the reduced ``x``.

    Args:
        x: a vector, or a list of vectors.
        replication_factor: replicas of a group, which are successive ones.
        op: one of :data:`KINDS`; ``COLLECTIVE_OP_LOCAL``: the replica's own values.

    Returns:
        A vector of ``ceil(elements / replication_factor)`` elements, zeros behind the end; a list for several.

    Raises:
        ValueError: another op, or tensors that are no vectors. RuntimeError: outside of a program.
    """
    if op not in KINDS:
        raise ValueError(f"reduce_scatter: op={op!r}{instead_of(op, KINDS)}")
    vectors = [tf.convert_to_tensor(vector) for vector in tf.nest.flatten(x)]
    if wrong := [vector.shape for vector in vectors if vector.shape.rank != 1]:
        raise ValueError(f"reduce_scatter: a tensor of shape {wrong[0]}; vectors are needed")
    stem = name or "reduce_scatter"
    parts = [collectives.reduce_scatter(vector, replication_factor, KINDS[op], stem) for vector in vectors]
    return parts[0] if len(parts) == 1 else parts


@checked_kinds()
def replication_index(name: str | None = None) -> tf.Tensor:
    """Number of the replica, from 0: an int32 scalar; outside of a program 0."""
    if not isinstance(ops.get_default_graph(), FuncGraph) or tf.executing_eagerly():
        return tf.constant(0, name=name)

    def build(importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """A variable that is another one on each replica."""
        frame = importer.place.unconditional
        assert isinstance(frame, Frame)
        return [importer.place.get(frame.program.replica_number())]

    spec = tf.TensorSpec((), tf.int32)
    return marker(name or "replication_index", MadeBy(build), [], [spec], effect=False)[0]
