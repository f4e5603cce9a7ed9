"""Shards of ops, read and written after the ops were made."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ...importer.attributes import SHARD, shard_of


@checked_kinds()
def has_attr(op: tf.Operation, attribute_name: str) -> bool:
    """Whether an op has an attribute."""
    try:
        op.get_attr(attribute_name)
    except ValueError:
        return False
    return True


@checked_kinds()
def get_shard(op: tf.Operation) -> int | None:
    """The shard of an op, or of the forward op of a gradient op; None: it has none."""
    return shard_of(op)


@checked_kinds()
def set_shard(op: tf.Operation, index: int) -> None:
    """Place an op on a shard.

    Raises:
        ValueError: no shard number.
    """
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"set_shard({index!r}): the number of a shard is needed, 0 or larger")
    op.graph.ipuperf_written = True
    op._set_attr(SHARD, attr_value_pb2.AttrValue(i=index))


@checked_kinds()
def get_shard_from_colocation(op: tf.Operation) -> int | None:
    """The shard of the ops that an op is to be with; None: there is none."""
    for group in op.colocation_groups():
        name = group.decode().removeprefix("loc:@")
        other = op.graph.get_operation_by_name(name) if name != op.name else None
        if other is not None and get_shard(other) is not None:
            return get_shard(other)
    return None


@checked_kinds()
def propagate_sharding(graph: tf.Graph) -> None:
    """Give ops without a shard that of an op that they read; gradient ops have that of their forward ops."""
    for op in graph.get_operations():
        if get_shard(op) is None:
            found = next((get_shard(t.op) for t in op.inputs if get_shard(t.op) is not None), None)
            if found is not None:
                set_shard(op, found)


@checked_kinds()
def dependencies(roots: Iterable[tf.Operation]) -> list[tf.Operation]:
    """All ops that ``roots`` are computed from, ``roots`` among them."""
    found: dict[tf.Operation, None] = {}
    waiting = list(roots)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found[op] = None
            waiting += [t.op for t in op.inputs]
    return list(found)


__all__ = ["dependencies", "get_shard", "get_shard_from_colocation", "has_attr", "propagate_sharding", "set_shard"]
