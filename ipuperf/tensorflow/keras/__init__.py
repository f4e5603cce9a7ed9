"""Keras on the simulated IPU: ``tf.keras.ipu`` and ``tensorflow.python.ipu.keras``.

Models of Keras (``tf_keras``, Keras of TensorFlow 2) that are made inside ``IPUStrategy.scope()`` run on the IPU: see
:mod:`.attaching`.
"""

# ruff: noqa: F401  # what is imported is the package's content
from ipuperf.popart.offering import offered as _offered

from . import extensions, layers, losses, optimizers
from .assignments import (
    FunctionalLayerPipelineStageAssignment,
    FunctionalNestedModelPipelineStageAssignment,
    ModelLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
    SequentialNestedModelPipelineStageAssignment,
)
from .attaching import attach, detach
from .optimizers import ALSOptimizer, ALSOptimizerGradientAccumulationWrapper
from .stage_scope import PipelineStage

__all__ = _offered(__name__, "extensions layers losses optimizers")
