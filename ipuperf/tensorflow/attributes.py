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

from ipuperf.ir.phase import Phase

SHARD = "_ipu_shard"


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
    """The shard that an op was made on; of a gradient op that of its forward op, if it has one."""
    chain = [op]
    while chain[-1]._original_op is not None:
        chain.append(chain[-1]._original_op)
    found = (_own(one, SHARD) for one in reversed(chain))
    return next((int(shard) for shard in found if shard is not None), None)


def phase_of(op: tf.Operation) -> Phase | None:
    """The phase that an op was made for; None: that of its surroundings."""
    if op.type.startswith("ResourceApply"):
        return "update"
    return "bwd" if op._original_op is not None else None
