"""Which replica this is."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....importer import Importer, Value, marker
from ....importer.tracing import Frame


class _Index:
    """The replica's number."""

    def build(self, importer: Importer, inputs: Sequence[Value]) -> Sequence[Value]:
        """A variable that is another one on each replica."""
        frame = importer.place.unconditional
        assert isinstance(frame, Frame)
        return [importer.place.get(frame.program.replica_number())]


@checked_kinds()
def replication_index(name: str | None = None) -> tf.Tensor:
    """Number of the replica, from 0: an int32 scalar; outside of a program 0."""
    if not isinstance(ops.get_default_graph(), FuncGraph) or tf.executing_eagerly():
        return tf.constant(0, name=name)
    return marker(name or "replication_index", _Index(), [], [tf.TensorSpec((), tf.int32)], effect=False)[0]


__all__ = ["replication_index"]
