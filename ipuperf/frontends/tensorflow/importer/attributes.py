"""What is written on TensorFlow's ops for the import: their shard, their phase, and whose line they stand on.

A gradient op that TensorFlow makes knows its forward op (``_original_op``), or stands in a scope named after it
(:mod:`.graph.origins`): it is on the same shard, of phase ``bwd``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import ops

from ipuperf.ir.phase import Phase

from .origins import LINE, is_gradient, own_attribute

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


def shard_of(op: tf.Operation) -> int | None:
    """The shard that an op was made on; of a gradient op that of its forward op, if it has one."""
    chain = [op]
    while chain[-1]._original_op is not None:
        chain.append(chain[-1]._original_op)
    found = (own_attribute(one, SHARD) for one in reversed(chain))
    return next((int(shard) for shard in found if shard is not None), None)


def phase_of(op: tf.Operation) -> Phase | None:
    """The phase that an op was made for; None: that of its surroundings."""
    if op.type.startswith("ResourceApply"):
        return "update"
    written_on: Phase | None = own_attribute(op, PHASE)
    return written_on or ("bwd" if is_gradient(op) else None)


def on_line(caller: str, line: str) -> AbstractContextManager[None]:
    """Ops of the default graph that are made in the block on the user's line ``caller`` stand on ``line``."""
    return written(LINE, f"{caller}\n{line}")
