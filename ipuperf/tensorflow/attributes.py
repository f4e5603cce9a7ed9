"""What is written on TensorFlow's ops for the import: their shard and their phase.

A gradient op that TensorFlow makes knows its forward op (``_original_op``): it is on the same shard, of phase ``bwd``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import ops

SHARD = "_ipu_shard"
PHASE = "_ipu_phase"


@contextmanager
def written(name: str, value: int | str) -> Iterator[None]:
    """Ops of the default graph that are made in the block have this attribute."""
    if isinstance(value, int):
        attribute = attr_value_pb2.AttrValue(i=value)
    else:
        attribute = attr_value_pb2.AttrValue(s=value.encode())
    graph = ops.get_default_graph()
    graph.ipuperf_written = True
    with graph._attr_scope({name: attribute}):
        yield


def _own(op: tf.Operation, name: str) -> Any:
    if not getattr(op.graph, "ipuperf_written", False):
        return None
    try:
        found = op.get_attr(name)
    except ValueError:
        return None
    return found.decode() if isinstance(found, bytes) else found


def shard_of(op: tf.Operation) -> int | None:
    """The shard that an op, or the one that it is a gradient of, was made on."""
    while op is not None:
        found = _own(op, SHARD)
        if found is not None:
            return int(found)
        op = op._original_op
    return None


def phase_of(op: tf.Operation) -> str | None:
    """The phase that an op was made for; None: that of its surroundings."""
    if op.type.startswith("ResourceApply"):
        return "update"
    return "bwd" if op._original_op is not None else _own(op, PHASE)
