"""Layers that mark their inputs: checkpoints of recomputation, values that are equal on all replicas.

Upstream: ``ipu_tensorflow_addons: keras/layers/{recomputation,assume_equal_across_replicas}.py``.
"""

from __future__ import annotations

from typing import Any

import tf_keras

from ...configured import Configured


class RecomputationCheckpoint(tf_keras.layers.Layer):
    """Tensors that are kept for the backward pass where a pipeline stage computes the others again."""

    def call(self, inputs: Any) -> Any:
        """``inputs``."""
        from ...facade import pipelines

        return pipelines.recomputation_checkpoint(inputs, name=self.name)


class AssumeEqualAcrossReplicas(Configured, tf_keras.layers.Layer):
    """Values that are the same on all replicas.

    Args:
        inplace: whether the tensors are marked without a copy.
    """

    arguments = "inplace"

    def __init__(self, inplace: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inplace = inplace

    def call(self, inputs: Any) -> Any:
        """``inputs``."""
        from ...facade import replicas

        return replicas.assume_equal_across_replicas(inputs, self.inplace)
