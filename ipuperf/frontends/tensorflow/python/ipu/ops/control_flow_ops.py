"""Order of operations."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ....effects import EFFECTS


@checked_kinds()
def barrier(tensors: Any, insert_barrier_for_gradient: bool = False, name: str | None = None) -> Any:
    """``tensors``, of which none is used before all are there."""
    EFFECTS.given("ipu.control_flow_ops.barrier(insert_barrier_for_gradient)", insert_barrier_for_gradient)
    flat = [tf.convert_to_tensor(t) for t in tf.nest.flatten(tensors)]
    with tf.control_dependencies(flat):
        found = [tf.identity(t, name=name) for t in flat]
    return tf.nest.pack_sequence_as(tensors, found)


__all__ = ["barrier"]
